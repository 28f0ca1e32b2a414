// Worker: a process of a job that runs tasks. It owns the memory that peers access, and implements
// what tasks and the scheduler's loop (scheduler.h) need of the process: join records and results,
// the context switch, copies of frames, exceptions, and sleep. Programs use runtime.h instead.
//
// The scheduler runs on the process's own stack, between tasks. A task that leaves its stack stores
// the reason in a Leaving.
#ifndef CARIAMA_TASKS_INTERNAL_WORKER_H_
#define CARIAMA_TASKS_INTERNAL_WORKER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/statistics.h"
#include "dtutils/trace.h"
#include "dtutils/wait.h"
#include "tasks/context.h"
#include "tasks/exceptions.h"
#include "tasks/fork_join.h"
#include "tasks/internal/exception_state.h"
#include "tasks/internal/join_protocol.h"
#include "tasks/internal/must.h"
#include "tasks/internal/peer_words.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/queue_pair_access.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler_state.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/steal_sample.h"
#include "tasks/join_record.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// The first part of the tail of a worker's region: words that peers access, and buffers into which
// this worker reads the memory of peers.
struct WorkerArea {
  PublicPart public_part;
  AccessArea access;
  // Slot r % 64: the worker with rank r sleeps until this worker publishes entries (idle.cc).
  alignas(64) SleeperSet sleepers;
  Doorbell doorbell;  // on which this worker sleeps
  // taken_by[r % 64]: number of tasks that rank r has taken from this worker. describe_loss()
  // prints it when a worker dies.
  alignas(64) std::atomic<uint64_t> taken_by[64];
  alignas(64) std::atomic<uint64_t> finished;  // number of runs that have ended; written by rank 0
  // Not 0: a worker has failed or is late (FailureReport). Written by each worker that has noticed
  // it.
  std::atomic<uint64_t> failed;
  // Not 0: this worker has no task, and takes none at the moment. Peers read it to tell which
  // workers are late (TaskOptions::run_timeout).
  std::atomic<uint64_t> idle;
  std::atomic<uint64_t> tokens;  // number of cancellation tokens; used on rank 0
  // cancelled[s % kCancellationTokens]: the serial number s of the token that was cancelled last.
  std::atomic<uint64_t> cancelled[kCancellationTokens];
  // Buffers into which this worker reads the memory of peers.
  alignas(64) PublicPartCopy public_part_copy;
  JoinCopy join_copy;
};

// The sizes of the memory of one worker, equal in all workers. The tail of the region holds
// WorkerArea, an AtomicCell for each rank, entries, reports, and the words that a scheduler of
// tasks/paper/ adds.
struct WorkerMemory {
  size_t stack_bytes = 0;
  size_t entries = 0;
  size_t added_bytes = 0;

  [[nodiscard]] static size_t entries_offset(int workers) {
    return sizeof(WorkerArea) + static_cast<size_t>(workers) * sizeof(AtomicCell);
  }
  [[nodiscard]] size_t added_offset(int workers) const {
    return (entries_offset(workers) + 2 * entries * sizeof(uint64_t) + 63) / 64 * 64;
  }
  [[nodiscard]] size_t tail_bytes(int workers) const { return added_offset(workers) + added_bytes; }
};

class Worker : public SchedulerState {
 public:
  [[nodiscard]] static WorkerArea& area_of(const StackRegion& region) {
    return *reinterpret_cast<WorkerArea*>(region.tail());
  }
  [[nodiscard]] static std::span<AtomicCell> atomic_cells(const StackRegion& region, int workers) {
    return {reinterpret_cast<AtomicCell*>(region.tail() + sizeof(WorkerArea)),
            static_cast<size_t>(workers)};
  }

