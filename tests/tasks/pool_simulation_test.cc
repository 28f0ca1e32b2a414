// The code of the task pool in a simulated cluster (tasks/pool_simulation.h).
#include "tasks/pool_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "dtutils/random.h"

namespace cariama {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// A binary tree of tasks, numbered as a heap from 1. It counts how often each task began and ended.
class Tree : public SimulatedProgram {
 public:
  explicit Tree(int levels, SimTime cost = microseconds(1))
      : tasks_((size_t{1} << levels) - 1), cost_(cost), began_(tasks_ + 1), ended_(tasks_ + 1) {}
  SimulatedFrame root() const override { return {{1, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    const uint64_t id = task.words[0];
    const uint64_t stage = task.words[1]++;
    if (stage == 0) {
      ++began_[id];
      step.count = {1, 0, id};
      step.cost = cost_;
    }
    if (stage < 2 && 2 * id + stage <= tasks_) {
      step.kind = SimulatedStep::Kind::kFork;
      step.child = {{2 * id + stage, 0}};
    } else {
      ++ended_[id];
    }
  }
  [[nodiscard]] bool each_ran_once() const {
    return std::all_of(began_.begin() + 1, began_.end(), [](int n) { return n == 1; }) &&
           std::all_of(ended_.begin() + 1, ended_.end(), [](int n) { return n == 1; });
  }
  [[nodiscard]] SimulatedCount expected() const { return {tasks_, 0, tasks_}; }

 private:
  uint64_t tasks_;
  SimTime cost_;
  mutable std::vector<int> began_;
  mutable std::vector<int> ended_;
};

// A pseudo-random tree with tasks of different lengths. Some of them poll, some join between forks.
class IrregularPool : public SimulatedProgram {
 public:
  explicit IrregularPool(uint64_t seed) : seed_(seed) {}
  SimulatedFrame root() const override { return {{Random::mix(seed_ + 1), 0, 0, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    const uint64_t id = task.words[0];
    const uint64_t depth = task.words[1];
    uint64_t& next = task.words[2];
    if (next == 0) {
      step.count = {1, 0, depth};
      step.cost = nanoseconds(20 + id % 2000);
      step.polls = id % 7 == 0;
    }
    if (next == 2 && id % 3 == 0 && task.words[3]++ == 0) {
      step.kind = SimulatedStep::Kind::kJoin;
    } else if (next < children(id, depth)) {
      step.kind = SimulatedStep::Kind::kFork;
      step.child = {{Random::mix(id + ++next), depth + 1, 0, 0}};
    }
  }
  [[nodiscard]] SimulatedCount expected() const { return walk(Random::mix(seed_ + 1), 0); }

 private:
  static uint64_t children(uint64_t id, uint64_t depth) {
    return depth >= 10 ? 0 : depth < 3 ? 4 : id % 4;
  }
  static SimulatedCount walk(uint64_t id, uint64_t depth) {
    SimulatedCount count{1, 0, depth};
    for (uint64_t i = 1; i <= children(id, depth); ++i) {
      count.add(walk(Random::mix(id + i), depth + 1));
    }
    return count;
  }
  uint64_t seed_;
};

PoolSimulationOptions with_workers(int workers) {
  PoolSimulationOptions options;
  options.cluster.workers = workers;
  options.cluster.blocks = {4, 8, 16};
  options.stack_bytes = size_t{2} << 20;
  return options;
}

PoolSimulationResult run(const SimulatedProgram& program, const PoolSimulationOptions& options) {
  auto result = simulate_pool(program, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : PoolSimulationResult{};
}

TEST(PoolSimulation, OneWorkerDoesAllTheWork) {
  const Tree tree(10);
  const PoolSimulationResult result = run(tree, with_workers(1));
  EXPECT_TRUE(result.finished);
  EXPECT_TRUE(tree.each_ran_once());
  EXPECT_EQ(result.count, tree.expected());
  EXPECT_EQ(result.makespan, microseconds(1) * 1023);
  EXPECT_EQ(result.work, result.makespan);
  EXPECT_EQ(result.statistics.attempts, 0u);
}

TEST(PoolSimulation, EachTaskRunsOnceAndAllWorkersLeave) {
  for (const uint32_t steal : {1u, 10u, kStealHalf}) {
    const Tree tree(14);
    PoolSimulationOptions options = with_workers(64);
    options.steal = steal;
    const PoolSimulationResult result = run(tree, options);
    EXPECT_EQ(result.violation, "");
    EXPECT_TRUE(result.finished);
    EXPECT_TRUE(tree.each_ran_once());
    EXPECT_EQ(result.count, tree.expected());
    EXPECT_EQ(result.work, microseconds(1) * 16383);
    EXPECT_GT(result.efficiency(64), 0.5);
    // A unit of work is a task that was handed over, or the root task.
    const PoolStatistics& counts = result.statistics;
    EXPECT_EQ(result.units_begun, counts.handed_over + 1);
    EXPECT_EQ(result.units_ended, counts.handed_over + 1);
    EXPECT_EQ(counts.stolen_tasks, counts.handed_over);
    EXPECT_EQ(counts.requests, counts.steals + counts.rejected);
    EXPECT_EQ(counts.attempts, counts.steals + counts.rejected + counts.blocked + counts.busy);
    EXPECT_GE(counts.steals, 63u);
    if (steal == 1) {
      EXPECT_EQ(counts.stolen_tasks, counts.steals);
    } else {
      EXPECT_GT(counts.stolen_tasks, counts.steals);
    }
    // Each worker has scanned the status cells before it left: one round trip for each other one.
    EXPECT_GE(counts.detections, 64u);
    EXPECT_GE(result.termination, nanoseconds(1000) * 63);
  }
}

TEST(PoolSimulation, ASeedReplaysARun) {
  PoolSimulationOptions options = with_workers(64);
  options.cluster.jitter = nanoseconds(300);
  std::set<uint64_t> hashes;
  for (options.cluster.seed = 1; options.cluster.seed <= 4; ++options.cluster.seed) {
    const PoolSimulationResult first = run(Tree(12), options);
    const PoolSimulationResult again = run(Tree(12), options);
    EXPECT_EQ(first.trace_hash, again.trace_hash);
    EXPECT_EQ(first.events, again.events);
    EXPECT_EQ(first.makespan, again.makespan);
    EXPECT_EQ(first.termination, again.termination);
    EXPECT_EQ(first.statistics.counters(), again.statistics.counters());
    hashes.insert(first.trace_hash);
  }
  EXPECT_EQ(hashes.size(), 4u);
}

// Of the 63 other workers, 3 share a cache, 4 more a NUMA node, 8 more a host, and 48 are on other
// hosts.
TEST(PoolSimulation, NearVictimsComeFirst) {
  const PoolSimulationResult result = run(Tree(15), with_workers(64));
  EXPECT_EQ(result.violation, "");
  const auto& [near, node, host, network] = result.statistics.stolen;
  EXPECT_GT(near, 3 * node);
  EXPECT_GT(near, result.statistics.steals / 2);
  EXPECT_GT(network, 0u);
  // A search tries the next level only after no worker of its level had a task. Leapfrogging
  // makes its attempts at any level.
  const auto& tried = result.statistics.tried;
  const uint64_t leaps = result.statistics.leapfrog_attempts;
  EXPECT_GE(tried[0] - near, 3 * ((tried[3] - std::min(tried[3], leaps)) / 48));
  EXPECT_GE(tried[2] - host, 8 * ((tried[3] - std::min(tried[3], leaps)) / 48));
}

// An attempt takes a round trip. The victim's answer takes one latency too, and may arrive with
// that of the compare-and-swap.
TEST(PoolSimulation, LatencyFollowsTheDistance) {
  PoolSimulationOptions options = with_workers(64);
  options.cluster.latency = {nanoseconds(100), nanoseconds(400), nanoseconds(1600),
                             nanoseconds(6400)};
  const PoolStatistics counts = run(Tree(15), options).statistics;
  for (size_t level = 0; level < kVictimLevels; ++level) {
    const auto one_way = static_cast<uint64_t>(options.cluster.latency[level].count() / 1000);
    ASSERT_GT(counts.stolen[level], 0u) << level;
    EXPECT_GE(counts.steal_ns[level], 2 * one_way * counts.stolen[level]) << level;
    EXPECT_GE(counts.failed_ns[level], 2 * one_way * (counts.tried[level] - counts.stolen[level]));
  }
}

// Each task forks one child and joins it, so no deque ever has two tasks.
class Chain : public SimulatedProgram {
 public:
  SimulatedFrame root() const override { return {{100, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    if (task.words[0] == 0 || task.words[1]++ != 0) return;
    step.count = {1, 0, 0};
    step.cost = microseconds(10);
    step.polls = true;
    step.kind = SimulatedStep::Kind::kFork;
    step.child = {{task.words[0] - 1, 0}};
  }
};
TEST(PoolSimulation, AWorkerWithFewerThanTwoTasksIsBlocked) {
  const PoolSimulationResult result = run(Chain(), with_workers(16));
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.count, (SimulatedCount{100, 0, 0}));
  EXPECT_EQ(result.makespan, microseconds(10) * 100);
  EXPECT_EQ(result.statistics.steals, 0u);
  EXPECT_GT(result.statistics.attempts, 1000u);
  EXPECT_EQ(result.statistics.blocked, result.statistics.attempts);
}

// Seeds with delays between the steps of the protocol, jitter, and workers that stop.
TEST(PoolSimulation, SchedulesWithFaults) {
  uint64_t steals = 0;
  uint64_t rejected = 0;
  uint64_t busy = 0;
  uint64_t waits = 0;
  std::set<uint64_t> hashes;
  constexpr uint64_t kSeeds = 300;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    PoolSimulationOptions options = with_workers(2 + static_cast<int>(seed % 9));
    options.cluster.seed = seed;
    options.cluster.blocks = {2, 2, 4};
    options.cluster.jitter = nanoseconds(seed % 3 * 2000);
    options.cluster.quantum = nanoseconds(seed % 2 == 0 ? 0 : 500);
    options.cluster.limit = std::chrono::seconds(1);
    options.cluster.faults.pause = seed % 4 == 0 ? 0.3 : 0.02;
    options.cluster.faults.pause_most = microseconds(seed % 5 == 0 ? 50 : 5);
    options.cluster.faults.stops = static_cast<int>(seed % 3);
    options.cluster.faults.stop_before = microseconds(100);
    options.cluster.faults.stop_for = microseconds(500);
    options.steal = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 3 : kStealHalf;
    const IrregularPool program(seed);
    const PoolSimulationResult result = run(program, options);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    ASSERT_TRUE(result.finished) << "seed " << seed;
    ASSERT_EQ(result.count, program.expected()) << "seed " << seed;
    steals += result.statistics.steals;
    rejected += result.statistics.rejected;
    busy += result.statistics.busy;
    waits += result.statistics.syncs_waited;
    hashes.insert(result.trace_hash);
  }
  EXPECT_EQ(hashes.size(), kSeeds);
  EXPECT_GT(steals, 3 * kSeeds);
  EXPECT_GT(rejected, kSeeds / 10);
  EXPECT_GT(busy, kSeeds / 10);
  EXPECT_GT(waits, kSeeds / 10);
}

TEST(PoolSimulation, NamesTheOptionThatIsTooSmall) {
  PoolSimulationOptions options = with_workers(2);
  options.cells = 64;
  options.private_cells = 0;
  class Forks : public SimulatedProgram {
   public:
    SimulatedFrame root() const override { return {{1000}}; }
    void step(SimulatedFrame& task, SimulatedStep& step) const override {
      if (task.words[0] == 0) return;
      --task.words[0];
      step.kind = SimulatedStep::Kind::kFork;
    }
  };
  PoolSimulationResult result = run(Forks(), options);
  EXPECT_FALSE(result.finished);
  EXPECT_NE(result.violation.find("private_cells"), std::string::npos) << result.violation;

  class Deep : public SimulatedProgram {
   public:
    SimulatedFrame root() const override { return {{100'000, 0}}; }
    void step(SimulatedFrame& task, SimulatedStep& step) const override {
      if (task.words[0] == 0 || task.words[1]++ != 0) return;
      step.kind = SimulatedStep::Kind::kFork;
      step.child = {{task.words[0] - 1, 0}};
    }
  };
  result = run(Deep(), with_workers(2));
  EXPECT_FALSE(result.finished);
  EXPECT_NE(result.violation.find("stack_bytes"), std::string::npos) << result.violation;
}

TEST(PoolSimulation, RefusesInvalidOptions) {
  const auto refused = [](void (*change)(PoolSimulationOptions&)) {
    PoolSimulationOptions options = with_workers(2);
    change(options);
    return !simulate_pool(Chain(), options).ok();
  };
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.cluster.workers = 0; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.cluster.blocks = {8, 4, 16}; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.steal = 0; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.steal = 65; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.cells = 63; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.stack_bytes = 5000; }));
  EXPECT_TRUE(refused([](PoolSimulationOptions& o) { o.own_atomic = nanoseconds(-1); }));
  EXPECT_FALSE(refused([](PoolSimulationOptions&) {}));
}

}  // namespace
}  // namespace cariama
