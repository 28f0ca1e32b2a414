// A ring of units of registered memory from which segments of any size are cut, recycled by flush
// numbers (Seriema §4.2): a circular allocator without its internal fragmentation.
//
//   auto ring = LinearCircularAllocator::create(allocator, {.unit_bytes = 65536});
//   RDMAMemory* segment = (*ring)->allocate(300);   // nullptr: all in flight, poll and retry
//   ... fill segment->get_buffer(), transfer it with a Transmitter ...
//
// Segments follow one another in a unit until it is full. The whole unit returns to circulation
// when the transfers of all its segments have completed. Each segment has a handle of its own, so
// the segments of a unit may be sent on different queue pairs. Units circulate, and the ring grows,
// as in CircularAllocator; its statement on slow queue pairs applies here too.
//
// Cost: allocate() is an addition and a handle. When a unit is full, allocate() checks each handle
// of the oldest unit, in total once per segment. No lock, and no malloc once the ring has reached
// its size. 104 bytes of bookkeeping per segment in use, in blocks of 16 that are recycled as well.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_LINEAR_CIRCULAR_ALLOCATOR_H_
#define CARIAMA_DTUTILS_ALLOCATORS_LINEAR_CIRCULAR_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

// Thread-compatible: one thread at a time, so create one per thread.
class CARIAMA_DTUTILS_EXPORT LinearCircularAllocator {
 public:
  // Creates the ring with its initial units. Choose a unit that holds several segments. Errors:
  // those of CircularAllocator::create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LinearCircularAllocator>> create(
      std::shared_ptr<RDMAAllocator> allocator, const CircularAllocatorOptions& options);

  // Handles become invalid. Transfers may still be in flight: the RDMAAllocator reuses their memory
  // once they have ended.
  ~LinearCircularAllocator();
  LinearCircularAllocator(const LinearCircularAllocator&) = delete;
  LinearCircularAllocator& operator=(const LinearCircularAllocator&) = delete;

  // Returns a segment of `bytes` at a multiple of `alignment` (a power of two up to 64). Returns
  // nullptr if no unit is free and the ring cannot grow (see growth_status()). Then poll
  // completions and call again; this function does not poll. Requires: bytes <= max_segment(); a
  // larger request always returns nullptr.
  //
  // The handle's address is stable until the unit is recycled. As in CircularAllocator, only
  // transfers reserve memory: never hold segments that fill the ring before their transfers are
  // posted.
  [[nodiscard]] RDMAMemory* allocate(size_t bytes, size_t alignment = 8) {
    if (current_ != nullptr) [[likely]] {
      const size_t start = (used_ + alignment - 1) & ~(alignment - 1);
      if (start <= unit_bytes_ && bytes <= unit_bytes_ - start &&
          current_->last->count != Handles::kCapacity) [[likely]] {
        used_ = start + bytes;
        Handles& handles = *current_->last;
        RDMAMemory* const handle = &handles.memory[handles.count++];
        *handle = RDMAMemory(buffer_ + start, bytes, range_);
        return handle;
      }
    }
    return allocate_slowly(bytes, alignment);
  }

  [[nodiscard]] size_t max_segment() const { return unit_bytes_; }  // bytes
  [[nodiscard]] size_t units() const { return ring_->units(); }
  [[nodiscard]] const absl::Status& growth_status() const { return ring_->growth_status(); }

 private:
  // Handles of segments of one unit, in the order of allocation.
  struct Handles {
    static constexpr uint32_t kCapacity = 16;
    std::array<RDMAMemory, kCapacity> memory;
    uint32_t count = 0;
    Handles* next = nullptr;
  };

  // A unit from which segments were cut.
  struct OpenUnit {
    RDMAMemory* unit = nullptr;
    Handles* first = nullptr;
    Handles* last = nullptr;
    uint32_t free_before = 0;  // in the block `first`: the handles before this index are free
    OpenUnit* next = nullptr;
  };

  explicit LinearCircularAllocator(std::unique_ptr<CircularAllocator> ring);

  RDMAMemory* allocate_slowly(size_t bytes, size_t alignment);
  // Makes the next unit of the ring the current one. Returns false if it is not free.
  bool open_next_unit();
  // Returns the oldest unit to circulation if all its segments are free.
  void recycle();
  [[nodiscard]] bool is_free(OpenUnit& open);
  Handles* take_handles();
  OpenUnit* take_open_unit();

  const std::unique_ptr<CircularAllocator> ring_;
  const size_t unit_bytes_;

  OpenUnit* current_ = nullptr;  // nullptr when the ring is exhausted
  std::byte* buffer_ = nullptr;  // of the current unit
  const RegisteredRange* range_ = nullptr;
  size_t used_ = 0;  // bytes of the current unit

  // Full units in the order of the ring.
  OpenUnit* oldest_ = nullptr;
  OpenUnit* newest_ = nullptr;

  // Unused bookkeeping objects for reuse, and the owners of all such objects.
  Handles* spare_handles_ = nullptr;
  OpenUnit* spare_units_ = nullptr;
  std::vector<std::unique_ptr<Handles>> all_handles_;
  std::vector<std::unique_ptr<OpenUnit>> all_open_units_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_LINEAR_CIRCULAR_ALLOCATOR_H_
