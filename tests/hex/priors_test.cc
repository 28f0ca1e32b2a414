#include "hex/priors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "mcts/random.h"
#include "tests/hex/testing/cases.h"

namespace cariama::hex {
namespace {

// A random position and its last move.
struct Position {
  Board board;
  Move last = kNoMove;
};
Position some_position(mcts::Random& random, int cols, int rows) {
  Position position{Board(cols, rows), kNoMove};
  const uint32_t stones = random.below(static_cast<uint32_t>(cols * rows) / 2);
  for (uint32_t i = 0; i < stones && !position.board.winner(); ++i) {
    Move move = 0;
    do {
      move = static_cast<Move>(random.below(static_cast<uint32_t>(cols * rows)));
    } while (!position.board.is_legal(move));
    position.board.play(move);
    position.last = move;
  }
  return position;
}
std::vector<Move> empty_cells(const Board& board) {
  std::vector<Move> cells;
  board.empty().for_each([&](int cell) { cells.push_back(static_cast<Move>(cell)); });
  return cells;
}
std::vector<float> priors_of(const Position& position, const std::vector<Move>& moves) {
  std::vector<float> priors(moves.size());
  move_priors(position.board, position.last, moves, priors);
  return priors;
}

TEST(Priors, AreProbabilities) {
  mcts::Random random(1);
  for (int cols = kMinSide; cols <= kMaxSide; ++cols) {
    for (const int rows : {kMinSide, cols, kMaxSide}) {
      const Position position = some_position(random, cols, rows);
      if (position.board.winner()) continue;
      const std::vector<float> priors = priors_of(position, empty_cells(position.board));
      EXPECT_GT(*std::min_element(priors.begin(), priors.end()), 0);
      EXPECT_NEAR(std::accumulate(priors.begin(), priors.end(), 0.0), 1, 1e-3);
    }
  }
}

TEST(Priors, DoNotDependOnTheNumberOfWordsOfTheBoard) {
  mcts::Random random(2);
  const Position position = some_position(random, 9, 9);
  const std::vector<Move> moves = empty_cells(position.board);
  std::vector<float> narrow(moves.size());
  move_priors(BasicBoard<2>(position.board), position.last, moves, narrow);
  EXPECT_EQ(narrow, priors_of(position, moves));
}

// Returns the features of a move except the one from playouts, which is random.
std::vector<int> known_of(const PriorFeatures& features, Move cell) {
  std::vector<int> known;
  for (const uint16_t index : features.of(cell)) {
    if (index < PriorFeatures::kPlayouts) known.push_back(PriorFeatures::same_as(index));
  }
  std::sort(known.begin(), known.end());
  return known;
}

TEST(PriorFeatures, AreTheSameForATurnedBoardAndForTheOtherSideOfAMirroredOne) {
  mcts::Random random(3);
  int compared = 0;
  for (int i = 0; i < 200; ++i) {
    const int side = 3 + static_cast<int>(random.below(11));
    const Position position = some_position(random, side, side);
    if (position.board.winner() || position.last == kNoMove) continue;
    const auto change = [&](auto&& cell_of, bool exchange) {
      Board::Set sets[2];
      for (const Color color : {Color::kBlack, Color::kWhite}) {
        const Color becomes = exchange ? opponent(color) : color;
        position.board.stones(color).for_each([&](int cell) {
          sets[static_cast<int>(becomes)].set(cell_of(static_cast<Move>(cell)));
        });
      }
      const Color to_move = position.board.to_move();
      Board board(side, side);
      board.set_position(sets[0], sets[1], exchange ? opponent(to_move) : to_move);
      return PriorFeatures(board, cell_of(position.last));
    };
    // A rotation of the board by 180 degrees. The roles of the colours stay.
    const auto turn = [&](Move cell) { return static_cast<Move>(side * side - 1 - cell); };
    const auto mirror = [&](Move cell) { return mirrored(cell, side); };
    const PriorFeatures plain(position.board, position.last);
    const PriorFeatures as_turned = change(turn, false);
    const PriorFeatures as_mirrored = change(mirror, true);
    for (const Move cell : empty_cells(position.board)) {
      const std::vector<int> known = known_of(plain, cell);
      ASSERT_EQ(known, known_of(as_turned, turn(cell)));
      ASSERT_EQ(known, known_of(as_mirrored, mirror(cell)));
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000);
}

TEST(PriorFeatures, DependOnCellsAtDistanceTwo) {
  Board board(11, 11);
  const Move cell = *board.parse("f6");
  const auto before = PriorFeatures(board, kNoMove).of(cell);
  // The cells around f6: at one step, at the other ends of bridges, and at two steps in a straight
  // line.
  for (const char* name : {"g6", "f7", "e7", "e6", "f5", "g5", "g7", "e8", "d7", "e5", "g4", "h5",
                           "h6", "f8", "d8", "d6", "f4", "h4"}) {
    Board other(11, 11);
    other.set_position(Board::Set::single(*board.parse(name)), {}, Color::kBlack);
    EXPECT_NE(PriorFeatures(other, kNoMove).of(cell), before) << name;
  }
}

// The highest prior belongs to the move that saves a bridge after an intrusion.
TEST(Priors, PreferToSaveABridge) {
  Board board(11, 11);
  for (const char* move : {"f6", "k1", "g4", "g5"}) board.play(*board.parse(move));
  const std::vector<Move> moves = empty_cells(board);
  const std::vector<float> priors = priors_of({board, *board.parse("g5")}, moves);
  const auto best = std::max_element(priors.begin(), priors.end()) - priors.begin();
  EXPECT_EQ(board.name(moves[static_cast<size_t>(best)]), "f5");
}

// On average, winning moves of the solved positions have higher priors than other moves. The
// weights were not learned from these positions.
TEST(Priors, PreferMovesThatWin) {
  double expected = 0;
  double found = 0;
  int cases = 0;
  for (const testing::SolvedCase& one : testing::solved_cases()) {
    if (!one.complete || one.winning_moves.empty() || one.board.winner()) continue;
    if (one.winner != one.board.to_move()) continue;
    const std::vector<Move> moves = empty_cells(one.board);
    const std::vector<float> priors = priors_of({one.board, kNoMove}, moves);
    for (size_t i = 0; i < moves.size(); ++i) {
      if (std::binary_search(one.winning_moves.begin(), one.winning_moves.end(), moves[i])) {
        found += priors[i];
        expected += 1 / static_cast<double>(moves.size());
      }
    }
    ++cases;
  }
  ASSERT_GT(cases, 20);
  EXPECT_GT(found, 2.5 * expected)
      << "the mean share of the priors on winning moves is only " << found / cases;
}

}  // namespace
}  // namespace cariama::hex
