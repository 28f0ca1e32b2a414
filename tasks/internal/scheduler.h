// Worker: the scheduler of this process. It runs tasks on its stack region, steals tasks when it
// has none, and resumes suspended tasks. Programs use runtime.h instead.
//
// The scheduler runs on the process's own stack, between tasks. A task that leaves its stack stores
// the reason in a Leaving. All operations that move or overwrite frames of the region run on the
// scheduler's stack, so that they do not change the stack on which they run.
//
// Deque. The task at position i (0 is the oldest task in this region) has its frames at addresses
// [its stack pointer, entries[i]). While the task has a child, entries[i + 1] is its saved context.
// entries[0] is the end of the oldest task's frames; it is not an entry and is never taken.
// reports[i] is the join record of the task at position i. It exists if the parent of the task may
// be in another worker: for position 0, and for every entry that was made public.
#ifndef CARIAMA_TASKS_INTERNAL_SCHEDULER_H_
#define CARIAMA_TASKS_INTERNAL_SCHEDULER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/wait.h"
#include "tasks/context.h"
#include "tasks/exceptions.h"
#include "tasks/fork_join.h"
#include "tasks/internal/exception_state.h"
#include "tasks/internal/iso_stacks.h"
#include "tasks/internal/join_protocol.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/queue_pair_access.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/the_deque.h"
#include "tasks/internal/victims.h"
#include "tasks/join_record.h"
#include "tasks/runtime.h"
#include "tasks/steal_sample.h"

namespace cariama::tasks {

// The first part of the tail of a worker's region: words that peers access, and buffers into which
// this worker reads the memory of peers.
struct WorkerArea {
  PublicPart public_part;
  TheQueue the;
  AccessArea access;
  // Sleeping workers (idle.cc). Bit r % 64: the worker with rank r sleeps until this worker
  // publishes entries.
  alignas(64) std::atomic<uint64_t> sleepers;
  WakeWord wake;  // the word on which this worker sleeps
  // taken_by[r % 64]: number of tasks that rank r has taken from this worker. describe_loss()
  // prints it when a worker dies.
  alignas(64) std::atomic<uint64_t> taken_by[64];
  alignas(64) std::atomic<uint64_t> finished;  // number of runs that have ended; written by rank 0
  std::atomic<uint64_t> tokens;                // number of cancellation tokens; used on rank 0
  // cancelled[s % kCancellationTokens]: the serial number s of the token that was cancelled last.
  std::atomic<uint64_t> cancelled[kCancellationTokens];
  // Buffers into which this worker reads the memory of peers.
  alignas(64) PublicPartCopy public_part_copy;
  JoinCopy join_copy;
  uint64_t the_words[3];    // lock, base, top
  uint64_t the_entries[2];  // the entries of the stolen task's parent and of the stolen task
  uint64_t the_reports[2];  // the reports at the same two positions
};

// Messages from one peer to this worker with DequeKind::kPrivate (request_stealing.cc). The tail of
// the region has a cell for each rank; only that rank writes it.
struct alignas(64) StealRequestCell {
  std::atomic<uint64_t> request;   // ticket of the peer's request for a task
  std::atomic<uint64_t> answered;  // the peer's answer: this worker's ticket * 2 + has_entry
  PublicEntry entry;  // has_entry == 1: the task handed over; its frames are in this region
};
static_assert(sizeof(StealRequestCell) == 64);

class Worker {
 public:
  // Layout of the tail: WorkerArea, an AtomicCell and a StealRequestCell for each rank, entries,
  // reports, and, with StackScheme::kIso, a word for each stack. Each nesting level takes at least
  // kContextBytes and a return address of the stack, so entry_count() entries suffice.
  [[nodiscard]] static size_t entry_count(const TaskOptions& options) {
    if (options.scheme != StackScheme::kUni) return 2;  // at most one task is on a stack
    return whole_pages(options.stack_bytes) / (kContextBytes + sizeof(void*)) + 2;
  }
  [[nodiscard]] static size_t tail_bytes(const TaskOptions& options, int workers) {
    return words_offset(options, workers) + IsoStacks::count(options) * sizeof(uint64_t);
  }
  [[nodiscard]] static WorkerArea& area_of(const StackRegion& region) {
    return *reinterpret_cast<WorkerArea*>(region.tail());
  }
  [[nodiscard]] static std::span<AtomicCell> atomic_cells(const StackRegion& region, int workers) {
    return {reinterpret_cast<AtomicCell*>(region.tail() + sizeof(WorkerArea)),
            static_cast<size_t>(workers)};
  }

