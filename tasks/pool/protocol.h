// PoolProtocol: the owner, victim and thief sides of a task pool, its search for work, and the scan
// of status cells. Programs use pool.h instead.
//
// `Derived` is the worker: of a process (PoolWorker, worker.h), or of a simulated cluster
// (SimulatedPoolWorker, internal/simulation/pool_worker.h). PoolProtocol calls these functions of
// it:
//
//   now()                 the worker's clock
//   pause(round)          one pause of a wait
//   run_calls()           runs the calls that have arrived for this thread
//   check_peers_if_due()  fails the run if a peer is dead or has left the run
//   await_cause()         a transfer has failed: waits for the cause of the failure
//   begin_unit(rank), end_unit(rank)  units of work (PoolUnits)
//   level_of(rank)        distance of a worker
//   label(rank)           name of a worker, for errors
//
// Memory of peers is accessed through RemoteAccess. The definitions are in protocol_impl.h.
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
#ifndef CARIAMA_TASKS_POOL_PROTOCOL_H_
#define CARIAMA_TASKS_POOL_PROTOCOL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/function_table.h"
#include "tasks/internal/idle_policy.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/victims.h"
#include "tasks/pool.h"
#include "tasks/pool/cells.h"
#include "tasks/pool/request_cell.h"

namespace cariama::tasks {

// Thrown through the tasks of a run that cannot be completed. Not a std::exception, so that tasks
// that catch those do not catch it.
struct RunIsBroken {};

// The deque of a process without a running pool: it has no room, and communicate() does nothing.
[[nodiscard]] pool::internal::Deque unused_deque();
extern const std::atomic<uint64_t> kAlwaysBlocked;
inline constexpr uintptr_t kNeverPublished = UINTPTR_MAX & ~uintptr_t{63};

// The worker that the inline functions of pool.h call: their slow paths.
class PoolSlowPaths {
 public:
  using Cell = pool::internal::Cell;
  using Kind = pool::internal::Kind;

  // Implement the functions of pool::internal.
  virtual void serve() = 0;
  virtual void await_stolen(const Kind& kind, void* result) = 0;
  virtual void finish(Cell* mark) noexcept = 0;
  [[noreturn]] virtual void no_room() const = 0;
  [[nodiscard]] bool in_task() const { return in_task_; }

 protected:
  ~PoolSlowPaths() = default;
  bool in_task_ = false;
};
// The worker of this process, or nullptr. In a simulation: the worker that runs.
extern PoolSlowPaths* this_pool_worker;

template <typename Derived>
class PoolProtocol : public PoolSlowPaths {
 public:
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
  // PoolTermination::kStatusScan: searches for tasks and runs them until a scan finds all workers
  // IDLE, or the run is broken.
  void run_until_all_idle();
  // An idle worker's pause between two searches.
  void pause_idle();
  void set_idle() { set_status(kIdle); }
  // One round of a wait for another layer in a task.
  void pause_task(uint64_t round);
  // False in a task, and in a call that runs while this worker waits for a victim's answer: there
  // is one transfer cell, so a second request at the same time is impossible.
  [[nodiscard]] bool may_search() const { return !in_task_ && !awaits_answer_; }
  [[nodiscard]] const absl::Status& broken() const { return broken_; }
  void fail(absl::Status status);

  void serve() final;
  void await_stolen(const Kind& kind, void* result) final;
  void finish(Cell* mark) noexcept final;
  [[noreturn]] void no_room() const final;

  [[nodiscard]] PoolStatistics statistics() const;
  PoolProtocol(const PoolProtocol&) = delete;
  PoolProtocol& operator=(const PoolProtocol&) = delete;
  void reset_statistics();
  [[nodiscard]] std::vector<PoolAttempt> take_attempts() { return std::exchange(log_, {}); }

 protected:
  // `memory` is the registered memory (cells.h), followed by the private cells. Keeps references to
  // all arguments but `options` and `victims`.
  PoolProtocol(const PoolOptions& options, std::byte* memory, RemoteAccess& access,
               Victims victims);
  ~PoolProtocol() = default;

