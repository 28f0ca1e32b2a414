// StackScheme::kCrude and kIso, to compare with: children do not run below their parents.
//
// A fork comes here by way of cariama_fork_attention(), and leaves to the scheduler, which puts the
// parent into parents_ and begins the child on an empty stack. The child reports to a join record
// in any case. When a task leaves, the newest parent goes on, if no thief has it: parents_ is the
// private part of the deque, the shelf its public part, as with the uni-address scheme.
//
// kCrude: there is one stack. The parent's frames are copied behind the child's join record, which
// lives until the parent has joined the child, so at least until somebody has copied them in again.
// kIso: the parent's frames stay where they are (iso_stacks.h).
#include <atomic>
#include <span>
#include <utility>

#include "tasks/internal/copy_frames.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler.h"

namespace cariama::tasks {
namespace {

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

}  // namespace

// On the task's stack, below its saved context.
void Worker::fork_apart(const FirstCall& child) {
  const uint64_t entry = *--cariama_fork_state.top;
  leaving_ = {.why = Leaving::Why::kFork,
              .sp = reinterpret_cast<void*>(sp_of(entry)),
              .child = child,
              .flags = entry,
              .exceptions = std::exchange(exceptions(), {})};
  before_leave(stack_end());
  cariama_leave();
}

void Worker::begin_apart(const Leaving& left) {
  Parent parent{{address_of(left.sp), entries_[0], reports_[0], 0},
                // Who forks in a catch block, or while it waits for something of this process, has
                // to come back to it.
                (left.flags & kForkTied) != 0 || !left.exceptions.empty() || lets_others_run,
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
  attend();
  begin(new_stack(), Reference(entry.record), child);
}

uint64_t Worker::frames_of(const PublicEntry& entry) const {
  if (options_.scheme != StackScheme::kCrude) return entry.sp;
  return Reference(entry.record).address() + sizeof(JoinRecord);
}

// Worker::attend(), with nothing public.
void Worker::publish_parents(uint64_t wanted) {
  size_t end = shown_;
  while (end < parents_.size() && end < shown_ + 2 * kShelfSlots && !parents_[end].tied) ++end;
  const uint32_t count = how_many_to_publish(wanted, end - shown_);
  if (count == 0) return;
  area_.shelf.attention.store(kCalm, std::memory_order_relaxed);
  make_public([&](uint32_t i) { return parents_[shown_ + i].entry; }, count);
  shown_ += count;
}

bool Worker::resume_parent() {
  if (parents_.empty()) return false;
  if (parents_.size() == shown_) {
    if (!shelf_.take_back()) {  // thieves have them all
      taken_ += shown_;
      statistics_.stolen_from += shown_;
      parents_.clear();
      shown_ = 0;
      return false;
    }
    --shown_;
    ++statistics_.taken_back;
    shelf_.refill_if_empty();
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

// Where the frames of a task that begins here end.
std::byte* Worker::new_stack() {
  std::byte* const end = iso_.has_value() ? must(iso_->allocate()) : region_.top();
  return end - kStackEndBytes;
}

// Of the task that has ended.
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
