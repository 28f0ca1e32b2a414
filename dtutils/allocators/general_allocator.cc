#include "dtutils/allocators/general_allocator.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/free_extents.h"
#include "dtutils/internal/missing_memory.h"

namespace cariama {
namespace {

using internal::address_of;
using internal::Extent;
using internal::format_bytes;
using internal::round_up;

constexpr size_t kMaxAlignment = internal::kGiB;
// Chunks are aligned at least to a base page. For a larger alignment the chunk must be larger than
// the allocation, so that an aligned piece fits.
constexpr size_t kChunkAlignment = 4096;

size_t rounded_bytes(size_t bytes) {
  return round_up(std::max<size_t>(bytes, 1), GeneralAllocator::kGranule);
}

}  // namespace

struct GeneralAllocator::State {
  mutable std::mutex mutex;           // guards all members; also locked while a chunk is taken
  std::map<uintptr_t, Chunk> chunks;  // by address
  internal::FreeExtents free;
  std::unordered_map<uintptr_t, size_t> live;  // address → requested size
  std::vector<RDMAMemory> in_flight;           // freed by the user, not yet by the device
  GeneralAllocatorStatistics statistics;

  // Returns the chunk that contains the address, or end().
  std::map<uintptr_t, Chunk>::iterator chunk_of(uintptr_t address) {
    auto it = chunks.upper_bound(address);
    if (it == chunks.begin()) return chunks.end();
    --it;
    return address - it->first < it->second.size() ? it : chunks.end();
  }

  void reclaim(Extent extent) {
    const auto chunk = chunk_of(extent.address);
    const Extent whole{chunk->first, chunk->second.size()};
    const Extent joined = free.insert(extent, whole);
    if (joined != whole) return;
    free.erase(whole);
    statistics.bytes -= whole.bytes;
    chunks.erase(chunk);
  }

  void reclaim_completed() {
    // Not std::erase_if(): reclaim() may throw, and no piece may be lost or freed twice then.
    for (size_t i = 0; i < in_flight.size();) {
      if (!in_flight[i].is_free()) {
        ++i;
        continue;
      }
      const size_t bytes = rounded_bytes(in_flight[i].size());
      reclaim({address_of(in_flight[i].get_buffer()), bytes});
      statistics.bytes_in_flight -= bytes;
      std::swap(in_flight[i], in_flight.back());
      in_flight.pop_back();
    }
  }
};

absl::StatusOr<std::unique_ptr<GeneralAllocator>> GeneralAllocator::create(
    std::shared_ptr<RDMAAllocator> allocator, const GeneralAllocatorOptions& options) {
  if (allocator == nullptr) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a GeneralAllocator needs an RDMAAllocator to take chunks from",
                      "pass one, not null");
  }
  return std::unique_ptr<GeneralAllocator>(new GeneralAllocator(std::move(allocator), options));
}

GeneralAllocator::GeneralAllocator(std::shared_ptr<RDMAAllocator> allocator,
                                   const GeneralAllocatorOptions& options)
    : allocator_(std::move(allocator)), options_(options), state_(std::make_unique<State>()) {}

GeneralAllocator::~GeneralAllocator() {
  // Passes the freed memory that a device still uses to release_after(), so that the RDMAAllocator
  // reuses its chunk only after these transfers have ended.
  std::map<uintptr_t, std::vector<RDMAMemory>> in_flight;
  for (RDMAMemory& memory : state_->in_flight) {
    in_flight[state_->chunk_of(address_of(memory.get_buffer()))->first].push_back(
        std::move(memory));
  }
  for (auto& [address, memories] : in_flight) {
    state_->chunks.at(address).release_after(std::move(memories));
  }
}

