// SeparateStacks: what StackScheme::kCrude and kIso have in common. Children do not run below their
// parents.
//
// Each fork calls cariama_fork_steal_request(), which leaves to the scheduler. The scheduler
// appends the parent to parents_ and begins the child on an empty stack. The child always has a
// join record. When a task leaves, the newest parent continues, if no thief has taken it. parents_
// is the deque: its older entries are copied to the public part, as with the uni-address scheme.
#ifndef CARIAMA_TASKS_PAPER_SEPARATE_STACKS_H_
#define CARIAMA_TASKS_PAPER_SEPARATE_STACKS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {

// The number of entries that such a worker needs: at most one task is on a stack.
inline constexpr size_t kSeparateEntries = 2;

template <typename Derived>
class SeparateStacks : public Scheduler<Derived, Worker> {
  using Base = Scheduler<Derived, Worker>;

 protected:
  using Base::entries_;
  using Base::exceptions;
  using Base::fork_state;
  using Base::leaving_;
  using Base::public_part_;
  using Base::self;
  using Base::statistics_;
  using Base::taken_;

 public:
  using FirstCall = Worker::FirstCall;

  SeparateStacks(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
                 RemoteAccess& access, uint64_t canary)
      : Base(options, memory, region, access, canary) {
    this->intercept_forks_and_loops();
  }

  // Called on the task's stack, below its saved context. Does not return: the scheduler starts the
  // child.
  void before_child(const FirstCall& child) override {
    if (this->checks_closures()) this->check_closure(child);
    this->leave_run_if_failed();
    forks_ = true;
    flags_ = *--fork_state().top;
    child_ = child;
    leaving_.sp = reinterpret_cast<void*>(sp_of(flags_));
    leaving_.exceptions = std::exchange(exceptions(), {});
    before_leave(this->stack_end());
    cariama_leave();
  }

  void after(typename Base::Leaving& left) {
    if (std::exchange(forks_, false)) return begin_child();
    if (left.why == Base::Leaving::Why::kEnded) self().end_stack();
    Base::after(left);
  }

  [[nodiscard]] bool find_work() {
    self().quiesce_region();
    return resume_parent() || Base::find_work();
  }

  // Requires: no entry is public.
  void publish(uint64_t wanted) {
    size_t end = first_private_;
    while (end < parents_.size() && end < first_private_ + 2 * kPublicSlots && !parents_[end].tied)
      ++end;
    const uint32_t count =
        how_many_to_publish(wanted, end - first_private_, [this] { return this->has_sleepers(); });
    if (count == 0) return;
    this->make_public([&](uint32_t i) { return parents_[first_private_ + i].entry; }, count);
    first_private_ += count;
  }

 protected:
  [[nodiscard]] size_t forked_tasks() const override { return parents_.size(); }

 private:
  // A task that has forked and can be continued.
  struct Parent {
    PublicEntry entry;
    bool tied;
    ExceptionState exceptions;
  };

  // Begins the child of the task that has left to fork.
  void begin_child() {
    Parent parent{
        {address_of(leaving_.sp), entries_[0], this->reports_[0], 0},
        // A parent that handles exceptions, or waits for an event of this process, must
        // stay in this process.
        (flags_ & kForkTied) != 0 || !leaving_.exceptions.empty() || this->other_tasks_may_run,
        leaving_.exceptions};
    if (!parent.tied) this->before_publication(parent.entry.sp, parent.entry.top);
    self().save_parent(parent.entry, child_);
    parents_.push_back(parent);
    this->serve_steal_request();
    this->begin(this->new_stack(), Reference(parent.entry.record), child_);
  }

  [[nodiscard]] bool resume_parent() {
    if (parents_.empty()) return false;
    if (parents_.size() == first_private_) {
      if (!public_part_.take_back()) {  // thieves have taken all parents
        taken_ += first_private_;
        statistics_.stolen_from += first_private_;
        parents_.clear();
        first_private_ = 0;
        return false;
      }
      --first_private_;
      ++statistics_.taken_back;
      public_part_.refill_if_empty();
    }
    const Parent parent = parents_.back();
    parents_.pop_back();
    const PublicEntry& entry = parent.entry;
    self().restore_parent(entry);
    exceptions() = parent.exceptions;
    self().install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
    return true;
  }

  // The deque, the oldest parent first. Parents with an index below first_private_ are public or
  // stolen.
  std::vector<Parent> parents_;
  size_t first_private_ = 0;
  // The task has left to fork child_; its entry was flags_.
  bool forks_ = false;
  uint64_t flags_ = 0;
  FirstCall child_{};
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_PAPER_SEPARATE_STACKS_H_
