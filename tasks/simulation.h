// What a program of forks and joins would do on a machine that is not there: up to some 10^5
// workers, each of which runs the very code of the deque (owner and thief), of the join and of the
// choice of victims that real workers run, over a simulated network in virtual time.
//
//   class Tree : public SimulatedProgram { ... };             // what a task does, and how long
//   auto result = simulate(Tree(), {.workers = 3840});
//   result->efficiency(3840)                                  // work / (workers * makespan)
//
// What is simulated is everything else: a task is a few words that say how far it is, its steps
// take the time that the program says, its frames have the size that the options say, and one-sided
// operations take the time of the model below. What is left out: idle workers are not woken, they
// look again as they do over verbs; deques but the split one; tied tasks, exceptions and suspend().
//
// Deterministic: a seed replays a run exactly, event by event; compare trace_hash. Another seed
// chooses other victims, another order of what happens at the same instant, and other faults.
//
// The model of an operation. It leaves at once, and is at the target `latency` (+ up to jitter)
// later, not before what the same worker sent earlier. The target's port (one for each host)
// executes at most one each message_gap. The answer takes `latency` again, and bytes / bandwidth.
//
// Why not dtutils' SimFabric: it needs a queue pair for each two workers that ever meet, and five
// events for a WRITE; here two, and no connections. Latency, jitter and so on mean the same.
#ifndef CARIAMA_TASKS_SIMULATION_H_
#define CARIAMA_TASKS_SIMULATION_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/sim/sim_fabric.h"
#include "tasks/export.h"
#include "tasks/runtime.h"

namespace cariama {

// What tasks return: sums, and the most of depths.
struct SimulatedCount {
  uint64_t nodes = 0;
  uint64_t leaves = 0;
  uint64_t depth = 0;

  void add(const SimulatedCount& other) {
    nodes += other.nodes;
    leaves += other.leaves;
    if (other.depth > depth) depth = other.depth;
  }
  friend bool operator==(const SimulatedCount&, const SimulatedCount&) = default;
};

// How far a task is: plain words that mean something to its program.
struct SimulatedFrame {
  std::array<uint64_t, 6> words{};
};

// What a task does next.
struct SimulatedStep {
  enum class Kind : uint8_t {
    kFork,  // runs `child`; what the task does after that may be stolen
    kJoin,  // waits for all children that it has forked
    kEnd,   // waits for them, and returns what it and they have counted
  };
  Kind kind = Kind::kEnd;
  SimTime cost{0};         // of the processor, before that
  bool polls = false;      // thieves are attended to meanwhile: poll(), or forks left out
  SimulatedCount count{};  // added to what the task has counted
  SimulatedFrame child{};
};

class CARIAMA_TASKS_EXPORT SimulatedProgram {
 public:
  virtual ~SimulatedProgram() = default;
  [[nodiscard]] virtual SimulatedFrame root() const = 0;
  // The next step of the task that is as far as `task` says, which is changed to what comes then.
  // `step` is as it was made. Must depend on `task` only.
  virtual void step(SimulatedFrame& task, SimulatedStep& step) const = 0;
};

// Things that real machines do seldom. All of them at random, by the seed.
struct SimulatedFaults {
  // A worker is held up for up to pause_most before an access to its own shelf, or before a remote
  // operation: between any two steps of a protocol.
  double pause = 0;
  SimTime pause_most = std::chrono::microseconds(20);
  // So many workers stop at a time up to stop_before (as by SIGSTOP: their memory is still there),
  // and go on after stop_for.
  int stops = 0;
  SimTime stop_before = std::chrono::microseconds(200);
  SimTime stop_for = std::chrono::milliseconds(1);
  // The pieces of a read are read at different times, up to so far apart, in order.
  SimTime torn{0};
};

struct SimulationOptions {
  int workers = 2;
  uint64_t seed = 1;
  VictimOrder victim_order = VictimOrder::kRandom;
  JoinPolicy join = JoinPolicy::kGreedy;
  // How many consecutive ranks share a last-level cache, a NUMA node, a host: each a multiple of
  // the one before.
  std::array<int, 3> blocks{8, 32, 64};
  // One way, by VictimLevel. Workers on several hosts talk through their cards even within one.
  std::array<SimTime, kVictimLevels> latency{
      std::chrono::nanoseconds(500), std::chrono::nanoseconds(500), std::chrono::nanoseconds(500),
      std::chrono::nanoseconds(1000)};
  SimTime jitter{0};
  double gigabytes_per_second = 12.5;
  SimTime message_gap = std::chrono::nanoseconds(5);
  SimTime own_access = std::chrono::nanoseconds(20);  // of its own shelf or record, by a worker
  // Copying a task's frames out, or in again.
  SimTime switch_cost = std::chrono::nanoseconds(200);
  size_t frame_bytes = 1024;  // of a task
  std::chrono::microseconds idle_sleep{50};
  // A worker computes at most so far ahead of the clock before it looks at what others did. The
  // least latency is short enough to be exact but for what is under way already.
  SimTime quantum = std::chrono::nanoseconds(500);
  SimTime limit = std::chrono::hours(1);  // of virtual time
  SimulatedFaults faults{};
};

struct SimulationResult {
  bool finished = false;  // within the limit
  SimTime makespan{0};    // until rank 0 had the result
  SimTime work{0};        // the sum of all steps' costs
  SimulatedCount count;
  TaskStatistics statistics;  // summed over the workers; idle_ns is virtual
  uint64_t events = 0;
  uint64_t trace_hash = 0;
  // What was seen that must not be: an entry that was taken twice, frames that were overwritten
  // before they were copied, a task that was resumed twice, a record that was used after its end.
  // Empty: nothing.
  std::string violation;

  [[nodiscard]] double efficiency(int workers) const {
    return static_cast<double>(work.count()) /
           (static_cast<double>(makespan.count()) * static_cast<double>(workers));
  }
};

// Runs the program, with one thread. Memory: some 10 KiB for each worker. Must not be called by
// tasks, nor while this process has a TaskRuntime. Errors: INVALID_ARGUMENT (names the option),
// FAILED_PRECONDITION, RESOURCE_EXHAUSTED.
[[nodiscard]] CARIAMA_TASKS_EXPORT absl::StatusOr<SimulationResult> simulate(
    const SimulatedProgram& program, const SimulationOptions& options);

}  // namespace cariama

#endif  // CARIAMA_TASKS_SIMULATION_H_
