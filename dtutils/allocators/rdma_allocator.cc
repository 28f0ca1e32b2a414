#include "dtutils/allocators/rdma_allocator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/free_extents.h"
#include "dtutils/system_info.h"

namespace cariama {
namespace {

using internal::address_of;
using internal::Extent;
using internal::format_bytes;
using internal::kHugePage;
using internal::round_up;

// Members are destroyed in reverse order: the registrations end before the memory is unmapped.
struct RegisteredSuperpage {
  Superpage memory;
  RegisteredRange range;

  [[nodiscard]] Extent extent() const { return {address_of(memory.address()), memory.length()}; }
};

// A chunk that was returned while a device still used parts of it.
struct ReturnedInFlight {
  Extent extent;
  std::vector<RDMAMemory> in_flight;

  // Removes the uses that have ended. Returns true if none is left.
  bool drop_ended_uses() {
    std::erase_if(in_flight, [](const RDMAMemory& memory) { return memory.is_free(); });
    return in_flight.empty();
  }
};

}  // namespace

struct RDMAAllocator::State {
  // Locked while a superpage is added, so that threads that run out of memory at the same time add
  // only one. Threads served from free memory do not take it. Locked before `mutex`.
  std::mutex growing;
  size_t next_superpage_bytes = 0;  // guarded by `growing`

  mutable std::mutex mutex;  // guards the following members
  std::map<uintptr_t, std::unique_ptr<RegisteredSuperpage>> superpages;  // by address
  internal::FreeExtents free;
  std::vector<ReturnedInFlight> returned;
  RDMAAllocatorStatistics statistics;

  // Returns the superpage that contains the address. Requires: the address belongs to this
  // allocator.
  RegisteredSuperpage& superpage_of(uintptr_t address) {
    return *std::prev(superpages.upper_bound(address))->second;
  }

  void reclaim(Extent extent) {
    static_cast<void>(free.insert(extent, superpage_of(extent.address).extent()));
  }

  // Frees the returned chunks whose last transfers have ended.
  void reclaim_returned() {
    // Not std::erase_if(): reclaim() may throw, and no chunk may be lost or freed twice then.
    for (size_t i = 0; i < returned.size();) {
      if (!returned[i].drop_ended_uses()) {
        ++i;
        continue;
      }
      const Extent extent = returned[i].extent;
      reclaim(extent);
      statistics.bytes_in_flight -= extent.bytes;
      std::swap(returned[i], returned.back());
      returned.pop_back();
    }
  }

  // Allocates memory for the return of one more chunk: give_back() then allocates none.
  void reserve_return() {
    const size_t wanted = returned.size() + statistics.chunks_in_use + 1;
    if (returned.capacity() < wanted) returned.reserve(2 * wanted);
  }
};

void Chunk::release() { release_after({}); }

void Chunk::release_after(std::vector<RDMAMemory> in_flight) {
  if (allocator_ == nullptr) return;
  // This chunk may hold the last reference to its allocator, so keep the allocator until the memory
  // is returned.
  const std::shared_ptr<RDMAAllocator> allocator = std::move(allocator_);
  allocator_ = nullptr;
  allocator->give_back(std::exchange(data_, nullptr), std::exchange(size_, 0),
                       std::move(in_flight));
  range_ = nullptr;
}

RDMAAllocator::RDMAAllocator(std::vector<std::shared_ptr<ProtectionDomain>> domains, int numa_node,
                             const RDMAAllocatorOptions& options)
    : domains_(std::move(domains)),
      numa_node_(numa_node),
      options_(options),
      budget_(options.budget != nullptr ? *options.budget : MemoryBudget::process()),
      state_(std::make_unique<State>()) {
  state_->next_superpage_bytes = options.first_superpage_bytes;
}

RDMAAllocator::~RDMAAllocator() {
  const uint64_t bytes = state_->statistics.bytes;
  state_->superpages.clear();
  budget_.release(bytes);
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> RDMAAllocator::create(
    std::vector<std::shared_ptr<ProtectionDomain>> domains, int numa_node,
    const RDMAAllocatorOptions& options) {
  const auto invalid = [](std::string_view what, std::string_view remedy) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, remedy);
  };
  if (domains.empty() ||
      std::any_of(domains.begin(), domains.end(), [](const auto& d) { return d == nullptr; })) {
    return invalid("an RDMAAllocator needs protection domains to register with",
                   "pass at least one, none of them null");
  }
  if (numa_node != kAnyNode && !numa_node_exists(numa_node)) {
    return invalid(absl::StrCat("there is no NUMA node ", numa_node),
                   absl::StrCat("this machine has ", numa_nodes_text()));
  }
  const size_t page = internal::base_page();
  if (options.chunk_bytes == 0 || options.chunk_bytes % page != 0) {
    return invalid(absl::StrCat("chunk_bytes is ", options.chunk_bytes),
                   absl::StrCat("make it a multiple of the page, ", page));
  }
  if (options.first_superpage_bytes == 0 ||
      options.first_superpage_bytes % options.chunk_bytes != 0 ||
      options.max_superpage_bytes % options.chunk_bytes != 0 ||
      options.max_superpage_bytes < options.first_superpage_bytes) {
    return invalid(absl::StrCat("superpages of ", options.first_superpage_bytes, " to ",
                                options.max_superpage_bytes, " bytes do not fit chunks of ",
                                options.chunk_bytes),
                   "make both multiples of chunk_bytes, the first not above the largest");
  }
  return std::shared_ptr<RDMAAllocator>(new RDMAAllocator(std::move(domains), numa_node, options));
}

