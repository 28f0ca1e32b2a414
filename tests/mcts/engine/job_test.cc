// The job queue counts the rollouts of the shares that no worker has taken.
#include "mcts/engine/job.h"

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;

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

}  // namespace
}  // namespace cariama::mcts
