// Memory of a worker that peers may read and write: frames of suspended tasks, join records, large
// results. It grows by segments, each twice as large as the one before, up to a budget.
//
// Segment k begins at the same address in every worker, so an address tells its segment; what a
// peer needs besides is the segment's key, which the owner publishes when it registers it.
//
// A block may be released by a peer: it writes 1 to the word at release_address(), and the owner
// finds that when it next needs memory ("local collection": the peer waits for nothing, and the
// owner looks only when its free blocks have run out). Block sizes are powers of two.
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
#include "tasks/export.h"
#include "tasks/internal/stack_region.h"

namespace cariama::tasks {

inline constexpr size_t kFirstSegmentBytes = size_t{256} << 10;
// 256 GiB in all: up to 0x7ee000000000, below what mmap gives out.
inline constexpr size_t kMaxSegments = 20;

// Where segment `index` begins, and which segment an address of the area lies in.
[[nodiscard]] constexpr uintptr_t segment_address(size_t index) {
  return kPinnedAddress + kFirstSegmentBytes * ((size_t{1} << index) - 1);
}
static_assert(segment_address(kMaxSegments) - kPinnedAddress < uint64_t{1} << kAreaBits);
[[nodiscard]] constexpr size_t segment_bytes(size_t index) { return kFirstSegmentBytes << index; }
[[nodiscard]] constexpr size_t segment_of(uintptr_t address) {
  return static_cast<size_t>(std::bit_width((address - kPinnedAddress) / kFirstSegmentBytes + 1)) -
         1;
}

// The blocks of one worker. Thread-compatible: the owner's thread only. Peers touch the contents of
// blocks and the release word.
class CARIAMA_TASKS_EXPORT PinnedArea {
 public:
  // Makes segment `index` known to peers, before a block of it is handed out.
  using RegisterSegment = std::function<absl::Status(size_t index, const MemorySource& source)>;

  PinnedArea(size_t budget, RegisterSegment register_segment);
  ~PinnedArea();
  PinnedArea(const PinnedArea&) = delete;
  PinnedArea& operator=(const PinnedArea&) = delete;

  // A block of at least `bytes`, 16-byte aligned, contents undefined. Not blocking but for system
  // calls when it grows. Error: RESOURCE_EXHAUSTED (the budget: names it; or memory).
  [[nodiscard]] absl::StatusOr<void*> allocate(size_t bytes);
  // The same if one is free already, else nullptr: what a suspension nearly always does.
  [[nodiscard]] void* reuse(size_t bytes) {
    const size_t size_class = class_of(bytes);
    std::vector<Header*>& free = free_[size_class];
    if (free.empty()) return nullptr;
    Header* const header = free.back();
    free.pop_back();
    return hand_out(header, size_class);
  }

  // Gives a block back. Precondition: allocated here, and not released before.
  void release(void* block);

  // `collected(block)` is called when a marked block is given back, by whomever.
  void on_collect(std::function<void(void*)> collected) { collected_ = std::move(collected); }
  void mark(void* block);

  // For debuggers (gdb/cariama_tasks.py): the block holds the frames [sp, top) of a suspended task.
  // Kept at the end of the block, which must have been allocated with kNoteBytes more.
  static constexpr size_t kNoteBytes = 2 * sizeof(uint64_t);
  void note_frames(void* block, uint64_t sp, uint64_t top);

  // The address of the word that a peer sets to 1 in place of release().
  [[nodiscard]] static constexpr uint64_t release_address(uint64_t block) {
    return block - kHeaderBytes;
  }

  // Bytes of all segments; blocks that are not given back (those that peers released count until
  // they are collected).
  [[nodiscard]] size_t segment_total() const;
  [[nodiscard]] size_t outstanding() const;
  // Looks for what peers released. O(outstanding blocks).
  void collect();

 private:
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kLeastBlock = 64;  // with its header
  static constexpr size_t kClasses = 40;

  struct Header {
    std::atomic<uint64_t> released;
    uint32_t size_class : 30;
    uint32_t marked : 1;
    uint32_t has_note : 1;
    uint32_t position;  // in outstanding_[size_class]
  };
  static_assert(sizeof(Header) == kHeaderBytes);

  static Header* header_of(void* block) {
    return reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kHeaderBytes);
  }
  // Of the smallest blocks that have room for so many.
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
  std::vector<int> descriptors_;  // of the segments
  std::byte* unused_ = nullptr;   // the rest of the last segment
  std::byte* unused_end_ = nullptr;
  std::array<std::vector<Header*>, kClasses> free_;
  std::array<std::vector<Header*>, kClasses> outstanding_;
  std::array<size_t, kClasses> next_collection_{};  // when so many are outstanding
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_PINNED_AREA_H_
