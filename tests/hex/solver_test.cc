#include "hex/solver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mcts/random.h"
#include "tests/hex/testing/cases.h"
#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::SolvedCase;

// A plain exhaustive search, for positions that are not in the file of solved positions.
class BruteForce {
 public:
  Color winner(const Board& board) {
    if (board.winner()) return *board.winner();
    const auto [found, fresh] = known_.try_emplace(board.key());
    if (!fresh) return found->second;
    Color result = opponent(board.to_move());
    for (int cell = 0; cell < board.cells() && result != board.to_move(); ++cell) {
      if (!board.is_legal(static_cast<Move>(cell))) continue;
      Board next = board;
      next.play(static_cast<Move>(cell));
      result = winner(next);
    }
    known_[board.key()] = result;
    return result;
  }

 private:
  std::map<uint64_t, Color> known_;
};

std::vector<std::string> names(const Board& board, const std::vector<Move>& moves) {
  std::vector<std::string> result;
  for (const Move move : moves) result.push_back(board.name(move));
  return result;
}

class Sides : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, Sides, ::testing::Values(3, 4, 5),
                         [](const auto& info) { return std::to_string(info.param); });

// The solver finds the winner and all winning moves of every solved position of this size.
TEST_P(Sides, SolvesEveryKnownPosition) {
  Solver solver;
  int cases = 0;
  for (const SolvedCase& solved : testing::solved_cases()) {
    if (solved.board.cols() != GetParam()) continue;
    ++cases;
    const Solution solution = solver.solve(solved.board);
    ASSERT_EQ(solution.winner, solved.winner) << solved.id;
    if (solved.winner == solved.board.to_move()) {
      Board next = solved.board;
      ASSERT_TRUE(next.is_legal(solution.move)) << solved.id;
      next.play(solution.move);
      EXPECT_EQ(solver.solve(next).winner, solved.winner) << solved.id;
    }
    const auto winning = solver.winning_moves(solved.board);
    ASSERT_TRUE(winning.has_value());
    if (solved.complete) {
      EXPECT_EQ(names(solved.board, *winning), names(solved.board, solved.winning_moves))
          << solved.id;
    }
  }
  EXPECT_GT(cases, 0);
}

// The solver solves all positions of 6x6. It does not solve all larger ones within the node limit,
// but no result is wrong: without a result, `open` contains a winning move if there is one.
// The table has 16384 entries, fewer than the positions that a search may open, so that entries are
// replaced.
TEST(Solver, NeverContradictsAKnownPosition) {
  Solver solver({.table_bytes = 1 << 20});
  int cases_6x6 = 0;
  int solved_6x6 = 0;
  for (const SolvedCase& solved : testing::solved_cases()) {
    if (solved.board.cols() < 6) continue;
    const uint64_t nodes = solved.board.cols() == 6 ? 20'000 : 2'000;
    const Solution solution = solver.solve(solved.board, {.nodes = nodes});
    cases_6x6 += solved.board.cols() == 6;
    if (!solution.winner) {
      bool one_is_left = solved.winning_moves.empty();
      for (const Move move : solved.winning_moves) one_is_left |= solution.open.test(move);
      EXPECT_TRUE(one_is_left) << solved.id;
      continue;
    }
    EXPECT_EQ(solution.winner, solved.winner) << solved.id;
    solved_6x6 += solved.board.cols() == 6;
  }
  EXPECT_GT(cases_6x6, 0);
  EXPECT_EQ(solved_6x6, cases_6x6);
}