  // `canary` is the stack-protector canary for the frames of tasks, equal in all workers. Keeps
  // references to `region` and `access`.
  Worker(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
         RemoteAccess& access, uint64_t canary);
  virtual ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The result of the root task: the bytes of its value, or the text of its exception.
  struct RootResult {
    std::vector<std::byte> bytes;
    std::optional<std::string> exception;
  };
  // Rank 0 calls it. Runs root(first, second, ...) as the oldest task until it has ended. Then
  // notifies the other workers that the run has ended, and returns the result.
  // Errors: UNAVAILABLE (a worker has failed), DEADLINE_EXCEEDED (TaskOptions::run_timeout has
  // passed); then no run may follow.
  [[nodiscard]] absl::StatusOr<RootResult> run_root(ChildFunction root, uint64_t first,
                                                    uint64_t second);
  // All other ranks call it. Steals and runs tasks until rank 0 reports the end of the run. Errors:
  // as run_root().
  [[nodiscard]] absl::Status run_until_finished();

  [[nodiscard]] int rank() const { return access_.rank(); }
  // Returns the part of an error's message that tells which tasks are lost: "3 tasks on its stack
  // and 1 suspended task of this worker are lost; rank 1 stole 2 tasks from it". The tasks that
  // rank 1 stole include those that have ended.
  [[nodiscard]] std::string describe_loss() const;

  // ---- the failure of a worker (worker_failure.cc) ----

  // Returns the error that run() returns because a worker has failed or is late, or OK. Ends the
  // process instead of returning an error if TaskOptions::on_failure is kAbort.
  [[nodiscard]] absl::Status failure();
  // Notes the failure of a peer, or that it does not answer until the run's deadline, and reports
  // it to all other workers. The run continues until leave_run(), leave_run_if_failed() or the next
  // search for work. Ends the process if TaskOptions::on_failure is kAbort, or if `status` is
  // another error.
  void note_failure(const absl::Status& status);
  // Ends the run of this worker. In a task: abandons all tasks of this worker, and continues in the
  // scheduler. On the scheduler's stack: throws RunFailed. Ends the process if the task waits in
  // another layer, whose state would be left in the middle of a change.
  // Requires: this worker knows of a failure.
  [[noreturn]] void leave_run();
  // Calls leave_run() if this worker knows of a failure. Only tasks may call it.
  void leave_run_if_failed() {
    if (area_.failed.load(std::memory_order_acquire) != 0) [[unlikely]]
      leave_run();
  }

  [[nodiscard]] TaskStatistics statistics() const;
  void reset_statistics() {
    statistics_ = {};
    idle_ticks_ = 0;
  }
  void sample_steals(const StealSampling& sampling) { sampling_ = sampling; }
  [[nodiscard]] std::vector<StealSample> take_samples() { return std::exchange(samples_, {}); }

  // The call that starts a child. `bytes` is the size of the closure at `first`, or 0 if `first` is
  // a value.
  struct FirstCall {
    ChildFunction function;
    uint64_t first;
    uint64_t second;
    uint64_t bytes;
  };

  // A closure, or a function of which closures will contain a copy (closure_check.cc).
  struct Closure {
    const void* at;
    size_t bytes;
    uint64_t flag;   // of context.h
    uint64_t frame;  // the lowest address of the frame of the function that spawns
    uint64_t code;   // an address in that function
  };
  [[nodiscard]] bool checks_closures() const { return options_.check_closures; }
  // Ends the program if the closure contains a pointer to a local of the running task, or of a task
  // above it on the stack.
  void check_closure(const Closure& closure);

