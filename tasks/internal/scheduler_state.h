// SchedulerState: the data of the scheduler's loop (scheduler.h) that the machine below it also
// uses. The machine is a process (worker.h) or a part of a simulation (simulation/worker.h).
//
// Deque. The task at position i (0 is the oldest task in this region) has its frames at addresses
// [its stack pointer, entries[i]). While the task has a child, entries[i + 1] is its saved context.
// entries[0] is the end of the oldest task's frames; it is not an entry and is never taken.
// reports[i] is the join record of the task at position i. It exists if the parent of the task may
// be in another worker: for position 0, and for every entry that was made public.
#ifndef CARIAMA_TASKS_INTERNAL_SCHEDULER_STATE_H_
#define CARIAMA_TASKS_INTERNAL_SCHEDULER_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "dtutils/statistics.h"
#include "tasks/internal/exception_state.h"
#include "tasks/internal/victims.h"
#include "tasks/join_record.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// The end of a run: the word has reached the value `least`, or a worker has failed.
struct RunEnd {
  const std::atomic<uint64_t>* word = nullptr;
  uint64_t least = 0;
  const std::atomic<uint64_t>* failed = nullptr;  // not 0: a worker has failed
  [[nodiscard]] bool reached() const {
    return word->load(std::memory_order_acquire) >= least || has_failed();
  }
  [[nodiscard]] bool has_failed() const {
    return failed != nullptr && failed->load(std::memory_order_acquire) != 0;
  }
};

class SchedulerState {
 protected:
  // Why a task has left its stack, and the data with which the scheduler proceeds.
  struct Leaving {
    // kRunFailed: a worker has failed, and this worker abandons its tasks.
    enum class Why { kEnded, kJoin, kSuspend, kYield, kRunFailed } why = Why::kEnded;
    void* sp = nullptr;  // kJoin, kSuspend, kYield: the stack pointer of the task's saved context
    Suspended next{};    // kEnded: the task that waited for this one
    Reference record{};  // kJoin: the record that the task waits for
    bool stays = false;  // kJoin: the task must continue in this worker
    void (*publish)(void*, const Suspended&) = nullptr;  // kSuspend: called with `argument`
    void* argument = nullptr;
    ExceptionState exceptions{};  // the exceptions that the task's ancestors handle
  };
  // A task to be continued: its stack pointer, and the record of the child that it continues
  // without (0: none).
  struct Context {
    void* sp = nullptr;
    uint64_t record = 0;
  };
  // A joiner, and the record it waits for.
  struct Waiting {
    Suspended task;
    Reference record;
  };

  explicit SchedulerState(Victims victims) : victims_(std::move(victims)) {}

  uint64_t* entries_ = nullptr;
  uint64_t* reports_ = nullptr;
  Victims victims_;
  RunEnd run_end_{};
  uint64_t taken_ = 0;  // stolen entries that quiesce_region() has counted
  Leaving leaving_;
  Context next_;  // the next task to run; sp == nullptr: none
  // State of the last park(). popped_: the parent of the parked task is next_. parked_top_: the top
  // of the deque before.
  bool popped_ = false;
  uint64_t* parked_top_ = nullptr;
  bool yielded_ = false;   // a task has yielded since find_work() last checked
  uint64_t searches_ = 0;  // calls of find_work()
  std::deque<Suspended> ready_;
  std::deque<Waiting> waiting_;  // joiners whose records this worker polls
  TaskStatistics statistics_;
  // Of `statistics_`, what other threads read while the worker runs. Never reset.
  Counter steals_total_;
  Counter steal_attempts_total_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SCHEDULER_STATE_H_
