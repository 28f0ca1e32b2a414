// Names of memory that a device may touch: keys, regions, local handles and remote locators.
//
// Local and remote keys are different types, so that one can never be passed for the other. A
// RemoteMemoryLocator is plain data that travels in messages and names memory of another process.
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

// What may be done with a region. Local reading is always allowed.
enum class Access : uint32_t {
  kLocalWrite = 1,  // receive into it, READ or fetch into it
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

// Memory of another process, as it is named in messages: plain data, 32 bytes. `address` is
// transport data (a virtual address on verbs, shm and sim); add offsets to it, never dereference
// it.
struct RemoteMemoryLocator {
  uint64_t address = 0;
  uint64_t length = 0;  // bytes
  RemoteKey key;
  uint32_t owner = 0;  // the caller's name for the owner (a rank), carried and never interpreted
  uint32_t reserved = 0;

  // The part of it that starts `offset` bytes in and is `bytes` long. Precondition (checked by the
  // target's device when it is used, not here): offset + bytes <= length.
  [[nodiscard]] constexpr RemoteMemoryLocator slice(uint64_t offset, uint64_t bytes) const {
    return {address + offset, bytes, key, owner, reserved};
  }
};
static_assert(std::is_trivially_copyable_v<RemoteMemoryLocator> &&
              sizeof(RemoteMemoryLocator) == 32);

// Memory to be registered. The memory is the caller's and must outlive the registration.
//
// Memory backed by a descriptor (memfd) can be mapped by peers of the same host, which makes shm as
// fast as a copy; memory without one is still reachable there, through cross-memory attach, but not
// for atomics. Other transports ignore the descriptor.
struct MemorySource {
  void* address = nullptr;
  size_t length = 0;    // bytes
  int descriptor = -1;  // memfd that backs the range, sealed against shrinking and growing; or -1
  uint64_t descriptor_offset = 0;  // where in it the range starts
};

// A registration of memory with one protection domain. Destroying it ends the registration: later
// remote accesses fail with kRemoteAccess; one that a same-host peer has already begun may still
// land, so quiesce peers before the memory gets another use (the paper's allocators never
// deregister while they run). The memory itself is not freed. Immutable, thread-safe.
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

  // A name for [offset, offset + bytes) of this region that peers can use. `owner` is carried
  // along.
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

// Memory that is registered once with each of several protection domains, so that a buffer in it
// can go out through any of them (shm to neighbours, verbs to the rest). Immutable, thread-safe;
// keeps the registrations alive.
class CARIAMA_DTUTILS_EXPORT RegisteredRange {
 public:
  struct Registration {
    const ProtectionDomain* domain;
    std::shared_ptr<MemoryRegion> region;
  };
  explicit RegisteredRange(std::vector<Registration> registrations)
      : registrations_(std::move(registrations)) {}

  // The registration with `domain`, or nullptr. A linear search over the (one or two) domains.
  [[nodiscard]] const MemoryRegion* region(const ProtectionDomain* domain) const {
    for (const Registration& registration : registrations_) {
      if (registration.domain == domain) return registration.region.get();
    }
    return nullptr;
  }

 private:
  std::vector<Registration> registrations_;
};

// How far a shared queue pair has got: the flush number k' of Seriema §4.1. A buffer tagged with a
// number below `flushed` is no longer read or written by the device. Only grows. Cells are
// immortal: a handle may look at its cell after the queue pair is gone, and finds itself free.
struct alignas(64) FlushCell {
  std::atomic<uint64_t> flushed{0};
};

// A handle to a piece of registered memory, tagged with the queue pair and flush number of its last
// use (Seriema §4.1). Handed out by the allocators, used by Transmitter. Does not own the memory.
// Thread-compatible: one thread at a time.
//
// The same bytes may be under way on several queue pairs (a broadcast): each use is noted, up to
// kMaxUses that have not ended; Transmitter waits for its own transfer when there are more.
class CARIAMA_DTUTILS_EXPORT RDMAMemory {
 public:
  static constexpr uint32_t kMaxUses = 4;

  RDMAMemory() = default;
  RDMAMemory(std::byte* buffer, size_t size, const RegisteredRange* range)
      : buffer_(buffer), size_(size), range_(range) {}

  [[nodiscard]] std::byte* get_buffer() const { return buffer_; }
  [[nodiscard]] size_t size() const { return size_; }  // bytes
  [[nodiscard]] const RegisteredRange* range() const { return range_; }

  // The key for segments of a queue pair of `domain`. Precondition: registered with it.
  [[nodiscard]] LocalKey local_key(const ProtectionDomain* domain) const {
    return range_->region(domain)->local_key();
  }

  // The name that peers reached through `domain` use. `owner` is carried along.
  [[nodiscard]] RemoteMemoryLocator locator(const ProtectionDomain* domain,
                                            uint32_t owner = 0) const {
    return {reinterpret_cast<uint64_t>(buffer_), size_, range_->region(domain)->remote_key(), owner,
            0};
  }

  // Whether the devices are done with every transfer that used this memory. One load per use;
  // wait-free. After true, the caller may overwrite the memory (acquire).
  [[nodiscard]] bool is_free() const {
    for (uint32_t i = 0; i < use_count_; ++i) {
      if (uses_[i].tag >= uses_[i].cell->flushed.load(std::memory_order_acquire)) return false;
    }
    return true;
  }

  // Notes a transfer by the queue pair of `cell`; `tag` was read from it AFTER posting. For
  // Transmitter and for code that signals by hand. False, and nothing noted, if kMaxUses other
  // queue pairs are still using the memory.
  bool set_last_use(const FlushCell* cell, uint64_t tag) {
    if (simple_use(cell)) [[likely]] {
      uses_[0] = {cell, tag};
      use_count_ = 1;
      return true;
    }
    return add_use(cell, tag);
  }

  // Forgets uses that have ended, so that the next one is simple_use(). For allocators, which hand
  // the memory to a new owner. Precondition: is_free().
  void clear_uses() { use_count_ = 0; }

  // Whether set_last_use(cell, ...) is sure to succeed at once.
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