  // Serves a pending steal request: publishes entries. Does nothing without a request. Called by
  // running tasks.
  virtual void serve_steal_request() = 0;
  // Called by a fork before it calls `child`, if there may be a steal request. Checks the closure
  // (TaskOptions::check_closures), then serves the request.
  virtual void before_child(const FirstCall& child) {
    if (checks_closures()) check_closure(child);
    poll();
  }
  // Serves a pending steal request, and leaves the run if a worker has failed. Called by forks and
  // by cariama::poll(). A worker that reports a failure also writes a steal request, so the next
  // fork calls it. In this order: serving may clear that request (wake_sleepers() has the fence).
  void poll() {
    serve_steal_request();
    leave_run_if_failed();
  }
  // Takes back the entry of the running task's parent, which is at cariama_fork_state.top and not
  // private. Returns false if it was stolen or there is none.
  [[nodiscard]] virtual bool take_parent_back() = 0;
  // Returns the number of entries that thieves have ever taken from this worker and whose frames
  // they have copied.
  [[nodiscard]] uint64_t stolen_entries() const {
    return area_.public_part.copied.load(std::memory_order_acquire);
  }
  // Returns true if thieves have taken and copied all entries that this worker has now.
  [[nodiscard]] bool all_entries_stolen() const {
    return stolen_entries() - taken_ == forked_tasks();
  }
  // Ends the running task, whose parent was stolen: writes the result to its record and leaves.
  [[noreturn]] void end_task(const TaskResult& result);
  [[nodiscard]] bool child_has_ended(Reference record);
  // If the record's child has ended, releases the record and returns the result.
  [[nodiscard]] std::optional<TaskResult> poll_result(Reference record);
  // Suspends the running task until the record's child may have ended: the caller must check again.
  // May return in another process.
  void wait_for(Reference record);
  // Implement suspend() and resume() of suspend.h.
  void suspend(void (*publish)(void* argument, const Suspended& task), void* argument);
  void make_ready(const Suspended& task);
  // Writes the result to the record and makes the task that waits for it ready. Unlike the
  // functions that only tasks call, it returns if a worker has failed, because the caller may be
  // code of another layer or of the user on any stack; the result is lost then.
  void complete(Reference record, const TaskResult& result);
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
  // Returns true if the calling thread is the one that created the worker, or the one that called
  // run() last. Any thread may call it.
  [[nodiscard]] bool is_this_thread() const {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // The exception state of this thread, which is that of the running task (exception_state.h).
  [[nodiscard]] ExceptionState& exceptions() const { return *exception_state_; }
  // Call it before the running task leaves. Removes all exceptions from the thread's exception
  // state. Returns those that the task handles itself, and stores those of its ancestors, on top of
  // which it runs, in leaving_.exceptions.
  [[nodiscard]] ExceptionState take_exceptions();

  // value_result() and failed_result() create a TaskResult; larger ones get a block of this
  // worker's pinned area.
  [[nodiscard]] TaskResult value_result(const void* value, size_t bytes);
  [[nodiscard]] TaskResult failed_result(const std::exception_ptr& exception);
  // Allocates a join record with `more` additional bytes directly behind it.
  [[nodiscard]] Reference new_record(size_t more = 0);
  // Writes the result to the record. Returns the task that waits for it, which the caller must
  // continue (frames == 0: no task waits).
  [[nodiscard]] Suspended deliver(Reference record, const TaskResult& result);
  // Copies the value of `result` to `value` and releases the block that contains it. Requires:
  // `value` is a local variable of a task. If bytes == 0, only releases the block.
  void take_value(const TaskResult& result, void* value, size_t bytes);
  // Returns the bytes of `result` and releases its block.
  [[nodiscard]] std::vector<std::byte> take_bytes(const TaskResult& result);
  // Throws the exception of `result` and releases its block. Requires: kind is kFailed.
  [[noreturn]] void rethrow(const TaskResult& result);
  // Releases the block of `result`, if there is one.
  void drop(const TaskResult& result);

  [[nodiscard]] const StackRegion& region() const { return region_; }
  // Returns the end of the running task's stack: one past its last byte.
  [[nodiscard]] const std::byte* stack_end() const { return stack_.data() + stack_.size(); }

 protected:
  // The PublicPart of this worker, and the buffer for the PublicPart of a peer.
  struct PublicWords {
    PublicPart& part;
    PublicPartCopy& copy;
  };
  [[nodiscard]] PublicWords public_words() const {
    return {area_.public_part, area_.public_part_copy};
  }
  [[nodiscard]] static ForkState& fork_state() { return cariama_fork_state; }

  // Runs tasks until `end` is reached.
  virtual void work(const RunEnd& end) = 0;
  // Returns the number of tasks that have forked, and that this worker continues unless a thief
  // takes them first.
  [[nodiscard]] virtual size_t forked_tasks() const {
    return in_task_ ? static_cast<size_t>(fork_state().top - (entries_ + 1)) : 0;
  }
  // Returns TaskStatistics::stack_high_water.
  [[nodiscard]] virtual size_t stack_high_water() const { return region_.high_water(); }
  // Returns the end of the frames of a new task. Requires: no task of this worker is on a stack.
  [[nodiscard]] virtual std::byte* new_stack() { return region_.top() - kStackEndBytes; }

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
  };
  class StealTimer;

