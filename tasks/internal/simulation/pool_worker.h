// SimulatedPoolWorker: a worker of a simulated task pool. It executes PoolProtocol, as PoolWorker
// does in a process.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_POOL_WORKER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_POOL_WORKER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/simulation/machine.h"
#include "tasks/pool.h"
#include "tasks/pool/protocol.h"

namespace cariama::tasks {

// The state that all workers of a simulated pool share.
struct SimulatedPool {
  PoolOptions options{};  // without victims
  SimTime own_atomic{0};
  std::byte* memory = nullptr;  // of worker r at r * stride: its cells (pool/cells.h)
  size_t stride = 0;
  size_t stack_bytes = 0;
  uint64_t begun = 0;  // units of work
  uint64_t ended = 0;
  bool root_ended = false;
  int64_t root_end = 0;
  SimulatedCount root_count{};
  int left = 0;  // workers that have left the run
  int64_t last_left = 0;
};

class SimulatedPoolWorker final : public SimulatedMachine,
                                  public PoolProtocol<SimulatedPoolWorker> {
 public:
  SimulatedPoolWorker(SimulatedPool& pool, Cluster& cluster, int rank);
  void switch_to() override;
  [[nodiscard]] std::byte* memory() override { return reinterpret_cast<std::byte*>(&area_); }

 private:
  friend class PoolProtocol<SimulatedPoolWorker>;

  // Called by the protocol, which documents these functions.
  [[nodiscard]] std::chrono::nanoseconds now() const {
    return std::chrono::nanoseconds(own_time() / 1000);
  }
  void pause(uint64_t round) { sleep(pause_time(round)); }
  void run_calls() {}
  void check_peers_if_due() {}
  void await_cause() {}
  void begin_unit(uint64_t /*rank*/) { ++pool_.begun; }
  void end_unit(uint64_t /*rank*/) { ++pool_.ended; }
  [[nodiscard]] size_t level_of(int rank) const { return cluster_.level(rank_, rank); }
  [[nodiscard]] static std::string label(uint64_t rank) { return "worker " + std::to_string(rank); }

  void main() override;
  // The function of all tasks.
  static SimulatedCount run(SimulatedFrame task);
  [[nodiscard]] SimulatedCount run_steps(SimulatedFrame task);

  // Ends the simulation with a violation.
  [[noreturn]] void give_up(const char* violation);

  SimulatedPool& pool_;
  uint64_t least_frame_ = 0;         // tasks whose frames are below this address have no stack
  pool::internal::Deque own_deque_;  // pool::internal::deque while another worker runs
};
extern template class PoolProtocol<SimulatedPoolWorker>;

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_POOL_WORKER_H_
