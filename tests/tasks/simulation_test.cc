// The code of the deque, the join and the choice of victims in a simulated cluster
// (tasks/simulation.h).
#include "tasks/simulation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "dtutils/random.h"

namespace cariama {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint64_t scrambled(uint64_t x) { return Random::mix(x); }

// Binary task creation: each task forks two children and joins them, `iter` times.
class Binary : public SimulatedProgram {
 public:
  Binary(uint64_t depth, uint64_t iter) : depth_(depth), iter_(iter) {}
  SimulatedFrame root() const override { return {{depth_, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    const uint64_t depth = task.words[0];
    uint64_t& stage = task.words[1];
    if (stage == 0) {
      step.count = {1, depth == 0 ? uint64_t{1} : 0, depth_ - depth};
      step.cost = nanoseconds(100);
    }
    if (depth == 0 || stage == 3 * iter_) return;
    step.kind = stage++ % 3 == 2 ? SimulatedStep::Kind::kJoin : SimulatedStep::Kind::kFork;
    step.child = {{depth - 1, 0}};
  }
  SimulatedCount expected() const {
    SimulatedCount count{1, 1, depth_};
    for (uint64_t i = 0; i < depth_; ++i) {
      count.leaves *= 2 * iter_;
      count.nodes += count.leaves;
    }
    return count;
  }

 private:
  uint64_t depth_;
  uint64_t iter_;
};

// A pseudo-random tree. Some tasks join between two forks.
class Irregular : public SimulatedProgram {
 public:
  explicit Irregular(uint64_t seed) : seed_(seed) {}
  SimulatedFrame root() const override { return {{scrambled(seed_ + 1), 0, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    const auto [id, child, depth] = std::tuple(task.words[0], task.words[1], task.words[2]);
    if (child == 0) {
      step.count = {1, children(id, depth) == 0 ? uint64_t{1} : 0, depth};
      step.cost = nanoseconds(20 + id % 1000);
      if (id % 50 == 7) {
        step.cost = microseconds(20);
        step.polls = true;
      }
    }
    if (child % 2 == 1 && id % 3 == 0 && task.words[3] != child) {
      task.words[3] = child;
      step.kind = SimulatedStep::Kind::kJoin;
      return;
    }
    if (child == children(id, depth)) return;
    step.kind = SimulatedStep::Kind::kFork;
    step.child = {{scrambled(id + child + 1), 0, depth + 1}};
    ++task.words[1];
  }
  SimulatedCount expected() const { return walk(scrambled(seed_ + 1), 0); }

 private:
  static uint64_t children(uint64_t id, uint64_t depth) {
    return depth >= 12 ? 0 : depth < 2 ? 3 : id % 5 == 0 ? 4 : id % 5 < 3 ? 1 : 0;
  }
  static SimulatedCount walk(uint64_t id, uint64_t depth) {
    const uint64_t all = children(id, depth);
    SimulatedCount count{1, all == 0 ? uint64_t{1} : 0, depth};
    for (uint64_t i = 0; i < all; ++i) count.add(walk(scrambled(id + i + 1), depth + 1));
    return count;
  }
  uint64_t seed_;
};

SimulationResult run(const SimulatedProgram& program, const SimulationOptions& options) {
  auto result = simulate(program, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : SimulationResult{};
}

// These tests do not run under ThreadSanitizer (tests/CMakeLists.txt): there is only one thread,
// and the sanitizer calls at each switch of stacks take a thousand times as long as the code
// between them.

TEST(Simulation, OneWorkerDoesAllTheWork) {
  const Binary program(10, 1);
  const SimulationResult result = run(program, {.workers = 1});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.count, program.expected());
  EXPECT_EQ(result.work, nanoseconds(100) * 2047);
  EXPECT_EQ(result.statistics.steals, 0u);
  EXPECT_GT(result.efficiency(1), 0.99);
}

TEST(Simulation, ASeedReplaysARun) {
  const Binary program(9, 1);
  const SimulationOptions options{.workers = 100, .jitter = nanoseconds(300)};
  const SimulationResult first = run(program, options);
  const SimulationResult again = run(program, options);
  EXPECT_EQ(first.trace_hash, again.trace_hash);
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.makespan, again.makespan);
  EXPECT_EQ(first.statistics.counters(), again.statistics.counters());
}

TEST(Simulation, SeedsDiffer) {
  const Binary program(7, 1);
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const SimulationResult result = run(program, {.workers = 10, .seed = seed});
    EXPECT_EQ(result.count, program.expected()) << seed;
    hashes.insert(result.trace_hash);
  }
  EXPECT_EQ(hashes.size(), 50u);
}

TEST(Simulation, ThousandsOfWorkersCountRight) {
  for (const uint64_t iter : {1, 2}) {
    const Binary program(iter == 1 ? 16 : 8, iter);
    const SimulationResult result = run(program, {.workers = 2000});
    EXPECT_TRUE(result.finished);
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.count, program.expected());
    EXPECT_GT(result.statistics.steals, 100u);
  }
}

// With kWaitQueue a joiner waits until its worker finds nothing to steal. So the run takes longer
// than with kGreedy.
// Some seeds favour the wait queue, so the sums of ten seeds are compared.
TEST(Simulation, TheWaitQueueJoinsLater) {
  const Binary program(8, 2);
  SimTime greedy{0};
  SimTime queue{0};
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimulationOptions options{.workers = 200};
    options.seed = seed;
    greedy += run(program, options).makespan;
    options.join = JoinPolicy::kWaitQueue;
    const SimulationResult result = run(program, options);
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.count, program.expected());
    EXPECT_GT(result.statistics.joins_waited, 100u);
    EXPECT_EQ(result.statistics.resumed, result.statistics.suspensions);
    queue += result.makespan;
  }
  EXPECT_GT(queue, greedy);
}

