// A ring of equal units of registered memory, recycled by flush numbers (Seriema §4.1, §4.2).
//
//   auto ring = CircularAllocator::create(allocator, {.unit_bytes = 4096});
//   RDMAMemory* unit = (*ring)->allocate();     // nullptr: everything is in flight, poll and retry
//   ... fill unit->get_buffer(), transfer it with a Transmitter ...
//
// There is no free(): the transfer tags the unit with its queue pair's flush number, and the ring
// hands it out again, in its turn, once the device is done with it. When the unit whose turn it is
// is still in flight, the ring grows in front of it, up to a limit.
//
// Turn means: one unit in flight on a slow queue pair holds up the whole ring once the limit is
// reached, also for transfers on other queue pairs. Where that latency matters, give each
// Transmitter a ring of its own: then a slow queue pair delays its own traffic only (the paper's
// tradeoff between latency and memory).
//
// Cost: allocate() loads one cache line of the next unit and its queue pair's flush number, and
// stores two words; no lock, no malloc. 128 bytes of bookkeeping per unit. Memory: units of
// `unit_bytes` rounded up to 64, in chunks of the RDMAAllocator, which are taken one by one as the
// ring grows.
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
  // The ring starts small although a chunk holds more units: what circulates should stay in the
  // cache.
  size_t initial_units = 64;
  size_t max_units = 8192;  // 32 MiB of 4 KiB units
  Growth growth = Growth::kExponential;
};

// One thread at a time: make one per thread. Thread-safety of the memory's allocator is used only
// in growth.
class CARIAMA_DTUTILS_EXPORT CircularAllocator {
 public:
  // Makes the ring with its initial units. `allocator` is kept alive.
  // Errors: INVALID_ARGUMENT (no bytes, no units, more initial units than the limit); those of
  // RDMAAllocator::allocate_chunk.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CircularAllocator>> create(
      std::shared_ptr<RDMAAllocator> allocator, const CircularAllocatorOptions& options);

  // Handles become invalid. Transfers may still be in flight: their memory is reused once they end.
  ~CircularAllocator();
  CircularAllocator(const CircularAllocator&) = delete;
  CircularAllocator& operator=(const CircularAllocator&) = delete;

  // The next unit, at least 64-byte aligned, or nullptr: the ring is at its limit (or cannot grow,
  // see growth_status()) and the unit whose turn it is is not free. Then poll completions and call
  // again; nothing here polls. Never waits; growing takes a chunk now and then, which may map
  // memory.
  //
  // Only transfers keep a unit: one that no transfer has used by the time its turn comes again
  // counts as abandoned, and is handed out again. So do not hold as many units as the ring has
  // (units(), at least initial_units) before transferring them; what is to be held for long comes
  // from GeneralAllocator.
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

  // Why the ring could not grow the last time that it tried: OK at its limit, or RESOURCE_EXHAUSTED
  // (and so on) from the RDMAAllocator. It tries again at the next stall, not at every call.
  [[nodiscard]] const absl::Status& growth_status() const { return growth_status_; }

 private:
  friend class LinearCircularAllocator;

  // What allocate() looks at lies in the first of its two cache lines.
  struct alignas(64) Unit {
    Unit* next = nullptr;
    RDMAMemory memory;
  };
  static_assert(sizeof(Unit) == 128);

  // Units of one step of growth within one chunk, contiguous.
  struct Block {
    size_t chunk = 0;  // index into chunks_
    size_t count = 0;
    std::unique_ptr<Unit[]> units;
  };

  CircularAllocator(std::shared_ptr<RDMAAllocator> allocator,
                    const CircularAllocatorOptions& options);

  // Adds units after last_ and returns the first of them, or nullptr.
  Unit* grow();
  // Adds up to `count` units, from one chunk; how many.
  absl::StatusOr<size_t> add_units(size_t count);

  Unit* last_ = nullptr;              // handed out last; nullptr only while the ring is made
  const Unit* stalled_at_ = nullptr;  // where growth failed
  size_t units_ = 0;
  const CircularAllocatorOptions options_;
  const size_t stride_;  // unit_bytes, rounded up
  const std::shared_ptr<RDMAAllocator> allocator_;
  std::vector<Chunk> chunks_;
  size_t used_of_last_chunk_ = 0;  // bytes
  std::vector<Block> blocks_;
  std::vector<RDMAMemory> segments_in_flight_;  // set by LinearCircularAllocator before the end
  absl::Status growth_status_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_CIRCULAR_ALLOCATOR_H_
