// Registered memory of one NUMA node, in chunks (Seriema §4.2).
//
//   auto allocator = RDMAAllocator::create({domain}, numa_node_of_this_thread(), {});
//   auto chunk = (*allocator)->allocate_chunk();       // 2 MiB by default
//   RDMAMemory memory = chunk->memory(0, 64);          // any part of it, ready to transfer
//   // destroying the chunk returns it
//
// The allocator maps superpages and registers each once with every protection domain, so that
// taking a chunk needs no registration. Superpages start small and double up to a limit; all of
// them count against a memory budget. Returned chunks are joined with free neighbours and allocated
// again. Superpages stay mapped and registered until the allocator is destroyed or trim() is
// called.
//
// Cost: growth blocks for the time of a registration (a system call per superpage and domain, pages
// cleared by the kernel). A chunk from an existing superpage costs a mutex and O(log n). One mutex
// per allocator, hence per node; the per-thread allocators built on it take the mutex only when
// they grow.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_RDMA_ALLOCATOR_H_
#define CARIAMA_DTUTILS_ALLOCATORS_RDMA_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/device.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

class RDMAAllocator;

enum class Growth : uint8_t {
  kLinear,       // each step adds as much as the first step
  kExponential,  // each step adds as much as already exists
};

// Sizes in bytes.
struct RDMAAllocatorOptions {
  // Size unit of chunks and superpages; a multiple of the base page. The paper's 2 MiB is one huge
  // page; smaller values suit many small processes.
  size_t chunk_bytes = size_t{2} << 20;
  // Size of the first and of the largest superpage; growth stops doubling at the latter. The first
  // is small, so that an idle process pins little. The largest is the size of the largest huge
  // page, since larger registrations gain nothing.
  size_t first_superpage_bytes = size_t{2} << 20;
  size_t max_superpage_bytes = size_t{1} << 30;
  Growth growth = Growth::kExponential;  // of the superpages
  // Access that the registrations permit.
  Access access = Access::kAll;
  // If true, peers of this host can map the memory (an shm transfer then costs one copy). See
  // superpages.h.
  bool shareable = true;
  PageKind largest_page = PageKind::k1GiB;
  // Limit of this allocator alone; the budget counts all allocators of the process.
  uint64_t max_bytes = std::numeric_limits<uint64_t>::max();
  MemoryBudget* budget = nullptr;  // nullptr: MemoryBudget::process()

  // Returns the sizes of the paper: 1 GiB superpages from the start, in 2 MiB chunks.
  [[nodiscard]] static RDMAAllocatorOptions paper() {
    RDMAAllocatorOptions options;
    options.first_superpage_bytes = options.max_superpage_bytes;
    return options;
  }
};

struct RDMAAllocatorStatistics {
  uint64_t superpages = 0;
  uint64_t bytes = 0;                                // mapped and registered
  std::array<uint64_t, kPageKinds> bytes_by_kind{};  // `bytes` divided by PageKind
  uint64_t bytes_off_node = 0;  // part of `bytes` that is not (known to be) on the node
  uint64_t chunks_in_use = 0;
  uint64_t bytes_in_use = 0;  // in these chunks
  uint64_t bytes_in_use_high_water = 0;
  // Returned, but still used by a device (Chunk::release_after), or there was no memory to free it.
  uint64_t bytes_in_flight = 0;
};

// A piece of a superpage, owned by the holder of this object. It keeps its allocator alive.
// Movable; the destructor returns the memory, and needs none for it. Thread-compatible. Transfers
// from or to the memory must have completed before it is reused: either the owner waits for them,
// or it passes them to release_after().
class CARIAMA_DTUTILS_EXPORT Chunk {
 public:
  Chunk() = default;
  Chunk(Chunk&& other) noexcept { swap(other); }
  Chunk& operator=(Chunk&& other) noexcept {
    Chunk old(std::move(other));
    swap(old);
    return *this;
  }
  ~Chunk() { release(); }

  [[nodiscard]] bool empty() const { return allocator_ == nullptr; }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }  // bytes
  [[nodiscard]] const RegisteredRange* range() const { return range_; }

  // Returns a handle to [offset, offset + bytes) of the chunk. A handle tracks only the transfers
  // that were posted through itself, also if other handles overlap its range. Requires: offset +
  // bytes <= size().
  [[nodiscard]] RDMAMemory memory(size_t offset, size_t bytes) const {
    return {data_ + offset, bytes, range_};
  }
  [[nodiscard]] RDMAMemory memory() const { return memory(0, size_); }

  // Returns the memory to the allocator now. No effect on an empty chunk.
  void release();

  // Returns the memory to the allocator, which reuses it once all given last uses have completed
  // (handles as Transmitter tagged them). Never waits. No effect on an empty chunk.
  void release_after(std::vector<RDMAMemory> in_flight);

 private:
  friend class RDMAAllocator;
  void swap(Chunk& other) {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(range_, other.range_);
  }

  std::shared_ptr<RDMAAllocator> allocator_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  const RegisteredRange* range_ = nullptr;
};

// Thread-safe. Lives until its creator and all chunks have released it. The destructor deregisters
// every superpage and then unmaps it. Requires: all transfers from and to the memory have ended
// before that.
class CARIAMA_DTUTILS_EXPORT RDMAAllocator : public std::enable_shared_from_this<RDMAAllocator> {
 public:
  // Creates an allocator for memory of `numa_node` (kAnyNode: anywhere) that works with the queue
  // pairs of `domains`. It keeps the domains alive. Maps nothing yet. Errors: INVALID_ARGUMENT (no
  // domain, no such node, sizes that are no multiples of the base page or of each other).
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<RDMAAllocator>> create(
      std::vector<std::shared_ptr<ProtectionDomain>> domains, int numa_node,
      const RDMAAllocatorOptions& options);
  ~RDMAAllocator();

  // Returns a chunk of at least `bytes` (0: options.chunk_bytes), rounded up to a multiple of
  // chunk_bytes. If chunk_bytes is a power of two up to 2 MiB, the chunk is aligned to it. The
  // contents are unspecified. A chunk larger than max_superpage_bytes gets a mapping of its own,
  // which need not be on superpages; after its return the allocator uses that memory like any
  // other.
  // Errors: RESOURCE_EXHAUSTED (the budget, max_bytes, the machine, or memlock: the text says
  // which); those of register_memory. The allocator is unchanged then, and a smaller request may
  // succeed.
  [[nodiscard]] absl::StatusOr<Chunk> allocate_chunk(size_t bytes = 0);

  // Deregisters and unmaps the superpages that are entirely unused. Returns the number of bytes
  // unmapped. Peers that know the keys of this memory must be quiesced (see MemoryRegion).
  size_t trim();

  [[nodiscard]] RDMAAllocatorStatistics statistics() const;
  [[nodiscard]] const RDMAAllocatorOptions& options() const { return options_; }
  [[nodiscard]] int numa_node() const { return numa_node_; }

 private:
  friend class Chunk;
  struct State;

  RDMAAllocator(std::vector<std::shared_ptr<ProtectionDomain>> domains, int numa_node,
                const RDMAAllocatorOptions& options);
  void give_back(std::byte* data, size_t bytes, std::vector<RDMAMemory> in_flight);
  [[nodiscard]] Chunk take(size_t bytes);
  [[nodiscard]] absl::Status grow(size_t bytes);

  const std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  const int numa_node_;
  const RDMAAllocatorOptions options_;
  MemoryBudget& budget_;
  const std::unique_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_RDMA_ALLOCATOR_H_
