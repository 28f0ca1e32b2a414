#include "mcts/engine/arena.h"

#include <sys/mman.h>

namespace cariama::mcts {

Arena::~Arena() {
  budget_.give_back(live_bytes());
  for (std::byte* page : pages_) ::munmap(page, kPageBytes);
}

void* Arena::allocate(size_t bytes) {
  const size_t grains = (bytes + kGrain - 1) / kGrain;
  const size_t taken = grains * kGrain;
  if (taken > kPageBytes || !budget_.take(taken)) return nullptr;
  if (grains < free_.size() && free_[grains] != nullptr) {
    FreeBlock* block = free_[grains];
    free_[grains] = block->next;
    add_live(taken);
    return block;
  }
  if (static_cast<size_t>(end_ - at_) < taken && !next_page(taken)) {
    budget_.give_back(taken);
    return nullptr;
  }
  void* block = at_;
  at_ += taken;
  add_live(taken);
  return block;
}

bool Arena::next_page(size_t bytes) {
  if (at_ != nullptr) ++page_;
  if (page_ == pages_.size()) {
    // Map twice the size, so that the mapping contains a page that is aligned to its size, which
    // huge pages need. The rest is unmapped.
    void* mapped = ::mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      if (at_ != nullptr) --page_;
      return false;
    }
    auto* start = static_cast<std::byte*>(mapped);
    const size_t skip = (kPageBytes - reinterpret_cast<uintptr_t>(start) % kPageBytes) % kPageBytes;
    if (skip != 0) ::munmap(start, skip);
    if (skip != kPageBytes) ::munmap(start + skip + kPageBytes, kPageBytes - skip);
    ::madvise(start + skip, kPageBytes, MADV_HUGEPAGE);  // optional: failure only costs speed
    pages_.push_back(start + skip);
  }
  at_ = pages_[page_];
  end_ = at_ + kPageBytes;
  return static_cast<size_t>(end_ - at_) >= bytes;
}

void Arena::free(void* block, size_t bytes) {
  const size_t grains = (bytes + kGrain - 1) / kGrain;
  if (free_.size() <= grains) free_.resize(grains + 1, nullptr);
  auto* freed = static_cast<FreeBlock*>(block);
  freed->next = free_[grains];
  free_[grains] = freed;
  add_live(-(grains * kGrain));
  budget_.give_back(grains * kGrain);
}

void Arena::clear() {
  free_.clear();
  budget_.give_back(live_bytes());
  live_.store(0, std::memory_order_relaxed);
  page_ = 0;
  at_ = pages_.empty() ? nullptr : pages_[0];
  end_ = at_ == nullptr ? nullptr : at_ + kPageBytes;
}

}  // namespace cariama::mcts