// Compares random positions, also on rectangles, with the exhaustive search: the winner, the move
// and the carrier. The winner must win even if the loser has all empty cells outside of the
// carrier.
TEST(Solver, AgreesWithBruteForceAndProvesByItsCarrier) {
  mcts::Random random(4);
  Solver solver({.table_bytes = 1 << 20});
  int proved_with_less = 0;
  const int positions = testing::kBoards / 250;
  for (int i = 0; i < positions; ++i) {
    const int cols = 3 + static_cast<int>(random.below(2));
    const int rows = 3 + static_cast<int>(random.below(2));
    Board board(cols, rows);
    const int stones = cols * rows - 11 + static_cast<int>(random.below(8));
    while (board.moves_played() < stones && !board.winner()) {
      const Move move = static_cast<Move>(random.below(static_cast<uint32_t>(board.cells())));
      if (board.is_legal(move)) board.play(move);
    }
    if (random.below(2) == 1) board.set_to_move(opponent(board.to_move()));
    BruteForce judge;
    const Color winner = judge.winner(board);
    const Solution solution = solver.solve(board);
    ASSERT_EQ(solution.winner, winner) << testing::picture(board).cells;
    if (board.winner()) continue;
    if (winner == board.to_move()) {
      Board next = board;
      ASSERT_TRUE(next.is_legal(solution.move));
      next.play(solution.move);
      ASSERT_EQ(judge.winner(next), winner);
    } else {
      ASSERT_TRUE(board.is_legal(solution.move));
    }
    const Board::Set outside = board.empty().without(solution.carrier);
    proved_with_less += outside.any();
    Board::Set sides[2] = {board.stones(Color::kBlack), board.stones(Color::kWhite)};
    sides[static_cast<int>(opponent(winner))] |= outside;
    Board worst = board;
    worst.set_position(sides[0], sides[1], board.to_move());
    ASSERT_EQ(judge.winner(worst), winner) << testing::picture(board).cells;
  }
  EXPECT_GT(proved_with_less, positions / 4);
}

TEST(Solver, SwapsIfTheFirstStoneWins) {
  Solver solver;
  for (int cell = 0; cell < 16; ++cell) {
    Board plain(4, 4);
    plain.play(static_cast<Move>(cell));
    Board swap(4, 4, SwapRule::kOn);
    swap.play(static_cast<Move>(cell));
    const Solution without = solver.solve(plain);
    const Solution with = solver.solve(swap);
    // White always wins with the swap rule: it swaps if the first stone wins.
    EXPECT_EQ(with.winner, Color::kWhite) << cell;
    EXPECT_EQ(with.move == kSwapPieces, without.winner == Color::kBlack) << cell;
  }
}

TEST(Solver, StopsAtItsLimits) {
  Solver solver({.table_bytes = 1 << 20});
  const Board board(11, 11);
  const Solution counted = solver.solve(board, {.nodes = 100});
  EXPECT_EQ(counted.winner, std::nullopt);
  EXPECT_LE(counted.nodes, 101U);
  EXPECT_EQ(solver.solve(board, {.seconds = 0.01}).winner, std::nullopt);
  std::atomic<bool> stop = false;
  std::thread later([&] { stop = true; });
  EXPECT_EQ(solver.solve(board, {.stop = &stop}).winner, std::nullopt);
  later.join();
  // Interrupted searches leave no wrong entries in the table.
  EXPECT_EQ(solver.solve(Board(4, 4)).winner, Color::kBlack);
}

TEST(Solver, ReturnsTheWinnerOfAnEndedGame) {
  Board board(3, 3);
  for (const int cell : {0, 1, 3, 4, 6}) board.play(static_cast<Move>(cell));
  ASSERT_EQ(board.winner(), Color::kBlack);
  const Solution solution = Solver().solve(board);
  EXPECT_EQ(solution.winner, Color::kBlack);
  EXPECT_EQ(solution.move, kNoMove);
}

// Late positions on large boards, with only a few empty cells.
TEST(Solver, SolvesLatePositionsOfLargeBoards) {
  mcts::Random random(9);
  Solver solver;
  for (const int side : {9, 11, 13, 19}) {
    Board board(side, side);
    while (board.empty().count() > 9 && !board.winner()) {
      const Move move = static_cast<Move>(random.below(static_cast<uint32_t>(board.cells())));
      if (!board.is_legal(move)) continue;
      Board next = board;
      next.play(move);
      if (!next.winner()) board = next;
    }
    BruteForce judge;
    const Solution solution = solver.solve(board);
    EXPECT_EQ(solution.winner, judge.winner(board)) << side;
  }
}

}  // namespace
}  // namespace cariama::hex
