// Names of memory that a device may access: keys, regions, local handles and remote locators.
//
// Local and remote keys are different types, so that the compiler rejects one in place of the
// other. A RemoteMemoryLocator is plain data that travels in messages and names memory of another
// process.
#ifndef CARIAMA_DTUTILS_MEMORY_H_
#define CARIAMA_DTUTILS_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

class ProtectionDomain;

// Names registered memory in local scatter/gather segments (verbs: lkey). Opaque.
struct LocalKey {
  uint64_t value = 0;
  friend bool operator==(LocalKey, LocalKey) = default;
};

// Names registered memory in one-sided operations of peers (verbs: rkey). Opaque, 64 bits wide so
// that a libfabric key fits.
struct RemoteKey {
  uint64_t value = 0;
  friend bool operator==(RemoteKey, RemoteKey) = default;
};

// The operations that a region permits. Local reading is always permitted.
enum class Access : uint32_t {
  kLocalWrite = 1,  // target of a receive, and local buffer of a READ or an atomic
  kRemoteRead = 2,
  kRemoteWrite = 4,   // implies kLocalWrite
  kRemoteAtomic = 8,  // implies kLocalWrite
  kAll = 15,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool has_access(Access granted, Access wanted) {
  return (static_cast<uint32_t>(granted) & static_cast<uint32_t>(wanted)) ==
         static_cast<uint32_t>(wanted);
}

// Names memory of another process in messages. Plain data, 32 bytes. `address` has a meaning for
// the transport only (a virtual address on verbs, shm and sim): a program may add offsets, and must
// not dereference it.
struct RemoteMemoryLocator {
  uint64_t address = 0;
  uint64_t length = 0;  // bytes
  RemoteKey key;
  uint32_t owner = 0;  // the caller's number for the owner (a rank), carried and never interpreted
  uint32_t reserved = 0;

  // Returns a locator of the part [offset, offset + bytes). Requires: offset + bytes <= length. The
  // target's device checks this when the locator is used; this function does not.
  [[nodiscard]] constexpr RemoteMemoryLocator slice(uint64_t offset, uint64_t bytes) const {
    return {address + offset, bytes, key, owner, reserved};
  }
};
static_assert(std::is_trivially_copyable_v<RemoteMemoryLocator> &&
              sizeof(RemoteMemoryLocator) == 32);

// Memory to be registered. The caller owns the memory, which must outlive the registration.
//
// Peers of the same host can map memory that is backed by a descriptor (memfd), so an shm transfer
// costs one copy. Without a descriptor peers of the same host still reach the memory through
// cross-memory attach, but atomics are not possible. Other transports ignore the descriptor.
struct MemorySource {
  void* address = nullptr;
  size_t length = 0;    // bytes
  int descriptor = -1;  // memfd that backs the range, sealed against shrinking and growing; or -1
  uint64_t descriptor_offset = 0;  // offset in the descriptor's file at which the range starts
};

// A registration of memory with one protection domain. Destroying it ends the registration: later
// remote accesses fail with kRemoteAccess. An access that a same-host peer has already begun may
// still complete, so quiesce peers before the memory is reused (the paper's allocators never
// deregister during a run). The destructor does not free the memory. Immutable, thread-safe.
class CARIAMA_DTUTILS_EXPORT MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] size_t length() const { return length_; }
  [[nodiscard]] LocalKey local_key() const { return local_key_; }
  [[nodiscard]] RemoteKey remote_key() const { return remote_key_; }
  [[nodiscard]] Access access() const { return access_; }

  // Returns a locator of [offset, offset + bytes) of this region for peers. The locator carries
  // `owner`.
  [[nodiscard]] RemoteMemoryLocator locator(uint64_t offset, uint64_t bytes,
                                            uint32_t owner = 0) const {
    return {reinterpret_cast<uint64_t>(address_) + offset, bytes, remote_key_, owner, 0};
  }
  [[nodiscard]] RemoteMemoryLocator locator() const { return locator(0, length_); }

 protected:
  MemoryRegion(const MemorySource& source, Access access)
      : address_(static_cast<std::byte*>(source.address)),
        length_(source.length),
        access_(access) {}

  std::byte* address_;
  size_t length_;
  Access access_;
  LocalKey local_key_;
  RemoteKey remote_key_;
};

// Memory that is registered once with each of several protection domains, so that any of them can
// transfer the same buffer (shm to processes of the same host, verbs to other hosts). Immutable,
// thread-safe. Keeps the registrations alive.
class CARIAMA_DTUTILS_EXPORT RegisteredRange {
 public:
  struct Registration {
    const ProtectionDomain* domain;
    std::shared_ptr<MemoryRegion> region;
  };
  explicit RegisteredRange(std::vector<Registration> registrations)
      : registrations_(std::move(registrations)) {}

  // Returns the registration with `domain`, or nullptr. Searches the one or two domains linearly.
  [[nodiscard]] const MemoryRegion* region(const ProtectionDomain* domain) const {
    for (const Registration& registration : registrations_) {
      if (registration.domain == domain) return registration.region.get();
    }
    return nullptr;
  }

