// PoolWorker: the owner, victim and thief sides of a task pool, and its search for work. Programs
// use pool.h instead.
//
// Invariant. While a worker searches for a task (idle, or waiting in sync()), its deque holds no
// task that has not been stolen: thieves take the oldest tasks first, so when the task that sync()
// waits for was stolen, all older ones were stolen before, and all newer ones were synced. It
// follows that no cycle of waits exists. Of all tasks that have begun and not ended, consider the
// one that began last. It is on top of its worker's stack, because a task on top of it would have
// begun later. If it waits for a child, that child has not begun, is thus in the deque of a worker
// that does not wait, or is being handed over to a thief that runs it at once.
//
// Order of memory accesses. A victim writes the parcels before the answer, and a thief the result
// before the state of the cell. On mapped memory the second store is a release; on a connection,
// operations become visible in the order of posting (RemoteAccess). The reader's load is an
// acquire.
#ifndef CARIAMA_TASKS_POOL_WORKER_H_
#define CARIAMA_TASKS_POOL_WORKER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dsfabric/quiescence.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/victims.h"
#include "tasks/pool.h"
#include "tasks/pool/cells.h"
#include "tasks/pool/request_cell.h"

namespace cariama::tasks {

// Thrown through the tasks of a run that cannot be completed. Not a std::exception, so that tasks
// that catch those do not catch it.
struct RunIsBroken {};

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

class PoolWorker {
 public:
  using Cell = pool::internal::Cell;
  using Kind = pool::internal::Kind;

  // `memory` is the registered memory (cells.h), followed by the private cells. Keeps references to
  // all arguments but `options`.
  PoolWorker(const PoolOptions& options, std::byte* memory, RemoteAccess& access, Fabric& fabric,
             PoolUnits& units);
  ~PoolWorker();
  PoolWorker(const PoolWorker&) = delete;
  PoolWorker& operator=(const PoolWorker&) = delete;

  // The root task has ended, and in `failure` is the text of its exception, or "".
  struct FirstResult {
    std::string failure;
  };
  // Rank 0 calls it. Runs the root task; its result overwrites the arguments in `payload`.
  [[nodiscard]] FirstResult run_first(const Kind& kind, std::byte* payload);
  void enter(uint64_t status);  // begins a run
  void leave();                 // ends a run: no thief can reach this worker any more
  // Searches for tasks and runs them until one search of all levels has found none. Returns true if
  // it ran a task.
  bool search_and_run();
  // An idle worker's pause between two searches.
  void pause_idle();
  // Oortwijn's scan: true if all status cells are IDLE.
  [[nodiscard]] bool all_idle();
  void set_idle() { set_status(kIdle); }
  // One round of a wait for another layer in a task.
  void pause_task(uint64_t round);
  // Fails the run if a peer is dead or has left the run.
  void check_peers();
  [[nodiscard]] bool in_task() const { return in_task_; }
  // False in a task, and in a call that runs while this worker waits for a victim's answer: there
  // is one transfer cell, so a second request at the same time is impossible.
  [[nodiscard]] bool may_search() const { return !in_task_ && !awaits_answer_; }
  [[nodiscard]] const absl::Status& broken() const { return broken_; }
  void fail(absl::Status status);

  // Implement the functions of pool::internal.
  void serve();
  void await_stolen(const Kind& kind, void* result);
  void finish(Cell* mark) noexcept;
  [[noreturn]] void no_room() const;

  [[nodiscard]] PoolStatistics statistics() const;
  void reset_statistics();
  [[nodiscard]] std::vector<PoolAttempt> take_attempts() { return std::exchange(log_, {}); }

 private:
  using Step = PoolAttempt::Step;
  using Result = PoolAttempt::Result;

