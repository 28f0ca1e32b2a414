#include "hex/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "hex/opening.h"

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
      EXPECT_TRUE(should_swap(board, 0.49, solver));
      EXPECT_FALSE(should_swap(board, 0.51, solver));
    }
  }
  // On 5x5 the solver decides, not the win rate of a search: a stone in the centre wins, a stone in
  // the corner loses.
  Board centre(5, 5, SwapRule::kOn);
  centre.play(*centre.parse("c3"));
  EXPECT_TRUE(should_swap(centre, 0.9, solver));
  Board corner(5, 5, SwapRule::kOn);
  corner.play(*corner.parse("a1"));
  EXPECT_FALSE(should_swap(corner, 0.1, solver));
}

}  // namespace
}  // namespace cariama::hex
