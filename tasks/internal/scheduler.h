// The worker of this process: runs tasks of its own region, steals when there are none, and brings
// suspended ones back. Not for users: runtime.h is.
//
// It runs on the process's own stack, between tasks. A task that leaves says why (Leaving); what
// then touches the region's frames is done here, where nothing stands on them.
//
// The task at position i of the deque (0 is the oldest in this region) has its frames in
// [own sp, entries[i]), and entries[i + 1] is its own saved context while it has a child.
// entries[0] is where the frames of the oldest begin, and never taken. reports[i] is the join
// record of the task at position i; it is there when its parent may be elsewhere: for position 0,
// and beside every entry that was made public.
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
#include "tasks/internal/shelf_thief.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/the_deque.h"
#include "tasks/internal/victims.h"
#include "tasks/join_record.h"
#include "tasks/runtime.h"
#include "tasks/steal_sample.h"

namespace cariama::tasks {

// The tail of a worker's region: what peers see, and where their memory is read to.
struct WorkerArea {
  Shelf shelf;
  TheQueue the;
  AccessArea access;
  // Of idle workers of this host (idle.cc): those that sleep and want to hear when something is
  // made public here, by rank modulo 64; and what this one sleeps on.
  alignas(64) std::atomic<uint64_t> sleepers;
  WakeWord doze;
  // Tasks that each rank has taken from here, by rank modulo 64: for the sentence when one dies.
  alignas(64) std::atomic<uint64_t> taken_by[64];
  alignas(64) std::atomic<uint64_t> finished;  // runs whose root has ended; written by rank 0
  std::atomic<uint64_t> tokens;                // made so far: rank 0's counts
  // By serial number modulo their number: the serial of the last one that was cancelled.
  std::atomic<uint64_t> cancelled[kCancellationTokens];
  // Copies of peers' memory.
  alignas(64) ShelfCopy shelf_copy;
  JoinCopy join_copy;
  uint64_t the_words[3];    // lock, base, top
  uint64_t the_entries[2];  // of the stolen task's parent, and its own
  uint64_t the_reports[2];
};

// What a worker and one of its peers tell each other where thieves ask (request_stealing.cc). In
// the tail, one for each rank.
struct alignas(64) AskCell {
  std::atomic<uint64_t> request;   // the peer's ticket: it wants a task
  std::atomic<uint64_t> answered;  // the peer's answer to this worker: its ticket * 2 + whether
  PublicEntry entry;               // ... it has handed this over, whose frames are in place
};
static_assert(sizeof(AskCell) == 64);

class Worker {
 public:
  // Cells for each rank, entries and reports follow the area in the tail, and after these, with
  // StackScheme::kIso, a word for each stack. A level of depth takes kContextBytes and a return
  // address at least, so there can never be more entries.
  [[nodiscard]] static size_t entry_count(const TaskOptions& options) {
    if (options.scheme != StackScheme::kUni) return 2;  // never more than one task at a time
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

  // `canary` is what frames of tasks are protected by, in every worker.
  Worker(const TaskOptions& options, StackRegion& region, RemoteAccess& access, uint64_t canary);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // On rank 0: runs root(first, second, ...) as the oldest task, until it has ended, and tells the
  // others. The outcome's bytes, or what it threw.
  struct RootResult {
    std::vector<std::byte> bytes;
    std::optional<std::string> exception;
  };
  [[nodiscard]] absl::StatusOr<RootResult> run_root(ChildFunction root, uint64_t first,
                                                    uint64_t second);
  // On the others: works until that root has ended.
  void run_until_finished();

  [[nodiscard]] int rank() const { return access_.rank(); }
  // "3 tasks on its stack and 1 suspended task of this worker are lost, and what rank 1 had taken
  // from it (2 tasks so far)".
  [[nodiscard]] std::string what_is_lost() const;

  [[nodiscard]] TaskStatistics statistics() const;
  void reset_statistics() {
    statistics_ = {};
    idle_ticks_ = 0;
  }
  [[nodiscard]] std::vector<StealSample> take_samples() { return std::exchange(samples_, {}); }

  // What a child begins with. `bytes`: of what `first` points to, 0 if it is a value.
  struct FirstCall {
    ChildFunction function;
    uint64_t first;
    uint64_t second;
    uint64_t bytes;
  };

  // Called by running tasks.
  void attend();
  // ... by a fork, with what its child gets. Does not return where the child gets another stack.
  void attend(const FirstCall& child);
  [[nodiscard]] bool take_parent_back();
  // Entries that were taken from this worker and copied, ever.
  [[nodiscard]] uint64_t thefts() const {
    return area_.shelf.copied.load(std::memory_order_acquire);
  }
  // Whether all entries of this region were.
  [[nodiscard]] bool parent_is_gone() const {
    return thefts() - taken_ ==
           static_cast<size_t>(cariama_fork_state.top - (entries_ + 1)) + parents_.size();
  }
  [[noreturn]] void end_task(const Outcome& outcome);
  // The outcome of the record's child, if it has ended; the record is released then.
  [[nodiscard]] std::optional<Outcome> look(Reference record);
  // Returns when the child has ended, or for no reason; in any process.
  void wait_for(Reference record);
  void suspend(void (*publish)(void* argument, const Suspended& task), void* argument);
  void make_ready(const Suspended& task);
  [[nodiscard]] std::pair<const std::atomic<uint64_t>*, uint64_t> new_token();
  void cancel(const std::atomic<uint64_t>* word, uint64_t serial);
  void yield();
  // A wait of another layer, in a task (await.h): lets other tasks run, or pauses if there are
  // none.
  void pause_task(uint64_t round);
  // Whether the running task has said that nothing pending points into its stack.
  bool lets_others_run = false;
  // Called now and then while there is nothing to do.
  void on_idle(std::function<void()> work) { on_idle_ = std::move(work); }
  [[nodiscard]] bool in_task() const { return in_task_; }
  // Of the running task (exception_state.h).
  [[nodiscard]] ExceptionState& exceptions() const { return *exception_state_; }
  // Before the running task leaves: what it handles itself. What its parent handles, on top of
  // which it runs, is in leaving_ then.
  [[nodiscard]] ExceptionState take_exceptions();

  // Outcomes and records.
  [[nodiscard]] Outcome value_outcome(const void* value, size_t bytes);
  [[nodiscard]] Outcome failed_outcome(const std::exception_ptr& exception);
  // ... with room for `more` bytes behind it.
  [[nodiscard]] Reference new_record(size_t more = 0);
  // Leaves the outcome in the record. Returns who waited for it (frames 0: nobody).
  [[nodiscard]] Suspended deliver(Reference record, const Outcome& outcome);
  // The value that an outcome names; what held it is released. `value` is a local of a task; of no
  // bytes, whatever it is is dropped.
  void take_value(const Outcome& outcome, void* value, size_t bytes);
  [[nodiscard]] std::vector<std::byte> take_bytes(const Outcome& outcome);
  [[noreturn]] void rethrow(const Outcome& outcome);
  void drop(const Outcome& outcome);

  [[nodiscard]] const StackRegion& region() const { return region_; }
  // Of the running task's stack: one past its last byte.
  [[nodiscard]] const std::byte* stack_end() const {
    if (!iso_.has_value()) return region_.top();
    return reinterpret_cast<const std::byte*>(entries_[0]) + kStackEndBytes;
  }

 private:
  [[nodiscard]] static size_t entries_offset(int workers) {
    return sizeof(WorkerArea) +
           static_cast<size_t>(workers) * (sizeof(AtomicCell) + sizeof(AskCell));
  }
  [[nodiscard]] static size_t words_offset(const TaskOptions& options, int workers) {
    return entries_offset(workers) + 2 * entry_count(options) * sizeof(uint64_t);
  }

  struct Leaving {
    enum class Why { kEnded, kJoin, kSuspend, kYield, kFork } why = Why::kEnded;
    void* sp = nullptr;  // of the suspended task
    Suspended next{};    // kEnded: who waited for it
    Reference record{};  // kJoin
    bool stays = false;  // kJoin: goes on in this worker only
    void (*publish)(void*, const Suspended&) = nullptr;
    void* argument = nullptr;
    FirstCall child{};            // kFork
    uint64_t flags = 0;           // kFork: of the entry
    ExceptionState exceptions{};  // kFork: that the task handles; else that its parent does
  };
  struct Context {
    void* sp = nullptr;
    uint64_t record = 0;
  };
  struct Waiting {
    Suspended task;
    Reference record;
  };
  // A task that has forked and may go on, where children do not run below their parents.
  struct Parent {
    PublicEntry entry;
    bool tied;
    ExceptionState exceptions;
  };

  // The owner's side of its own shelf.
  struct OwnMemory {
    RemoteAccess& access;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      return word.load(std::memory_order_acquire);
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      word.store(value, std::memory_order_release);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const;
    // Not std::atomic_thread_fence, which is an mfence with clang: several times as slow.
    void fence() const { fence_word.fetch_add(1, std::memory_order_seq_cst); }
    mutable std::atomic<uint64_t> fence_word{0};
  };

  void check_closure(const void* closure, size_t bytes) const;
  void check_frames(uint64_t begin, uint64_t end);  // frame_check.cc
  template <typename Finished>
  void work(const Finished& finished);
  void run(const Context& context);
  static void first_entry(void* call);
  // A task that begins with `call`, in the empty region below `top`; reports to `record`.
  void begin(std::byte* top, Reference record, const FirstCall& call);
  void after(const Leaving& left);
  template <typename Finished>
  [[nodiscard]] bool find_work(const Finished& finished);
  [[nodiscard]] bool resume_waiting();
  [[nodiscard]] bool has_arrived(Reference record);
  void settle();
  // Precondition: nothing is public.
  template <typename Entries>
  void make_public(const Entries& entry, uint32_t count) {
    shelf_.publish(entry, count);
    statistics_.published += count;
    wake_sleepers(count);
  }
  // stack_schemes.cc
  [[noreturn]] void fork_apart(const FirstCall& child);
  void begin_apart(const Leaving& left);
  [[nodiscard]] bool resume_parent();
  void publish_parents(uint64_t wanted);
  [[nodiscard]] std::byte* new_stack();
  void end_stack();
  [[nodiscard]] std::span<std::byte> stack_of(const void* sp) const;
  [[nodiscard]] uint64_t frames_of(const PublicEntry& entry) const;
  void await_thief(uint64_t round);
  void attend_the();
  // steal.cc
  class StealTimer;
  [[nodiscard]] bool steal_split(int victim);
  [[nodiscard]] bool steal_the(int victim);
  // request_stealing.cc
  [[nodiscard]] bool steal_by_request(int victim);
  void answer_requests();
  void answer(int thief, uint64_t ticket);
  void victim_was_robbed() {
    ++statistics_.stolen[std::min(victims_.level(), kVictimLevels - 1)];
    victims_.succeeded();
  }
  // Reads [sp, top) of the victim's memory at `from`.
  void take_frames(int victim, uint64_t from, uint64_t sp, uint64_t top, StealTimer& timer);
  void install(uint64_t top, uint64_t report, const Context& context);
  void install(const Suspended& task);
  [[nodiscard]] bool steal(int victim);
  // Where the caller wants it: a copy would wait for the words that have just been stored.
  void park(void* sp, Suspended& task);
  void unpark(const Suspended& task);
  void wait_for_child(const Leaving& left);
  // idle.cc
  template <typename Finished>
  void pause_idle(uint64_t round, const Finished& finished) {
    if (!may_doze(round)) return pause_idle(round);
    announce_doze();
    // Between the announcement and the sleep: whatever came before it is seen here.
    if (finished() || something_is_public()) return area_.doze.retract();
    doze();
  }
  void pause_idle(uint64_t round) const;
  [[nodiscard]] bool may_doze(uint64_t round) const;
  void announce_doze();
  [[nodiscard]] bool something_is_public() const;
  void doze();
  void wake_sleepers(uint32_t most);
  void wake_peer(int peer);
  [[nodiscard]] std::vector<std::byte> fetch(const Outcome& outcome);
  void release(Reference block);
  [[nodiscard]] void* allocate(size_t bytes);
  // Where the frames of the running task end.
  [[nodiscard]] uint64_t task_top() const;
  // Whether it handles exceptions itself.
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
  const std::span<AskCell> asked_;
  uint64_t* const entries_;
  uint64_t* const reports_;
  StackGuard guard_;
  PinnedArea pinned_;
  OwnMemory memory_;
  ShelfOwner<OwnMemory> shelf_;
  JoinProtocol joins_;
  TheOwner<OwnMemory> the_;
  Victims victims_;
  std::unordered_map<const void*, std::exception_ptr> exceptions_;  // by their blocks
  // Where children do not run below their parents. Those before shown_ are public, or stolen.
  std::vector<Parent> parents_;
  size_t shown_ = 0;
  FirstCall first_call_{};
  std::optional<IsoStacks> iso_;

  bool in_task_ = false;
  ExceptionState* exception_state_ = nullptr;  // of the thread that is in work()
  uint64_t runs_ = 0;                          // begun
  std::function<bool()> run_has_ended_;
  uint64_t tickets_ = 0;            // made so far
  std::vector<uint64_t> answered_;  // the last ticket of each rank
  uint64_t taken_ = 0;  // entries that thieves took from here, and whose frames are settled
  Leaving leaving_;
  Context next_;
  // Of the last park(): the parent of the parked task is next_; and where the deque ended before.
  bool popped_ = false;
  uint64_t* parked_top_ = nullptr;
  bool yielded_ = false;    // since find_work() last looked
  uint64_t stretches_ = 0;  // that tasks have run without a break
  uint64_t lonely_ = 0;     // waits in a row that found nothing else to run
  std::function<void()> on_idle_;
  std::set<uint64_t> reported_frames_;  // by return address
  std::vector<uint64_t> taken_from_;    // tasks, by victim
  std::vector<WorkerArea*> peers_;      // as mapped here; empty if some are not
  uint32_t doze_ticket_ = 0;
  std::deque<Suspended> ready_;
  std::deque<Waiting> waiting_;  // joiners that this worker itself has to look after
  TaskStatistics statistics_;
  std::vector<StealSample> samples_;
  std::chrono::steady_clock::time_point next_look_;  // await_thief()
  uint64_t idle_ticks_ = 0;  // of steal_clock(), which statistics() compares with time since:
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  const uint64_t created_tick_ = steal_clock();
};

// Of this process; nullptr before and after. A task that may have been continued elsewhere reads it
// again: workers are at different addresses in different processes.
extern Worker* this_worker;

// The worker, for a task that calls `operation`; ends the program if it is none.
[[nodiscard]] Worker* worker_of_task(const char* operation);

// Waits until the record's child has ended, in whichever process. For tasks.
[[nodiscard]] Outcome join(Reference record);

// Ends the process with a sentence: what this worker held is lost, and so is the job.
[[noreturn]] void end_job(const absl::Status& status);
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
