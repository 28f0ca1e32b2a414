// PoolWorker: the worker of a task pool in a process. It runs PoolProtocol with the clock and the
// pauses of the process, and checks that the peers are alive. Programs use pool.h instead.
#ifndef CARIAMA_TASKS_POOL_WORKER_H_
#define CARIAMA_TASKS_POOL_WORKER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/quiescence.h"
#include "dtutils/wait.h"
#include "tasks/internal/remote_access.h"
#include "tasks/pool.h"
#include "tasks/pool/protocol.h"

namespace cariama::tasks {

// The units of work for the termination detector: stolen tasks, and the root task. begun(r): tasks
// handed over to rank r; ended(r): tasks from rank r that have ended here or were handed on. Only
// the worker's thread changes the counters.
class PoolUnits final : public WorkCounter {
 public:
  explicit PoolUnits(int workers)
      : begun_(static_cast<size_t>(workers)), ended_(static_cast<size_t>(workers)) {}
  [[nodiscard]] uint64_t begun(Rank rank) const override {
    return begun_[rank].load(std::memory_order_acquire);
  }
  [[nodiscard]] uint64_t ended(Rank rank) const override {
    return ended_[rank].load(std::memory_order_acquire);
  }
  void begin(uint64_t rank) { begun_[rank].fetch_add(1, std::memory_order_release); }
  void end(uint64_t rank) { ended_[rank].fetch_add(1, std::memory_order_release); }
  // Call it when this worker has left a broken run: it neither begins nor ends a task any more, but
  // tasks that are being handed over to it or from it may be lost. Raises the smaller of the two
  // counters of each rank to the larger one. When all workers have done so, as many units have
  // ended as were begun, and later waits of a termination detector do not wait for the lost tasks.
  void balance() {
    for (size_t rank = 0; rank < begun_.size(); ++rank) {
      const uint64_t units =
          std::max(begun(static_cast<uint32_t>(rank)), ended(static_cast<uint32_t>(rank)));
      begun_[rank].store(units, std::memory_order_release);
      ended_[rank].store(units, std::memory_order_release);
    }
  }

 private:
  std::vector<std::atomic<uint64_t>> begun_;
  std::vector<std::atomic<uint64_t>> ended_;
};

class PoolWorker final : public PoolProtocol<PoolWorker> {
 public:
  // `memory` is the registered memory (cells.h), followed by the private cells. Keeps references to
  // all arguments but `options`.
  PoolWorker(const PoolOptions& options, std::byte* memory, RemoteAccess& access, Fabric& fabric,
             PoolUnits& units);
  ~PoolWorker();
  PoolWorker(const PoolWorker&) = delete;
  PoolWorker& operator=(const PoolWorker&) = delete;

  // Fails the run if a peer is dead or has left the run, or if its time limit has passed.
  void check_peers();
  // Begins the time limit of a run.
  void begin_time_limit() {
    deadline_ = run_timeout_.count() == 0 ? kForever : deadline_after(run_timeout_);
    access_.set_deadline(deadline_);
  }
  [[nodiscard]] Deadline deadline() const { return deadline_; }

 private:
  friend class PoolProtocol<PoolWorker>;

  // Called by the protocol, which documents these functions.
  [[nodiscard]] static std::chrono::nanoseconds now() {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  void pause(uint64_t round) const;
  void run_calls();
  // Does check_peers() if the last check is kVictimCheckInterval ago.
  void check_peers_if_due() {
    if (std::chrono::steady_clock::now() >= next_check_) check_peers();
  }
  void await_cause();
  // Returns the error of a run whose time limit has passed. working: the labels of the workers with
  // tasks, or "".
  [[nodiscard]] absl::Status too_late(const std::string& working) const;
  void begin_unit(uint64_t rank) { units_.begin(rank); }
  void end_unit(uint64_t rank) { units_.end(rank); }
  [[nodiscard]] size_t level_of(int rank) const { return level_of_[static_cast<size_t>(rank)]; }
  [[nodiscard]] std::string label(uint64_t rank) const;

  const uint64_t idle_sleep_ns_;
  const std::chrono::milliseconds run_timeout_;
  Deadline deadline_ = kForever;  // of the run
  Fabric& fabric_;
  PoolUnits& units_;
  std::vector<uint8_t> level_of_;  // distance of each rank
  std::chrono::steady_clock::time_point next_check_{};
  // The time until which this worker waits for the cause of which a peer has left the run.
  std::optional<std::chrono::steady_clock::time_point> left_until_;
};
extern template class PoolProtocol<PoolWorker>;

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_WORKER_H_
