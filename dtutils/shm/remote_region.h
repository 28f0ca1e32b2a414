// This process's record of one region of a peer, and the cell that stores it. Every operation reads
// the cell without a lock, while another thread may change it.
#ifndef CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_
#define CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dtutils/memory.h"

namespace cariama::shm {

// A region of the peer, ready for access.
struct RemoteRegion {
  uint64_t key = 0;
  uint64_t base = 0;    // in the owner's addresses
  uint64_t length = 0;  // bytes
  uint64_t delta = 0;   // if mapped: owner's address + delta = local address (modulo 2^64)
  Access access{};
  uint32_t domain = 0;
  bool mapped = false;  // false: reached by cross-memory attach

  static constexpr uint32_t kNoDomain = UINT32_MAX;

  [[nodiscard]] bool contains(uint64_t address, uint64_t bytes) const {
    const uint64_t offset = address - base;  // wraps to a huge value for addresses below base
    return offset <= length && bytes <= length - offset;
  }
  // Returns true if receives may lie in the region. If false, the region may be mapped read-only.
  [[nodiscard]] bool receivable() const {
    return (static_cast<uint32_t>(access) &
            static_cast<uint32_t>(Access::kLocalWrite | Access::kRemoteWrite |
                                  Access::kRemoteAtomic)) != 0;
  }
  // Returns the domain if WRITEs may be stored directly into the mapping (mapped, remote write
  // access), else kNoDomain.
  [[nodiscard]] uint32_t write_domain() const {
    return mapped && has_access(access, Access::kRemoteWrite) ? domain : kNoDomain;
  }
  [[nodiscard]] std::byte* local(uint64_t address) const {
    return reinterpret_cast<std::byte*>(address + delta);
  }
};

// A cell with one writer at a time and any number of readers. A reader loads the fields between two
// loads of the key: if both return the same key, all fields belong to that key. (A key is never
// used twice: it contains a random number.) A region is registered as long as its owner's table
// contains its key; the reader checks this in between too. A zeroed cell is empty.
class alignas(64) RemoteRegionCell {
 public:
  // Returns the region of that key, or an empty optional.
  [[nodiscard]] std::optional<RemoteRegion> read(uint64_t key) const {
    if (!holds(key)) return std::nullopt;
    RemoteRegion region;
    region.key = key;
    region.base = base_.load(std::memory_order_acquire);
    region.length = length_.load(std::memory_order_acquire);
    region.delta = delta_.load(std::memory_order_acquire);
    region.access = static_cast<Access>(access_.load(std::memory_order_acquire));
    region.domain = domain_.load(std::memory_order_acquire);
    region.mapped = mapped_.load(std::memory_order_acquire) != 0;
    if (!holds(key)) return std::nullopt;
    return region;
  }
  // Returns true if the region that read() returned is still registered.
  [[nodiscard]] bool is_registered(uint64_t key) const {
    return owner_key()->load(std::memory_order_acquire) == key;
  }

  // Returns the address of the region's key in its owner's table. Requires: the cell has been set.
  [[nodiscard]] const std::atomic<uint64_t>* owner_key() const {
    return owner_key_.load(std::memory_order_acquire);
  }

  [[nodiscard]] uint64_t key() const { return key_.load(std::memory_order_acquire); }

  // Called by the writer. `owner_key`: the address of the region's key in its owner's table; always
  // the same for one cell.
  void set(const RemoteRegion& region, const std::atomic<uint64_t>* owner_key) {
    clear();
    owner_key_.store(owner_key, std::memory_order_release);
    base_.store(region.base, std::memory_order_release);
    length_.store(region.length, std::memory_order_release);
    delta_.store(region.delta, std::memory_order_release);
    access_.store(static_cast<uint32_t>(region.access), std::memory_order_release);
    domain_.store(region.domain, std::memory_order_release);
    mapped_.store(region.mapped ? 1 : 0, std::memory_order_release);
    key_.store(region.key, std::memory_order_release);
  }
  // Called by the writer. Relaxed suffices: a reader that loads a field stored later (release) sees
  // this store too when it loads the key again.
  void clear() { key_.store(0, std::memory_order_relaxed); }

 private:
  // Key 0 belongs to no region, so an empty cell does not match it.
  [[nodiscard]] bool holds(uint64_t key) const { return key != 0 && this->key() == key; }

  std::atomic<uint64_t> key_;  // 0: empty, or being changed
  std::atomic<uint64_t> base_;
  std::atomic<uint64_t> length_;
  std::atomic<uint64_t> delta_;
  std::atomic<const std::atomic<uint64_t>*> owner_key_;
  std::atomic<uint32_t> access_;
  std::atomic<uint32_t> domain_;
  std::atomic<uint32_t> mapped_;
};
static_assert(sizeof(RemoteRegionCell) == 64);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_