Chunk RDMAAllocator::take(size_t bytes) {
  // Chunks lie at multiples of the chunk size within their superpage, which is aligned to it (see
  // Superpage::obtain), so take_best() needs no alignment.
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (!state.returned.empty()) state.reclaim_returned();
  state.reserve_return();
  Chunk chunk;
  const std::optional<uintptr_t> address = state.free.take_best(bytes, 1);
  if (!address) return chunk;
  RDMAAllocatorStatistics& statistics = state.statistics;
  statistics.chunks_in_use += 1;
  statistics.bytes_in_use += bytes;
  statistics.bytes_in_use_high_water =
      std::max(statistics.bytes_in_use_high_water, statistics.bytes_in_use);
  chunk.allocator_ = shared_from_this();
  chunk.data_ = reinterpret_cast<std::byte*>(*address);
  chunk.size_ = bytes;
  chunk.range_ = &state.superpage_of(*address).range;
  return chunk;
}

absl::StatusOr<Chunk> RDMAAllocator::allocate_chunk(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 4) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                      absl::StrCat("a chunk of ", bytes, " bytes is more than any machine has"));
  }
  const size_t size = round_up(std::max<size_t>(bytes, 1), options_.chunk_bytes);
  if (Chunk chunk = take(size); !chunk.empty()) return chunk;

  const std::lock_guard lock(state_->growing);
  // This loop ends: each iteration adds a superpage that can hold the chunk, or fails. More than
  // one iteration is needed only if other threads took the memory that this thread had added.
  while (true) {
    if (Chunk chunk = take(size); !chunk.empty()) return chunk;
    if (absl::Status status = grow(size); !status.ok()) return status;
  }
}

