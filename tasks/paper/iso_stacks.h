// IsoStacks: stacks of tasks for StackScheme::kIso (Akiyama and Taura, section 4; Antoniu, Bouge
// and Namyst, RTSPP'99). Every worker maps the same range of addresses. Each worker owns a part of
// the range, and allocates from it a stack for each task that it begins. The task keeps the
// addresses of its stack until it ends, in any worker.
//
//   region, in each worker:   | rank 0: stack stack stack ... | rank 1: stack stack ... | ...
//   a stack:                  guard page, usable bytes
//
// No two live tasks share an address. So the frames of a task that does not run stay in place, and
// a victim need not wait until thieves have copied frames. Costs: stack_bytes * P of address space
// in each worker, and page faults when a task runs on a stack whose pages its worker has not
// touched yet. (In the paper the stacks cannot be registered with the device. Here they are
// registered: shm registers memory without touching it. A device that pins memory pins all stacks.)
//
// A peer releases a stack by writing 1 to the stack's word in the owner's memory. The owner checks
// the words when it has no other free stack.
#ifndef CARIAMA_TASKS_PAPER_ISO_STACKS_H_
#define CARIAMA_TASKS_PAPER_ISO_STACKS_H_

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

// The stacks of one worker. Thread-compatible.
class IsoStacks {
 public:
  // Returns the number of stacks that each worker owns.
  [[nodiscard]] static size_t count(const TaskOptions& options) {
    return options.stack_bytes / options.iso_stack_bytes;
  }
  // Returns the size of the whole range: the stack_bytes of the StackRegion.
  [[nodiscard]] static size_t range_bytes(const TaskOptions& options, int workers) {
    return count(options) * options.iso_stack_bytes * static_cast<size_t>(workers);
  }
  // Makes the lowest page of every stack in the range inaccessible. Call it after the registration
  // of the region, because devices cannot register inaccessible pages. Error: that of mprotect (too
  // many mappings; the message names the remedies).
  [[nodiscard]] static absl::Status protect(const TaskOptions& options, const StackRegion& region);

  // `words`: count() words, initially 0, to which peers write. They must outlive this object.
  IsoStacks(const TaskOptions& options, const StackRegion& region, int rank, int workers,
            std::atomic<uint64_t>* words);

  // Allocates a stack and returns its end: the task's frames begin directly below. Error:
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::StatusOr<std::byte*> allocate();
  // Returns the rank of the worker that owns the stack which contains `address`, and the address of
  // the stack's word, which is the same in each worker.
  struct Owner {
    int rank;
    std::atomic<uint64_t>* word;
  };
  [[nodiscard]] Owner owner_of(const void* address) const;
  // Frees a stack that this worker owns.
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
  const size_t first_;  // number, in the range, of this worker's first stack
  std::atomic<uint64_t>* const words_;
  std::vector<size_t> free_;  // used as a LIFO: the stack freed last is most likely in the cache
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_PAPER_ISO_STACKS_H_
