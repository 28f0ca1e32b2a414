// simulate(): runs a fork-join program on a simulated cluster of up to about 10^5 workers. Each
// simulated worker executes the scheduler's loop of the real workers (internal/scheduler.h), with
// its deque, joins and choice of victims, over a simulated network in virtual time.
//
//   class Tree : public SimulatedProgram { ... };             // the steps of a task, their costs
//   auto result = simulate(Tree(), {.workers = 3840});
//   result->efficiency(3840)                                  // work / (workers * makespan)
//
// Everything else is modelled. A task is a few words that hold its progress. Its steps take the
// time that the program states. Its frames have the size that the options state. One-sided
// operations take the time of the model below. Not simulated: wake-ups (idle workers sleep and
// poll, as over verbs), deques other than kSplit, tied tasks, exceptions, and suspend().
//
// Deterministic: runs with equal seeds have equal events in equal order, and equal trace_hash.
// Another seed chooses other victims, another order of simultaneous events, and other faults.
//
// Model of a one-sided operation: it leaves the worker at once and reaches the target after
// `latency` plus a random part of `jitter`, but not before earlier operations of the same worker.
// The port of the target's host executes at most one operation per message_gap. The answer takes
// `latency` and bytes / bandwidth.
//
// The simulation does not use SimFabric of dtutils, because that needs a queue pair for each two
// workers that communicate and five events for a WRITE. This model needs two events and no
// connections. Options with the same name (latency, jitter, ...) have the same meaning.
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

// The result of a task and its descendants: sums of nodes and leaves, and the maximum depth.
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

// The progress of a task: words that only its program interprets.
struct SimulatedFrame {
  std::array<uint64_t, 6> words{};
};

// The next step of a task.
struct SimulatedStep {
  enum class Kind : uint8_t {
    kFork,  // runs `child`; thieves can steal the rest of the task
    kJoin,  // waits for all children that the task has forked
    kEnd,   // waits for all children, and returns the sum of the task's and their counts
  };
  Kind kind = Kind::kEnd;
  SimTime cost{0};         // CPU time that the task takes before this step
  bool polls = false;      // the worker serves steal requests during `cost`, as with poll()
  SimulatedCount count{};  // added to the count of the task
  SimulatedFrame child{};
};

class CARIAMA_TASKS_EXPORT SimulatedProgram {
 public:
  virtual ~SimulatedProgram() = default;
  [[nodiscard]] virtual SimulatedFrame root() const = 0;
  // Writes the next step of the task with progress `task` to `step`, and advances `task`. `step`
  // has its default values. The result must depend on `task` only.
  virtual void step(SimulatedFrame& task, SimulatedStep& step) const = 0;
};

// Rare events of real machines, injected at random times that follow from the seed.
struct SimulatedFaults {
  // Probability that a worker pauses before an access to its own public part, or before a remote
  // operation, that is between two steps of a protocol. A pause takes less than pause_most.
  double pause = 0;
  SimTime pause_most = std::chrono::microseconds(20);
  // Number of workers that stop at a time before stop_before and continue after stop_for. As with
  // SIGSTOP, other workers can still access their memory.
  int stops = 0;
  SimTime stop_before = std::chrono::microseconds(200);
  SimTime stop_for = std::chrono::milliseconds(1);
  // If not 0, the pieces of a read are read in order at different times, at most this time apart.
  SimTime torn{0};
};

struct SimulationOptions {
  int workers = 2;
  uint64_t seed = 1;
  VictimOrder victim_order = VictimOrder::kRandom;
  JoinPolicy join = JoinPolicy::kGreedy;
  // Numbers of consecutive ranks that share a last-level cache, a NUMA node, and a host. Each is a
  // multiple of the one before.
  std::array<int, 3> blocks{8, 32, 64};
  // One-way latency by VictimLevel. The defaults assume that workers of one host communicate
  // through the network card too, because one device serves all pairs if there are several hosts.
  std::array<SimTime, kVictimLevels> latency{
      std::chrono::nanoseconds(500), std::chrono::nanoseconds(500), std::chrono::nanoseconds(500),
      std::chrono::nanoseconds(1000)};
  SimTime jitter{0};
  double gigabytes_per_second = 12.5;
  SimTime message_gap = std::chrono::nanoseconds(5);
  // Time of an access of a worker to its own public part or to a join record in its own memory.
  SimTime own_access = std::chrono::nanoseconds(20);
  // Time of copying the frames of a task out, or in again.
  SimTime switch_cost = std::chrono::nanoseconds(200);
  size_t frame_bytes = 1024;  // size of the frames of a task, rounded up to a multiple of 8
  std::chrono::microseconds idle_sleep{50};  // as TaskOptions::idle_sleep
  // Longest time that a worker computes ahead of the clock before it observes operations of other
  // workers. With a quantum of at most the least latency, the worker misses only operations that
  // were already in flight.
  SimTime quantum = std::chrono::nanoseconds(500);
  SimTime limit = std::chrono::hours(1);  // the simulation stops at this virtual time
  SimulatedFaults faults{};
};

// The part of a result that simulate() and simulate_pool() (pool_simulation.h) have in common.
struct SimulatedRun {
  bool finished = false;    // the run ended within the limit of virtual time, without a violation
  SimTime makespan{0};      // virtual time until the root task ended, or the simulation stopped
  SimTime work{0};          // sum of the costs of all steps
  SimulatedCount count;     // result of the root task
  uint64_t events = 0;      // number of simulated events
  uint64_t trace_hash = 0;  // hash over all events in order
  // The first violated invariant. Empty if there was none.
  std::string violation;

  [[nodiscard]] double efficiency(int workers) const {
    return static_cast<double>(work.count()) /
           (static_cast<double>(makespan.count()) * static_cast<double>(workers));
  }
};

// finished: the root task ended. Violations: an entry was taken twice, frames were overwritten
// before a thief had copied them, a task was resumed twice, or a record was used after its release.
struct SimulationResult : SimulatedRun {
  TaskStatistics statistics;  // summed over the workers; idle_ns is virtual time
};

// Runs the program in the calling thread. Blocks until it has finished. Memory: about 10 KiB for
// each worker. Requires: this process has no TaskRuntime. Times are SimTime, 64-bit picoseconds: at
// most 106 days. Errors: INVALID_ARGUMENT (names the option), FAILED_PRECONDITION (this process has
// a TaskRuntime), RESOURCE_EXHAUSTED (no memory for the workers).
[[nodiscard]] CARIAMA_TASKS_EXPORT absl::StatusOr<SimulationResult> simulate(
    const SimulatedProgram& program, const SimulationOptions& options);

}  // namespace cariama

#endif  // CARIAMA_TASKS_SIMULATION_H_