  // `canary` is the stack-protector canary for the frames of tasks, equal in all workers. Keeps
  // references to `region` and `access`.
  Worker(const TaskOptions& options, StackRegion& region, RemoteAccess& access, uint64_t canary);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The result of the root task: the bytes of its value, or the text of its exception.
  struct RootResult {
    std::vector<std::byte> bytes;
    std::optional<std::string> exception;
  };
  // Rank 0 calls it. Runs root(first, second, ...) as the oldest task until it has ended. Then
  // notifies the other workers that the run has ended, and returns the result.
  [[nodiscard]] absl::StatusOr<RootResult> run_root(ChildFunction root, uint64_t first,
                                                    uint64_t second);
  // All other ranks call it. Steals and runs tasks until rank 0 reports the end of the run.
  void run_until_finished();

  [[nodiscard]] int rank() const { return access_.rank(); }
  // Returns the part of the message at the end of a job that tells which tasks are lost: "3 tasks
  // on its stack and 1 suspended task of this worker are lost; rank 1 stole 2 tasks from it". The
  // tasks that rank 1 stole include those that have ended.
  [[nodiscard]] std::string describe_loss() const;

  [[nodiscard]] TaskStatistics statistics() const;
  void reset_statistics() {
    statistics_ = {};
    idle_ticks_ = 0;
  }
  [[nodiscard]] std::vector<StealSample> take_samples() { return std::exchange(samples_, {}); }

  // The call that starts a child. `bytes` is the size of the closure at `first`, or 0 if `first` is
  // a value.
  struct FirstCall {
    ChildFunction function;
    uint64_t first;
    uint64_t second;
    uint64_t bytes;
  };

  // Serves a pending steal request: publishes entries or hands a task over. Does nothing without a
  // request. Called by running tasks, and by the scheduler at forks with schemes other than kUni.
  void serve_steal_request();
  // Called by a fork before it calls `child`. Checks the closure (TaskOptions::check_closures),
  // then does the same. With a StackScheme other than kUni it does not return: the scheduler starts
  // the child.
  void serve_steal_request(const FirstCall& child);
  // Takes back the entry of the running task's parent, which is at cariama_fork_state.top and not
  // private. Returns false if it was stolen or there is none.
  [[nodiscard]] bool take_parent_back();
  // Returns the number of entries that thieves have ever taken from this worker and whose frames
  // they have copied.
  [[nodiscard]] uint64_t stolen_entries() const {
    return area_.public_part.copied.load(std::memory_order_acquire);
  }
  // Returns true if thieves have taken and copied all entries that this worker has now.
  [[nodiscard]] bool all_entries_stolen() const {
    return stolen_entries() - taken_ ==
           static_cast<size_t>(cariama_fork_state.top - (entries_ + 1)) + parents_.size();
  }
  // Ends the running task, whose parent was stolen: writes the outcome to its record and leaves.
  [[noreturn]] void end_task(const Outcome& outcome);
  [[nodiscard]] bool child_has_ended(Reference record);
  // If the record's child has ended, releases the record and returns the outcome.
  [[nodiscard]] std::optional<Outcome> poll_outcome(Reference record);
  // Suspends the running task until the record's child may have ended: the caller must check again.
  // May return in another process.
  void wait_for(Reference record);
  // Implement suspend() and resume() of suspend.h.
  void suspend(void (*publish)(void* argument, const Suspended& task), void* argument);
  void make_ready(const Suspended& task);
  // Implement CancellationSource and CancellationToken::cancel().
  [[nodiscard]] std::pair<const std::atomic<uint64_t>*, uint64_t> new_token();
  void cancel(const std::atomic<uint64_t>* word, uint64_t serial);
  // Implements yield() of suspend.h.
  void yield();
  // One round of a wait for another layer in a task (await.h). Runs other tasks if
  // other_tasks_may_run is true, and pauses if there are none.
  void pause_task(uint64_t round);
  // True if the running task has declared that no pending operation points into its stack
  // (await.h).
  bool other_tasks_may_run = false;
  // The scheduler calls `work` in each round in which it searches for a task.
  void on_idle(std::function<void()> work) { on_idle_ = std::move(work); }
  [[nodiscard]] bool in_task() const { return in_task_; }
  // The exception state of this thread, which is that of the running task (exception_state.h).
  [[nodiscard]] ExceptionState& exceptions() const { return *exception_state_; }
  // Call it before the running task leaves. Removes all exceptions from the thread's exception
  // state. Returns those that the task handles itself, and stores those of its ancestors, on top of
  // which it runs, in leaving_.exceptions.
  [[nodiscard]] ExceptionState take_exceptions();

