#include "hex/playout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::connected;
using testing::kBoards;
using testing::Picture;
using testing::picture;

// Returns a position after at most `stones` random moves; fewer if a side wins before.
Board random_position(int cols, int rows, int stones, uint64_t seed) {
  Board board(cols, rows);
  mcts::Random random(seed);
  while (board.moves_played() < stones && !board.winner()) {
    const Move move = static_cast<Move>(random.below(static_cast<uint32_t>(board.cells())));
    if (board.is_legal(move)) board.play(move);
  }
  return board;
}

// Returns the deviation of `observed` from its expectation n p, in standard deviations of the
// binomial distribution.
double deviations(double observed, double n, double p) {
  return (observed - n * p) / std::sqrt(n * p * (1 - p));
}

struct Size {
  int cols, rows;
};
class EverySimdAndSize : public ::testing::TestWithParam<std::tuple<Simd, Size>> {
 protected:
  Simd simd() const { return std::get<0>(GetParam()); }
  Size size() const { return std::get<1>(GetParam()); }
};

// Playouts from empty boards and from random positions: the winner is the one that a search of the
// full board finds, the stones of the position stay, and each side gets exactly its number of
// cells.
TEST_P(EverySimdAndSize, WinnerAgreesWithASearch) {
  const auto [cols, rows] = size();
  UniformPlayouts playouts(11, simd());
  mcts::Random random(static_cast<uint64_t>(cols + rows));
  int done = 0;
  for (int round = 0; done < kBoards; ++round) {
    const int stones = round % 2 == 0 ? 0 : static_cast<int>(random.below(cols * rows));
    const Board board = random_position(cols, rows, stones, random.next());
    const int n = 1 + static_cast<int>(random.below(2000));  // mostly not a multiple of the batch
    std::vector<uint32_t> boards;
    const UniformResult result = playouts.run_with_boards(board, n, boards);
    ASSERT_EQ(result.playouts, n);
    ASSERT_EQ(boards.size(), static_cast<size_t>(n * rows));
    const int empties = board.empty().count();
    const int black_cells = board.stones(Color::kBlack).count() +
                            (empties + (board.to_move() == Color::kBlack ? 1 : 0)) / 2;
    const std::string before = picture(board).cells;
    int wins = 0;
    for (int i = 0; i < n; ++i) {
      const Picture end = picture(boards.data() + i * rows, cols, rows);
      int count = 0;
      for (size_t cell = 0; cell < end.cells.size(); ++cell) {
        count += end.cells[cell] == 'b';
        ASSERT_TRUE(before[cell] == '.' || end.cells[cell] == before[cell]);
      }
      ASSERT_EQ(count, black_cells);
      const bool black = connected(end, 'b');
      ASSERT_TRUE(i != 0 || black != connected(end, 'w'))
          << "connected() finds both sides or no side connected on a full board";
      wins += black;
    }
    ASSERT_EQ(result.black_wins, wins);
    done += n;
  }
}

TEST_P(EverySimdAndSize, CountsOwnershipAsTheBoardsSay) {
  const auto [cols, rows] = size();
  const Board board = random_position(cols, rows, cols * rows / 3, 5);
  for (const int n : {1, 16, 33, 200}) {
    UniformPlayouts counted(3, simd());
    UniformPlayouts shown(3, simd());
    Ownership owned;
    std::vector<uint32_t> boards;
    const UniformResult result = counted.run(board, n, &owned);
    const UniformResult again = shown.run_with_boards(board, n, boards);
    ASSERT_EQ(result.black_wins, again.black_wins) << "the results differ for the same seed";
    Ownership expected;
    for (int i = 0; i < n; ++i) {
      const Picture end = picture(boards.data() + i * rows, cols, rows);
      const bool won = connected(end, 'b');
      for (int cell = 0; cell < cols * rows; ++cell) {
        expected.black[cell] += end.cells[cell] == 'b';
        expected.black_and_won[cell] += end.cells[cell] == 'b' && won;
      }
    }
    ASSERT_EQ(owned.black, expected.black);
    ASSERT_EQ(owned.black_and_won, expected.black_and_won);
  }
}

