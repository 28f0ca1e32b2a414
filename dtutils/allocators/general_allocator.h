// Registered memory of any size and lifetime (Seriema §4.2): best fit or first fit over chunks.
//
//   auto heap = GeneralAllocator::create(allocator, {});
//   absl::StatusOr<RDMAMemory> memory = (*heap)->allocate(10'000);
//   ... transfer from it ...
//   absl::Status status = (*heap)->free(*memory);   // also while the transfer is in flight
//
// Free neighbours are joined, a chunk that is wholly free goes back to the RDMAAllocator. Freed
// memory that a device still uses is set aside until the flush number says that it is done, so that
// "send and forget" is safe.
//
// Cost: a mutex and O(log n) in the number of free pieces (for alignments up to 64); about 100
// bytes of bookkeeping per allocation and per free piece. For the path of every message there are
// the circular allocators.
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
  kBest,   // the smallest free piece that holds it: wastes least
  kFirst,  // the one at the lowest address: keeps high chunks empty, so that they can be returned
};

struct GeneralAllocatorOptions {
  Fit fit = Fit::kBest;
  // Chunks to take from the RDMAAllocator; larger allocations take larger ones. 0: its chunk_bytes.
  size_t chunk_bytes = 0;
  // Of all chunks together. The process's budget counts besides.
  uint64_t max_bytes = std::numeric_limits<uint64_t>::max();
};

// Sizes in bytes.
struct GeneralAllocatorStatistics {
  uint64_t chunks = 0;
  uint64_t bytes = 0;         // of the chunks
  uint64_t allocations = 0;   // live
  uint64_t bytes_in_use = 0;  // in these, rounded up as they are kept
  uint64_t bytes_in_use_high_water = 0;
  uint64_t bytes_in_flight = 0;  // freed, still used by a device
  uint64_t bytes_free = 0;
  uint64_t free_pieces = 0;
  uint64_t largest_free_piece = 0;

  // 0: all that is free is one piece; towards 1: it is scattered.
  [[nodiscard]] double fragmentation() const {
    return bytes_free == 0
               ? 0
               : 1 - static_cast<double>(largest_free_piece) / static_cast<double>(bytes_free);
  }
};

// Thread-safe. Must outlive the use of what it handed out; ending it returns everything, including
// what was not freed.
class CARIAMA_DTUTILS_EXPORT GeneralAllocator {
 public:
  // Every piece starts at a multiple of this and takes a multiple of it: a cache line, so that
  // neighbours in flight do not share one.
  static constexpr size_t kGranule = 64;

  // Takes no memory yet. `allocator` is kept alive. Error: INVALID_ARGUMENT (no allocator).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GeneralAllocator>> create(
      std::shared_ptr<RDMAAllocator> allocator, const GeneralAllocatorOptions& options);
  ~GeneralAllocator();
  GeneralAllocator(const GeneralAllocator&) = delete;
  GeneralAllocator& operator=(const GeneralAllocator&) = delete;

  // `bytes` (0 is a piece as well) at a multiple of `alignment`. The contents are whatever was
  // there. Takes a chunk, which may map memory, when no free piece holds it. Never waits for
  // transfers. Errors: INVALID_ARGUMENT (alignment no power of two, or above 1 GiB),
  // RESOURCE_EXHAUSTED (max_bytes; otherwise as RDMAAllocator::allocate_chunk).
  [[nodiscard]] absl::StatusOr<RDMAMemory> allocate(size_t bytes, size_t alignment = kGranule);

  // Gives back what allocate() returned. If `memory`, with the tags of its uses, is still in
  // flight, it is set aside and reused later. Transfers posted with other copies of the handle must
  // be over. Error: INVALID_ARGUMENT (freed already, or never allocated here): nothing changes
  // then.
  [[nodiscard]] absl::Status free(const RDMAMemory& memory);

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
