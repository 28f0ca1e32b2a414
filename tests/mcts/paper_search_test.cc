// The search in the paper's design has the properties that §5.3 describes.
#include "mcts/paper/paper_search.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::local_host;
using testing::run_search_job;
using testing::Shape;

ConnectFour after(std::initializer_list<int> moves) {
  ConnectFour game;
  for (const int move : moves) game.play(static_cast<ConnectFour::Move>(move));
  return game;
}

// Every rollout that was begun completed exactly once, in one process. Playouts come in groups of
// 16.
void check(const SearchResult<ConnectFour::Move>& result, uint64_t iterations) {
  EXPECT_EQ(result.iterations, iterations);
  uint64_t completions = 0;
  for (const Statistics& process : result.processes) {
    EXPECT_EQ(process.visits, process.completions + process.handed_over);
    EXPECT_EQ(process.playouts % 16, 0u);
    completions += process.completions;
  }
  EXPECT_EQ(completions, iterations);
  uint64_t visits = 0;
  for (const auto& move : result.moves) visits += move.visits;
  EXPECT_EQ(visits, iterations);
}

// run() returns only after each parent knows its new children and no selection waits, although
// a rollout may complete earlier.
void check_links(Host& host) {
  host.local<PaperTree<ConnectFour>>().for_each_node([](PaperNode<ConnectFour>& node) {
    for (int i = 0; i < node.size; ++i) {
      EXPECT_EQ(node.edge(i).child != 0, node.edge(i).visits != 0);
      EXPECT_EQ(node.edge(i).waiting, 0u);
    }
  });
}

class PaperByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Paper, PaperByShape,
                         ::testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{2, 1}, Shape{2, 2},
                                           Shape{4, 1}),
                         ::testing::PrintToStringParamName());

TEST_P(PaperByShape, CountsAreConserved) {
  const Shape shape = GetParam();
  for (const Aggregation kind : {Aggregation::kTraditional, Aggregation::kOverflow}) {
    run_search_job(shape,
                   [&](Host& host) {
                     PaperSearch<ConnectFour> search(host);
                     search.options().paper.rollouts_per_thread = 1000;
                     for (const bool only_remote : {false, true}) {
                       search.options().paper.only_remote = only_remote;
                       const auto result = search.run(ConnectFour(), {.iterations = 5000});
                       check(result, 5000);
                       check_links(host);
                       // One node per rollout, except rollouts that reached the end of a game.
                       // Owners are drawn uniformly, so each process owns the same part.
                       uint64_t nodes = 0;
                       uint64_t selections = 0;
                       for (const Statistics& process : result.processes) {
                         nodes += process.nodes;
                         selections += process.remote_selections;
                       }
                       EXPECT_GT(nodes, 4000u);
                       EXPECT_LE(nodes, 5001u);
                       for (const Statistics& process : result.processes) {
                         const double share =
                             static_cast<double>(process.nodes) / static_cast<double>(nodes);
                         EXPECT_NEAR(share, 1.0 / shape.processes, 0.05);
                       }
                       EXPECT_EQ(selections > 0, shape.processes > 1);
                     }
                   },
                   check_links, {.aggregation = kind});
  }
}

// Selections that reach a move wait from the request for its child until the child's name arrives.
TEST(Paper, SelectionsAreDeferred) {
  run_search_job({2, 1}, [](Host& host) {
    // If the processes run one after the other on one core, no selection may have to wait.
    PaperSearch<ConnectFour>::Result result;
    uint64_t deferred = 0;
    for (int i = 0; i < 30 && deferred == 0; ++i) {
      PaperSearch<ConnectFour> search(host);
      result = search.run(ConnectFour(), {.iterations = 8000});
      check(result, 8000);
      deferred = result.processes[0].deferred_selections + result.processes[1].deferred_selections;
    }
    EXPECT_GT(deferred, 0u);
    // About half of the nodes have a parent in another process.
    const uint64_t remote =
        result.processes[0].nodes_created_remotely + result.processes[1].nodes_created_remotely;
    const uint64_t nodes = result.processes[0].nodes + result.processes[1].nodes;
    EXPECT_NEAR(static_cast<double>(remote) / static_cast<double>(nodes), 0.5, 0.05);
  });
}

