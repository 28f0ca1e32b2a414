// The order in which pool workers search for tasks: leapfrogging, then all workers of each level in
// random order, then termination detection. Also the conditions of request cells and detection.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "tasks/internal/victims.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/tasks/pool/pool_test_support.h"

namespace cariama::testing {
namespace {

using Step = PoolAttempt::Step;
using Result = PoolAttempt::Result;

TEST(Shuffle, EveryOrderOfALevelOccurs) {
  tasks::Victims victims({{4, 5, 7, 9}, {}, {1}}, VictimOrder::kByDistance, 3);
  ASSERT_EQ(victims.levels(), 3u);
  std::map<std::vector<int>, int> seen;
  std::vector<int> ranks;
  constexpr int kTimes = 24 * 1000;
  for (int i = 0; i < kTimes; ++i) {
    victims.shuffle(0, ranks);
    ++seen[ranks];
  }
  EXPECT_EQ(seen.size(), 24u);
  for (const auto& [order, times] : seen) {
    EXPECT_NEAR(times, 1000, 200);  // more than six standard deviations
    EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), std::array{4, 5, 7, 9}.begin()));
  }
  victims.shuffle(1, ranks);
  EXPECT_TRUE(ranks.empty());
  victims.shuffle(2, ranks);
  EXPECT_EQ(ranks, std::vector<int>{1});
}

struct Board {
  std::atomic<int> stage;
};
Shared<Board>* board = nullptr;

Fabric* own_fabric = nullptr;
TaskPool* own_pool = nullptr;

// Ends when rank 0, which waits for it, has made many attempts.
int stays(int) {
  constexpr uint64_t kAttempts = 300;
  (*board)->stage = 1;
  EXPECT_TRUE(communicate_until([] { return (*board)->stage == 2; }));
  const auto attempts = [] {
    return must(
        async_call(*own_fabric, 0, [] { return own_pool->statistics().attempts; }).get(soon()));
  };
  EXPECT_TRUE(wait_until([&] { return attempts() >= kAttempts; }, soon()));
  return 1;
}
int returns(int value) { return value; }
int waits_for_stays(int) {
  pool::Children<stays> first;
  pool::Children<returns> second;
  first.spawn(0);
  second.spawn(0);
  EXPECT_TRUE(communicate_until([] { return (*board)->stage == 1; }));
  second.sync();
  (*board)->stage = 2;
  return first.sync();
}

// Rank 0 waits for a task that rank 2 has stolen. All other request cells stay BLOCKED.
TEST(VictimOrder, LeapfrogFirstThenTheLevels) {
  Shared<Board> shared;
  board = &shared;
  constexpr int kWorkers = 6;
  run_process_job(kWorkers, {}, [](Fabric& fabric) {
    PoolOptions options;
    options.recorded_attempts = size_t{1} << 16;
    options.victims = {{}, {}, {}, {0}};
    if (fabric.rank() == 0) options.victims = {{1, 2}, {}, {3}, {4, 5}};
    if (fabric.rank() != 0 && fabric.rank() != 2) options.victims = {{}, {}, {}, {}};
    auto pool = must(TaskPool::create(fabric, options));
    own_fabric = &fabric;
    own_pool = pool.get();
    EXPECT_EQ(must(pool->run<waits_for_stays>(0)), 1);
    const std::vector<PoolAttempt> attempts = pool->take_attempts();
    const PoolStatistics counts = pool->statistics();
    uint64_t leapfrogs = 0;
    uint64_t detections = 0;
    std::array<uint64_t, kVictimLevels> tried{};
    for (const PoolAttempt& attempt : attempts) {
      leapfrogs += attempt.step == Step::kLeapfrog;
      detections += attempt.step == Step::kDetection;
      if (attempt.step != Step::kDetection) ++tried[attempt.level];
    }
    // Rank 0 searches without a pause. It may fill the record before rank 2, which waits until rank
    // 0 has made 300 attempts, runs again. The other workers sleep between two attempts.
    const bool complete = attempts.size() < options.recorded_attempts;
    EXPECT_TRUE(complete || fabric.rank() == 0);
    if (complete) {
      EXPECT_EQ(counts.leapfrog_attempts, leapfrogs);
      EXPECT_EQ(counts.detections, detections);
      EXPECT_EQ(counts.tried, tried);
      EXPECT_EQ(counts.attempts + detections, attempts.size());
    }
    if (fabric.rank() != 0) return;

    EXPECT_EQ(counts.steals, 0u);
    EXPECT_EQ(counts.syncs_waited, 1u);
    EXPECT_EQ(counts.handed_over, 1u);
    // Whole rounds of the wait: leapfrog from rank 2, {1, 2} in any order, 3, {4, 5} in any order.
    size_t at = 0;
    std::set<std::vector<int>> orders;
    // The last round may end early, when the task has ended.
    for (; at + 6 < attempts.size() && attempts[at + 6].step == Step::kLeapfrog; at += 6) {
      EXPECT_EQ(attempts[at].step, Step::kLeapfrog);
      EXPECT_EQ(attempts[at].victim, 2);
      EXPECT_EQ(attempts[at].level, 0);
      std::vector<int> order;
      for (size_t i = 1; i < 6; ++i) {
        ASSERT_EQ(attempts[at + i].step, Step::kLevel);
        order.push_back(attempts[at + i].victim);
      }
      orders.insert(order);
      EXPECT_EQ((std::set<int>{order[0], order[1]}), (std::set<int>{1, 2}));
      EXPECT_EQ(order[2], 3);
      EXPECT_EQ((std::set<int>{order[3], order[4]}), (std::set<int>{4, 5}));
      const std::array<int, 6> levels{0, 0, 0, 2, 3, 3};
      for (size_t i = 0; i < 6; ++i) EXPECT_EQ(attempts[at + i].level, levels[i]);
      for (size_t i = 0; i < 6; ++i) EXPECT_EQ(attempts[at + i].result, Result::kBlocked);
    }
    EXPECT_GE(at, 6u) << "rank 0 searched at least once";
    EXPECT_LE(orders.size(), 4u);
  });
}

