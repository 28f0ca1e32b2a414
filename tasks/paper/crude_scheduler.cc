// StackScheme::kCrude: there is one stack. The parent's frames are copied into the block of the
// child's join record, directly behind the record. The block exists until the parent has joined the
// child, so the frames exist until the parent has been copied in again, here or by a thief.
#include "tasks/internal/copy_frames.h"
#include "tasks/internal/steal_timer.h"
#include "tasks/paper/joins.h"
#include "tasks/paper/kinds.h"
#include "tasks/paper/separate_stacks.h"

namespace cariama::tasks {
namespace {

template <typename Derived>
class CrudeScheduler : public SeparateStacks<Derived> {
 public:
  using SeparateStacks<Derived>::SeparateStacks;

  void save_parent(PublicEntry& entry, Worker::FirstCall& child) {
    const size_t bytes = entry.top - entry.sp;
    entry.record = this->new_record(bytes).word();
    copy_frames(reinterpret_cast<void*>(frames_of(entry)), reinterpret_cast<const void*>(entry.sp),
                bytes);
    this->statistics_.suspended_bytes += bytes;
    if (child.bytes != 0) child.first += frames_of(entry) - entry.sp;
  }
  void restore_parent(const PublicEntry& entry) {
    copy_frames(reinterpret_cast<void*>(entry.sp), reinterpret_cast<const void*>(frames_of(entry)),
                entry.top - entry.sp);
  }
  void end_stack() {}
  [[nodiscard]] static uint64_t frames_of(const PublicEntry& entry) {
    return Reference(entry.record).address() + sizeof(JoinRecord);
  }
};

WorkerMemory crude_memory(const TaskOptions& options, int /*workers*/) {
  return {.stack_bytes = options.stack_bytes, .entries = kSeparateEntries};
}

}  // namespace

WorkerKind crude_kind(JoinPolicy join) { return kind_with<CrudeScheduler>(join, crude_memory); }

}  // namespace cariama::tasks