 private:
  std::vector<Registration> registrations_;
};

// The flush number k' of Seriema §4.1 of a shared queue pair. The device no longer reads or writes
// a buffer tagged with a number below `flushed`. The value only grows. Cells are never freed: a
// handle may read its cell after the queue pair was destroyed, and then finds its memory free.
struct alignas(64) FlushCell {
  std::atomic<uint64_t> flushed{0};
};

// A handle to a piece of registered memory, tagged with the queue pair and flush number of its last
// use (Seriema §4.1). Allocators return it, Transmitter uses it. Does not own the memory.
// Thread-compatible: one thread at a time.
//
// Movable, not copyable: the tags exist once, so is_free() covers every transfer that was posted
// through the handle. Functions that transfer take a reference or a pointer to it. A handle that
// was moved from is empty.
//
// The same bytes may be in flight on several queue pairs (a broadcast). The handle records up to
// kMaxUses uses that have not ended; when there are more, Transmitter waits for its own transfer to
// complete.
class CARIAMA_DTUTILS_EXPORT RDMAMemory {
 public:
  static constexpr uint32_t kMaxUses = 4;

  RDMAMemory() = default;
  // `range` is the memory's registration, or nullptr for memory that is not registered.
  RDMAMemory(std::byte* buffer, size_t size, const RegisteredRange* range)
      : buffer_(buffer), size_(size), range_(range) {}
  RDMAMemory(RDMAMemory&& other) noexcept { *this = std::move(other); }
  RDMAMemory& operator=(RDMAMemory&& other) noexcept {
    if (this == &other) return *this;
    buffer_ = std::exchange(other.buffer_, nullptr);
    size_ = std::exchange(other.size_, 0);
    range_ = std::exchange(other.range_, nullptr);
    use_count_ = std::exchange(other.use_count_, 0);
    for (uint32_t i = 0; i < use_count_; ++i) uses_[i] = other.uses_[i];
    return *this;
  }
  ~RDMAMemory() = default;

  [[nodiscard]] std::byte* get_buffer() const { return buffer_; }
  [[nodiscard]] size_t size() const { return size_; }  // bytes
  [[nodiscard]] const RegisteredRange* range() const { return range_; }
  // Returns the registration with `domain`, or nullptr.
  [[nodiscard]] const MemoryRegion* region(const ProtectionDomain* domain) const {
    return range_ != nullptr ? range_->region(domain) : nullptr;
  }

  // Returns the local key for segments of a queue pair of `domain`. Requires: the memory is
  // registered with `domain`.
  [[nodiscard]] LocalKey local_key(const ProtectionDomain* domain) const {
    return range_->region(domain)->local_key();
  }

  // Returns the locator for peers that are reached through `domain`. The locator carries `owner`.
  [[nodiscard]] RemoteMemoryLocator locator(const ProtectionDomain* domain,
                                            uint32_t owner = 0) const {
    return {reinterpret_cast<uint64_t>(buffer_), size_, range_->region(domain)->remote_key(), owner,
            0};
  }

  // Returns true if every transfer that used this memory has completed. Costs one load per use;
  // wait-free. Does not poll: an unsignaled transfer counts as completed only after the completion
  // of a later signaled operation of its queue pair was polled (Transmitter::signal_all(),
  // TransmitQueue::progress()). Acquire: after true the caller may overwrite the memory.
  [[nodiscard]] bool is_free() const {
    for (uint32_t i = 0; i < use_count_; ++i) {
      if (uses_[i].tag >= uses_[i].cell->flushed.load(std::memory_order_acquire)) return false;
    }
    return true;
  }

  // Records a transfer by the queue pair of `cell`. Requires: `tag` was read from the queue's epoch
  // after the transfer was posted (signaling.h, (1)). Used by Transmitter and by code that does its
  // own signaling. Returns false, and records nothing, if kMaxUses other queue pairs are still
  // using the memory.
  bool set_last_use(const FlushCell* cell, uint64_t tag) {
    if (simple_use(cell)) [[likely]] {
      uses_[0] = {cell, tag};
      use_count_ = 1;
      return true;
    }
    return add_use(cell, tag);
  }

  // Removes the recorded uses, which have ended, so that simple_use() is true for the next one.
  // Allocators call it before they return the memory to a new owner. Requires: is_free().
  void clear_uses() { use_count_ = 0; }

  // Returns true if set_last_use(cell, ...) needs no free use slot and therefore succeeds
  // immediately.
  [[nodiscard]] bool simple_use(const FlushCell* cell) const {
    return use_count_ == 0 || (use_count_ == 1 && uses_[0].cell == cell);
  }

 private:
  struct Use {
    const FlushCell* cell;
    uint64_t tag;
  };
  bool add_use(const FlushCell* cell, uint64_t tag);

  std::byte* buffer_ = nullptr;
  size_t size_ = 0;
  const RegisteredRange* range_ = nullptr;
  uint32_t use_count_ = 0;
  Use uses_[kMaxUses] = {};
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_MEMORY_H_
