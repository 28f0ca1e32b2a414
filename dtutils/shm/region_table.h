// The regions that a device has registered, and the look-up of their keys for the device and its
// peers.
#ifndef CARIAMA_DTUTILS_SHM_REGION_TABLE_H_
#define CARIAMA_DTUTILS_SHM_REGION_TABLE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/wire.h"

namespace cariama::shm {

// A region as its own process looks it up, by local key. Half a cache line. If the entry is reused
// for another region while an (incorrect) user still has the old key, the key comparison fails.
struct LocalRegion {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;
  std::atomic<uint64_t> length;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> domain;

  [[nodiscard]] bool allows(LocalKey wanted, const void* address, uint64_t bytes,
                            uint32_t wanted_domain) const {
    uint64_t end = 0;  // offset behind the last byte, relative to base
    return key.load(std::memory_order_relaxed) == wanted.value &&
           domain.load(std::memory_order_relaxed) == wanted_domain &&
           !__builtin_add_overflow(
               reinterpret_cast<uint64_t>(address) - base.load(std::memory_order_relaxed), bytes,
               &end) &&
           end <= length.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool writable() const {
    return (access.load(std::memory_order_relaxed) &
            static_cast<uint32_t>(Access::kLocalWrite | Access::kRemoteWrite |
                                  Access::kRemoteAtomic)) != 0;
  }
};
static_assert(sizeof(LocalRegion) == 32);

// Thread-safe.
class RegionTable {
 public:
  struct Keys {
    LocalKey local;
    RemoteKey remote;
  };
  struct Announcement {
    Message message;
    std::shared_ptr<FileDescriptor> descriptor;
  };

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RegionTable>> create(
      std::shared_ptr<ControlSegment> control);
  ~RegionTable();

  // Registers a region. Errors: INVALID_ARGUMENT (null or empty range; a descriptor that is not
  // sealed or too short), RESOURCE_EXHAUSTED (65535 regions exist, or no file descriptor is left).
  [[nodiscard]] absl::StatusOr<Keys> add(const MemorySource& source, Access access,
                                         uint32_t domain);
  // Removes a region. From the return on both keys are refused.
  void remove(const Keys& keys);

  // Returns the table, indexed by key_index() of a local key. Every index is always readable.
  [[nodiscard]] const LocalRegion* local() const { return local_; }

  // Returns the remote key of the region that a local key names (for receives that peers fill).
  // Requires: the local key is valid.
  [[nodiscard]] uint64_t remote_key(LocalKey key) const {
    return key_table(control_->base())[key_index(key.value)].key.load(std::memory_order_relaxed);
  }

  // Returns the message and the descriptor that announce a region to peers, or an empty optional if
  // the region has no descriptor or does not exist.
  [[nodiscard]] std::optional<Announcement> announcement(uint64_t remote_key) const;
  [[nodiscard]] std::vector<uint64_t> announced_keys() const;

 private:
  explicit RegionTable(std::shared_ptr<ControlSegment> control);

  std::shared_ptr<ControlSegment> control_;
  LocalRegion* local_ = nullptr;
  mutable std::mutex mutex_;
  uint32_t unused_ = 1;        // this and higher indices were never used; index 0 is never used
  std::deque<uint32_t> free_;  // reused in FIFO order, so that a stale key stays invalid for long
  std::unordered_map<uint64_t, Announcement> announced_;  // indexed by remote key
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_REGION_TABLE_H_
