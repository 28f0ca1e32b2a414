// Memory that the user owns and did not register, as the local side of transfers.
//
//   auto user = std::make_shared<UserMemory>(domain, bounce_allocator, UserMemoryOptions{});
//   auto lent = user->lend_source(data);          // bounced or registered
//   transmitter->write((*lent)->memory(), 0, data.size(), there, &done);
//   transmitter->wait(done, deadline);
//   lent->reset();                                // after the transfer has completed
//
// Transmitter (TransmitOptions::user_memory) and the calls of dsfabric lend through this class. So
// a program has one registration cache for each protection domain.
//
// Memory of up to bounce_bytes is copied through registered memory ("bounced"), because copying it
// costs less than looking it up and recording the use. Longer memory goes through the
// RegistrationCache, whose policy decides how long it stays registered.
#ifndef CARIAMA_DTUTILS_REGISTRATION_USER_MEMORY_H_
#define CARIAMA_DTUTILS_REGISTRATION_USER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/device.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/registration/pinner.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama {

struct UserMemoryOptions {
  // The largest memory in bytes that is bounced (the paper's threshold).
  size_t bounce_bytes = size_t{16} << 10;
  // Returns the options of the cache. Called at the first use of longer memory, and again after
  // each failed RegistrationCache::create. Empty: the defaults of RegistrationOptions.
  std::function<RegistrationOptions()> registration{};
  // If set, pins each range in addition to its registration with the domain. With an IoUringPinner
  // a program over shm, which pins nothing itself, pins its memory as over a device.
  std::shared_ptr<Pinner> pinner{};
};

// A use of user memory by transfers. Ends with the destructor, which any thread may run. Must not
// outlive its UserMemory. Thread-compatible.
class CARIAMA_DTUTILS_EXPORT LentMemory {
 public:
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Returns registered memory of the same length as the user's memory: the user's memory itself, or
  // the copy. The destructor requires that the transfers from and to the user's own memory have
  // completed; transfers of a copy that were posted through this handle may be in flight.
  [[nodiscard]] RDMAMemory& memory() { return memory_; }
  [[nodiscard]] bool bounced() const { return !range_.has_value(); }
  // Returns true if the memory was bounced, or was registered before.
  [[nodiscard]] bool was_hit() const { return bounced() || use_.was_hit(); }
  // If the memory was bounced, copies the bytes that the device has written to the user's memory.
  // Requires: lend_target() made this object, and the transfer has completed.
  void copy_back();

 private:
  friend class UserMemory;
  explicit LentMemory(GeneralAllocator& bounce) : bounce_(bounce) {}

  GeneralAllocator& bounce_;
  RegistrationUse use_;                   // of the user's memory, unless it is bounced
  std::optional<RegisteredRange> range_;  // names the region of use_
  RDMAMemory memory_;
  std::byte* target_ = nullptr;  // the user's memory that copy_back() fills
};

// Lends user memory to the queue pairs of one protection domain. Thread-safe.
class CARIAMA_DTUTILS_EXPORT UserMemory {
 public:
  // `bounce` provides memory that is registered with `domain`, and must outlive this object.
  UserMemory(std::shared_ptr<ProtectionDomain> domain, GeneralAllocator& bounce,
             UserMemoryOptions options);
  UserMemory(const UserMemory&) = delete;
  UserMemory& operator=(const UserMemory&) = delete;

  // Lends memory that the device reads. `source` may be read-only. If it is bounced, this thread
  // copies its bytes before the function returns. Blocks for the system call if the memory is not
  // registered. `piece`: the number of this piece within its transfer, see piece_bytes(). `frame`:
  // see UseContext::frame; nullptr: that of this function. Errors: those of
  // GeneralAllocator::allocate, RegistrationCache::create and RegistrationCache::acquire, and
  // INVALID_ARGUMENT (nullptr).
  [[nodiscard]] absl::StatusOr<std::unique_ptr<LentMemory>> lend_source(
      std::span<const std::byte> source, size_t piece = 0, const void* frame = nullptr);
  // Lends memory that the device writes. Errors: those of lend_source(), and INVALID_ARGUMENT (the
  // memory is read-only; over shm and sim one system call finds out). Memory that is bounced is
  // written by the thread that ends the transfer: if it is not writable, SIGSEGV, as with memcpy().
  [[nodiscard]] absl::StatusOr<std::unique_ptr<LentMemory>> lend_target(
      std::span<std::byte> target, size_t piece = 0, const void* frame = nullptr);
  // Returns the length of the pieces in which a transfer of `bytes` is lent, at most two pieces at
  // a time: `bytes` if the policy registers it whole, or if it is bounced. Error: that of cache().
  [[nodiscard]] absl::StatusOr<size_t> piece_bytes(size_t bytes);

  // Returns the cache, which the first call creates. Error: that of RegistrationCache::create.
  [[nodiscard]] absl::StatusOr<RegistrationCache*> cache();
  [[nodiscard]] const UserMemoryOptions& options() const { return options_; }

 private:
  [[nodiscard]] absl::StatusOr<std::unique_ptr<LentMemory>> lend(std::byte* address, size_t bytes,
                                                                 size_t piece, const void* frame,
                                                                 bool writes);

  const std::shared_ptr<ProtectionDomain> domain_;
  GeneralAllocator& bounce_;
  const UserMemoryOptions options_;
  std::mutex mutex_;  // while the cache is created
  std::atomic<RegistrationCache*> made_{nullptr};
  std::unique_ptr<RegistrationCache> cache_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_USER_MEMORY_H_
