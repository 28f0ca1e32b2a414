// A ring of equal units of registered memory, recycled by flush numbers (Seriema §4.1, §4.2).
//
//   auto ring = CircularAllocator::create(allocator, {.unit_bytes = 4096});
//   RDMAMemory* unit = (*ring)->allocate();     // nullptr: everything is in flight, poll and retry
//   ... fill unit->get_buffer(), transfer it with a Transmitter ...
//
// There is no free(): the transfer tags the unit with its queue pair's flush number. The ring
// returns the units in circular order, each once the device has finished its transfers. If the next
// unit is still in flight, the ring grows in front of it, up to a limit.
//
// Because of the circular order, one unit in flight on a slow queue pair stalls the whole ring once
// the limit is reached, also for transfers on other queue pairs. Where that latency matters, give
// each Transmitter a ring of its own; then a slow queue pair delays its own traffic only (the
// paper's tradeoff between latency and memory).
//
// Cost: allocate() loads one cache line of the next unit and its queue pair's flush number, and
// stores two words; no lock, no malloc. 128 bytes of bookkeeping per unit. Memory: units of
// `unit_bytes` rounded up to 64, in chunks of the RDMAAllocator, which the ring takes one by one as
// it grows.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_CIRCULAR_ALLOCATOR_H_
#define CARIAMA_DTUTILS_ALLOCATORS_CIRCULAR_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

struct CircularAllocatorOptions {
  size_t unit_bytes = 4096;
  // The ring starts with few units although a chunk holds more, so that the units in circulation
  // stay in the cache.
  size_t initial_units = 64;
  size_t max_units = 8192;  // 32 MiB of 4 KiB units
  Growth growth = Growth::kExponential;
};

// Thread-compatible: one thread at a time, so create one per thread. Only growth uses the
// RDMAAllocator, which is thread-safe.
class CARIAMA_DTUTILS_EXPORT CircularAllocator {
 public:
  // Creates the ring with its initial units. The ring keeps `allocator` alive. Errors:
  // INVALID_ARGUMENT (no bytes, no units, more initial units than the limit); those of
  // RDMAAllocator::allocate_chunk.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CircularAllocator>> create(
      std::shared_ptr<RDMAAllocator> allocator, const CircularAllocatorOptions& options);

  // Handles become invalid. Transfers may still be in flight: the RDMAAllocator reuses their memory
  // once they have ended.
  ~CircularAllocator();
  CircularAllocator(const CircularAllocator&) = delete;
  CircularAllocator& operator=(const CircularAllocator&) = delete;

  // Returns the next unit, at least 64-byte aligned. Returns nullptr if the next unit is not free
  // and the ring is at its limit or cannot grow (see growth_status()). Then poll completions and
  // call again; this function does not poll. Never waits. Growing takes a chunk now and then, which
  // may map memory.
  //
  // Only a transfer reserves a unit: a unit that no transfer has used by the time it is next in the
  // ring counts as abandoned, and is returned again. So never hold units() units (at least
  // initial_units) before their transfers are posted. Take long-lived memory from GeneralAllocator.
  [[nodiscard]] RDMAMemory* allocate() {
    Unit* next = last_->next;
    if (!next->memory.is_free()) [[unlikely]] {
      next = grow();
      if (next == nullptr) return nullptr;
    }
    last_ = next;
    next->memory.clear_uses();
    return &next->memory;
  }

  [[nodiscard]] size_t units() const { return units_; }
  [[nodiscard]] const CircularAllocatorOptions& options() const { return options_; }

  // Returns why the last attempt to grow failed: OK if the ring was at its limit, or
  // RESOURCE_EXHAUSTED (and other errors) from the RDMAAllocator. The ring attempts to grow again
  // at the next stall, not at every call.
  [[nodiscard]] const absl::Status& growth_status() const { return growth_status_; }

 private:
  friend class LinearCircularAllocator;

  // allocate() reads only the first of the two cache lines of a unit.
  struct alignas(64) Unit {
    Unit* next = nullptr;
    RDMAMemory memory;
  };
  static_assert(sizeof(Unit) == 128);

  // The units of one growth step within one chunk; contiguous.
  struct Block {
    size_t chunk = 0;  // index into chunks_
    size_t count = 0;
    std::unique_ptr<Unit[]> units;
  };

  CircularAllocator(std::shared_ptr<RDMAAllocator> allocator,
                    const CircularAllocatorOptions& options);

  // Adds units after last_. Returns the first of them, or nullptr if the ring did not grow.
  Unit* grow();
  // Adds up to `count` units from one chunk. Returns the number added.
  absl::StatusOr<size_t> add_units(size_t count);

  Unit* last_ = nullptr;              // returned last; nullptr only during construction
  const Unit* stalled_at_ = nullptr;  // the unit at which growth failed
  size_t units_ = 0;
  const CircularAllocatorOptions options_;
  const size_t stride_;  // unit_bytes, rounded up
  const std::shared_ptr<RDMAAllocator> allocator_;
  std::vector<Chunk> chunks_;
  size_t used_of_last_chunk_ = 0;  // bytes
  std::vector<Block> blocks_;
  // Set by LinearCircularAllocator before the ring is destroyed.
  std::vector<RDMAMemory> segments_in_flight_;
  absl::Status growth_status_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_CIRCULAR_ALLOCATOR_H_