  // value_outcome() and failed_outcome() create an Outcome; larger ones get a block of this
  // worker's pinned area.
  [[nodiscard]] Outcome value_outcome(const void* value, size_t bytes);
  [[nodiscard]] Outcome failed_outcome(const std::exception_ptr& exception);
  // Allocates a join record with `more` additional bytes directly behind it.
  [[nodiscard]] Reference new_record(size_t more = 0);
  // Writes the outcome to the record. Returns the task that waits for it, which the caller must
  // continue (frames == 0: no task waits).
  [[nodiscard]] Suspended deliver(Reference record, const Outcome& outcome);
  // Copies the value of `outcome` to `value` and releases the block that contains it. Requires:
  // `value` is a local variable of a task. If bytes == 0, only releases the block.
  void take_value(const Outcome& outcome, void* value, size_t bytes);
  // Returns the bytes of `outcome` and releases its block.
  [[nodiscard]] std::vector<std::byte> take_bytes(const Outcome& outcome);
  // Throws the exception of `outcome` and releases its block. Requires: kind is kFailed.
  [[noreturn]] void rethrow(const Outcome& outcome);
  // Releases the block of `outcome`, if there is one.
  void drop(const Outcome& outcome);

  [[nodiscard]] const StackRegion& region() const { return region_; }
  // Returns the end of the running task's stack: one past its last byte.
  [[nodiscard]] const std::byte* stack_end() const {
    if (!iso_.has_value()) return region_.top();
    return reinterpret_cast<const std::byte*>(entries_[0]) + kStackEndBytes;
  }

 private:
  [[nodiscard]] static size_t entries_offset(int workers) {
    return sizeof(WorkerArea) +
           static_cast<size_t>(workers) * (sizeof(AtomicCell) + sizeof(StealRequestCell));
  }
  [[nodiscard]] static size_t words_offset(const TaskOptions& options, int workers) {
    return entries_offset(workers) + 2 * entry_count(options) * sizeof(uint64_t);
  }

  // Why a task has left its stack, and the data with which the scheduler proceeds.
  struct Leaving {
    enum class Why { kEnded, kJoin, kSuspend, kYield, kFork } why = Why::kEnded;
    void* sp = nullptr;  // all but kEnded: the stack pointer of the task's saved context
    Suspended next{};    // kEnded: the task that waited for this one
    Reference record{};  // kJoin: the record that the task waits for
    bool stays = false;  // kJoin: the task must continue in this worker
    void (*publish)(void*, const Suspended&) = nullptr;  // kSuspend: called with `argument`
    void* argument = nullptr;
    FirstCall child{};   // kFork: the child to start
    uint64_t flags = 0;  // kFork: the parent's entry, with its flags
    // kFork: the exceptions that the task handles. Otherwise those that its ancestors handle.
    ExceptionState exceptions{};
  };
  // A task to be continued by cariama_run(sp, record).
  struct Context {
    void* sp = nullptr;
    uint64_t record = 0;
  };
  // A joiner, and the record it waits for.
  struct Waiting {
    Suspended task;
    Reference record;
  };
  // A task that has forked and can be continued, with schemes other than kUni.
  struct Parent {
    PublicEntry entry;
    bool tied;
    ExceptionState exceptions;
  };

  // Accesses of the owner to the shared words of its own deque.
  struct OwnMemory {
    RemoteAccess& access;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      return word.load(std::memory_order_acquire);
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      word.store(value, std::memory_order_release);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const;
    // On x86-64 a read-modify-write of a private word is a full fence. clang compiles
    // std::atomic_thread_fence to an mfence, which is several times as slow.
    void fence() const { fence_word.fetch_add(1, std::memory_order_seq_cst); }
    mutable std::atomic<uint64_t> fence_word{0};
  };