// Adds a superpage of at least `bytes`. Requires: `growing` is locked.
absl::Status RDMAAllocator::grow(size_t bytes) {
  State& state = *state_;
  size_t size = std::max(bytes, state.next_superpage_bytes);
  // A chunk larger than the largest superpage gets its own mapping, rounded up to huge pages.
  if (bytes > options_.max_superpage_bytes && options_.chunk_bytes <= kHugePage) {
    size = round_up(bytes, kHugePage);
  }
  // If the planned size exceeds a limit, halve it, down to `bytes`, before failing.
  absl::Status status;
  while (true) {
    uint64_t mapped = 0;
    {
      const std::lock_guard lock(state.mutex);
      mapped = state.statistics.bytes;
    }
    if (mapped > options_.max_bytes || size > options_.max_bytes - mapped) {
      status = make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                          absl::StrCat("this RDMAAllocator may hold ",
                                       format_bytes(options_.max_bytes), ", ", format_bytes(mapped),
                                       " are mapped, ", format_bytes(size), " more are needed"),
                          "raise RDMAAllocatorOptions::max_bytes");
    } else {
      status = budget_.reserve(size);
    }
    if (status.ok()) break;
    if (size == bytes) return status;
    size = std::max(bytes, round_up(size / 2, options_.chunk_bytes));
  }
  struct Reservation {
    ~Reservation() {
      if (bytes != 0) budget.release(bytes);
    }
    MemoryBudget& budget;
    uint64_t bytes;
  } reservation{budget_, size};

  SuperpageRequest request;
  request.bytes = size;
  request.numa_node = numa_node_;
  request.shareable = options_.shareable;
  request.largest_page = options_.largest_page;
  absl::StatusOr<Superpage> memory = Superpage::obtain(request);
  if (!memory.ok()) return memory.status();
  std::vector<RegisteredRange::Registration> registrations;
  for (const std::shared_ptr<ProtectionDomain>& domain : domains_) {
    absl::StatusOr<std::shared_ptr<MemoryRegion>> region =
        domain->register_memory(memory->source(), options_.access);
    if (!region.ok()) return region.status();
    registrations.push_back({domain.get(), *std::move(region)});
  }

  auto superpage = std::make_unique<RegisteredSuperpage>(
      RegisteredSuperpage{*std::move(memory), RegisteredRange(std::move(registrations))});
  const Extent extent = superpage->extent();
  const std::lock_guard lock(state.mutex);
  const auto added = state.superpages.emplace(extent.address, std::move(superpage)).first;
  try {
    state.reclaim(extent);
  } catch (...) {
    state.superpages.erase(added);
    throw;
  }
  reservation.bytes = 0;  // statistics.bytes from now on
  const Superpage& pages = added->second->memory;
  state.statistics.superpages += 1;
  state.statistics.bytes += size;
  state.statistics.bytes_by_kind[static_cast<size_t>(pages.page_kind())] += size;
  if (pages.numa_node() != numa_node_) state.statistics.bytes_off_node += size;
  if (options_.growth == Growth::kExponential) {
    const uint64_t target =
        std::min<uint64_t>(state.statistics.bytes, options_.max_superpage_bytes);
    state.next_superpage_bytes =
        std::max(state.next_superpage_bytes,
                 static_cast<size_t>(target / options_.chunk_bytes) * options_.chunk_bytes);
  }
  return absl::OkStatus();
}

void RDMAAllocator::give_back(std::byte* data, size_t bytes, std::vector<RDMAMemory> in_flight) {
  State& state = *state_;
  ReturnedInFlight returned{{address_of(data), bytes}, std::move(in_flight)};
  bool ended = returned.drop_ended_uses();
  const std::lock_guard lock(state.mutex);
  state.statistics.chunks_in_use -= 1;
  state.statistics.bytes_in_use -= bytes;
  if (ended) {
    try {
      state.reclaim(returned.extent);
    } catch (const std::bad_alloc&) {  // the next take() does it: a destructor must not throw
      ended = false;
    }
  }
  if (!ended) {
    state.statistics.bytes_in_flight += bytes;
    state.returned.push_back(std::move(returned));  // reserve_return() has made room
  }
}

size_t RDMAAllocator::trim() {
  State& state = *state_;
  std::vector<std::unique_ptr<RegisteredSuperpage>> unused;
  size_t bytes = 0;
  {
    const std::lock_guard lock(state.mutex);
    state.reclaim_returned();
    unused.reserve(state.superpages.size());  // an exception would lose a superpage
    for (auto it = state.superpages.begin(); it != state.superpages.end();) {
      const Extent extent = it->second->extent();
      if (!state.free.contains(extent)) {
        ++it;
        continue;
      }
      state.free.erase(extent);
      state.statistics.superpages -= 1;
      state.statistics.bytes -= extent.bytes;
      state.statistics.bytes_by_kind[static_cast<size_t>(it->second->memory.page_kind())] -=
          extent.bytes;
      if (it->second->memory.numa_node() != numa_node_) {
        state.statistics.bytes_off_node -= extent.bytes;
      }
      bytes += extent.bytes;
      unused.push_back(std::move(it->second));
      it = state.superpages.erase(it);
    }
  }
  // Deregistration takes long, so it runs without the lock.
  unused.clear();
  budget_.release(bytes);
  return bytes;
}

RDMAAllocatorStatistics RDMAAllocator::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

}  // namespace cariama