  // Called by the scheduler's loop.
  // Runs a task until it leaves. Inlined into Scheduler::work(): the processor predicts returns
  // from the preceding calls, and mispredicts the return of each function that was called before a
  // switch of stacks.
  [[gnu::always_inline]] void run(const Context& context) {
    in_task_ = true;
    ++task_switches_;
    const TraceScope trace("tasks", "run");
    before_run(stack_.data(), stack_.size());
    cariama_run(context.sp, context.record);
    after_run();
    in_task_ = false;
  }
  // Makes a task the oldest one of the region and the next one to run.
  void install(uint64_t top, uint64_t report, const Context& context) {
    entries_[0] = top;
    reports_[0] = report;
    close_stack(reinterpret_cast<void*>(top));
    orphan(reinterpret_cast<void*>(top));
    next_ = context;
  }
  // Copies the frames [task.sp, task.top) to a new block of the pinned area, sets task.frames.
  void copy_out(Suspended& task);
  // Copies the frames of a suspended task to their addresses, and releases the block.
  void copy_in(const Suspended& task);
  void drop_copy(const Suspended& task) { release(Reference(task.frames)); }
  // Returns the address of the frames of a public entry in the worker that published it.
  [[nodiscard]] static uint64_t frames_of(const PublicEntry& entry) { return entry.sp; }
  void read_frames(int victim, uint64_t from, const PublicEntry& entry) {
    set_idle(false);  // a worker that is stopped while it copies frames is late
    check_place(victim, entry.sp, entry.top);
    const TraceScope trace("tasks", "steal", "bytes", entry.top - entry.sp);
    must(access_.read(victim, from, reinterpret_cast<void*>(entry.sp), entry.top - entry.sp));
  }
  void note_taken(int victim) {
    const uint64_t taken = ++taken_from_[static_cast<size_t>(victim)];
    must(access_.write(victim, address_of(&area_.taken_by[rank() % 64]), &taken, sizeof taken));
  }
  // Ends the process unless the frames [sp, top), of which `peer` has sent the addresses, lie in
  // the region's stack.
  void check_place(int peer, uint64_t sp, uint64_t top) const {
    if (!lies_within(sp, top - sp, address_of(region_.bottom()), region_.stack_bytes())) {
      must(malformed_words(peer, "the place of the frames of a task"));
    }
  }
  // The frames [begin, end) will be public.
  void before_publication(uint64_t begin, uint64_t end) {
    if (options_.check_frames) check_frames(begin, end);
  }
  void on_search_round() {
    if (on_idle_) on_idle_();
    leave_run_if_late();
  }
  // Returns true if TaskOptions::run_timeout has passed. Reads no clock if there is no limit.
  [[nodiscard]] bool is_late() const {
    return run_deadline_ != kForever && std::chrono::steady_clock::now() >= run_deadline_;
  }
  // If the run's time has passed: notes which workers are late, reports it to all other workers,
  // and leaves the run.
  void leave_run_if_late() {
    if (!is_late()) return;
    note_lateness();
    leave_run();
  }
  // Declares whether this worker has a task (WorkerArea::idle).
  void set_idle(bool idle) { area_.idle.store(idle ? 1 : 0, std::memory_order_release); }
  void await_thief(uint64_t round);
  // Reads a word of each worker, which fails if the worker is dead.
  void check_peers();
  [[nodiscard]] bool has_sleepers() const { return area_.sleepers.armed() != 0; }
  void wake_sleepers(uint32_t entries);
  void pause_idle(uint64_t round) const;