// A steal of a public entry from another host takes three dependent round trips.
TEST(Simulation, AStealIsThreeRoundTrips) {
  const Binary program(14, 1);
  const SimulationResult result = run(program, {.workers = 64, .blocks = {1, 1, 1}});
  EXPECT_GT(result.statistics.steals, 60u);
  EXPECT_EQ(result.statistics.steal_trips, 3 * result.statistics.steals);
  EXPECT_EQ(result.statistics.stolen[3], result.statistics.steals);
}

// With kByDistance, workers steal mostly from near victims: 7 of the 511 other workers share a
// cache.
TEST(Simulation, NearVictimsArePreferred) {
  const Binary program(16, 1);
  const auto near_share = [&](VictimOrder order) {
    const SimulationResult result = run(program, {.workers = 512, .victim_order = order});
    EXPECT_EQ(result.count, program.expected());
    return static_cast<double>(result.statistics.stolen[0]) /
           static_cast<double>(result.statistics.steals);
  };
  EXPECT_GT(near_share(VictimOrder::kByDistance), 0.3);
  EXPECT_LT(near_share(VictimOrder::kRandom), 0.1);
}

// Runs programs with seeds that inject delays between steps of the protocols, tear reads, and stop
// workers. An error with an entry, its frames, a record or a waiter is reported as a violation. A
// lost task causes a wrong count, or a run that does not end.
void run_schedules(uint64_t first, uint64_t last) {
  uint64_t steals = 0;
  uint64_t waits = 0;
  uint64_t lost = 0;
  uint64_t back = 0;
  std::set<uint64_t> hashes;
  for (uint64_t seed = first; seed < last; ++seed) {
    SimulationOptions options{.workers = 2 + static_cast<int>(seed % 7),
                              .seed = seed,
                              .blocks = {2, 2, 4},
                              .jitter = nanoseconds(seed % 3 * 2000),
                              .quantum = nanoseconds(seed % 2 == 0 ? 0 : 500),
                              .limit = std::chrono::seconds(1)};
    options.faults = {.pause = seed % 4 == 0 ? 0.3 : 0.02,
                      .pause_most = microseconds(seed % 5 == 0 ? 50 : 5),
                      .stops = static_cast<int>(seed % 3),
                      .stop_before = microseconds(100),
                      .stop_for = microseconds(500),
                      .torn = nanoseconds(seed % 2 * 3000)};
    options.join = seed % 5 == 4 ? JoinPolicy::kWaitQueue : JoinPolicy::kGreedy;
    const Irregular irregular(seed);
    const Binary binary(4, 1 + seed % 2);
    const bool regular = seed % 4 == 3;
    const SimulationResult result = regular ? run(binary, options) : run(irregular, options);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    ASSERT_TRUE(result.finished) << "seed " << seed;
    ASSERT_EQ(result.count, regular ? binary.expected() : irregular.expected()) << "seed " << seed;
    steals += result.statistics.steals;
    waits += result.statistics.resumed;
    lost += result.statistics.steal_lost;
    back += result.statistics.taken_back;
    hashes.insert(result.trace_hash);
  }
  // The schedules all differ, and all these events have happened in them.
  EXPECT_EQ(hashes.size(), last - first);
  EXPECT_GT(steals, 3 * (last - first));
  EXPECT_GT(waits, (last - first) / 10);
  EXPECT_GT(lost, (last - first) / 100);
  EXPECT_GT(back, (last - first) / 100);
}
TEST(Simulation, SchedulesWithFaultsA) { run_schedules(0, 2500); }
TEST(Simulation, SchedulesWithFaultsB) { run_schedules(2500, 5000); }
TEST(Simulation, SchedulesWithFaultsC) { run_schedules(5000, 7500); }
TEST(Simulation, SchedulesWithFaultsD) { run_schedules(7500, 10000); }

