// The job queue counts the rollouts of the shares that no worker has taken. Rollouts that another
// process runs have an expected value until the answer arrives.
#include "mcts/engine/job.h"

#include <cstdint>
#include <optional>
#include <span>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/even_plies.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_conservation;
using testing::run_search_job;
using testing::Shape;

TEST(JobQueue, CountsTheRolloutsOfSharesThatAreLeft) {
  JobQueue<ConnectFour> queue;
  const auto push = [&](bool share, int64_t rollouts) -> Job<ConnectFour>& {
    Job<ConnectFour>& job = queue.new_job();
    job.share = share;
    job.start(rollouts);
    queue.push(job);
    return job;
  };
  push(false, 100);
  Job<ConnectFour>& first = push(true, 10);
  push(true, 7);
  EXPECT_EQ(queue.shares_left(), 17);
  EXPECT_EQ(queue.take(8).rollouts, 8u);  // of the job that is no share
  EXPECT_EQ(queue.shares_left(), 17);
  EXPECT_EQ(queue.take(100).rollouts, 92u);
  EXPECT_EQ(queue.take(8).rollouts, 8u);
  EXPECT_EQ(queue.shares_left(), 9);
  EXPECT_EQ(first.take(1), 1u);  // for a request to another process
  EXPECT_EQ(queue.shares_left(), 8);
  queue.put_back(first, 4);
  EXPECT_EQ(queue.shares_left(), 12);
  EXPECT_EQ(first.take_all(), 5u);  // the outcome of the root is proved
  EXPECT_EQ(queue.shares_left(), 7);
  EXPECT_EQ(queue.take(8).rollouts, 0u);
  EXPECT_EQ(queue.take(8).rollouts, 7u);
  EXPECT_EQ(queue.shares_left(), 0);
}

class EvenGame : public testing::EvenPlies<12> {
 public:
  float playout(Random&) const { return kValue; }
  friend bool operator==(const EvenGame&, const EvenGame&) = default;
};

class JobByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Job, JobByShape, ::testing::Values(Shape{1, 1}, Shape{2, 2}, Shape{4, 1}),
                         ::testing::PrintToStringParamName());

// After a search no node has an expected value of a rollout in flight: the means are exact.
TEST_P(JobByShape, ExpectedValuesAreTakenBack) {
  const auto check = [](Host& host) {
    host.local<LocalTree<EvenGame>>().for_each_node([](const Node<EvenGame>& node) {
      const double value = node.player() == 0 ? EvenGame::kValue : 1 - EvenGame::kValue;
      for (int i = 0; i < node.size(); ++i) EXPECT_EQ(node.value(i), node.visits(i) * value);
    });
  };
  run_search_job(
      GetParam(),
      [&](Host& host) {
        Search<EvenGame> search(host);
        search.options().expand_visits = 1;
        for (const float loss : {0.0F, 0.3F, 1.0F}) {
          search.options().selection.virtual_loss = loss;
          search.options().placement = loss == 0 ? Placement::kLocality : Placement::kRandom;
          search.options().spread_visits = 0;  // remote_playouts_test.cc has the other case
          search.clear();
          const auto result = search.run(EvenGame(), {.iterations = 5000});
          for (const auto& move : result.moves) EXPECT_EQ(move.value, EvenGame::kValue);
          check_conservation(search, result);
          check(host);
        }
      },
      check);
}

}  // namespace
}  // namespace cariama::mcts