  // Makes each fork call cariama_fork_steal_request(), even without a steal request.
  static void intercept_forks();
  // The same, and makes steal_is_requested() always true.
  static void intercept_forks_and_loops();
  // Declares that peers cannot wake this worker when they have work.
  void sleep_without_wakeups() { peers_.clear(); }
  // Checks the closure of the fork that calls it.
  void check_closure(const FirstCall& child);
  // Ends the program or, with kClosureWithGaps, reports the function once.
  void refuse_closure(const Closure& closure);
  void check_frames(uint64_t begin, uint64_t end);  // frame_check.cc
  // Installs a new task that begins with `call` on the empty stack below `top`. Its result goes to
  // `record`.
  void begin(std::byte* top, Reference record, const FirstCall& call);
  void release(Reference block);
  [[nodiscard]] void* allocate(size_t bytes);
  // Returns one past the highest address of the running task's frames.
  [[nodiscard]] uint64_t task_top() const { return sp_of(fork_state().top[-1]); }
  // Returns true if frames of the running task handle exceptions.
  [[nodiscard]] bool handles_exceptions() const {
    return !exceptions().empty() && has_exceptions_below(exceptions(), task_top());
  }
  // Returns the memory that WorkerMemory::added_bytes asked for.
  [[nodiscard]] std::byte* added_memory() const { return added_; }

  // One search for work: its pauses, and the idle time. The clock is not read if the first round
  // finds a task, nor between finding a task and running it, because reading any clock takes a
  // considerable part of the time that these steps take.
  class Search {
   public:
    explicit Search(Worker& worker) : worker_(worker) {}
    ~Search() {
      worker_.idle_ticks_ += end_ - begin_;
      worker_.set_idle(false);
    }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    void pause(uint64_t round) {
      if (round == 0) {
        begin_ = steal_clock();
        worker_.set_idle(true);
      }
      worker_.pause_search(round);
      end_ = steal_clock();
    }

   private:
    Worker& worker_;
    const TraceScope trace_{"tasks", "idle"};
    uint64_t begin_ = 0;  // in ticks of steal_clock()
    uint64_t end_ = 0;
  };

  const TaskOptions options_;
  StackRegion& region_;
  RemoteAccess& access_;
  WorkerArea& area_;
  std::byte* const added_;
  std::span<std::byte> stack_;  // the stack of the running task
  StackGuard guard_;
  PinnedArea pinned_;
  OwnMemory memory_;
  PublicPartOwner<OwnMemory> public_part_;
  JoinProtocol joins_;
  bool in_task_ = false;
  uint64_t runs_ = 0;                 // number of runs begun
  uint64_t task_switches_ = 0;        // number of switches from the scheduler to a task
  std::vector<uint64_t> taken_from_;  // number of tasks taken, by victim

