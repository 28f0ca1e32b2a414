// Stacks of tasks for StackScheme::kIso (Akiyama and Taura, section 4; Antoniu, Bouge and Namyst,
// RTSPP'99): one range of addresses for the whole job, mapped by every worker. Each worker has a
// part of it, and gives each task that begins with it a stack of its own from there; the task keeps
// the stack's addresses until it ends, wherever that is.
//
//   region, in each worker:   | rank 0: stack stack stack ... | rank 1: stack stack ... | ...
//   a stack:                  guard (a page), the rest
//
// Since no two tasks that live have an address in common, the frames of one that does not run stay
// where they are, and nobody waits for thieves to have copied them. The price: stack_bytes * P of
// addresses in each worker, and page faults where a task comes to a stack that its worker has not
// touched yet. (In the paper the stacks cannot be registered either: they are here, since shm
// registers without touching. A device that pins memory pins all of them.)
//
// A stack is given back by a write of 1 to its word in its owner's memory, which the owner finds
// when it has no other.
#ifndef CARIAMA_TASKS_INTERNAL_ISO_STACKS_H_
#define CARIAMA_TASKS_INTERNAL_ISO_STACKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/stack_region.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// Those of one worker. Thread-compatible.
class IsoStacks {
 public:
  // How many a worker has to give: 0 with other schemes.
  [[nodiscard]] static size_t count(const TaskOptions& options) {
    return options.scheme == StackScheme::kIso ? options.stack_bytes / options.iso_stack_bytes : 0;
  }
  // Of the whole range: what StackRegion is made with.
  [[nodiscard]] static size_t range_bytes(const TaskOptions& options, int workers) {
    return count(options) * options.iso_stack_bytes * static_cast<size_t>(workers);
  }
  // Makes the lowest page of every stack in the range inaccessible. After the region was
  // registered: devices do not register such pages. Error: that of mprotect (too many mappings;
  // names the ways out).
  [[nodiscard]] static absl::Status protect(const TaskOptions& options, const StackRegion& region);

  // `words`: count() words that peers write to, zeros; kept.
  IsoStacks(const TaskOptions& options, const StackRegion& region, int rank, int workers,
            std::atomic<uint64_t>* words);

  // A stack's end: the task's frames begin right below. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::StatusOr<std::byte*> allocate();
  // Who gave out the stack that `address` lies in, and where that worker's word for it is, at the
  // same address in each worker.
  struct Owner {
    int rank;
    std::atomic<uint64_t>* word;
  };
  [[nodiscard]] Owner owner_of(const void* address) const;
  // Of an own stack.
  void release(const void* address) { free_.push_back(number_of(address) % count_); }

  [[nodiscard]] std::span<std::byte> stack_of(const void* address) const {
    return {range_.data() + number_of(address) * bytes_, bytes_};
  }
  [[nodiscard]] std::span<std::byte> range() const { return range_; }
  [[nodiscard]] size_t stack_bytes() const { return bytes_; }

 private:
  [[nodiscard]] size_t number_of(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - range_.data()) / bytes_;
  }

  const size_t bytes_;
  const size_t count_;
  const std::span<std::byte> range_;
  const size_t first_;  // the number of the first one of this worker
  std::atomic<uint64_t>* const words_;
  std::vector<size_t> free_;  // the last one first: it is warm
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_ISO_STACKS_H_
