// Memory of tree nodes: blocks of one thread, taken from large pages that the thread touches first,
// so they lie on its NUMA node.
#ifndef CARIAMA_MCTS_ARENA_H_
#define CARIAMA_MCTS_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mcts/export.h"

namespace cariama::mcts {

// allocate() belongs to one thread; free() and clear() to anybody while that one rests.
class CARIAMA_MCTS_EXPORT Arena {
 public:
  // limit: bytes of live blocks, at most.
  explicit Arena(uint64_t limit) : limit_(limit) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, not cleared. nullptr: the limit is reached, or the system has no memory.
  [[nodiscard]] void* allocate(size_t bytes);
  // A block of allocate(bytes).
  void free(void* block, size_t bytes);
  // Forgets all blocks; keeps the pages for new ones.
  void clear();

  void set_limit(uint64_t limit) { limit_ = limit; }
  // Any thread.
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

  uint64_t limit_;
  std::atomic<uint64_t> live_{0};
  std::vector<FreeBlock*> free_;  // by size in grains
  std::vector<std::byte*> pages_;
  size_t page_ = 0;  // of pages_, in use
  std::byte* at_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ARENA_H_