  [[nodiscard]] int rank() const { return access_.rank(); }
  [[nodiscard]] Cell* shared_end() const { return cells_ + shared_cells_; }
  [[nodiscard]] PoolArea& area_of(int peer) const {
    return *reinterpret_cast<PoolArea*>(mapped_[static_cast<size_t>(peer)]);
  }
  // Sets `tail`, and `publish_from` with it.
  void set_tail(Cell* tail);
  // Changes the status cell, unless this worker has left the run: the cell then remains kLeft.
  void set_status(uint64_t status) {
    if (broken_.ok()) area_.status.store(status, std::memory_order_release);
  }
  // If `status` is an error, leaves the run with it: throws RunIsBroken.
  void check_or_break(const absl::Status& status);
  void await_cause();
  template <typename T>
  T value_or_break(absl::StatusOr<T> value);
  // Runs a task whose arguments are in `payload`, and finishes the children that it has not synced.
  // The returned call has the outcome, and the result in its closure.
  [[nodiscard]] IncomingCall run_task(FunctionStub stub, std::span<std::byte> payload);
  // A part of each round of a wait: does check_peers() if the last check is kVictimCheckInterval
  // ago. Does nothing in the first rounds, in which the worker spins.
  void check_peers_if_due(uint64_t round);
  // A part of each round of a wait in a run: runs the calls that have arrived for this thread, and
  // does check_peers_if_due(). Throws RunIsBroken if this worker has to leave the run.
  void run_calls_and_check_peers(uint64_t round);

  // As victim.
  // The memory of RequestCellOwner.
  struct OwnMemory {
    PoolWorker& worker;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      return word.load(std::memory_order_acquire);
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      word.store(value, std::memory_order_release);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const;
  };
  [[nodiscard]] int thief_of(uint64_t request);
  void answer(uint64_t ticket, int thief, uint64_t count);
  [[nodiscard]] uint64_t how_many() const;
  void pack(Parcel& parcel, Cell& cell, int thief);

  // As thief. attempt() returns true if it has run at least one task. search() returns true if it
  // has, or if done() has become true.
  [[nodiscard]] bool attempt(Step step, int victim, size_t level);
  template <typename Done>
  [[nodiscard]] bool search(const Done& done);
  [[nodiscard]] uint64_t request_from(int victim, uint64_t ticket);
  void await_answer(uint64_t ticket);
  void run_parcels(int victim, uint64_t count);
  void run_foreign_cells(Cell* mark);
  void execute(uint32_t function, uint64_t origin, int from, std::byte* payload, uint32_t bytes);
  [[noreturn]] void refuse_task(uint64_t sender);
  void send_result(Origin origin, const std::byte* payload, uint64_t bytes, uint64_t state);
  void record(const PoolAttempt& attempt);

  // As owner.
  void wait_for(Cell* cell);
  // Removes the newest cell, whose thief has reported its end.
  void remove_stolen(Cell* cell);

  const PoolOptions options_;
  const uint64_t idle_sleep_ns_;
  const size_t shared_cells_;
  RemoteAccess& access_;
  Fabric& fabric_;
  PoolUnits& units_;
  PoolArea& area_;
  Cell* const cells_;
  OwnMemory memory_{*this};
  RequestCellOwner<OwnMemory> request_cell_{memory_, area_.request};
  std::vector<std::byte*> mapped_;  // the memory of each worker, if loads and stores reach all
  Victims victims_;
  std::vector<uint8_t> level_of_;  // distance of each rank
  std::vector<int> shuffled_;
  uint64_t requests_sent_ = 0;
  uint64_t idle_round_ = 0;
  std::chrono::steady_clock::time_point next_check_{};
  // The time until which this worker waits for the cause of which a peer has left the run.
  std::optional<std::chrono::steady_clock::time_point> left_until_;
  bool in_task_ = false;
  bool awaits_answer_ = false;
  absl::Status broken_;
  PoolStatistics statistics_;
  uint64_t trips_before_ = 0;
  std::vector<PoolAttempt> log_;
};

// The worker of this process, or nullptr.
extern PoolWorker* this_pool_worker;

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_WORKER_H_