// Long steps. A worker publishes private entries during a step that polls. During a step that does
// not poll, thieves wait until the next fork.
class LongSteps : public SimulatedProgram {
 public:
  explicit LongSteps(bool polls) : polls_(polls) {}
  SimulatedFrame root() const override { return {{0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    // 16 levels of nested tasks. The innermost task, and the rest of each task after its fork, take
    // 1 ms.
    uint64_t& level = task.words[0];
    if (level < 16 && task.words[1] == 0) {
      task.words[1] = 1;
      step.kind = SimulatedStep::Kind::kFork;
      step.child = {{level + 1}};
      return;
    }
    step.count = {1, 0, level};
    step.cost = std::chrono::milliseconds(1);
    step.polls = polls_;
  }

 private:
  bool polls_;
};
TEST(Simulation, StepsThatPollShareTheirWork) {
  const auto makespan = [](bool polls) {
    const SimulationResult result = run(LongSteps(polls), {.workers = 17});
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.count, (SimulatedCount{17, 0, 16}));
    EXPECT_EQ(result.work, std::chrono::milliseconds(17));
    return result.makespan;
  };
  EXPECT_LT(makespan(true), microseconds(1300));
  EXPECT_GT(makespan(false), microseconds(1900));
}

// Public entries of a stopped worker can be stolen.
TEST(Simulation, AStoppedWorkerIsStolenFrom) {
  const Binary program(12, 1);
  SimulationOptions options{.workers = 2};
  options.faults = {
      .stops = 1, .stop_before = microseconds(1), .stop_for = std::chrono::seconds(1)};
  for (options.seed = 1; options.seed <= 20; ++options.seed) {
    const SimulationResult result = run(program, options);
    EXPECT_TRUE(result.finished);
    EXPECT_EQ(result.count, program.expected());
  }
}

TEST(Simulation, RefusesInvalidOptions) {
  const Binary program(2, 1);
  EXPECT_FALSE(simulate(program, {.workers = 0}).ok());
  EXPECT_FALSE(simulate(program, {.blocks = {8, 4, 16}}).ok());
  EXPECT_FALSE(simulate(program, {.frame_bytes = 0}).ok());
}

}  // namespace
}  // namespace cariama
