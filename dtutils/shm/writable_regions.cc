#include "dtutils/shm/writable_regions.h"

#include <sys/mman.h>

#include <cerrno>

#include "dtutils/error.h"
#include "dtutils/internal/memory_limits.h"

namespace cariama::shm {
namespace {

constexpr size_t kTableBytes = kMaxRegions * sizeof(WritableCell);

}  // namespace

absl::StatusOr<std::unique_ptr<WritableRegions>> WritableRegions::create() {
  std::unique_ptr<WritableRegions> regions(new WritableRegions);  // first: it may throw
  void* const cells = mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) {
    return make_errno_error(errno, ErrorScope::kProcess, "mapping the writable regions of a peer",
                            internal::address_space_remedy(kTableBytes));
  }
  regions->cells_ = static_cast<WritableCell*>(cells);
  return regions;
}

WritableRegions::~WritableRegions() {
  if (cells_ != nullptr) munmap(cells_, kTableBytes);
}

// A lookup does not treat key 0 specially. It is the key of an empty cell, and cell 0 is the only
// one in which it is looked up. That cell is never set, so no WRITE fits into its range.
void WritableRegions::set(const RemoteRegion& region, const std::atomic<uint64_t>* owner_key) {
  const uint32_t index = key_index(region.key);
  if (index == 0) return;  // only a peer that violates the protocol has a region there
  constexpr uint64_t kWord = sizeof(uint64_t);
  WritableCell& cell = cells_[index];
  clear(index);
  cell.base_.store(region.base, std::memory_order_release);
  cell.local_.store(region.base + region.delta, std::memory_order_release);
  cell.words_.store(region.length < kWord ? 0 : region.length - kWord + 1,
                    std::memory_order_release);
  cell.end_.store(region.length + 1, std::memory_order_release);
  cell.owner_key_.store(owner_key, std::memory_order_release);
  cell.key_.store(region.key, std::memory_order_release);
}

// Relaxed suffices: a reader that loads a field stored later (release) sees this store too when it
// loads the key again. An empty cell is not written, since that would allocate its page.
void WritableRegions::clear(uint32_t index) {
  if (cells_[index].key_.load(std::memory_order_relaxed) == 0) return;
  cells_[index].key_.store(0, std::memory_order_relaxed);
}

}  // namespace cariama::shm
