// The search engine on solved positions, in games, and in lost positions.
#include "hex/search_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/hex/testing/cases.h"
#include "tests/hex/testing/reference.h"
#include "tests/mcts/testing/check.h"

namespace cariama::hex {
namespace {

using mcts::testing::local_host;
using testing::solved_cases;
using testing::SolvedCase;

const std::atomic<bool> kNever{false};

SearchReport think(Engine& engine, const Board& board, uint64_t iterations) {
  return engine.search(board, {.iterations = iterations}, kNever, nullptr, 0);
}

bool wins(const SolvedCase& one, Move move) {
  return std::find(one.winning_moves.begin(), one.winning_moves.end(), move) !=
         one.winning_moves.end();
}

// All verdicts about moves are correct, and all these positions are proved.
TEST(SearchEngine, VerdictsAreRight) {
  const auto host = local_host(1);
  SearchEngine engine(*host, {.solve_nodes = 0});
  int proved = 0;
  int cases = 0;
  for (const SolvedCase& one : solved_cases()) {
    if (!one.complete || one.board.cells() > 25 || one.board.may_swap()) continue;
    ++cases;
    engine.clear();
    const SearchReport report = think(engine, one.board, 50000);
    ASSERT_EQ(report.moves.size(), static_cast<size_t>(one.board.empty().count()));
    for (const MoveReport& move : report.moves) {
      if (!move.proven_win) continue;
      EXPECT_EQ(*move.proven_win, wins(one, move.move))
          << one.id << " " << one.board.name(move.move);
    }
    if (report.moves[0].proven_win) ++proved;
  }
  ASSERT_GT(cases, 30);
  // The positions have at most 25 cells, so the search proves each of them.
  EXPECT_EQ(proved, cases);
}

// The positions on larger boards are composed problems, most of them with a single winning move.
// The engine finds a winning move in at least 90 % of them with 120000 nodes of the solver and, if
// these do not suffice, 100000 iterations. All its proofs are correct. Builds with sanitizers test
// only 6x6.
TEST(SearchEngine, FindsWinningMoves) {
  const auto host = local_host(1);
  SearchEngineOptions options;
  options.solve_nodes = 120000;
  SearchEngine engine(*host, options);
  const int most_cells = testing::kBoards < 10000 ? 36 : kMaxCells;
  std::vector<std::string> missed;
  int cases = 0;
  for (const SolvedCase& one : solved_cases()) {
    if (!one.complete || one.winning_moves.empty()) continue;
    if (one.board.cells() <= 25 || one.board.cells() > most_cells) continue;
    ++cases;
    engine.clear();
    const SearchReport report = think(engine, one.board, 100000);
    const MoveReport& best = report.moves[0];
    if (!wins(one, best.move)) missed.push_back(one.id + ": " + one.board.name(best.move));
    if (best.proven_win == true) {
      EXPECT_TRUE(wins(one, best.move)) << one.id;
    }
  }
  ASSERT_GE(cases, most_cells == kMaxCells ? 30 : 8);
  EXPECT_LE(missed.size() * 10, static_cast<size_t>(cases))
      << ::testing::PrintToString(missed) << " of " << cases;
}

// In games of the engine against itself, all moves are legal, and a side with a proved win wins.
TEST(SearchEngine, PlaysGamesToTheEnd) {
  const auto host = local_host(2);
  SearchEngine engine(*host, {.solve_nodes = 0});
  for (const auto& [cols, rows] : {std::pair(5, 5), std::pair(4, 6), std::pair(7, 7)}) {
    Board board(cols, rows);
    std::optional<Color> promised;
    while (!board.winner()) {
      const SearchReport report = think(engine, board, 300);
      ASSERT_TRUE(board.is_legal(report.moves[0].move));
      EXPECT_EQ(report.color, board.to_move());
      if (report.moves[0].proven_win) {
        const Color winner = *report.moves[0].proven_win ? report.color : opponent(report.color);
        EXPECT_EQ(promised.value_or(winner), winner);
        promised = winner;
      }
      board.play(report.moves[0].move);
    }
    if (promised) {
      EXPECT_EQ(*board.winner(), *promised);
    }
  }
}

// In a lost position, the engine returns a legal move and does not search up to the limit.
TEST(SearchEngine, AnswersInLostPositions) {
  const auto host = local_host(1);
  SearchEngine engine(*host);
  Board board(3, 3);
  board.play(*board.parse("b2"));
  const SearchReport report = think(engine, board, 100000);
  EXPECT_TRUE(board.is_legal(report.moves[0].move));
  EXPECT_EQ(report.moves[0].proven_win, false);
  EXPECT_LT(report.iterations, 10000u);
}

TEST(SearchEngine, TheSameSeedPlaysTheSameGame) {
  const auto play = [](uint64_t seed) {
    const auto host = local_host(1);
    SearchEngine engine(*host);
    engine.set_seed(seed);
    Board board(6, 6);
    std::vector<uint64_t> moves;
    for (int i = 0; i < 5; ++i) {
      const SearchReport report = think(engine, board, 500);
      moves.push_back(report.moves[0].move);
      moves.push_back(report.moves[0].visits);
      board.play(report.moves[0].move);
    }
    return moves;
  };
  EXPECT_EQ(play(1), play(1));
  EXPECT_NE(play(1), play(2));
}

// The solver ends at its limit of nodes and takes nearly all of the time: the tree search has one
// iteration.
TEST(SearchEngine, TheTimeOfAReportIncludesTheSolver) {
  const auto host = local_host(1);
  SearchEngineOptions options;
  options.solve_nodes = 20000;
  options.solve_empties = 81;
  SearchEngine engine(*host, options);
  const auto start = std::chrono::steady_clock::now();
  const SearchReport report = think(engine, Board(9, 9), 1);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  EXPECT_FALSE(report.moves[0].proven_win.has_value())
      << "the solver has proved the position within its limit";
  EXPECT_LE(report.seconds, time.count());
  EXPECT_GE(report.seconds, 0.25 * time.count());
}

TEST(SearchEngine, ReportsPriorsUnlessTheyAreSwitchedOff) {
  const auto sum_of_priors = [](const SearchEngineOptions& options) {
    const auto host = local_host(1);
    SearchEngine engine(*host, options);
    double sum = 0;
    for (const MoveReport& move : think(engine, Board(9, 9), 10).moves) sum += move.prior;
    return sum;
  };
  EXPECT_NEAR(sum_of_priors({}), 1, 1e-3) << "the root must have priors, although it omits no move";
  SearchEngineOptions without;
  without.without_priors();
  EXPECT_EQ(sum_of_priors(without), 0);
}

// Boards with each number of words, with parts of the knowledge switched off.
TEST(SearchEngine, BoardsOfAllSizes) {
  const auto host = local_host(1);
  for (const int side : {3, 11, 12, 16, 17, 25}) {
    SearchEngineOptions options;
    options.solve_nodes = 0;
    options.knowledge.bridges = side % 2 == 0;
    options.knowledge.fill_in = side % 3 == 0;
    SearchEngine engine(*host, options);
    Board board(side, side);
    for (int i = 0; i < 2; ++i) {
      const SearchReport report = think(engine, board, 200);
      EXPECT_LE(report.moves.size(), static_cast<size_t>(board.empty().count()));
      for (const MoveReport& move : report.moves) EXPECT_TRUE(board.is_legal(move.move));
      board.play(report.moves[0].move);
    }
  }
}

// After a playout each cell has one owner, and the winner is connected.
TEST(HexGame, PlayoutsOwnTheWholeBoard) {
  using Game = HexGame<2>;
  mcts::Random random(1);
  for (const bool bridges : {true, false}) {
    Board board(7, 6);
    board.play(*board.parse("c3"));
    board.play(*board.parse("d4"));
    const Game game(board, {.bridges = bridges});
    Game::Playouts playouts(game, random);
    for (int i = 0; i < 200; ++i) {
      mcts::Owned<Game::kAmafIds> owned;
      const float value = playouts.run(game, std::nullopt, random, &owned);
      Board full(7, 6);
      Bits<10> black;
      Bits<10> white;
      for (int cell = 0; cell < full.cells(); ++cell) {
        ASSERT_NE(owned.test(0, cell), owned.test(1, cell));
        (owned.test(0, cell) ? black : white).set(cell);
      }
      full.set_position(black, white, Color::kBlack);
      EXPECT_EQ(value, *full.winner() == Color::kBlack ? 1 : 0);
      EXPECT_TRUE(black.contains(board.stones(Color::kBlack)));
      EXPECT_TRUE(white.contains(board.stones(Color::kWhite)));
    }
  }
}

}  // namespace
}  // namespace cariama::hex