// Checks the distribution of single cells and of pairs of cells: for n independent fillings of k
// out of e cells, their counts have known distributions.
TEST_P(EverySimdAndSize, EveryCellAndPairOfCellsIsEquallyLikely) {
  const int cols = size().cols;  // clang 14 cannot capture structured bindings
  const int rows = size().rows;
  const Board board = random_position(cols, rows, cols * rows / 8, 9);
  std::vector<int> empty;
  board.empty().for_each([&](int cell) { empty.push_back(cell); });
  const double e = static_cast<double>(empty.size());
  const double k = std::floor((e + (board.to_move() == Color::kBlack ? 1 : 0)) / 2);
  const int n = kBoards / 5;
  UniformPlayouts playouts(21, simd());
  std::vector<uint32_t> boards;
  playouts.run_with_boards(board, n, boards);
  const auto is_black = [&](int i, int cell) {
    return (boards[static_cast<size_t>(i * rows + cell / cols)] >> cell % cols & 1) != 0;
  };
  // Single cells: the sum of squares is chi-square with e - 1 degrees of freedom.
  double chi_square = 0;
  for (const int cell : empty) {
    double count = 0;
    for (int i = 0; i < n; ++i) count += is_black(i, cell);
    const double d = deviations(count, n, k / e);
    chi_square += d * d * (e - 1) / e;
  }
  EXPECT_NEAR(chi_square, e - 1, 4.5 * std::sqrt(2 * (e - 1)));
  // Pairs of cells that are close, and far apart, in the order of filling.
  const double both = k * (k - 1) / (e * (e - 1));
  for (const size_t distance : {size_t{1}, size_t{2}, empty.size() / 2}) {
    double worst = 0;
    for (size_t a = 0; a + distance < empty.size(); ++a) {
      double count = 0;
      for (int i = 0; i < n; ++i) {
        count += is_black(i, empty[a]) && is_black(i, empty[a + distance]);
      }
      worst = std::max(worst, std::abs(deviations(count, n, both)));
    }
    EXPECT_LT(worst, 5.0) << distance;
  }
  // Pairs of playouts: in adjacent lanes of a batch, and in the same lane of consecutive batches.
  for (const int distance : {1, 2, playouts.batch(cols)}) {
    double equal = 0;
    for (int i = 0; i + distance < n; ++i) {
      equal +=
          is_black(i, empty[i % empty.size()]) == is_black(i + distance, empty[i % empty.size()]);
    }
    const double p = k / e;
    EXPECT_LT(std::abs(deviations(equal, n - distance, p * p + (1 - p) * (1 - p))), 5.0)
        << distance;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EverySimdAndSize,
    ::testing::Combine(::testing::ValuesIn(available_simd().begin(), available_simd().end()),
                       ::testing::Values(Size{3, 3}, Size{5, 5}, Size{9, 9}, Size{11, 11},
                                         Size{13, 13}, Size{16, 16}, Size{17, 17}, Size{25, 25},
                                         Size{3, 25}, Size{25, 3}, Size{14, 6})),
    [](const auto& info) {
      const Size size = std::get<1>(info.param);
      return std::string(simd_name(std::get<0>(info.param))) + "_" + std::to_string(size.cols) +
             "x" + std::to_string(size.rows);
    });

class EverySimd : public ::testing::TestWithParam<Simd> {};
INSTANTIATE_TEST_SUITE_P(All, EverySimd,
                         ::testing::ValuesIn(available_simd().begin(), available_simd().end()),
                         [](const auto& info) { return std::string(simd_name(info.param)); });

// All fillings of a small board have the same probability: chi-square test over all of them.
TEST_P(EverySimd, EveryFillingIsEquallyLikely) {
  struct Case {
    std::vector<Move> stones;
    Color to_move;
    int fillings;
  };
  const Case cases[] = {{{}, Color::kBlack, 126},  // 5 of 9 cells become black
                        {{}, Color::kWhite, 126},  // 4 of 9 cells become black
                        {{4}, Color::kWhite, 70},  // 4 of 8 cells become black
                        {{0, 8, 3}, Color::kBlack, 20},
                        {{0, 8, 3, 1, 2, 7, 4}, Color::kWhite, 2}};
  uint64_t seed = 100;
  for (const Case& test : cases) {
    Board board(3, 3);
    for (const Move stone : test.stones) board.play(stone);
    board.set_to_move(test.to_move);
    UniformPlayouts playouts(++seed, GetParam());
    const int n = test.fillings * 1000;
    std::vector<uint32_t> boards;
    playouts.run_with_boards(board, n, boards);
    std::map<uint32_t, int> counts;
    for (int i = 0; i < n; ++i) {
      ++counts[boards[i * 3] | boards[i * 3 + 1] << 3 | boards[i * 3 + 2] << 6];
    }
    ASSERT_EQ(counts.size(), static_cast<size_t>(test.fillings));
    double chi_square = 0;
    for (const auto& [filling, count] : counts)
      chi_square += (count - 1000.0) * (count - 1000.0) / 1000;
    const double freedom = test.fillings - 1;
    EXPECT_NEAR(chi_square, freedom, 4.5 * std::sqrt(2 * freedom));
  }
}

// Three other implementations (boundary walk, union-find, bit flood) gave a share of 0.5225.
TEST_P(EverySimd, FirstPlayerWinsAsOftenAsInOtherImplementations) {
  UniformPlayouts playouts(1, GetParam());
  const UniformResult result = playouts.run(Board(11, 11), 1'000'000);
  EXPECT_NEAR(result.black_wins / 1e6, 0.5225, 0.0025);
}

TEST_P(EverySimd, RunsFromDecidedFullAndNearlyFullBoards) {
  Board board(4, 4);
  UniformPlayouts playouts(1, GetParam());
  EXPECT_EQ(playouts.run(board, 0).black_wins, 0);
  for (int row = 0; row < 4; ++row) board.play(Color::kBlack, static_cast<Move>(row * 4));
  EXPECT_EQ(playouts.run(board, 77).black_wins, 77);
  for (int cell = 0; cell < 16; ++cell) {
    if (cell % 4 == 0) continue;
    Board::Set white = board.stones(Color::kWhite);
    white.set(cell);
    board.set_position(board.stones(Color::kBlack), white, Color::kBlack);
    EXPECT_EQ(playouts.run(board, 5).black_wins, 5);
  }
}

TEST(DefaultSimd, IsTheFastestAvailableVariant) {
  if (std::getenv("CARIAMA_HEX_SIMD") == nullptr) {
    EXPECT_EQ(default_simd(), available_simd().back());
  }
  EXPECT_EQ(available_simd().front(), Simd::kPortable);
}

class PolicySizes : public ::testing::TestWithParam<Size> {};
INSTANTIATE_TEST_SUITE_P(All, PolicySizes,
                         ::testing::Values(Size{3, 3}, Size{5, 5}, Size{11, 11}, Size{19, 19},
                                           Size{25, 25}, Size{3, 25}, Size{25, 3}),
                         [](const auto& info) {
                           return std::to_string(info.param.cols) + "x" +
                                  std::to_string(info.param.rows);
                         });

TEST_P(PolicySizes, WinnerAgreesWithASearch) {
  const auto [cols, rows] = GetParam();
  PolicyPlayouts playouts(cols, rows);
  mcts::Random random(17);
  for (int done = 0; done < kBoards; done += 500) {
    const int stones = done % 1000 == 0 ? 0 : static_cast<int>(random.below(cols * rows));
    const Board board = random_position(cols, rows, stones, random.next());
    playouts.prepare(board);
    const int empties = board.empty().count();
    const int expected = board.stones(Color::kBlack).count() +
                         (empties + (board.to_move() == Color::kBlack ? 1 : 0)) / 2;
    for (int i = 0; i < 500; ++i) {
      const Color winner = playouts.run(random);
      const Bits<10> black = playouts.black_cells<10>();
      ASSERT_EQ(black.count(), expected);
      ASSERT_TRUE(black.contains(board.stones(Color::kBlack)));
      ASSERT_FALSE(black.intersects(board.stones(Color::kWhite)));
      Board end(cols, rows);
      Picture picture{cols, rows, std::string(static_cast<size_t>(cols * rows), 'w')};
      black.for_each([&](int cell) { picture.cells[cell] = 'b'; });
      ASSERT_EQ(winner == Color::kBlack, connected(picture, 'b')) << picture.cells;
    }
  }
}

// On a board with two empty cells, the playout plays the one that completes the bridge into which
// White has just intruded.
TEST(PolicyPlayouts, CompletesABridgeThatWasIntruded) {
  Board board(3, 3);
  // b1 and a3 have a bridge over a2 and b2.
  Board::Set black = Board::Set::single(*board.parse("b1"));
  black.set(*board.parse("a3"));
  black.set(*board.parse("c3"));
  Board::Set white = Board::Set::single(*board.parse("a2"));
  white.set(*board.parse("a1"));
  white.set(*board.parse("c2"));
  white.set(*board.parse("b3"));
  board.set_position(black, white, Color::kBlack);
  PolicyPlayouts playouts(3, 3);
  playouts.prepare(board);
  mcts::Random random(1);
  int completed = 0;
  int without = 0;
  for (int i = 0; i < 1000; ++i) {
    playouts.run(random, *board.parse("a2"));
    completed += playouts.black_cells<1>().test(*board.parse("b2"));
    playouts.run(random);
    without += playouts.black_cells<1>().test(*board.parse("b2"));
  }
  EXPECT_EQ(completed, 1000);
  EXPECT_NEAR(without, 500, 80) << "the deviation exceeds 5 standard deviations";
}

// Edges count as stones. If a stone intrudes into two bridges, the playout saves a random one.
TEST(PolicyPlayouts, SavesOneOfTwoBridgesAtTheEdge) {
  Board board(5, 3);
  // c2 has a bridge to the bottom edge over b3 and c3, and d2 has one over c3 and d3. White plays
  // c3.
  Board::Set black = Board::Set::single(*board.parse("c2"));
  black.set(*board.parse("d2"));
  board.set_position(black, Board::Set::single(*board.parse("c3")), Color::kBlack);
  PolicyPlayouts playouts(5, 3);
  playouts.prepare(board);
  mcts::Random random(2);
  int b3 = 0;
  int d3 = 0;
  int neither = 0;
  for (int i = 0; i < 2000; ++i) {
    playouts.run(random, *board.parse("c3"));
    const Bits<1> end = playouts.black_cells<1>();
    b3 += end.test(*board.parse("b3"));
    d3 += end.test(*board.parse("d3"));
    neither += !end.test(*board.parse("b3")) && !end.test(*board.parse("d3"));
  }
  EXPECT_EQ(neither, 0);
  EXPECT_GT(b3, 1000);
  EXPECT_LT(b3, 2000);
  EXPECT_GT(d3, 1000);
  EXPECT_LT(d3, 2000);
}

TEST(PolicyPlayouts, TheSeedDecides) {
  PolicyPlayouts a(11, 11);
  PolicyPlayouts b(11, 11);
  a.prepare(Board(11, 11));
  b.prepare(Board(11, 11));
  mcts::Random first(5);
  mcts::Random second(5);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(a.run(first), b.run(second));
    ASSERT_EQ(a.black_cells<2>(), b.black_cells<2>());
  }
}

TEST(PolicyPlayouts, FirstPlayerWinsAsOftenAsInOtherImplementations) {
  PolicyPlayouts playouts(11, 11);
  playouts.prepare(Board(11, 11));
  mcts::Random random(3);
  int wins = 0;
  for (int i = 0; i < kBoards; ++i) wins += playouts.run(random) == Color::kBlack;
  EXPECT_NEAR(wins / double{kBoards}, 0.523, 5 * 0.5 / std::sqrt(kBoards) + 0.002);
}

}  // namespace
}  // namespace cariama::hex
