// Registered memory of any size and lifetime (Seriema §4.2), by best fit or first fit over chunks.
//
//   auto heap = GeneralAllocator::create(allocator, {});
//   absl::StatusOr<RDMAMemory> memory = (*heap)->allocate(10'000);
//   ... transfer from it ...
//   absl::Status status = (*heap)->free(*std::move(memory));  // also while a transfer is in flight
//
// Free neighbours are joined. A chunk that is entirely free is returned to the RDMAAllocator. Freed
// memory that a device still uses is set aside until the flush number proves that the device has
// finished with it, so that memory may be freed right after posting a transfer.
//
// Cost: a mutex and O(log n) in the number of free pieces (for alignments up to 64); about 100
// bytes of bookkeeping per allocation and per free piece. For memory allocated per message use the
// circular allocators.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_GENERAL_ALLOCATOR_H_
#define CARIAMA_DTUTILS_ALLOCATORS_GENERAL_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

enum class Fit : uint8_t {
  kBest,  // the smallest free piece that is large enough: wastes least
  // The sufficient piece at the lowest address: keeps high chunks empty, so that they can be
  // returned.
  kFirst,
};

struct GeneralAllocatorOptions {
  Fit fit = Fit::kBest;
  // Size of the chunks taken from the RDMAAllocator; a larger allocation takes a larger chunk. 0:
  // the RDMAAllocator's chunk_bytes.
  size_t chunk_bytes = 0;
  // Limit in bytes for all chunks together. The process's memory budget applies in addition.
  uint64_t max_bytes = std::numeric_limits<uint64_t>::max();
};

// Sizes in bytes.
struct GeneralAllocatorStatistics {
  uint64_t chunks = 0;
  uint64_t bytes = 0;         // total size of the chunks
  uint64_t allocations = 0;   // allocations that are not freed
  uint64_t bytes_in_use = 0;  // bytes of these allocations, rounded up to kGranule
  uint64_t bytes_in_use_high_water = 0;
  uint64_t bytes_in_flight = 0;  // freed, still used by a device
  uint64_t bytes_free = 0;
  uint64_t free_pieces = 0;
  uint64_t largest_free_piece = 0;

  // Returns 0 if all free memory is one piece; values towards 1 mean scattered free memory.
  [[nodiscard]] double fragmentation() const {
    return bytes_free == 0
               ? 0
               : 1 - static_cast<double>(largest_free_piece) / static_cast<double>(bytes_free);
  }
};

// Thread-safe. Must outlive all use of its allocations; the destructor returns all memory,
// including allocations that were not freed.
class CARIAMA_DTUTILS_EXPORT GeneralAllocator {
 public:
  // The start and the size of every piece are multiples of kGranule, the size of a cache line. So
  // two neighbouring pieces in flight do not share a cache line.
  static constexpr size_t kGranule = 64;

  // Takes no memory yet. The GeneralAllocator keeps `allocator` alive. Error: INVALID_ARGUMENT (no
  // allocator).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GeneralAllocator>> create(
      std::shared_ptr<RDMAAllocator> allocator, const GeneralAllocatorOptions& options);
  ~GeneralAllocator();
  GeneralAllocator(const GeneralAllocator&) = delete;
  GeneralAllocator& operator=(const GeneralAllocator&) = delete;

  // Allocates `bytes` at a multiple of `alignment`; 0 bytes are valid. The contents are
  // unspecified. If no free piece is large enough, it takes a chunk, which may map memory. Never
  // waits for transfers. Errors: INVALID_ARGUMENT (alignment no power of two, or above 1 GiB),
  // RESOURCE_EXHAUSTED (max_bytes), and those of RDMAAllocator::allocate_chunk.
  [[nodiscard]] absl::StatusOr<RDMAMemory> allocate(size_t bytes, size_t alignment = kGranule);

  // Frees an allocation: free(std::move(memory)). If the uses tagged in `memory` are still in
  // flight, the memory is set aside and reused later. Requires: transfers posted through other
  // handles to these bytes have completed. Error: INVALID_ARGUMENT (freed already, or not allocated
  // here); the allocator and `memory` are unchanged then, and after std::bad_alloc.
  [[nodiscard]] absl::Status free(RDMAMemory&& memory);
  // As free(), for functions that must not throw, such as destructors: without memory the
  // allocation stays until the end of the allocator, which is reported once. Ignores errors.
  void free_or_keep(RDMAMemory&& memory) noexcept;

  [[nodiscard]] GeneralAllocatorStatistics statistics() const;

 private:
  struct State;
  GeneralAllocator(std::shared_ptr<RDMAAllocator> allocator,
                   const GeneralAllocatorOptions& options);
  [[nodiscard]] absl::Status add_chunk(size_t bytes);

  const std::shared_ptr<RDMAAllocator> allocator_;
  const GeneralAllocatorOptions options_;
  const std::unique_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_GENERAL_ALLOCATOR_H_