// An idle worker tries each victim of each level once between two detections.
TEST(VictimOrder, DetectionAfterAllLevels) {
  run_process_job(4, {}, [](Fabric& fabric) {
    PoolOptions options;
    options.recorded_attempts = 200;
    if (fabric.rank() == 3) options.victims = {{2}, {1}, {}, {0}};
    auto pool = must(TaskPool::create(fabric, options));
    EXPECT_EQ(must(pool->run<returns>(7)), 7);
    if (fabric.rank() != 3) return;
    const std::vector<PoolAttempt> attempts = pool->take_attempts();
    ASSERT_GE(attempts.size(), 4u);
    for (size_t i = 0; i < attempts.size(); ++i) {
      const std::array<int, 4> victims{2, 1, 0, -1};
      EXPECT_EQ(attempts[i].victim, victims[i % 4]);
      EXPECT_EQ(attempts[i].step, i % 4 == 3 ? Step::kDetection : Step::kLevel);
    }
  });
}

// ---- The request cell ----

// With one task in its deque, a worker blocks its request cell; with two, it opens it.
int one_task(int) {
  pool::Children<returns> child;
  child.spawn(1);
  pool::communicate();
  const bool blocked = pool::internal::deque.request->load() == pool::internal::kBlocked;
  return (blocked ? 1 : 0) + child.sync();
}
int two_tasks(int) {
  pool::Children<returns> children;
  children.spawn(1);
  children.spawn(1);
  pool::communicate();
  const bool open = pool::internal::deque.request->load() == pool::internal::kOpen;
  const int sum = children.sync() + children.sync();
  pool::communicate();
  const bool blocked = pool::internal::deque.request->load() == pool::internal::kBlocked;
  return sum + (open ? 1 : 0) + (blocked ? 1 : 0);
}

TEST(RequestCell, BlockedBelowTwoTasks) {
  run_process_job(2, {}, [](Fabric& fabric) {
    PoolOptions options;
    options.victims = {{}, {}, {}, {}};  // no attempts
    auto pool = must(TaskPool::create(fabric, options));
    EXPECT_EQ(must(pool->run<one_task>(0)), 2);
    EXPECT_EQ(must(pool->run<two_tasks>(0)), 4);
    EXPECT_EQ(pool->statistics().attempts, 0u);
  });
  // The only task of a worker is not stolen, however long thieves try.
  with_pool(3, {}, [](TaskPool& pool, Fabric& fabric) {
    for (int run = 0; run < 20; ++run) EXPECT_EQ(must(pool.run<one_task>(0)), 2);
    EXPECT_EQ(pool.statistics().handed_over, 0u);
    if (fabric.rank() != 0) {
      EXPECT_EQ(pool.statistics().blocked, pool.statistics().attempts);
    }
  });
}

}  // namespace
}  // namespace cariama::testing
