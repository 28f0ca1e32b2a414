#include "tasks/internal/pinned_area.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "dtutils/error.h"
#include "tasks/export.h"

// Lets a debugger find the blocks without debug information: address of the first segment, its size
// in bytes, number of segments, and sizes in bytes of a block's header and of the note at its end.
extern "C" {
CARIAMA_TASKS_EXPORT uint64_t cariama_tasks_debug[5] = {cariama::tasks::kPinnedAddress,
                                                        cariama::tasks::kFirstSegmentBytes, 0, 16,
                                                        cariama::tasks::PinnedArea::kNoteBytes};
}

namespace cariama::tasks {

PinnedArea::PinnedArea(size_t budget, RegisterSegment register_segment)
    : budget_(budget), register_segment_(std::move(register_segment)) {
  next_collection_.fill(64);
}

PinnedArea::~PinnedArea() {
  cariama_tasks_debug[2] = 0;
  for (size_t i = 0; i < descriptors_.size(); ++i) {
    munmap(reinterpret_cast<void*>(segment_address(i)), segment_bytes(i));
    close(descriptors_[i]);
  }
}

absl::StatusOr<void*> PinnedArea::allocate(size_t bytes) {
  if (void* const block = reuse(bytes)) return block;
  const size_t size_class = class_of(bytes);
  if (outstanding_[size_class].size() >= next_collection_[size_class]) {
    collect(size_class);
    if (void* const block = reuse(bytes)) return block;
  }
  const absl::StatusOr<Header*> carved = carve(size_class);
  if (carved.ok()) return hand_out(*carved, size_class);
  // The area cannot grow: collect even if few blocks are outstanding.
  collect(size_class);
  if (void* const block = reuse(bytes)) return block;
  return carved.status();
}

absl::StatusOr<PinnedArea::Header*> PinnedArea::carve(size_t size_class) {
  const size_t bytes = size_t{1} << size_class;
  // A block can be as large as a segment. If the rest of the last segment is too small, it stays
  // unused.
  while (static_cast<size_t>(unused_end_ - unused_) < bytes) {
    const size_t index = descriptors_.size();
    const size_t total = segment_total() + (index < kMaxSegments ? segment_bytes(index) : 0);
    if (index == kMaxSegments || total > budget_) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        absl::StrFormat("suspended tasks and results need more than the %d bytes "
                                        "that TaskOptions::pinned_bytes allows",
                                        budget_),
                        "raise TaskOptions::pinned_bytes");
    }
    absl::StatusOr<int> descriptor =
        map_shared_at(segment_address(index), segment_bytes(index), "a segment of the pinned area");
    if (!descriptor.ok()) return descriptor.status();
    descriptors_.push_back(*descriptor);
    cariama_tasks_debug[2] = descriptors_.size();
    unused_ = reinterpret_cast<std::byte*>(segment_address(index));
    unused_end_ = unused_ + segment_bytes(index);
    const absl::Status registered =
        register_segment_(index, {unused_, segment_bytes(index), *descriptor, 0});
    if (!registered.ok()) return registered;
  }
  auto* header = new (unused_) Header;
  header->size_class = static_cast<uint32_t>(size_class);
  unused_ += bytes;
  return header;
}

void PinnedArea::release(void* block) {
  Header* header = header_of(block);
  std::vector<Header*>& outstanding = outstanding_[header->size_class];
  if (header->marked != 0) collected_(block);
  header->has_note = 0;
  Header* last = outstanding.back();
  outstanding[header->position] = last;
  last->position = header->position;
  outstanding.pop_back();
  free_[header->size_class].push_back(header);
}

void PinnedArea::mark(void* block) { header_of(block)->marked = 1; }

void PinnedArea::note_frames(void* block, uint64_t sp, uint64_t top) {
  Header* header = header_of(block);
  const uint64_t note[2] = {sp, top};
  static_assert(sizeof note == kNoteBytes && kHeaderBytes == 16);
  std::byte* const end = reinterpret_cast<std::byte*>(header) + (size_t{1} << header->size_class);
  std::memcpy(end - sizeof note, note, sizeof note);
  header->has_note = 1;
}

void PinnedArea::collect(size_t size_class) {
  std::vector<Header*>& outstanding = outstanding_[size_class];
  for (size_t i = outstanding.size(); i-- > 0;) {
    // Acquire: the peer's accesses to the block happen before the block is used again.
    if (outstanding[i]->released.load(std::memory_order_acquire) == 0) continue;
    release(reinterpret_cast<std::byte*>(outstanding[i]) + kHeaderBytes);
  }
  // Twice the remaining number: at least as many allocations share the cost of the next collection.
  next_collection_[size_class] = std::max<size_t>(64, 2 * outstanding.size());
}

void PinnedArea::collect() {
  for (size_t i = 0; i < kClasses; ++i) collect(i);
}

size_t PinnedArea::segment_total() const {
  return descriptors_.empty() ? 0 : segment_address(descriptors_.size()) - kPinnedAddress;
}

size_t PinnedArea::outstanding() const {
  size_t count = 0;
  for (const std::vector<Header*>& blocks : outstanding_) count += blocks.size();
  return count;
}

}  // namespace cariama::tasks
