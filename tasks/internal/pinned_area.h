// PinnedArea: memory of a worker that peers may read and write. It holds the frames of suspended
// tasks, join records, and large results. It grows by segments, each twice as large as the one
// before, up to a budget.
//
// Segment k begins at the same address in every worker, so the segment follows from an address. To
// access a segment, a peer also needs its key, which the owner publishes when it registers the
// segment.
//
// A peer releases a block by writing 1 to the word at release_address(), and does not wait. The
// owner checks these words only when it has no free block ("local collection"). Block sizes are
// powers of two.
#ifndef CARIAMA_TASKS_INTERNAL_PINNED_AREA_H_
#define CARIAMA_TASKS_INTERNAL_PINNED_AREA_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "tasks/internal/stack_region.h"

namespace cariama::tasks {

inline constexpr size_t kFirstSegmentBytes = size_t{256} << 10;
// 256 GiB in total, up to 0x7ee000000000. mmap returns addresses above that.
inline constexpr size_t kMaxSegments = 20;

// Return the address of segment `index`, its size, and the segment that contains an address.
[[nodiscard]] constexpr uintptr_t segment_address(size_t index) {
  return kPinnedAddress + kFirstSegmentBytes * ((size_t{1} << index) - 1);
}
static_assert(segment_address(kMaxSegments) - kPinnedAddress < uint64_t{1} << kAreaBits);
[[nodiscard]] constexpr size_t segment_bytes(size_t index) { return kFirstSegmentBytes << index; }
[[nodiscard]] constexpr size_t segment_of(uintptr_t address) {
  return static_cast<size_t>(std::bit_width((address - kPinnedAddress) / kFirstSegmentBytes + 1)) -
         1;
}

// The blocks of one worker. Thread-compatible: only the owner's thread calls its functions. Peers
// access only the contents of blocks and their release words.
class PinnedArea {
 public:
  // Registers segment `index` and publishes its key to the peers. PinnedArea calls it before it
  // allocates a block of the segment.
  using RegisterSegment = std::function<absl::Status(size_t index, const MemorySource& source)>;

  PinnedArea(size_t budget, RegisterSegment register_segment);
  ~PinnedArea();
  PinnedArea(const PinnedArea&) = delete;
  PinnedArea& operator=(const PinnedArea&) = delete;

  // Returns a block of at least `bytes` bytes, 16-byte aligned, with undefined contents. Makes
  // system calls only if the area grows. Error: RESOURCE_EXHAUSTED (the budget, which the message
  // names, or memory).
  [[nodiscard]] absl::StatusOr<void*> allocate(size_t bytes);
  // Like allocate(), but returns nullptr if no block of this size is free. The fast path of
  // suspensions.
  [[nodiscard]] void* reuse(size_t bytes) {
    const size_t size_class = class_of(bytes);
    std::vector<Header*>& free = free_[size_class];
    if (free.empty()) return nullptr;
    Header* const header = free.back();
    free.pop_back();
    return hand_out(header, size_class);
  }

  // Frees a block. Requires: it was allocated here and not released before.
  void release(void* block);

  // Sets the function that is called when the owner frees or collects a block that was marked with
  // mark().
  void on_collect(std::function<void(void*)> collected) { collected_ = std::move(collected); }
  void mark(void* block);

  // Notes, for debuggers (gdb/cariama_tasks.py), that the block holds the frames [sp, top) of a
  // suspended task. The note is at the end of the block. Requires: the block was allocated with
  // kNoteBytes more than the frames need.
  static constexpr size_t kNoteBytes = 2 * sizeof(uint64_t);
  void note_frames(void* block, uint64_t sp, uint64_t top);

  // Returns the address of the word that a peer sets to 1 to release the block.
  [[nodiscard]] static constexpr uint64_t release_address(uint64_t block) {
    return block - kHeaderBytes;
  }

  // Returns the size of all segments in bytes.
  [[nodiscard]] size_t segment_total() const;
  // Returns the number of allocated blocks, including those that peers have released but that were
  // not collected yet.
  [[nodiscard]] size_t outstanding() const;
  // Frees the blocks that peers have released. Takes O(outstanding blocks) time.
  void collect();

 private:
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kLeastBlock = 64;  // smallest block, including its header
  static constexpr size_t kClasses = 40;

  struct Header {
    std::atomic<uint64_t> released;
    uint32_t size_class : 30;
    uint32_t marked : 1;
    uint32_t has_note : 1;
    uint32_t position;  // index in outstanding_[size_class]
  };
  static_assert(sizeof(Header) == kHeaderBytes);

  static Header* header_of(void* block) {
    return reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kHeaderBytes);
  }
  // Returns the class of the smallest blocks with room for `bytes`. Blocks of class c have 2^c
  // bytes.
  [[nodiscard]] static size_t class_of(size_t bytes) {
    return static_cast<size_t>(std::bit_width(std::max(bytes + kHeaderBytes, kLeastBlock) - 1));
  }
  [[nodiscard]] void* hand_out(Header* header, size_t size_class) {
    std::vector<Header*>& outstanding = outstanding_[size_class];
    header->released.store(0, std::memory_order_relaxed);
    header->marked = 0;
    header->has_note = 0;
    header->position = static_cast<uint32_t>(outstanding.size());
    outstanding.push_back(header);
    return reinterpret_cast<std::byte*>(header) + kHeaderBytes;
  }
  void collect(size_t size_class);
  [[nodiscard]] absl::StatusOr<Header*> carve(size_t size_class);

  const size_t budget_;
  const RegisterSegment register_segment_;
  std::function<void(void*)> collected_;
  std::vector<int> descriptors_;  // file descriptors of the segments
  std::byte* unused_ = nullptr;   // beginning of the unused rest of the last segment
  std::byte* unused_end_ = nullptr;
  std::array<std::vector<Header*>, kClasses> free_;
  std::array<std::vector<Header*>, kClasses> outstanding_;
  // allocate() collects a class when this many of its blocks are outstanding.
  std::array<size_t, kClasses> next_collection_{};
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_PINNED_AREA_H_
