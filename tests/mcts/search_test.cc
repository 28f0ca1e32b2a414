// Searches in one process: proofs, conservation, determinism, limits, memory.
#include "mcts/search.h"

#include <atomic>
#include <memory>
#include <thread>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_conservation;
using testing::local_host;
using testing::TicTacToe;

template <typename G>
G after(std::initializer_list<int> moves) {
  G game;
  for (const int move : moves) game.play(static_cast<typename G::Move>(move));
  return game;
}

class ByThreads : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Search, ByThreads, ::testing::Values(1, 2, 4));

// Every position of tic-tac-toe that two plies lead to is proved, as exhaustive search says.
TEST_P(ByThreads, ProvesTicTacToe) {
  const auto host = local_host(GetParam());
  Search<TicTacToe> search(*host);
  for (int first = 0; first < 9; ++first) {
    for (int second = 0; second < 9; ++second) {
      if (first == second) continue;
      const TicTacToe game = after<TicTacToe>({first, second});
      const auto result = search.run(game, {.iterations = 100000});
      ASSERT_NE(result.outcome, Outcome::kOpen) << first << second;
      EXPECT_EQ(value_of(result.outcome), game.solve()) << first << second;
      TicTacToe next = game;
      next.play(result.moves[0].move);
      EXPECT_EQ(next.solve(), game.solve()) << first << second;
      check_conservation(search, result);
    }
  }
}

// A win in one, and one that has to be prevented.
TEST_P(ByThreads, SeesWhatIsNear) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  auto result = search.run(after<ConnectFour>({3, 0, 3, 0, 3, 0}), {.iterations = 20000});
  EXPECT_EQ(result.moves[0].move, 3);
  EXPECT_EQ(result.moves[0].verdict, Verdict::kWins);
  EXPECT_EQ(result.outcome, Outcome::kFirstWins);
  result = search.run(after<ConnectFour>({3, 0, 3, 1, 3}), {.iterations = 20000});
  EXPECT_EQ(result.player, 1);
  EXPECT_EQ(result.moves[0].move, 3);
}

TEST_P(ByThreads, CountsAreConserved) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    search.options().seed = seed;
    search.options().expand_visits = static_cast<uint32_t>(4 * (seed - 1));
    search.clear();
    const auto result = search.run(ConnectFour(), {.iterations = 20000});
    EXPECT_EQ(result.iterations, 20000u);
    check_conservation(search, result);
    EXPECT_EQ(result.moves.size(), 7u);
    uint64_t visits = 0;
    for (const auto& move : result.moves) visits += move.visits;
    EXPECT_EQ(visits, 20000u);
    EXPECT_GT(result.processes[0].nodes, 100u);
  }
}

// A tree that is larger than its memory goes on growing where it matters.
TEST_P(ByThreads, MemoryIsCollected) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  search.options().memory_bytes = 8 << 20;
  search.options().expand_visits = 0;
  const auto result = search.run(ConnectFour(), {.iterations = 60000});
  EXPECT_EQ(result.iterations, 60000u);
  EXPECT_GT(result.processes[0].collections, 0u);
  EXPECT_LE(result.processes[0].node_bytes, 8u << 20);
  EXPECT_GT(result.processes[0].nodes, 1000u);
  check_conservation(search, result);
}

TEST(Search, OneWorkerAndASeedRepeatTheSearch) {
  const auto run = [](uint64_t seed) {
    const auto host = local_host(1);
    Search<ConnectFour> search(*host);
    search.options().seed = seed;
    std::vector<uint64_t> visits;
    for (const auto& move : search.run(ConnectFour(), {.iterations = 5000}).moves) {
      visits.push_back(move.visits * 8 + move.move);
    }
    return visits;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Search, TheTreeIsKept) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  search.options().expand_visits = 1;
  const auto first = search.run(ConnectFour(), {.iterations = 10000});
  const ConnectFour next = after<ConnectFour>({first.moves[0].move});
  search.advance(first.moves[0].move);
  const auto second = search.run(next, {.iterations = 1});
  uint64_t visits = 0;
  for (const auto& move : second.moves) visits += move.visits;
  // All of them but those before the move had a node.
  EXPECT_GE(visits + 3, first.moves[0].visits);
  EXPECT_EQ(second.player, 1);
  check_conservation(search, second);
  // Another position has no use for it.
  const auto third = search.run(after<ConnectFour>({0, 0, 0}), {.iterations = 1});
  visits = 0;
  for (const auto& move : third.moves) visits += move.visits;
  EXPECT_EQ(visits, 1u);
}

TEST(Search, StopsWhenTold) {
  const auto host = local_host(2);
  Search<ConnectFour> search(*host);
  std::atomic<bool> stop{true};
  auto result = search.run(ConnectFour(), {}, &stop);
  EXPECT_FALSE(result.moves.empty());
  // From within, by the progress: two reports, then the end.
  stop = false;
  int reports = 0;
  result = search.run(
      ConnectFour(), {}, &stop,
      [&](const SearchResult<ConnectFour::Move>& so_far) {
        EXPECT_EQ(so_far.moves.size(), 7u);
        if (++reports == 2) stop = true;
      },
      0.001);
  EXPECT_EQ(reports, 2);
  check_conservation(search, result);
}

TEST(Search, TimeIsALimit) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  search.options().stop_when_safe = false;
  const auto result = search.run(ConnectFour(), {.seconds = 0.02});
  EXPECT_GE(result.seconds, 0.02);
  EXPECT_GT(result.iterations, 0u);
}

}  // namespace
}  // namespace cariama::mcts