  // Ends the program if the closure contains a pointer into the running task's stack.
  void check_closure(const void* closure, size_t bytes) const;
  void check_frames(uint64_t begin, uint64_t end);  // frame_check.cc
  // Runs tasks until finished() returns true.
  template <typename Finished>
  void work(const Finished& finished);
  // Runs a task until it leaves.
  void run(const Context& context);
  // The first function on the stack of a task that has no parent above it.
  static void first_entry(void* call);
  // Installs a new task that begins with `call` on the empty stack below `top`. Its outcome goes to
  // `record`.
  void begin(std::byte* top, Reference record, const FirstCall& call);
  // Handles a task that has left.
  void after(const Leaving& left);
  // Finds the next task and installs it. Returns false if finished() returned true first.
  template <typename Finished>
  [[nodiscard]] bool find_work(const Finished& finished);
  // Installs the oldest task of waiting_ if its child has ended. Otherwise moves it to the end of
  // the queue and returns false.
  [[nodiscard]] bool resume_waiting();
  // Call it when all tasks of the region have ended or been taken, before another task is
  // installed. Empties the deque, and waits until thieves have copied the frames of all stolen
  // tasks.
  void quiesce_region();
  // Publishes entries and wakes sleeping peers. Requires: no entry is public.
  template <typename Entries>
  void make_public(const Entries& entry, uint32_t count) {
    public_part_.publish(entry, count);
    statistics_.published += count;
    wake_sleepers(count);
  }
  // Implemented in stack_schemes.cc.
  [[noreturn]] void fork_on_empty_stack(const FirstCall& child);
  void begin_on_empty_stack(const Leaving& left);
  [[nodiscard]] bool resume_parent();
  void publish_parents(uint64_t wanted);
  [[nodiscard]] std::byte* new_stack();
  void end_stack();
  [[nodiscard]] std::span<std::byte> stack_of(const void* sp) const;
  [[nodiscard]] uint64_t frames_of(const PublicEntry& entry) const;
  void await_thief(uint64_t round);
  void publish_the();
  // Implemented in steal.cc.
  class StealTimer;
  [[nodiscard]] bool steal_split(int victim);
  [[nodiscard]] bool steal_the(int victim);
  // Implemented in request_stealing.cc.
  [[nodiscard]] bool steal_by_request(int victim);
  void answer_requests();
  void answer(int thief, uint64_t ticket);
  void count_steal() {
    ++statistics_.stolen[std::min(victims_.level(), kVictimLevels - 1)];
    victims_.succeeded();
  }
  // Reads the frames [sp, top) of a claimed task from the victim's memory at `from`.
  void take_frames(int victim, uint64_t from, uint64_t sp, uint64_t top, StealTimer& timer);
  // Make a task the oldest one of the region and the next one to run. The second function copies
  // the frames of a suspended task in.
  void install(uint64_t top, uint64_t report, const Context& context);
  void install(const Suspended& task);
  [[nodiscard]] bool steal(int victim);
  // Copies the frames of the task that has left out of the stack, stores its handle in `task`, and
  // makes its parent the next task if it is in this region. Writes to a reference instead of
  // returning the handle: a copy would wait for the store buffer.
  void park(void* sp, Suspended& task);
  // Reverts the last park().
  void unpark(const Suspended& task);
  // Registers the task that has left as the waiter of a join record.
  void wait_for_child(const Leaving& left);
  // Implemented in idle.cc.
  template <typename Finished>
  void pause_idle(uint64_t round, const Finished& finished) {
    if (!may_sleep_until_woken(round)) return pause_idle(round);
    announce_sleep();
    // Re-check after the announcement: this sees everything that was published before it.
    if (finished() || something_is_public()) return area_.wake.retract();
    sleep_until_woken();
  }
  void pause_idle(uint64_t round) const;
  [[nodiscard]] bool may_sleep_until_woken(uint64_t round) const;
  void announce_sleep();
  [[nodiscard]] bool something_is_public() const;
  void sleep_until_woken();
  void wake_sleepers(uint32_t most);
  void wake_peer(int peer);
  // Returns the bytes of `outcome`, without releasing its block.
  [[nodiscard]] std::vector<std::byte> fetch(const Outcome& outcome);
  void release(Reference block);
  [[nodiscard]] void* allocate(size_t bytes);
  // Returns one past the highest address of the running task's frames.
  [[nodiscard]] uint64_t task_top() const;
  // Returns true if frames of the running task handle exceptions.
  [[nodiscard]] bool handles_exceptions() const {
    return !exceptions().empty() && has_exceptions_below(exceptions(), task_top());
  }
  [[nodiscard]] size_t depth() const {
    return static_cast<size_t>(cariama_fork_state.top - entries_);
  }

