#include "hex/board.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "mcts/random.h"
#include "tests/hex/testing/positions.h"
#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::at;

using testing::connected;
using testing::picture;

void play_all(Board& board, std::initializer_list<std::string_view> moves) {
  for (const std::string_view move : moves) {
    ASSERT_TRUE(board.is_legal(at(board, move))) << move;
    board.play(at(board, move));
  }
}

TEST(Board, NamesCellsByLetterAndNumber) {
  const Board board(11, 11);
  EXPECT_EQ(board.parse("a1"), 0);
  EXPECT_EQ(board.parse("K11"), 120);
  EXPECT_EQ(board.parse("c2"), 13);
  EXPECT_EQ(board.parse("Swap-Pieces"), kSwapPieces);
  EXPECT_EQ(board.name(13), "c2");
  EXPECT_EQ(board.name(kSwapPieces), "swap-pieces");
  for (const char* text : {"", "a", "1", "a0", "a12", "l1", "1a", "a1 ", "a01", "a-1", "aa1",
                           "swap", "a99999999999999999999", "zzzzzzzzzzzzzzzz1", "\xff\x31"}) {
    EXPECT_EQ(board.parse(text), std::nullopt) << text;
  }
  EXPECT_EQ(cell_name(27, 30), "ab1");
  EXPECT_EQ(parse_cell("ab1", 30, 5), 27);
}

TEST(Board, EveryNameReadsBack) {
  const Board board(25, 7);
  for (Move cell = 0; cell < board.cells(); ++cell) {
    EXPECT_EQ(board.parse(board.name(cell)), cell);
  }
}

TEST(Board, NeighboursAreMutualAndLieAroundTheCell) {
  for (const auto& [cols, rows] : std::vector<std::pair<int, int>>{{3, 3}, {11, 11}, {25, 4}}) {
    const Geometry& shape = Geometry::of(cols, rows);
    EXPECT_EQ(&shape, &Geometry::of(cols, rows));
    for (int cell = 0; cell < cols * rows; ++cell) {
      for (int i = 0; i < 6; ++i) {
        const uint16_t other = shape.ring[cell][i];
        if (other >= kMaxCells) continue;
        EXPECT_EQ(shape.ring[other][(i + 3) % 6], cell);
        const uint16_t next = shape.ring[cell][(i + 1) % 6];
        if (next >= kMaxCells) continue;
        EXPECT_EQ(shape.ring[other][(i + 2) % 6], next);
      }
    }
  }
}

TEST(Board, ALineOfStonesWins) {
  Board board(3, 4);
  play_all(board, {"b1", "a1", "b2", "a2", "b3", "a3"});
  EXPECT_EQ(board.winner(), std::nullopt);
  board.play(at(board, "a4"));  // touches b3
  EXPECT_EQ(board.winner(), Color::kBlack);
  EXPECT_FALSE(board.is_legal(at(board, "c1"))) << "the game has ended";

  Board white(4, 3);
  white.play(Color::kWhite, at(white, "a2"));
  white.play(Color::kWhite, at(white, "b1"));
  white.play(Color::kWhite, at(white, "c1"));
  EXPECT_EQ(white.winner(), std::nullopt);
  white.play(Color::kWhite, at(white, "d1"));
  EXPECT_EQ(white.winner(), Color::kWhite);
  EXPECT_EQ(white.to_move(), Color::kBlack);
}

TEST(Board, RowsDoNotTouchAroundTheBorder) {
  // The numbers of k1 and a2 are consecutive, but the cells do not touch.
  Board board(11, 11);
  board.play(Color::kWhite, at(board, "k1"));
  const Board::Set around = board.neighbours(Board::Set::single(at(board, "k1")));
  EXPECT_EQ(around.count(), 3);
  EXPECT_TRUE(around.test(at(board, "j1")));
  EXPECT_TRUE(around.test(at(board, "k2")));
  EXPECT_TRUE(around.test(at(board, "j2")));
}

TEST(Board, SwapMirrorsTheStoneAndChangesItsColour) {
  Board board(11, 11, SwapRule::kOn);
  EXPECT_FALSE(board.may_swap());
  EXPECT_FALSE(board.is_legal(kSwapPieces));
  board.play(at(board, "c2"));
  ASSERT_TRUE(board.is_legal(kSwapPieces));
  board.play(kSwapPieces);
  EXPECT_EQ(board.at(at(board, "c2")), std::nullopt);
  EXPECT_EQ(board.at(at(board, "b3")), Color::kWhite);
  EXPECT_EQ(board.to_move(), Color::kBlack);
  EXPECT_EQ(board.moves_played(), 2);
  EXPECT_FALSE(board.may_swap());

  Board later(11, 11, SwapRule::kOn);
  play_all(later, {"c2", "d4", "e5"});
  EXPECT_FALSE(later.may_swap());
  Board off(11, 11);
  off.play(at(off, "c2"));
  EXPECT_FALSE(off.may_swap());
  Board rectangle(5, 4, SwapRule::kOn);
  rectangle.play(0);
  EXPECT_FALSE(rectangle.may_swap()) << "a rectangle has no long diagonal";
}

