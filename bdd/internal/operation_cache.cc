#include "bdd/internal/operation_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "bdd/internal/pages.h"

namespace cariama::bdd {
namespace {

constexpr uint64_t kInitialEntries = OperationCache::kInitialBytes / OperationCache::kEntryBytes;

}  // namespace

OperationCache::OperationCache(size_t max_bytes)
    : most_(std::bit_floor(std::max<size_t>(max_bytes, size_t{64} << 10)) / kEntryBytes) {
  allocate(std::min(most_, kInitialEntries));
}

OperationCache::OperationCache(std::span<std::byte> memory)
    : entries_(reinterpret_cast<Entry*>(memory.data() + kHeaderBytes)),
      header_(reinterpret_cast<Header*>(memory.data())),
      most_(std::bit_floor((memory.size() - kHeaderBytes) / kEntryBytes)) {
  // All processes store the same value.
  uint64_t unused = 0;
  header_->mask.compare_exchange_strong(unused, std::min(most_, kInitialEntries) - 1);
  mask_ = mask();
  grow_at_ = std::min(most_, kInitialEntries);
}

OperationCache::~OperationCache() {
  if (header_ == nullptr) internal::unmap_pages(entries_, bytes());
}

void OperationCache::allocate(uint64_t entries) {
  entries_ = static_cast<Entry*>(internal::map_pages(entries * kEntryBytes));
  mask_ = entries - 1;
  grow_at_ = entries == most_ ? std::numeric_limits<uint64_t>::max() : entered_ + 2 * entries;
}

void OperationCache::clear() {
  if (header_ != nullptr) {
    std::memset(static_cast<void*>(entries_), 0, bytes());
    return;
  }
  // New pages are faster than zeroing, because unused pages are not touched.
  Entry* const old = entries_;
  const size_t old_bytes = bytes();
  allocate(mask_ + 1);
  internal::unmap_pages(old, old_bytes);
}

void OperationCache::grow() {
  Entry* const old = entries_;
  const uint64_t count = mask_ + 1;
  try {
    allocate(2 * count);
  } catch (const std::bad_alloc&) {
    grow_at_ = entered_ + 2 * count;  // the cache works without growth, and tries again later
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (old[i].a != 0) entries_[hash(old[i].a, old[i].b, old[i].c) & mask_] = old[i];
  }
  internal::unmap_pages(old, count * kEntryBytes);
}

// The entries stay in place: half of them are still found, the others are lost. Processes that
// still use the smaller mask enter results in the lower half.
void OperationCache::grow_shared() {
  uint64_t mask = header_->mask.load(std::memory_order_relaxed);
  if (2 * (mask + 1) <= most_) header_->mask.compare_exchange_strong(mask, 2 * mask + 1);
  mask = header_->mask.load(std::memory_order_relaxed);
  grow_at_ = mask + 1 == most_ ? std::numeric_limits<uint64_t>::max() : entered_ + mask + 1;
}

}  // namespace cariama::bdd
