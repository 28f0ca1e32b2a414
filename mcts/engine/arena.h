// Arena: the memory of tree nodes. Each thread allocates blocks from its own large pages. The
// thread is the first to touch these pages, so that they are on its NUMA node.
#ifndef CARIAMA_MCTS_ENGINE_ARENA_H_
#define CARIAMA_MCTS_ENGINE_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mcts/export.h"

namespace cariama::mcts {

// The bytes that the arenas of several threads may have in live blocks together. So one thread may
// use more than its part. The budget does not limit the memory that the arenas map: see Arena.
// Thread-safe.
class ArenaBudget {
 public:
  explicit ArenaBudget(uint64_t limit) : limit_(limit) {}
  void set_limit(uint64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  // Returns false, and takes nothing, if the limit would be exceeded.
  [[nodiscard]] bool take(uint64_t bytes) {
    const uint64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (live <= limit_.load(std::memory_order_relaxed)) [[likely]]
      return true;
    give_back(bytes);
    return false;
  }
  void give_back(uint64_t bytes) { live_.fetch_sub(bytes, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> live_{0};
};

// An arena maps pages of 4 MiB and unmaps them when it is destroyed. So it maps more than it has in
// live blocks, by
//   - the unused part of its last page, less than 4 MiB;
//   - the end of each other page, in which the next block found no room: less than one block;
//   - freed blocks: a new block reuses only one of the same size, rounded up to 64 bytes. clear()
//     frees the pages for blocks of all sizes.
// The system provides a page when it is touched: 4 KiB or, with transparent huge pages, 2 MiB.
//
// Only the owning thread may call allocate(). Any thread may call free() and clear() while the
// owning thread uses no function of the arena.
class CARIAMA_MCTS_EXPORT Arena {
 public:
  // The budget must outlive the arena.
  explicit Arena(ArenaBudget& budget) : budget_(budget) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns a block, 64-byte aligned and not cleared. Returns nullptr if the limit is reached or
  // the system has no memory.
  [[nodiscard]] void* allocate(size_t bytes);
  // Frees a block that allocate(bytes) returned.
  void free(void* block, size_t bytes);
  // Frees all blocks. Keeps the pages for new blocks.
  void clear();

  // Returns the number of bytes of live blocks. Thread-safe.
  [[nodiscard]] uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kGrain = 64;
  static constexpr size_t kPageBytes = size_t{4} << 20;

  struct FreeBlock {
    FreeBlock* next;
  };
  bool next_page(size_t bytes);

  void add_live(uint64_t bytes) {  // one writer at a time
    live_.store(live_bytes() + bytes, std::memory_order_relaxed);
  }

  ArenaBudget& budget_;
  std::atomic<uint64_t> live_{0};
  std::vector<FreeBlock*> free_;  // lists of free blocks, by block size in grains
  std::vector<std::byte*> pages_;
  size_t page_ = 0;  // index in pages_ of the page from which new blocks are taken
  std::byte* at_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_ARENA_H_
