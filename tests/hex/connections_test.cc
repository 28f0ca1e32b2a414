// Virtual connections: the search finds well-known ones, and every connection that it finds exists.
#include "hex/connections.h"

#include <gtest/gtest.h>

#include "mcts/random.h"
#include "tests/hex/testing/oracle.h"
#include "tests/hex/testing/positions.h"
#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::make_board;

using testing::Oracle;
using testing::random_board;

// Returns the position with stones of the opponent on all empty cells outside of the carrier.
Board only(const Board& board, Color color, const Board::Set& carrier, Color to_move) {
  Board::Set sets[2] = {board.stones(Color::kBlack), board.stones(Color::kWhite)};
  sets[static_cast<int>(opponent(color))] |= board.empty().without(carrier);
  Board worst = board;
  worst.set_position(sets[0], sets[1], to_move);
  return worst;
}

// Well-known connections: on the smallest boards, and the ziggurat (a stone on the third row with
// two free columns). Stones of the opponent in the ziggurat break the connection.
TEST(Connections, FindsWellKnownConnections) {
  EXPECT_TRUE(find_connections(make_board(3, 3, {"b2"}), Color::kBlack).connected);
  EXPECT_NE(find_connections(make_board(3, 3, {}), Color::kBlack).move, kNoMove);
  EXPECT_NE(find_connections(make_board(4, 4, {}), Color::kBlack).move, kNoMove);
  EXPECT_NE(find_connections(make_board(5, 5, {}), Color::kBlack).move, kNoMove);
  // Black's stone d3 on 7x5 is connected with the bottom edge by a ziggurat, and with the top edge
  // by the bridge and the cells beside it.
  EXPECT_TRUE(find_connections(make_board(7, 5, {"d3"}), Color::kBlack).connected);
  EXPECT_FALSE(find_connections(make_board(7, 5, {"d3"}, {"c4", "c2"}), Color::kBlack).connected);
}

// 7x7 with a black stone in the centre and Black to move: Reach::kCells finds a winning move, but
// Reach::kStones does not.
TEST(Connections, ReachCellsFindsMoreThanReachStones) {
  const Board board = make_board(7, 7, {"d4"});
  const auto from_stones = find_connections(board, Color::kBlack);
  const auto between_cells = find_connections(board, Color::kBlack, Reach::kCells);
  EXPECT_EQ(from_stones.move, kNoMove);
  EXPECT_NE(between_cells.move, kNoMove);
  EXPECT_TRUE(between_cells.move_carrier.contains(between_cells.threatened));
  EXPECT_LT(between_cells.threatened.count(), 40);
}

TEST(Connections, ConnectedStonesNeedNoCarrier) {
  const Board ended = make_board(3, 3, {"a1", "a2", "a3"});
  EXPECT_TRUE(find_connections(ended, Color::kBlack).connected);
  EXPECT_FALSE(find_connections(ended, Color::kBlack).carrier.any());
  EXPECT_FALSE(find_connections(ended, Color::kWhite).connected);
  EXPECT_EQ(find_connections(ended, Color::kWhite).move, kNoMove);
}

// Checks all results by exhaustive search in the position in which the opponent has all cells
// outside of the carrier. A small random effort ends the search at any point.
TEST(Connections, AreSoundOnRandomPositions) {
  mcts::Random random(9);
  Oracle oracle;
  int connected = 0;
  int moves = 0;
  int narrowed = 0;
  int wins = 0;
  const int positions = testing::kBoards / 150;
  for (int i = 0; i < positions; ++i) {
    const Board board = random_board(random, 10);
    const Color own = board.to_move();
    const Color other = opponent(own);
    const int effort = random.below(4) == 0 ? static_cast<int>(random.below(40)) : 2000;
    const Reach reach = i % 2 == 0 ? Reach::kStones : Reach::kCells;
    const auto ways = find_connections(board, own, reach, effort);
    const bool won = oracle.winner(board) == own;
    wins += won;
    if (ways.move != kNoMove) {
      ++moves;
      ASSERT_TRUE(ways.move_carrier.test(ways.move));
      const Board worst = only(board, own, ways.move_carrier, own);
      ASSERT_TRUE(oracle.wins(worst, ways.move)) << testing::picture(board).cells;
    }
    const auto threats = find_connections(board, other, reach, effort);
    if (threats.connected) {
      ++connected;
      ASSERT_EQ(oracle.winner(only(board, other, threats.carrier, own)), other)
          << testing::picture(board).cells;
    }
    narrowed += threats.threatened != board.empty();
    board.empty().without(threats.threatened).for_each([&](int cell) {
      ASSERT_FALSE(oracle.wins(board, static_cast<Move>(cell)))
          << testing::picture(board).cells << " " << board.name(static_cast<Move>(cell));
    });
    // Moves outside of `threatened` lose because of the threats found, even if the opponent has all
    // cells outside of `threats`.
    if (threats.threatened != board.empty()) {
      const Board worst = only(board, other, threats.threats, own);
      board.empty().without(threats.threatened).for_each([&](int cell) {
        if (worst.at(static_cast<Move>(cell))) return;
        ASSERT_FALSE(oracle.wins(worst, static_cast<Move>(cell)));
      });
    }
  }
  EXPECT_GT(connected, positions / 20);
  EXPECT_GT(narrowed, positions / 5);
  // In most won positions of this size, find_connections() finds a winning move.
  EXPECT_GT(moves * 10, wins * 7);
}

}  // namespace
}  // namespace cariama::hex