TEST(Board, KeysDependOnThePositionNotOnTheOrderOfMoves) {
  Board a(11, 11);
  Board b(11, 11);
  play_all(a, {"a1", "b2", "c3", "d4"});
  play_all(b, {"c3", "d4", "a1", "b2"});
  EXPECT_EQ(a.key(), b.key());
  EXPECT_EQ(a, b);
  b.set_to_move(Color::kWhite);
  EXPECT_NE(a.key(), b.key());
  EXPECT_NE(Board(11, 11).key(), Board(11, 12).key());
  Board black(5, 5);
  Board white(5, 5);
  black.play(Color::kBlack, 7);
  white.play(Color::kWhite, 7);
  white.set_to_move(Color::kWhite);
  EXPECT_NE(black.key(), white.key());

  Board swap(11, 11, SwapRule::kOn);
  Board no_swap(11, 11);
  swap.play(5);
  no_swap.play(5);
  EXPECT_NE(swap.key(), no_swap.key()) << "a swap is possible in only one of the positions";

  Board swapped(11, 11, SwapRule::kOn);
  play_all(swapped, {"c2", "swap-pieces"});
  Board placed(11, 11);
  placed.play(Color::kWhite, at(placed, "b3"));
  EXPECT_EQ(swapped.key(), placed.key());
}

TEST(Board, BehavesTheSameWithEveryNumberOfWords) {
  mcts::Random random(7);
  BasicBoard<2> small(9, 9);
  Board large(9, 9);
  while (!small.winner()) {
    const Move move = static_cast<Move>(random.below(81));
    EXPECT_EQ(small.is_legal(move), large.is_legal(move));
    if (!small.is_legal(move)) continue;
    small.play(move);
    large.play(move);
    ASSERT_EQ(small.key(), large.key());
    ASSERT_EQ(small.winner(), large.winner());
    ASSERT_EQ(Board(small), large);
    ASSERT_EQ(BasicBoard<2>(large), small);
  }
}

TEST(Board, CanBeCopiedAsBytes) {
  Board board(13, 13, SwapRule::kOn);
  play_all(board, {"c2", "f6", "g7"});
  unsigned char bytes[sizeof(Board)];
  std::memcpy(bytes, &board, sizeof(bytes));
  Board copy;
  std::memcpy(static_cast<void*>(&copy), bytes, sizeof(bytes));
  EXPECT_EQ(copy, board);
}

class Sizes : public ::testing::TestWithParam<std::pair<int, int>> {};

// After each move of random games, the incrementally computed winner is the one that a search of
// the board finds.
TEST_P(Sizes, WinnerAgreesWithASearchAfterEveryMove) {
  const auto [cols, rows] = GetParam();
  mcts::Random random(static_cast<uint64_t>(cols * 100 + rows));
  const int games = testing::kBoards / 100 * 9 / (cols * rows) + 4;
  for (int game = 0; game < games; ++game) {
    Board board(cols, rows);
    std::vector<Move> moves(static_cast<size_t>(board.cells()));
    for (size_t i = 0; i < moves.size(); ++i) moves[i] = static_cast<Move>(i);
    for (size_t i = moves.size(); i > 1; --i) {
      std::swap(moves[i - 1], moves[random.below(static_cast<uint32_t>(i))]);
    }
    size_t played = 0;
    while (!board.winner()) {
      ASSERT_LT(played, moves.size()) << "the board is full and has no winner";
      board.play(moves[played++]);
      const bool black = connected(picture(board), 'b');
      const bool white = connected(picture(board), 'w');
      ASSERT_EQ(board.winner() == Color::kBlack, black) << picture(board).cells;
      ASSERT_EQ(board.winner() == Color::kWhite, white) << picture(board).cells;
    }
    Board again(cols, rows);
    again.set_position(board.stones(Color::kBlack), board.stones(Color::kWhite), board.to_move());
    ASSERT_EQ(again, board);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         ::testing::Values(std::pair{3, 3}, std::pair{4, 7}, std::pair{11, 11},
                                           std::pair{16, 16}, std::pair{25, 3}, std::pair{3, 25},
                                           std::pair{25, 25}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "x" +
                                  std::to_string(info.param.second);
                         });

}  // namespace
}  // namespace cariama::hex
