#include "tasks/paper/iso_stacks.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "dtutils/error.h"

namespace cariama::tasks {

absl::Status IsoStacks::protect(const TaskOptions& options, const StackRegion& region) {
  const size_t stacks = region.stack_bytes() / options.iso_stack_bytes;
  for (size_t i = 0; i < stacks; ++i) {
    if (mprotect(region.bottom() + i * options.iso_stack_bytes, kStackPage, PROT_NONE) == 0) {
      continue;
    }
    return make_errno_error(
        errno, ErrorScope::kProcess,
        "the guards of " + std::to_string(stacks) + " stacks of tasks (StackScheme::kIso)",
        "raise TaskOptions::iso_stack_bytes or vm.max_map_count, or lower "
        "TaskOptions::stack_bytes");
  }
  return absl::OkStatus();
}

IsoStacks::IsoStacks(const TaskOptions& options, const StackRegion& region, int rank, int workers,
                     std::atomic<uint64_t>* words)
    : bytes_(options.iso_stack_bytes),
      count_(count(options)),
      range_(region.bottom(), range_bytes(options, workers)),
      first_(static_cast<size_t>(rank) * count_),
      words_(words) {
  for (size_t i = count_; i-- > 0;) free_.push_back(i);
}

absl::StatusOr<std::byte*> IsoStacks::allocate() {
  if (free_.empty()) {
    for (size_t i = count_; i-- > 0;) {
      if (words_[i].load(std::memory_order_acquire) == 0) continue;
      words_[i].store(0, std::memory_order_relaxed);
      free_.push_back(i);
    }
  }
  if (free_.empty()) {
    return make_error(
        absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
        "all " + std::to_string(count_) +
            " stacks that this worker has for its tasks (StackScheme::kIso) are in use",
        "raise TaskOptions::stack_bytes, or lower iso_stack_bytes");
  }
  const size_t number = first_ + free_.back();
  free_.pop_back();
  return range_.data() + (number + 1) * bytes_;
}

IsoStacks::Owner IsoStacks::owner_of(const void* address) const {
  const size_t number = number_of(address);
  return {static_cast<int>(number / count_), words_ + number % count_};
}

}  // namespace cariama::tasks
