// The regions of a peer into which the queue pairs of one of its domains store WRITEs. A WRITE
// looks its region up here first. A region that is not here is found or refused by Link::find().
//
// A queue pair may only write regions of its peer's domain, so each domain has a table, and a
// lookup compares no domain.
#ifndef CARIAMA_DTUTILS_SHM_WRITABLE_REGIONS_H_
#define CARIAMA_DTUTILS_SHM_WRITABLE_REGIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/load_word.h"
#include "dtutils/shm/remote_region.h"

namespace cariama::shm {

// A region, in a cell with one writer at a time and any number of readers. A reader loads the other
// fields between two loads of the key, as from a RemoteRegionCell.
class alignas(64) WritableCell {
 public:
  [[nodiscard]] bool has(uint64_t key) const { return equals(key_, key); }
  // Computes the address in this process of a WRITE of `bytes` to `address`. Returns false if the
  // cell has another key, the region is no longer registered, or the WRITE leaves the region.
  [[nodiscard, gnu::always_inline]] bool target(uint64_t key, uint64_t address, uint64_t bytes,
                                                std::byte** to) const {
    if (!equals(key_, key)) [[unlikely]]
      return false;
    const uint64_t offset = minus(address, base_);
    uint64_t end = 0;
    if (__builtin_add_overflow(offset, bytes, &end) || !exceeds(end_, end)) [[unlikely]]
      return false;
    *to = reinterpret_cast<std::byte*>(plus(offset, local_));
    return is_current(key);
  }
  // target() of 8 bytes, in fewer instructions.
  [[nodiscard, gnu::always_inline]] bool word_target(uint64_t key, uint64_t address,
                                                     std::byte** to) const {
    if (!equals(key_, key)) [[unlikely]]
      return false;
    const uint64_t offset = minus(address, base_);
    if (!exceeds(words_, offset)) [[unlikely]]
      return false;
    *to = reinterpret_cast<std::byte*>(plus(offset, local_));
    return is_current(key);
  }

 private:
  friend class WritableRegions;

  [[nodiscard, gnu::always_inline]] bool is_current(uint64_t key) const {
    return equals(*owner_key_.load(std::memory_order_acquire), key) && equals(key_, key);
  }

  std::atomic<uint64_t> key_;
  std::atomic<uint64_t> base_;   // in the owner's addresses
  std::atomic<uint64_t> local_;  // address of the region in this process
  std::atomic<uint64_t> words_;  // number of offsets at which a word lies within the region
  std::atomic<uint64_t> end_;    // length + 1: larger than the end of a WRITE that fits
  std::atomic<const std::atomic<uint64_t>*> owner_key_;  // the key in the owner's table
};
static_assert(sizeof(WritableCell) == 64);

// The cells of one domain, indexed by key_index(). Not thread-safe, except that any thread may read
// the cells.
class WritableRegions {
 public:
  // Error: RESOURCE_EXHAUSTED (no address space: 4 MiB, of which only written pages take memory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<WritableRegions>> create();
  ~WritableRegions();
  WritableRegions(const WritableRegions&) = delete;
  WritableRegions& operator=(const WritableRegions&) = delete;

  [[nodiscard]] const WritableCell* cells() const { return cells_; }

  // Enters a region. Requires: WRITEs may be stored into it (RemoteRegion::write_domain()).
  // `owner_key`: the address of its key in its owner's table.
  void set(const RemoteRegion& region, const std::atomic<uint64_t>* owner_key);
  // Removes the region at `index`, if there is one.
  void clear(uint32_t index);

 private:
  WritableRegions() = default;

  WritableCell* cells_ = nullptr;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_WRITABLE_REGIONS_H_
