#include "hex/patterns.h"

#include <gtest/gtest.h>

#include "mcts/random.h"
#include "tests/hex/testing/oracle.h"
#include "tests/hex/testing/positions.h"
#include "tests/hex/testing/reference.h"

namespace cariama::hex {
namespace {

using testing::at;
using testing::make_board;

using testing::Oracle;
using testing::random_board;

constexpr int kPositions = testing::kBoards / 50;
constexpr int kOpen = 9;

TEST(FillIn, FindsACellBetweenFourStonesOfOneSideDead) {
  // Four consecutive neighbours of c3 are black.
  const Board board = make_board(5, 5, {"d3", "c4", "b4", "b3"}, {});
  EXPECT_TRUE(fill_in(board).dead.test(at(board, "c3")));
  EXPECT_FALSE(fill_in(make_board(5, 5, {"d3", "c4", "b4"}, {})).dead.test(at(board, "c3")));
}

TEST(FillIn, GivesABridgeToTheEdgeOnTheSecondRowToItsOwner) {
  // A black stone on the last row but one captures both cells below it.
  const Board board = make_board(5, 5, {"c4"}, {});
  const FillIn<10> fill = fill_in(board);
  EXPECT_TRUE(fill.captured[0].test(at(board, "b5")));
  EXPECT_TRUE(fill.captured[0].test(at(board, "c5")));
  EXPECT_FALSE(fill.captured[1].any());
  EXPECT_FALSE(fill_in(Board(5, 5)).all().any()) << "no cell is decided on an empty board";
}

TEST(FillIn, NeverChangesTheWinner) {
  mcts::Random random(1);
  Oracle oracle;
  int filled_in = 0;
  for (int i = 0; i < kPositions; ++i) {
    const Board board = random_board(random, kOpen);
    const FillIn<10> fill = fill_in(board);
    filled_in += fill.all().any();
    ASSERT_TRUE(board.empty().contains(fill.all()));
    ASSERT_FALSE(fill.captured[0].intersects(fill.captured[1]));
    ASSERT_FALSE(fill.dead.intersects(fill.captured[0] | fill.captured[1]));
    ASSERT_EQ(oracle.winner(filled(board, fill)), oracle.winner(board))
        << testing::picture(board).cells << " " << board.cols();
    // The winner must be the same if the dead cells are white.
    FillIn<10> white_dead = fill;
    white_dead.dead = {};
    white_dead.captured[1] |= fill.dead;
    ASSERT_EQ(oracle.winner(filled(board, white_dead)), oracle.winner(board))
        << testing::picture(board).cells << " " << board.cols();
  }
  EXPECT_GT(filled_in, kPositions / 4);
}

TEST(Dominated, DoesNotContainAllWinningMoves) {
  mcts::Random random(2);
  Oracle oracle;
  int pruned = 0;
  for (int i = 0; i < kPositions; ++i) {
    const Board open_board = random_board(random, kOpen);
    const Board board = filled(open_board, fill_in(open_board));
    if (board.winner() || oracle.winner(board) != board.to_move()) continue;
    Bits<10> answers;
    const Bits<10> weak = dominated(board, board.to_move(), &answers);
    pruned += weak.count();
    bool found = false;
    board.empty().without(weak).for_each(
        [&](int cell) { found = found || oracle.wins(board, static_cast<Move>(cell)); });
    ASSERT_TRUE(found) << testing::picture(board).cells << " " << board.cols();
    ASSERT_TRUE(board.empty().contains(answers));
    ASSERT_EQ(weak.any(), answers.any());
  }
  EXPECT_GT(pruned, kPositions / 20);
}

TEST(Bridges, AreListedOnceWithTheirCells) {
  const Board board = make_board(7, 7, {"d3", "c5"}, {});
  const std::vector<Bridge> found = bridges(board, Color::kBlack);
  // d3 and c5 have a bridge over c4 and d4. Neither stone has a bridge to an edge.
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].from, at(board, "d3"));
  EXPECT_EQ(found[0].to, at(board, "c5"));
  EXPECT_NE(found[0].carrier[0], found[0].carrier[1]);
  for (const Move cell : found[0].carrier) {
    EXPECT_TRUE(cell == at(board, "c4") || cell == at(board, "d4"));
  }
  EXPECT_TRUE(bridges(board, Color::kWhite).empty());
  EXPECT_TRUE(bridges(make_board(7, 7, {"d3", "c5"}, {"c4"}), Color::kBlack).empty());