absl::Status GeneralAllocator::add_chunk(size_t bytes) {
  State& state = *state_;
  const size_t unit = allocator_->options().chunk_bytes;
  size_t size = round_up(std::max(bytes, options_.chunk_bytes), unit);
  const uint64_t room =
      options_.max_bytes - std::min<uint64_t>(options_.max_bytes, state.statistics.bytes);
  if (size > room) size = round_up(bytes, unit);
  if (size > room) {
    return make_error(
        absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
        absl::StrCat("this GeneralAllocator may hold ", format_bytes(options_.max_bytes),
                     " in chunks, has ", format_bytes(state.statistics.bytes), ", and needs ",
                     format_bytes(size), " more"),
        "raise GeneralAllocatorOptions::max_bytes");
  }
  absl::StatusOr<Chunk> chunk = allocator_->allocate_chunk(size);
  if (!chunk.ok()) return chunk.status();
  const Extent whole{address_of(chunk->data()), chunk->size()};
  const auto added = state.chunks.emplace(whole.address, *std::move(chunk)).first;
  try {
    static_cast<void>(state.free.insert(whole, whole));
  } catch (...) {
    state.chunks.erase(added);
    throw;
  }
  state.statistics.bytes += whole.bytes;
  return absl::OkStatus();
}

absl::StatusOr<RDMAMemory> GeneralAllocator::allocate(size_t bytes, size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      absl::StrCat("cannot align memory to ", alignment),
                      "choose a power of two up to 1 GiB");
  }
  if (bytes > std::numeric_limits<size_t>::max() / 4) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                      absl::StrCat(bytes, " bytes are more than any machine has"));
  }
  alignment = std::max(alignment, kGranule);
  const size_t rounded = rounded_bytes(bytes);
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (!state.in_flight.empty()) state.reclaim_completed();
  // Allocated before the piece is taken: an exception would lose the piece.
  auto entry = state.live.extract(state.live.emplace(uintptr_t{0}, bytes).first);
  const auto take = [&] {
    return options_.fit == Fit::kBest ? state.free.take_best(rounded, alignment)
                                      : state.free.take_first(rounded, alignment);
  };
  std::optional<uintptr_t> address = take();
  if (!address) {
    const size_t slack = alignment > kChunkAlignment ? alignment - kChunkAlignment : 0;
    if (absl::Status status = add_chunk(rounded + slack); !status.ok()) return status;
    address = take();
  }
  entry.key() = *address;
  state.live.insert(std::move(entry));
  GeneralAllocatorStatistics& statistics = state.statistics;
  statistics.bytes_in_use += rounded;
  statistics.bytes_in_use_high_water =
      std::max(statistics.bytes_in_use_high_water, statistics.bytes_in_use);
  return RDMAMemory(reinterpret_cast<std::byte*>(*address), bytes,
                    state.chunk_of(*address)->second.range());
}

absl::Status GeneralAllocator::free(RDMAMemory&& memory) {
  State& state = *state_;
  const uintptr_t address = address_of(memory.get_buffer());
  const std::lock_guard lock(state.mutex);
  const auto live = state.live.find(address);
  if (live == state.live.end() || live->second != memory.size()) {
    const bool ours = state.chunk_of(address) != state.chunks.end();
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
        absl::StrCat("cannot free ", memory.size(), " bytes at ", absl::Hex(address), ": ",
                     live != state.live.end() ? "the allocation there has another size"
                     : ours                   ? "no allocation starts there, or it was freed before"
                                              : "the address is not from this allocator"),
        "free exactly what allocate() returned, once");
  }
  // The steps that may throw come first.
  const size_t rounded = rounded_bytes(live->second);
  if (memory.is_free()) {
    state.reclaim({address, rounded});
    memory = {};
  } else {
    state.in_flight.push_back(std::move(memory));
    state.statistics.bytes_in_flight += rounded;
  }
  state.live.erase(live);
  state.statistics.bytes_in_use -= rounded;
  return absl::OkStatus();
}

void GeneralAllocator::free_or_keep(RDMAMemory&& memory) noexcept {
  static_cast<void>(
      internal::has_memory_for("dtutils.free.memory",
                               "this process lacks memory to free a piece of registered memory: "
                               "the piece is not used again",
                               [&] { static_cast<void>(free(std::move(memory))); }));
}

GeneralAllocatorStatistics GeneralAllocator::statistics() const {
  const std::lock_guard lock(state_->mutex);
  GeneralAllocatorStatistics statistics = state_->statistics;
  statistics.chunks = state_->chunks.size();
  statistics.allocations = state_->live.size();
  statistics.bytes_free = state_->free.free_bytes();
  statistics.free_pieces = state_->free.count();
  statistics.largest_free_piece = state_->free.largest();
  return statistics;
}

}  // namespace cariama
