#include "hex/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "hex/gtp_text.h"
#include "hex/opening.h"
#include "hex/web/web_text.h"

namespace cariama::hex {
namespace {

Board position() {
  Board board(5, 4);
  board.play(*board.parse("b2"));
  board.play(*board.parse("c3"));
  return board;
}

SearchReport report() {
  SearchReport result{Color::kBlack, 1500, 2.25, {}};
  const Board board = position();
  MoveReport best{*board.parse("d2"), 1000, 0.75, 0.1, std::nullopt, {}};
  best.line = {*board.parse("d2"), *board.parse("a1")};
  result.moves = {best,
                  {*board.parse("a1"), 500, 0.25, 0, std::nullopt, {}},
                  {*board.parse("e4"), 0, 0.0, 0, false, {}},
                  {kSwapPieces, 7, 0.5, 0, std::nullopt, {}}};
  return result;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(BoardText, ShowsStonesInShiftedRows) {
  EXPECT_EQ(board_text(position()),
            "   a b c d e\n"
            " 1 . . . . . 1\n"
            "  2 . B . . . 2\n"
            "   3 . . W . . 3\n"
            "    4 . . . . . 4\n"
            "Black: top-bottom, White: left-right, black to move");
  EXPECT_EQ(board_text(Board(25, 25)).find("\n\n"), std::string::npos);
}

TEST(HeatMap, ShowsVisitsAndTheBestMoves) {
  const std::string text = heat_map(position(), report(), {.colors = false});
  EXPECT_EQ(text,
            "    a   b   c   d   e\n"
            " 1   50  .   .   .   .  1\n"
            "   2   .   B   .   **  .  2\n"
            "     3   .   .   W   .   .  3\n"
            "       4   .   .   .   .    0 4\n"
            "Black: top-bottom, White: left-right, black to move; 1500 iterations in 2.2 s\n"
            "d2    75.0%       1000 visits  d2 a1\n"
            "a1    25.0%        500 visits \n"
            "e4     loss          0 visits \n"
            "swap-pieces  50.0%          7 visits \n");
}

TEST(HeatMap, ColoursEveryStoneAndSearchedCellAndResetsEachTime) {
  const std::string text = heat_map(position(), report());
  EXPECT_EQ(count(text, "\x1b[0m"), 5U);
  EXPECT_EQ(count(text, "\x1b[0m"), count(text, "\x1b[") - count(text, "\x1b[0m"));
  EXPECT_EQ(count(text, "\x1b[30;48;2;"), 3U);
}

TEST(HeatMap, AcceptsAnEmptyReportAndRatesOutOfRange) {
  EXPECT_FALSE(heat_map(Board(3, 3), {}).empty());
  SearchReport odd;
  odd.moves = {{0, 5, 1.7, 0, std::nullopt, {}}, {1, 0, -0.5, 0, std::nullopt, {}}};
  const std::string text = heat_map(Board(3, 3), odd);
  EXPECT_NE(text.find("100.0%"), std::string::npos);
  EXPECT_NE(text.find("  0.0%"), std::string::npos);
  EXPECT_EQ(text.find("-0.5"), std::string::npos);
  EXPECT_FALSE(heat_map_svg(Board(3, 3), odd).empty());
}

TEST(HeatMapSvg, DrawsEveryCellStoneAndValueOnce) {
  const std::string svg = heat_map_svg(position(), report());
  EXPECT_EQ(count(svg, "<svg "), 1U);
  EXPECT_EQ(count(svg, "</svg>"), 1U);
  EXPECT_EQ(count(svg, "<polygon "), 20U);
  EXPECT_EQ(count(svg, "<circle "), 2U);
  EXPECT_EQ(count(svg, "<line "), 4U);
  EXPECT_EQ(count(svg, "stroke=\"#1040d0\""), 1U) << "exactly one cell is marked as the best move";
  EXPECT_EQ(count(svg, ">75.0%</text>"), 1U);
  EXPECT_EQ(count(svg, ">loss</text>"), 1U);
  // Every element that is opened is closed.
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
  EXPECT_EQ(std::count(svg.begin(), svg.end(), '<'), std::count(svg.begin(), svg.end(), '>'));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Opening, FairOpeningIsLegalAndShouldSwapFollowsTheWinRate) {
  Solver solver({.table_bytes = 1 << 20});
  for (int side = kMinSide; side <= kMaxSide; ++side) {
    Board board(side, side, SwapRule::kOn);
    const Move move = fair_opening(board);
    ASSERT_TRUE(board.is_legal(move));
    board.play(move);
    ASSERT_TRUE(board.may_swap());
    if (board.cells() > kSolvedCells) {
      EXPECT_EQ(prove_swap(board, solver, {}), std::nullopt);
    }
  }
  EXPECT_TRUE(should_swap(std::nullopt, 0.49));
  EXPECT_FALSE(should_swap(std::nullopt, 0.51));
  EXPECT_TRUE(should_swap(true, 0.9));
  EXPECT_FALSE(should_swap(false, 0.1));
  // On 5x5 a stone in the centre wins, a stone in the corner loses.
  Board centre(5, 5, SwapRule::kOn);
  centre.play(*centre.parse("c3"));
  EXPECT_EQ(prove_swap(centre, solver, {}), true);
  Board corner(5, 5, SwapRule::kOn);
  corner.play(*corner.parse("a1"));
  EXPECT_EQ(prove_swap(corner, solver, {}), false);
}

TEST(Opening, TheProofOfASwapHasLimits) {
  EXPECT_EQ(swap_proof_seconds(0), kMaxSwapProof);
  EXPECT_EQ(swap_proof_seconds(2), 0.5);
  EXPECT_EQ(swap_proof_seconds(1000), kMaxSwapProof);
  // Some first stones have a proof of one position. Most do not.
  const auto unproved = [](const SolveLimits& limits) {
    Solver solver({.table_bytes = 1 << 20});
    int count = 0;
    for (int cell = 0; cell < 25; ++cell) {
      Board board(5, 5, SwapRule::kOn);
      board.play(static_cast<Move>(cell));
      if (!prove_swap(board, solver, limits)) ++count;
    }
    return count;
  };
  const std::atomic<bool> stop{true};
  EXPECT_GT(unproved({.nodes = 1}), 0);
  EXPECT_GT(unproved({.stop = &stop}), 0);
}

// `analyze`, GTP, live graphics and the page show the same line.
TEST(SearchReport, HasTheSameLineEverywhere) {
  const Board board(5, 5);
  std::vector<std::string> names;
  std::string drawn = "VAR";
  MoveReport best{7, 100, 0.5, 0, std::nullopt, {}};
  for (int i = 0; i < 12; ++i) {
    best.line.push_back(static_cast<Move>(7 + i));
    names.push_back(board.name(best.line.back()));
    drawn += (i % 2 == 0 ? " B " : " W ") + names.back();
  }
  SearchView view;
  view.report = {Color::kBlack, 100, 1, {best}};
  const std::string line = absl::StrJoin(names, " ");
  EXPECT_TRUE(report_line(board, best).ends_with("  " + line));
  EXPECT_EQ(count(heat_map(board, view.report, {.colors = false}), "  " + line + "\n"), 1U);
  for (const GtpInfo form : {GtpInfo::kLeela, GtpInfo::kKata}) {
    EXPECT_TRUE(gtp_info(board, view.report, form).ends_with(" pv " + line));
  }
  EXPECT_EQ(count(gtp_graphics(board, view.report), "\n" + drawn + "\n"), 1U);
  const std::string json = "\"line\":[\"" + absl::StrJoin(names, "\",\"") + "\"]";
  EXPECT_EQ(count(view_json(board, view), json), 1U);
}

}  // namespace
}  // namespace cariama::hex
