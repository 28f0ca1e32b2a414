// The real deque, join and victims in a simulated cluster (tasks/simulation.h).
#include "tasks/simulation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>

namespace cariama {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint64_t scrambled(uint64_t x) {  // Stafford's mix 13
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

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

// A tree without any regularity; some tasks join in the middle of their children.
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

// Not in ThreadSanitizer's build (tests/CMakeLists.txt): there is one thread, and what it is told
// at each change of stacks takes a thousand times as long as what is between them.

TEST(Simulation, OneWorkerDoesAllAndStealsNothing) {
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

// In the paper's queue a joiner waits until its worker finds nothing to steal, and no record has a
// waiter; it costs time.
TEST(Simulation, TheWaitQueueJoinsLater) {
  const Binary program(8, 2);
  const SimulationResult greedy = run(program, {.workers = 200});
  const SimulationResult queue = run(program, {.workers = 200, .join = JoinPolicy::kWaitQueue});
  EXPECT_EQ(queue.violation, "");
  EXPECT_EQ(queue.count, program.expected());
  EXPECT_GT(queue.statistics.joins_waited, 100u);
  EXPECT_EQ(queue.statistics.resumed, queue.statistics.suspensions);
  EXPECT_GT(queue.makespan, greedy.makespan);
}

// What a steal of a public entry costs between two hosts: three dependent round trips.
TEST(Simulation, AStealIsThreeRoundTrips) {
  const Binary program(14, 1);
  const SimulationResult result = run(program, {.workers = 64, .blocks = {1, 1, 1}});
  EXPECT_GT(result.statistics.steals, 60u);
  EXPECT_EQ(result.statistics.steal_trips, 3 * result.statistics.steals);
  EXPECT_EQ(result.statistics.stolen[3], result.statistics.steals);
}

// Work comes from near by where there is some: 7 of 511 others share a cache.
TEST(Simulation, NearOnesAreRobbedFirst) {
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

// Seeds that delay between any two steps of the protocols, tear reads, and stop workers. Whatever
// is wrong with an entry, its frames, a record or a waiter is a violation; a lost task is a wrong
// count, or a run that does not end.
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
  // All of it has happened, in schedules that differ.
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

// A stretch that polls hands out what is private meanwhile; one that does not keeps its thief
// waiting until its next fork.
class Stretch : public SimulatedProgram {
 public:
  explicit Stretch(bool polls) : polls_(polls) {}
  SimulatedFrame root() const override { return {{0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    // Sixteen nested tasks; the innermost, and what is behind each fork, takes a millisecond.
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
TEST(Simulation, StretchesThatPollShareTheirWork) {
  const auto makespan = [](bool polls) {
    const SimulationResult result = run(Stretch(polls), {.workers = 17});
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.count, (SimulatedCount{17, 0, 16}));
    EXPECT_EQ(result.work, std::chrono::milliseconds(17));
    return result.makespan;
  };
  EXPECT_LT(makespan(true), microseconds(1300));
  EXPECT_GT(makespan(false), microseconds(1900));
}

// While a worker is stopped its public entries go on elsewhere.
TEST(Simulation, AStoppedWorkerIsRobbed) {
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

TEST(Simulation, RefusesWhatCannotBe) {
  const Binary program(2, 1);
  EXPECT_FALSE(simulate(program, {.workers = 0}).ok());
  EXPECT_FALSE(simulate(program, {.blocks = {8, 4, 16}}).ok());
  EXPECT_FALSE(simulate(program, {.frame_bytes = 0}).ok());
}

}  // namespace
}  // namespace cariama