  [[nodiscard]] int rank() const { return access_.rank(); }
  void check_or_break(const absl::Status& status);

  const PoolOptions options_;
  RemoteAccess& access_;
  PoolArea& area_;

 private:
  using Step = PoolAttempt::Step;
  using Result = PoolAttempt::Result;
  static constexpr uint64_t kOpen = pool::internal::kOpen;
  static constexpr uint64_t kBlocked = pool::internal::kBlocked;

  [[nodiscard]] Derived& self() { return static_cast<Derived&>(*this); }
  [[nodiscard]] Cell* shared_end() const { return cells_ + shared_cells_; }
  [[nodiscard]] PoolArea& area_of(int peer) const {
    return *reinterpret_cast<PoolArea*>(mapped_[static_cast<size_t>(peer)]);
  }
  [[noreturn]] static void misused(const char* text) { throw std::logic_error(text); }
  // Sets `tail`, and `publish_from` with it.
  void set_tail(Cell* tail);
  // Changes the status cell, unless this worker has left the run: the cell then remains kLeft.
  void set_status(uint64_t status) {
    if (broken_.ok()) area_.status.store(status, std::memory_order_release);
  }
  template <typename T>
  T value_or_break(absl::StatusOr<T> value);
  // Runs a task whose arguments are in `payload`, and finishes the children that it has not synced.
  // The returned call has the outcome, and the result in its closure.
  [[nodiscard]] IncomingCall run_task(FunctionStub stub, std::span<std::byte> payload);
  // A part of each round of a wait. Does nothing in the first rounds, in which the worker spins.
  void check_peers_if_due(uint64_t round) {
    if (round >= kSpinRounds) self().check_peers_if_due();
  }
  // A part of each round of a wait in a run: runs the calls that have arrived for this thread, and
  // does check_peers_if_due(). Throws RunIsBroken if this worker has to leave the run.
  void run_calls_and_check_peers(uint64_t round);
  // Oortwijn's scan: true if all status cells are IDLE.
  [[nodiscard]] bool all_idle();

  // As victim.
  // The memory of RequestCellOwner.
  struct OwnMemory {
    PoolProtocol& worker;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      return word.load(std::memory_order_acquire);
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      word.store(value, std::memory_order_release);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const;
  };
  [[nodiscard]] int thief_of(uint64_t request);
  void answer(uint64_t request_id, int thief, uint64_t count);
  [[nodiscard]] uint64_t how_many() const;
  void pack(Parcel& parcel, Cell& cell, int thief);

  // As thief. attempt() returns true if it has run at least one task. search() returns true if it
  // has, or if done() has become true.
  [[nodiscard]] bool attempt(Step step, int victim, size_t level);
  template <typename Done>
  [[nodiscard]] bool search(const Done& done);
  [[nodiscard]] uint64_t request_from(int victim, uint64_t request_id);
  void await_answer(uint64_t request_id);
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

  // The part of the worker that the inline functions of pool.h use. A simulation replaces its
  // contents whenever another worker runs.
  // NOLINTNEXTLINE(readability-identifier-naming): the name of what it refers to
  static constexpr pool::internal::Deque& deque = pool::internal::deque;

  const size_t shared_cells_;
  Cell* const cells_;
  OwnMemory memory_{*this};
  RequestCellOwner<OwnMemory> request_cell_{memory_, area_.request};
  std::vector<std::byte*> mapped_;  // the memory of each worker, if loads and stores reach all
  Victims victims_;
  std::vector<int> shuffled_;
  uint64_t requests_sent_ = 0;
  uint64_t idle_round_ = 0;
  bool awaits_answer_ = false;
  absl::Status broken_;
  PoolStatistics statistics_;
  uint64_t trips_before_ = 0;
  std::vector<PoolAttempt> log_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_PROTOCOL_H_
