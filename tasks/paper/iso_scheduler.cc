// StackScheme::kIso: each task has its own stack (iso_stacks.h), and the frames of a task that does
// not run stay in place.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tasks/internal/steal_timer.h"
#include "tasks/paper/iso_stacks.h"
#include "tasks/paper/joins.h"
#include "tasks/paper/kinds.h"
#include "tasks/paper/separate_stacks.h"

namespace cariama::tasks {
namespace {

template <typename Derived>
class IsoScheduler : public SeparateStacks<Derived> {
  using Base = SeparateStacks<Derived>;
  using Base::access_;
  using Base::rank;

 public:
  IsoScheduler(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
               RemoteAccess& access, uint64_t canary)
      : Base(options, memory, region, access, canary),
        iso_(options, region, access.rank(), access.size(),
             reinterpret_cast<std::atomic<uint64_t>*>(this->added_memory())) {
    this->guard_.watch(iso_.range(), iso_.stack_bytes(), "TaskOptions::iso_stack_bytes");
  }

  void save_parent(PublicEntry& entry, Worker::FirstCall& /*child*/) {
    entry.record = this->new_record().word();
  }
  void restore_parent(const PublicEntry& /*entry*/) {}
  // Releases the stack of the task that has ended to the worker that owns it.
  void end_stack() {
    const void* const inside = reinterpret_cast<const void*>(this->entries_[0]);
    const IsoStacks::Owner owner = iso_.owner_of(inside);
    if (owner.rank == rank()) return iso_.release(inside);
    const uint64_t released = 1;
    must(access_.write(owner.rank, address_of(owner.word), &released, sizeof released));
  }

  // Only the rank of the Reference to the frames has a meaning.
  void copy_out(Suspended& task) { task.frames = Reference(rank(), kPinnedAddress + 1).word(); }
  void copy_in(const Suspended& task) {
    const int owner = Reference(task.frames).rank();
    if (owner == rank()) return;
    must(access_.read(owner, task.sp, reinterpret_cast<void*>(task.sp), task.top - task.sp));
  }
  void drop_copy(const Suspended& /*task*/) {}
  void install(uint64_t top, uint64_t report, const typename Base::Context& context) {
    this->stack_ = iso_.stack_of(context.sp);
    Base::install(top, report, context);
  }

 protected:
  [[nodiscard]] std::byte* new_stack() override {
    std::byte* const end = must(iso_.allocate());
    this->stack_ = iso_.stack_of(end - kStackEndBytes);
    return end - kStackEndBytes;
  }
  [[nodiscard]] size_t stack_high_water() const override { return 0; }

 private:
  IsoStacks iso_;
};

WorkerMemory iso_memory(const TaskOptions& options, int workers) {
  return {.stack_bytes = IsoStacks::range_bytes(options, workers),
          .entries = kSeparateEntries,
          .added_bytes = IsoStacks::count(options) * sizeof(uint64_t)};
}

template <typename Kind>
absl::StatusOr<std::unique_ptr<Worker>> create_protected(const TaskOptions& options,
                                                         const WorkerMemory& memory,
                                                         StackRegion& region, RemoteAccess& access,
                                                         uint64_t canary) {
  const absl::Status status = IsoStacks::protect(options, region);
  if (!status.ok()) return status;
  return create_worker<Kind>(options, memory, region, access, canary);
}

}  // namespace

WorkerKind iso_kind(JoinPolicy join) {
  if (join == JoinPolicy::kWaitQueue)
    return {iso_memory, create_protected<WaitQueue<IsoScheduler>>};
  return {iso_memory, create_protected<Greedy<IsoScheduler>>};
}

}  // namespace cariama::tasks
