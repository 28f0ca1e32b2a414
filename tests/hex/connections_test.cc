// Virtual connections: the known ones are found, and none is claimed that does not hold.
#include "hex/connections.h"

#include <gtest/gtest.h>

#include "hex/random.h"
#include "tests/hex/testing/oracle.h"
#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::Oracle;
using testing::random_board;

Board make(int cols, int rows, std::initializer_list<std::string_view> black,
           std::initializer_list<std::string_view> white = {}) {
  Board board(cols, rows);
  for (const auto cell : black) board.play(Color::kBlack, *board.parse(cell));
  for (const auto cell : white) board.play(Color::kWhite, *board.parse(cell));
  return board;
}

// With every empty cell outside of the carrier given to the opponent.
Board only(const Board& board, Color color, const Board::Set& carrier, Color to_move) {
  Board::Set sets[2] = {board.stones(Color::kBlack), board.stones(Color::kWhite)};
  sets[static_cast<int>(opponent(color))] |= board.empty().without(carrier);
  Board worst = board;
  worst.set_position(sets[0], sets[1], to_move);
  return worst;
}

// The smallest boards, the ziggurat (a stone of the third row and two columns of room), a ladder
// that is stopped.
TEST(Connections, FindsWhatPlayersKnow) {
  EXPECT_TRUE(find_connections(make(3, 3, {"b2"}), Color::kBlack).connected);
  EXPECT_NE(find_connections(make(3, 3, {}), Color::kBlack).move, kNoMove);
  EXPECT_NE(find_connections(make(4, 4, {}), Color::kBlack).move, kNoMove);
  EXPECT_NE(find_connections(make(5, 5, {}), Color::kBlack).move, kNoMove);
  // Black at d3 of 7x5 is connected downwards by a ziggurat, upwards by a bridge and what is
  // beside it.
  EXPECT_TRUE(find_connections(make(7, 5, {"d3"}), Color::kBlack).connected);
  EXPECT_FALSE(find_connections(make(7, 5, {"d3"}, {"c4", "c2"}), Color::kBlack).connected);
}

// 7x7 with a stone at the centre, Black to move again: seen between cells, not from stones alone.
TEST(Connections, BetweenCellsMoreIsFound) {
  const Board board = make(7, 7, {"d4"});
  const auto from_stones = find_connections(board, Color::kBlack);
  const auto between_cells = find_connections(board, Color::kBlack, Reach::kCells);
  EXPECT_EQ(from_stones.move, kNoMove);
  EXPECT_NE(between_cells.move, kNoMove);
  EXPECT_TRUE(between_cells.move_carrier.contains(between_cells.threatened));
  EXPECT_LT(between_cells.threatened.count(), 40);
}

TEST(Connections, SaysNothingOfStonesThatConnect) {
  const Board over = make(3, 3, {"a1", "a2", "a3"});
  EXPECT_TRUE(find_connections(over, Color::kBlack).connected);
  EXPECT_FALSE(find_connections(over, Color::kBlack).carrier.any());
  EXPECT_FALSE(find_connections(over, Color::kWhite).connected);
  EXPECT_EQ(find_connections(over, Color::kWhite).move, kNoMove);
}

// All of it judged by exhaustive search, with the carriers alone; with little effort too, which
// ends anywhere.
TEST(Connections, AreSoundOnRandomPositions) {
  Random random(9);
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
    // The other cells lose for these threats alone.
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
  // Most won positions of this size are seen without a search.
  EXPECT_GT(moves * 10, wins * 7);
}

}  // namespace
}  // namespace cariama::hex