  const std::vector<Bridge> edge = bridges(make_board(7, 7, {}, {"b4"}), Color::kWhite);
  ASSERT_EQ(edge.size(), 1U);
  EXPECT_EQ(edge[0].to, kNoMove);
  EXPECT_TRUE(bridges(make_board(7, 7, {"b4"}, {}), Color::kBlack).empty())
      << "the left edge is not an edge of Black";
}

TEST(Connection, FollowsChainsOfBridges) {
  // The chain is top edge - d2 - c4 - b6 - bottom edge; each link is a bridge.
  const Board chain = make_board(7, 7, {"d2", "c4", "b6"}, {});
  const Connection<10> connected = connection(chain, Color::kBlack);
  EXPECT_TRUE(connected.connected);
  EXPECT_EQ(connected.carrier.count(), 8);
  EXPECT_FALSE(connection(chain, Color::kWhite).connected);
  EXPECT_TRUE(must_play(chain, Color::kWhite).lost);

  const Board broken = make_board(7, 7, {"d2", "c4", "b6"}, {"c3"});
  EXPECT_FALSE(connection(broken, Color::kBlack).connected);
  EXPECT_EQ(winning_move(broken, Color::kBlack).move, at(broken, "d3"));
}

TEST(Connection, DoesNotUseACellTwice) {
  // On a 3x3 board, b2 has bridges with disjoint cells to both edges. A white stone on b1 breaks
  // one.
  EXPECT_TRUE(connection(make_board(3, 3, {"b2"}, {}), Color::kBlack).connected);
  EXPECT_FALSE(connection(make_board(3, 3, {"b2"}, {"b1"}), Color::kBlack).connected);
}

// Checks by exhaustive search: a side with a connection wins, a winning move wins, and moves
// outside of the must-play region lose.
TEST(MustPlay, IsSoundOnRandomPositions) {
  mcts::Random random(5);
  Oracle oracle;
  int connections = 0;
  int winning = 0;
  int narrowed = 0;
  int lost = 0;
  for (int i = 0; i < kPositions; ++i) {
    Board board = random_board(random, kOpen);
    const Color own = board.to_move();
    if (connection(board, opponent(own)).connected) {
      ++connections;
      ASSERT_EQ(oracle.winner(board), opponent(own)) << testing::picture(board).cells;
    }
    if (const auto win = winning_move(board, own); win.move != kNoMove) {
      ++winning;
      ASSERT_TRUE(oracle.wins(board, win.move)) << testing::picture(board).cells;
      // The move wins even if the opponent has all cells outside of the carrier.
      Board::Set sets[2] = {board.stones(Color::kBlack), board.stones(Color::kWhite)};
      sets[static_cast<int>(opponent(own))] |= board.empty().without(win.carrier);
      Board worst = board;
      worst.set_position(sets[0], sets[1], own);
      ASSERT_EQ(oracle.winner(worst), own) << testing::picture(board).cells;
    }
    const MustPlay<10> must = must_play(board, own);
    lost += must.lost;
    narrowed += !must.lost && must.cells.count() < board.empty().count();
    ASSERT_TRUE(!must.lost || oracle.winner(board) == opponent(own));
    board.empty().without(must.cells).for_each([&](int cell) {
      ASSERT_FALSE(oracle.wins(board, static_cast<Move>(cell)))
          << testing::picture(board).cells << " " << board.name(static_cast<Move>(cell));
    });
  }
  EXPECT_GT(connections, kPositions / 50);
  EXPECT_GT(winning, kPositions / 10);
  EXPECT_GT(narrowed, kPositions / 50);
  EXPECT_GT(lost, kPositions / 50);
}

}  // namespace
}  // namespace cariama::hex
