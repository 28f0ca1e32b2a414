// simulate_pool(): runs a fork-join program on the task pool of a simulated cluster of up to some
// thousand workers. The program is that of simulate() (simulation.h), with the same tree of tasks:
// a step kFork spawns `child`, which thieves can steal; kJoin and kEnd sync all children, the
// newest first.
//
//   auto result = simulate_pool(tree, {.cluster = {.workers = 3840}});
//   result->statistics.stolen[3]                     // steals from other hosts
//
// Each simulated worker executes the code of the pool's real workers (pool/protocol.h, and spawn(),
// call(), sync() and communicate() of pool.h) on a stack of its own, with its deque and its
// request, status and transfer cells. Tasks are real functions that nest on this stack. They take
// the times that the program states, in virtual time, and communicate() before each step. The run
// ends by the scan of the status cells (PoolTermination::kStatusScan).
//
// Modelled: one-sided operations as in simulate(), with their latency by distance; the pauses of
// idle workers; the clock. An atomic operation of a worker on its own memory takes `own_atomic`.
// Not simulated: processor time of the protocol itself, calls of other layers, failures of workers,
// memory mapped by several workers, and the termination detector.
//
// Deterministic, as simulate(). SimTime is in picoseconds.
#ifndef CARIAMA_TASKS_POOL_SIMULATION_H_
#define CARIAMA_TASKS_POOL_SIMULATION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tasks/export.h"
#include "tasks/pool.h"
#include "tasks/simulation.h"

namespace cariama {

struct PoolSimulationOptions {
  // victim_order, join, switch_cost, frame_bytes and own_access have no effect. A request of a
  // thief interrupts a step with `polls` whose cost is at least `quantum`.
  SimulationOptions cluster{};
  // As the options of the same name in PoolOptions.
  uint32_t steal = 1;
  size_t cells = size_t{1} << 16;
  size_t private_cells = size_t{1} << 17;
  // Time of a compare-and-swap of a worker on its own request cell. The default is a round trip
  // through the network card of its host.
  SimTime own_atomic = std::chrono::nanoseconds(1000);
  // Size of the stack of each worker. Pages are allocated when they are first touched.
  size_t stack_bytes = size_t{1} << 20;
};

// finished: all workers left the run. If it is false, `violation` says why: it names the option
// that is too small, or why the root task failed. It is empty if the limit was the reason.
struct PoolSimulationResult : SimulatedRun {
  SimTime termination{0};     // virtual time from the root task's end until the last worker left
  PoolStatistics statistics;  // summed over the workers; times are virtual
  uint64_t units_begun = 0;   // tasks that were handed over, and the root task
  uint64_t units_ended = 0;   // those that have ended
};

// Runs the program in the calling thread. Blocks until it has finished. Memory: about 50 KiB for
// each worker, and more with deep trees. Requires: this process has no TaskPool and no TaskRuntime,
// and no other simulation runs in it. Errors: INVALID_ARGUMENT (names the option),
// FAILED_PRECONDITION (this process has a TaskPool or a TaskRuntime), RESOURCE_EXHAUSTED (no
// address space), those of FunctionTable::build().
[[nodiscard]] CARIAMA_TASKS_EXPORT absl::StatusOr<PoolSimulationResult> simulate_pool(
    const SimulatedProgram& program, const PoolSimulationOptions& options);

}  // namespace cariama

#endif  // CARIAMA_TASKS_POOL_SIMULATION_H_
