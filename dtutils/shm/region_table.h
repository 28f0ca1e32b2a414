// The regions that a device has registered: what their keys mean, for itself and for its peers.
#ifndef CARIAMA_DTUTILS_SHM_REGION_TABLE_H_
#define CARIAMA_DTUTILS_SHM_REGION_TABLE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/wire.h"

namespace cariama::shm {

// A region as its own process looks it up, by local key. Half a cache line; an entry that is given
// to another region while a (wrong) user still holds the old key is seen as a mismatch.
struct LocalRegion {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;
  std::atomic<uint64_t> length;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> domain;

  [[nodiscard]] bool allows(LocalKey wanted, const void* address, uint64_t bytes,
                            uint32_t wanted_domain) const {
    const uint64_t offset =
        reinterpret_cast<uint64_t>(address) - base.load(std::memory_order_relaxed);
    const uint64_t size = length.load(std::memory_order_relaxed);
    return key.load(std::memory_order_relaxed) == wanted.value && offset <= size &&
           bytes <= size - offset && domain.load(std::memory_order_relaxed) == wanted_domain;
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

  // INVALID_ARGUMENT: null or empty range; a descriptor that is not sealed, or too short.
  // RESOURCE_EXHAUSTED: 65536 regions, or no descriptor left.
  [[nodiscard]] absl::StatusOr<Keys> add(const MemorySource& source, Access access,
                                         uint32_t domain);
  // From here on both keys are refused.
  void remove(const Keys& keys);

  // By key_index of a local key. Always readable, for any index.
  [[nodiscard]] const LocalRegion* local() const { return local_; }

  // The remote key of the region that a local key names (for receives that peers fill). The caller
  // has checked the local key.
  [[nodiscard]] uint64_t remote_key(LocalKey key) const {
    return key_table(control_->base())[key_index(key.value)].key.load(std::memory_order_relaxed);
  }

  // What to tell peers about a region with a descriptor.
  [[nodiscard]] std::optional<Announcement> announcement(uint64_t remote_key) const;
  [[nodiscard]] std::vector<uint64_t> announced_keys() const;

 private:
  explicit RegionTable(std::shared_ptr<ControlSegment> control);

  std::shared_ptr<ControlSegment> control_;
  LocalRegion* local_ = nullptr;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  uint32_t unused_ = 1;        // indices from here on were never used; 0 is not
  std::deque<uint32_t> free_;  // reused in turn, so that a stale key stays stale for long
  std::unordered_map<uint64_t, Announcement> announced_;  // by remote key
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_REGION_TABLE_H_