  const TaskOptions options_;
  StackRegion& region_;
  RemoteAccess& access_;
  WorkerArea& area_;
  const std::span<StealRequestCell> request_cells_;
  uint64_t* const entries_;
  uint64_t* const reports_;
  StackGuard guard_;
  PinnedArea pinned_;
  OwnMemory memory_;
  PublicPartOwner<OwnMemory> public_part_;
  JoinProtocol joins_;
  TheOwner<OwnMemory> the_;
  Victims victims_;
  // The exceptions of failed outcomes whose blocks are in this worker's pinned area, by block.
  std::unordered_map<const void*, std::exception_ptr> exceptions_;
  // The deque for schemes other than kUni, the oldest parent first. Parents with an index below
  // first_private_parent_ are public or stolen.
  std::vector<Parent> parents_;
  size_t first_private_parent_ = 0;
  FirstCall first_call_{};
  std::optional<IsoStacks> iso_;

  bool in_task_ = false;
  ExceptionState* exception_state_ = nullptr;  // exception state of the thread that runs work()
  uint64_t runs_ = 0;                          // number of runs begun
  std::function<bool()> run_has_ended_;
  uint64_t tickets_ = 0;            // number of tickets created (DequeKind::kPrivate)
  std::vector<uint64_t> answered_;  // the last ticket of each rank that this worker has answered
  uint64_t taken_ = 0;              // stolen entries that quiesce_region() has counted
  Leaving leaving_;
  Context next_;  // the next task to run; sp == nullptr: none
  // State of the last park(). popped_: the parent of the parked task is next_. parked_top_: the top
  // of the deque before.
  bool popped_ = false;
  uint64_t* parked_top_ = nullptr;
  bool yielded_ = false;          // a task has yielded since find_work() last checked
  uint64_t task_switches_ = 0;    // number of switches from the scheduler to a task
  uint64_t fruitless_waits_ = 0;  // consecutive calls of pause_task() that found no other task
  std::function<void()> on_idle_;
  std::set<uint64_t> reported_frames_;  // return addresses that check_frames() has reported
  std::vector<uint64_t> taken_from_;    // number of tasks taken, by victim
  std::vector<WorkerArea*> peers_;      // areas of all ranks; empty if one is not mapped here
  uint32_t wake_ticket_ = 0;
  std::deque<Suspended> ready_;
  std::deque<Waiting> waiting_;  // joiners whose records this worker polls
  TaskStatistics statistics_;
  std::vector<StealSample> samples_;
  std::chrono::steady_clock::time_point next_liveness_check_;  // of await_thief()
  // Idle time in ticks of steal_clock(). statistics() converts it to ns by comparing the ticks and
  // the time since the worker was created.
  uint64_t idle_ticks_ = 0;
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  const uint64_t created_tick_ = steal_clock();
};

// The worker of this process, or nullptr if it has none. Workers have different addresses in
// different processes, so a task must read it again after each point at which it may have changed
// its process.
extern Worker* this_worker;

// Returns the worker of the calling task. If the caller is not a task, ends the program with a
// message that names `operation`.
[[nodiscard]] Worker* worker_of_task(const char* operation);

// Waits until the record's child has ended. Only tasks may call it. May return in another process.
void await(Reference record);
// Waits until the record's child has ended, releases the record and returns the outcome. Only tasks
// may call it. May return in another process.
[[nodiscard]] Outcome join(Reference record);

// Prints a message with `status` and the tasks that are lost with this worker, and ends the
// process. The job cannot continue without this worker, so the other workers end too.
[[noreturn]] void end_job(const absl::Status& status);

// The address of a peer's copy of `memory`, which lies where the own one does.
[[nodiscard]] inline uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

inline void must(const absl::Status& status) {
  if (!status.ok()) [[unlikely]]
    end_job(status);
}
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) [[unlikely]]
    end_job(value.status());
  return *std::move(value);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SCHEDULER_H_