TEST_P(PaperByShape, SeesWhatIsNear) {
  run_search_job(GetParam(), [](Host& host) {
    PaperSearch<ConnectFour> search(host);
    search.options().paper.rollouts_per_thread = 200;
    // The player to move wins with column 3, and loses with any other column: the opponent has
    // three stones in each of the columns 0 and 6. If another move were nearly as good, either
    // could have more visits after a few phases, because the selections of a phase do not see its
    // results.
    auto result = search.run(after({1, 0, 5, 0, 1, 0, 3, 6, 3, 6, 3, 6}), {.iterations = 4000});
    EXPECT_EQ(result.moves[0].move, 3);
    result = search.run(after({3, 0, 3, 1, 3}), {.iterations = 4000});
    EXPECT_EQ(result.moves[0].move, 3);
  });
}

// The phase of the search has no end within the time of the test. The next search frees its nodes.
TEST_P(PaperByShape, AProgressThatThrowsEndsTheSearch) {
  run_search_job(GetParam(), [](Host& host) {
    PaperSearch<ConnectFour> search(host);
    const auto fail = [](const auto&) { throw std::runtime_error("no terminal"); };
    for (int i = 0; i < 3; ++i) {
      search.options().paper.rollouts_per_thread = 1 << 28;
      EXPECT_THROW(static_cast<void>(search.run(ConnectFour(), {}, nullptr, fail, 0.01)),
                   std::runtime_error);
      search.options().paper.rollouts_per_thread = 1000;
      check(search.run(ConnectFour(), {.iterations = 2000}), 2000);
      check_links(host);
    }
  });
}

TEST(Paper, StopsInTheMiddleOfAPhase) {
  const auto host = local_host(2);
  PaperSearch<ConnectFour> search(*host);
  search.options().paper.rollouts_per_thread = 1 << 30;
  std::atomic<bool> stop{false};
  const auto result = search.run(
      ConnectFour(), {}, &stop, [&](const auto&) { stop = true; }, 0.005);
  check(result, result.iterations);
}

// A game whose playouts end the victim after a number of playouts.
class EndsItself : public ConnectFour {
 public:
  float playout(Random& random) const {
    if (playouts_left > 0 && --playouts_left == 0) ::kill(::getpid(), SIGKILL);
    return ConnectFour::playout(random);
  }
  static inline int playouts_left = 0;  // set in the victim, which has one worker
};

// A phase has 100 rollouts for each process, of 16 playouts each. A process answers the question
// after a phase before it takes part in the next one.
TEST(Paper, ReportsTheLastStatisticsOfAProcessThatHasDied) {
  testing::run_with_a_victim(
      {3, 1},
      [](Host& host) {
        PaperSearch<EndsItself> search(host);
        search.options().paper.rollouts_per_thread = 100;
        const auto result = search.run(EndsItself(), {.iterations = 10'000'000});
        EXPECT_EQ(host.living(), 2u);
        EXPECT_LT(result.iterations, 10'000'000u);
        ASSERT_EQ(result.processes.size(), 3u);
        for (const Statistics& process : result.processes) EXPECT_GT(process.completions, 0u);
      },
      nullptr,
      [](Host& host) {
        if (host.rank() == 2) EndsItself::playouts_left = 20 * 100 * 16;
      });
}

TEST(Paper, EndsWhenItsMemoryIsFull) {
  const auto host = local_host(1);
  PaperSearch<ConnectFour> search(*host);
  search.options().memory_bytes = 1 << 20;
  const auto result = search.run(ConnectFour(), {.iterations = 1000000});
  EXPECT_LT(result.iterations, 1000000u);
  EXPECT_LE(result.processes[0].node_bytes, 1u << 20);
  check(result, result.iterations);
}

}  // namespace
}  // namespace cariama::mcts
