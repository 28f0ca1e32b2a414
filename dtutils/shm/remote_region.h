// What this process knows of one region of a peer, and the cell in which it is kept: read without a
// lock by every operation, changed while others read it.
#ifndef CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_
#define CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dtutils/memory.h"

namespace cariama::shm {

// A region of the peer, ready for use.
struct RemoteRegion {
  uint64_t key = 0;
  uint64_t base = 0;    // as the owner names it
  uint64_t length = 0;  // bytes
  uint64_t delta = 0;   // mapped: owner's address + delta = ours (modulo 2^64)
  Access access{};
  uint32_t domain = 0;
  bool mapped = false;  // else reached by cross-memory attach

  static constexpr uint32_t kNoDomain = UINT32_MAX;

  [[nodiscard]] bool contains(uint64_t address, uint64_t bytes) const {
    const uint64_t offset = address - base;  // wraps to something huge below base
    return offset <= length && bytes <= length - offset;
  }
  // Whether receives may lie in it. Else it may be mapped for reading only.
  [[nodiscard]] bool receivable() const {
    return (static_cast<uint32_t>(access) &
            static_cast<uint32_t>(Access::kLocalWrite | Access::kRemoteWrite |
                                  Access::kRemoteAtomic)) != 0;
  }
  // The domain if WRITEs go straight into the mapping (mapped, remote write access), else
  // kNoDomain.
  [[nodiscard]] uint32_t write_domain() const {
    return mapped && has_access(access, Access::kRemoteWrite) ? domain : kNoDomain;
  }
  [[nodiscard]] std::byte* local(uint64_t address) const {
    return reinterpret_cast<std::byte*>(address + delta);
  }
};

// One writer at a time, any number of readers. A reader takes the fields between two looks at the
// key: the same key both times means that all of them are that key's. (A key is never used twice:
// it is a random number over the place.) A region is registered as long as its owner's table has
// its key: that is looked at in between too. Zeros are an empty cell.
class alignas(64) RemoteRegionCell {
 public:
  // The region of that key, or nothing.
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
  // Whether the region that read() gave is still registered.
  [[nodiscard]] bool is_registered(uint64_t key) const {
    return owner_key_.load(std::memory_order_acquire)->load(std::memory_order_acquire) == key;
  }

  // The one thing that most operations want, in few instructions: where a WRITE of `bytes` to
  // `address` goes in this process. False if the cell has another key, if the region is no longer
  // registered, if such a WRITE must not or cannot go straight into memory, or if it leaves the
  // region.
  [[nodiscard, gnu::always_inline]] bool write_target(uint64_t key, uint32_t domain,
                                                      uint64_t address, uint64_t bytes,
                                                      std::byte** target) const {
    if (!holds(key) || write_domain_.load(std::memory_order_acquire) != domain) [[unlikely]]
      return false;
    uint64_t end = 0;  // behind the last byte, from base on
    if (__builtin_add_overflow(address - base_.load(std::memory_order_acquire), bytes, &end) ||
        end > length_.load(std::memory_order_acquire)) [[unlikely]] {
      return false;
    }
    *target = reinterpret_cast<std::byte*>(address + delta_.load(std::memory_order_acquire));
    return is_registered(key) && holds(key);
  }

  [[nodiscard]] uint64_t key() const { return key_.load(std::memory_order_acquire); }

  // The writer's. `owner_key`: the place of the region's key in its owner's table, always the same
  // one for a cell.
  void set(const RemoteRegion& region, const std::atomic<uint64_t>* owner_key) {
    clear();
    owner_key_.store(owner_key, std::memory_order_release);
    base_.store(region.base, std::memory_order_release);
    length_.store(region.length, std::memory_order_release);
    delta_.store(region.delta, std::memory_order_release);
    access_.store(static_cast<uint32_t>(region.access), std::memory_order_release);
    domain_.store(region.domain, std::memory_order_release);
    write_domain_.store(region.write_domain(), std::memory_order_release);
    mapped_.store(region.mapped ? 1 : 0, std::memory_order_release);
    key_.store(region.key, std::memory_order_release);
  }
  // Whoever reads a field that is stored later (release) sees this too when it looks at the key
  // again.
  void clear() { key_.store(0, std::memory_order_relaxed); }

 private:
  // Key 0 is nobody's: a cell that is empty does not hold it.
  [[nodiscard]] bool holds(uint64_t key) const { return key != 0 && this->key() == key; }

  std::atomic<uint64_t> key_;  // 0: nothing, or being changed
  std::atomic<uint64_t> base_;
  std::atomic<uint64_t> length_;
  std::atomic<uint64_t> delta_;
  std::atomic<const std::atomic<uint64_t>*> owner_key_;
  std::atomic<uint32_t> write_domain_;
  std::atomic<uint32_t> access_;
  std::atomic<uint32_t> domain_;
  std::atomic<uint32_t> mapped_;
};
static_assert(sizeof(RemoteRegionCell) == 64);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_REMOTE_REGION_H_
