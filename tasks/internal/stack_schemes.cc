// StackScheme::kCrude and kIso, for comparison: children do not run below their parents.
//
// Each fork calls cariama_fork_steal_request(), which leaves to the scheduler. The scheduler
// appends the parent to parents_ and begins the child on an empty stack. The child always has a
// join record. When a task leaves, the newest parent continues, if no thief has taken it. parents_
// is the deque: its older entries are copied to the public part, as with the uni-address scheme.
//
// kCrude: there is one stack. The parent's frames are copied into the block of the child's join
// record, directly behind the record. The block exists until the parent has joined the child, so
// the frames exist until the parent has been copied in again, here or by a thief.
//
// kIso: the parent's frames stay in place (iso_stacks.h).
#include <atomic>
#include <span>
#include <utility>

#include "tasks/internal/copy_frames.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler.h"

namespace cariama::tasks {
// Called on the task's stack, below its saved context. Leaves to the scheduler.
void Worker::fork_on_empty_stack(const FirstCall& child) {
  const uint64_t entry = *--cariama_fork_state.top;
  leaving_ = {.why = Leaving::Why::kFork,
              .sp = reinterpret_cast<void*>(sp_of(entry)),
              .child = child,
              .flags = entry,
              .exceptions = std::exchange(exceptions(), {})};
  before_leave(stack_end());
  cariama_leave();
}

void Worker::begin_on_empty_stack(const Leaving& left) {
  Parent parent{{address_of(left.sp), entries_[0], reports_[0], 0},
                // A parent that handles exceptions, or waits for an event of this process, must
                // stay in this process.
                (left.flags & kForkTied) != 0 || !left.exceptions.empty() || other_tasks_may_run,
                left.exceptions};
  PublicEntry& entry = parent.entry;
  if (options_.check_frames && !parent.tied) check_frames(entry.sp, entry.top);
  FirstCall child = left.child;
  if (options_.scheme == StackScheme::kCrude) {
    const size_t bytes = entry.top - entry.sp;
    entry.record = new_record(bytes).word();
    copy_frames(reinterpret_cast<void*>(frames_of(entry)), left.sp, bytes);
    statistics_.suspended_bytes += bytes;
    if (child.bytes != 0) child.first += frames_of(entry) - entry.sp;
  } else {
    entry.record = new_record().word();
  }
  parents_.push_back(parent);
  serve_steal_request();
  begin(new_stack(), Reference(entry.record), child);
}

uint64_t Worker::frames_of(const PublicEntry& entry) const {
  if (options_.scheme != StackScheme::kCrude) return entry.sp;
  return Reference(entry.record).address() + sizeof(JoinRecord);
}

// The part of Worker::serve_steal_request() for these schemes. `wanted` is the steal request.
// Requires: no entry is public.
void Worker::publish_parents(uint64_t wanted) {
  size_t end = first_private_parent_;
  while (end < parents_.size() && end < first_private_parent_ + 2 * kPublicSlots &&
         !parents_[end].tied)
    ++end;
  const uint32_t count = how_many_to_publish(wanted, end - first_private_parent_);
  if (count == 0) return;
  area_.public_part.steal_request.store(kNoRequest, std::memory_order_relaxed);
  make_public([&](uint32_t i) { return parents_[first_private_parent_ + i].entry; }, count);
  first_private_parent_ += count;
}

bool Worker::resume_parent() {
  if (parents_.empty()) return false;
  if (parents_.size() == first_private_parent_) {
    if (!public_part_.take_back()) {  // thieves have taken all parents
      taken_ += first_private_parent_;
      statistics_.stolen_from += first_private_parent_;
      parents_.clear();
      first_private_parent_ = 0;
      return false;
    }
    --first_private_parent_;
    ++statistics_.taken_back;
    public_part_.refill_if_empty();
  }
  const Parent parent = parents_.back();
  parents_.pop_back();
  const PublicEntry& entry = parent.entry;
  void* const sp = reinterpret_cast<void*>(entry.sp);
  const uint64_t frames = frames_of(entry);
  if (frames != entry.sp) {
    copy_frames(sp, reinterpret_cast<const void*>(frames), entry.top - entry.sp);
  }
  exceptions() = parent.exceptions;
  install(entry.top, entry.report, {sp, entry.record});
  return true;
}

// Returns the end of the frames of a new task.
std::byte* Worker::new_stack() {
  std::byte* const end = iso_.has_value() ? must(iso_->allocate()) : region_.top();
  return end - kStackEndBytes;
}

// Gives the stack of the task that has ended back to its owner (kIso).
void Worker::end_stack() {
  const void* const inside = reinterpret_cast<const void*>(entries_[0]);
  const IsoStacks::Owner owner = iso_->owner_of(inside);
  if (owner.rank == rank()) return iso_->release(inside);
  const uint64_t released = 1;
  must(access_.write(owner.rank, address_of(owner.word), &released, sizeof released));
}

std::span<std::byte> Worker::stack_of(const void* sp) const {
  if (iso_.has_value()) return iso_->stack_of(sp);
  return {region_.bottom(), region_.stack_bytes()};
}

}  // namespace cariama::tasks
