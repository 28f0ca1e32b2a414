// The uni-address region: memory at one virtual address in every worker process, on which tasks
// run, and beside it (the tail) what thieves read and write of a worker. Source: Akiyama and Taura,
// HPDC'15, section 5.
//
//   0x7e9000000000  guard: no access, kStackGuardBytes
//                   stack: stack_bytes; grows downwards from top()
//                   tail:  tail_bytes, for the caller's structures; zeros at first
//
// Stack and tail are one sealed memfd: peers of the host map it, and a device registers it in one
// piece. Pages come into being when they are touched, so a generous size costs address space only
// (a device that pins memory pins all of it).
//
// The address lies where AddressSanitizer and ThreadSanitizer let programs have memory, and far
// from where Linux puts anything by itself: collisions are unlikely, and named.
#ifndef CARIAMA_TASKS_INTERNAL_STACK_REGION_H_
#define CARIAMA_TASKS_INTERNAL_STACK_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "tasks/export.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

inline constexpr uintptr_t kRegionAddress = 0x7e9000000000;
// So large that few frames reach across it: only one with a local of more than this, and no
// probing by the compiler (-fstack-clash-protection).
inline constexpr size_t kStackGuardBytes = size_t{1} << 20;

inline constexpr size_t kStackPage = 4096;
[[nodiscard]] constexpr size_t whole_pages(size_t bytes) {
  return (bytes + kStackPage - 1) / kStackPage * kStackPage;
}

// One process has at most one. Make it after the fork that makes the worker: a child would share
// its parent's. Not thread-safe.
class CARIAMA_TASKS_EXPORT StackRegion {
 public:
  // Sizes are rounded up to whole pages. Errors: INVALID_ARGUMENT (0, or beyond kPinnedAddress),
  // ALREADY_EXISTS (the addresses are taken: names by what), RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<StackRegion>> create(size_t stack_bytes,
                                                                           size_t tail_bytes);
  ~StackRegion();
  StackRegion(const StackRegion&) = delete;
  StackRegion& operator=(const StackRegion&) = delete;

  [[nodiscard]] std::byte* bottom() const { return bottom_; }  // the lowest byte of the stack
  [[nodiscard]] std::byte* top() const { return bottom_ + stack_bytes_; }
  [[nodiscard]] std::byte* tail() const { return top(); }
  [[nodiscard]] size_t stack_bytes() const { return stack_bytes_; }
  // Stack and tail, for ProtectionDomain::register_memory. Its addresses are those of every worker.
  [[nodiscard]] MemorySource source() const;

  // How far the stack has ever reached down from top(), in bytes: to the lowest word that is not 0.
  // (Frames may have words below that nobody has written, or zeros; at most a page of them counts.)
  // A system call for each 16 MiB of stack.
  [[nodiscard]] size_t high_water() const;

 private:
  StackRegion() = default;

  std::byte* bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  size_t tail_bytes_ = 0;
  int descriptor_ = -1;
};

class IsoStacks;

// Maps `bytes` of a new sealed memfd at exactly `address`. Returns the descriptor, which is the
// caller's. Errors as StackRegion::create; `what` names the memory in them.
[[nodiscard]] absl::StatusOr<int> map_shared_at(uintptr_t address, size_t bytes, const char* what);

// Ends the process with a sentence when the guard is touched, in place of a plain SIGSEGV: depth in
// tasks, bytes, and the option to raise. Other faults go to the handler that was there before.
// Needs no stack: it has its own. One at a time.
class StackGuard {
 public:
  // `option` is what the sentence tells to raise; `entries` the begin of the entries whose number
  // is the depth. Kept.
  StackGuard(const StackRegion& region, const char* option, const uint64_t* entries);
  ~StackGuard();
  // Each of these has a guard of its own.
  void watch(const IsoStacks& stacks);
  StackGuard(const StackGuard&) = delete;
  StackGuard& operator=(const StackGuard&) = delete;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STACK_REGION_H_
