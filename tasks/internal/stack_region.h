// StackRegion: the uni-address region. It contains the stack on which tasks run and the tail, which
// holds the worker's data that thieves read and write. It has the same virtual address in every
// worker process. Source: Akiyama and Taura, HPDC'15, section 5.
//
//   0x7e9000000000  guard: no access, kStackGuardBytes
//                   stack: stack_bytes; grows downwards from top()
//                   tail:  tail_bytes, for the caller's structures; initially zeros
//
// Stack and tail are one sealed memfd, so that peers on the same host can map it and a device can
// register it as one memory region. Pages are allocated when they are first touched, so a large
// size costs only address space, except on a device that pins memory, which pins all of it.
//
// The address is in a range in which AddressSanitizer and ThreadSanitizer allow application memory,
// and far from the addresses that Linux chooses for mappings. A collision is unlikely; the error
// names the mapping that is in the way.
#ifndef CARIAMA_TASKS_INTERNAL_STACK_REGION_H_
#define CARIAMA_TASKS_INTERNAL_STACK_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

inline constexpr uintptr_t kRegionAddress = 0x7e9000000000;
// Size of the guard. A stack overflow can skip it only if a frame has more than this size of locals
// and the compiler does not probe the stack (-fstack-clash-protection).
inline constexpr size_t kStackGuardBytes = size_t{1} << 20;

inline constexpr size_t kStackPage = 4096;
[[nodiscard]] constexpr size_t whole_pages(size_t bytes) {
  return (bytes + kStackPage - 1) / kStackPage * kStackPage;
}

// Limit of the stack and the memory behind it. Two pages: each of them is rounded up.
inline constexpr size_t kMostStackBytes =
    kPinnedAddress - kRegionAddress - kStackGuardBytes - 2 * kStackPage;

// A process has at most one StackRegion. Create it after the fork that creates the worker process,
// because a forked child would share the region with its parent. Not thread-safe.
class StackRegion {
 public:
  // Sizes are rounded up to whole pages. Errors: INVALID_ARGUMENT (0, or beyond kPinnedAddress),
  // ALREADY_EXISTS (another mapping, which the message names, has the addresses),
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<StackRegion>> create(size_t stack_bytes,
                                                                           size_t tail_bytes);
  ~StackRegion();
  StackRegion(const StackRegion&) = delete;
  StackRegion& operator=(const StackRegion&) = delete;

  [[nodiscard]] std::byte* bottom() const { return bottom_; }  // the lowest byte of the stack
  [[nodiscard]] std::byte* top() const { return bottom_ + stack_bytes_; }
  [[nodiscard]] std::byte* tail() const { return top(); }
  [[nodiscard]] size_t stack_bytes() const { return stack_bytes_; }
  // Returns stack and tail, for ProtectionDomain::register_memory. The addresses are the same in
  // every worker.
  [[nodiscard]] MemorySource source() const;

  // Returns the distance in bytes from top() to the lowest stack word that is not 0: the most stack
  // that was ever used, without words at the end that are 0. Searches only the lowest page that was
  // touched. Makes a system call for each 16 MiB of stack.
  [[nodiscard]] size_t high_water() const;

 private:
  StackRegion() = default;

  std::byte* bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  size_t tail_bytes_ = 0;
  int descriptor_ = -1;
};

// Maps a new sealed memfd of `bytes` bytes at exactly `address`. Returns its file descriptor, which
// the caller must close. Errors: those of StackRegion::create(); `what` names the memory in their
// texts.
[[nodiscard]] absl::StatusOr<int> map_shared_at(uintptr_t address, size_t bytes, const char* what);

// Handles SIGSEGV, SIGBUS and SIGABRT. If a task touches the guard of its stack, prints a message
// (depth in tasks, stack size in bytes, the option to raise) and ends the process. Passes other
// faults to the handler that was installed before; for the first fault in a task, it prints before
// that a line that names TaskOptions::check_frames. The handler runs on a separate stack. At most
// one StackGuard exists at a time.
class StackGuard {
 public:
  // `option` is the name of the option that the message recommends to raise. `entries` is the first
  // entry of the deque; the number of entries is the depth. Both must outlive the guard.
  StackGuard(const StackRegion& region, const char* option, const uint64_t* entries);
  ~StackGuard();
  // Watches, in addition, the lowest page of each stack of `stack_bytes` bytes in `stacks`.
  // `option` is the name of the option that the message recommends to raise for them.
  void watch(std::span<const std::byte> stacks, size_t stack_bytes, const char* option);
  StackGuard(const StackGuard&) = delete;
  StackGuard& operator=(const StackGuard&) = delete;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STACK_REGION_H_