 private:
  // The first function on the stack of a task that has no parent above it.
  static void first_entry(void* call);
  // Implemented in idle.cc.
  void pause_search(uint64_t round) {
    if (!tries_all_peers_ && std::chrono::steady_clock::now() >= next_liveness_check_)
      check_peers();
    if (!may_sleep_until_woken(round)) return pause_idle(round);
    arm();
    if (!run_end_.reached() && !something_is_public()) sleep_until_woken();
    disarm();
  }
  [[nodiscard]] bool may_sleep_until_woken(uint64_t round) const;
  void arm();
  void disarm();
  [[nodiscard]] bool something_is_public() const;
  void sleep_until_woken();
  bool ring(int peer);  // returns true if the peer had armed its doorbell
  // The calling thread runs work().
  void bind_to_this_thread() {
    exception_state_ = &exception_state();
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  // Returns the bytes of `result`, without releasing its block.
  [[nodiscard]] std::vector<std::byte> fetch(const TaskResult& result);
  // Calls body() on the scheduler's stack, unless a worker has failed before. If the run fails,
  // drops the abandoned tasks and returns failure().
  template <typename Body>
  [[nodiscard]] absl::Status until_failure(const Body& body);
  // Set failure_: the worker `rank` has failed, or the run's time has passed. End the process if
  // TaskOptions::on_failure is kAbort.
  void fail_with(int rank, const std::string& cause);
  void fail_late(const std::string& cause);
  void set_failure(absl::StatusCode code, const std::string& what, std::string_view remedy);
  // The run's time has passed: sets failure_ and reports the failure.
  void note_lateness();
  // Returns the other workers that have tasks, or take some.
  [[nodiscard]] std::vector<int> workers_with_tasks();
  // Writes `word`, a FailureReport, to all workers but `failed` (-1: to all), and wakes them.
  void report_failure(uint64_t word, int failed);
  [[nodiscard]] RootResult work_on_root(ChildFunction root, uint64_t first, uint64_t second);

  // The exceptions of failed results whose blocks are in this worker's pinned area, by block.
  std::unordered_map<const void*, std::exception_ptr> exceptions_;
  FirstCall first_call_{};
  ExceptionState* exception_state_ = nullptr;  // exception state of the thread that runs work()
  uint64_t fruitless_waits_ = 0;  // consecutive calls of pause_task() that found no other task
  std::atomic<std::thread::id> thread_{std::this_thread::get_id()};
  std::function<void()> on_idle_;
  // Return addresses that check_frames() and check_closure() have reported.
  std::set<uint64_t> reported_frames_;
  std::set<uint64_t> reported_closures_;
  std::vector<WorkerArea*> peers_;  // areas of all ranks; empty if peers cannot wake each other
  uint32_t expected_ = 0;           // value of area_.doorbell that wait() compares
  StealSampling sampling_;
  std::vector<StealSample> samples_;
  std::chrono::steady_clock::time_point next_liveness_check_;  // of await_thief(), pause_search()
  bool tries_all_peers_ = false;  // every peer is a victim of this worker
  bool in_other_layer_ = false;   // a task is in pause_task(), called by a wait of another layer
  // The error that run() returns because a worker has failed or is late; OK until then.
  absl::Status failure_;
  Deadline run_deadline_ = kForever;  // of the tasks of the run
  // Idle time in ticks of steal_clock(). statistics() converts it to ns by comparing the ticks and
  // the time since the worker was created.
  uint64_t idle_ticks_ = 0;
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  const uint64_t created_tick_ = steal_clock();
  CounterSet counters_;  // last: reads the members above
};

// The worker of this process, or nullptr if it has none. Workers have different addresses in
// different processes, so a task must read it again after each point at which it may have changed
// its process.
extern Worker* this_worker;

// Returns the worker of this process, for a caller that need not be a task. If the process has no
// worker, or the calling thread is not the worker's, ends the program with a message that names
// `operation`.
[[nodiscard]] Worker* worker_of_thread(const char* operation);
// Returns the worker of the calling task. If the caller is not a task, or runs in a thread that is
// not the worker's, ends the program with a message that names `operation`.
[[nodiscard]] Worker* worker_of_task(const char* operation);

// Waits until the record's child has ended. Only tasks may call it. May return in another process.
void await(Reference record);
// Waits until the record's child has ended, releases the record and returns the result. Only tasks
// may call it. May return in another process.
[[nodiscard]] TaskResult join(Reference record);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_WORKER_H_
