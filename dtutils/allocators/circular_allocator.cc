#include "dtutils/allocators/circular_allocator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"

namespace cariama {
namespace {

using internal::round_up;

// Units start at cache lines, so that neighbours in flight do not share a cache line.
constexpr size_t kAlignment = 64;

}  // namespace

CircularAllocator::CircularAllocator(std::shared_ptr<RDMAAllocator> allocator,
                                     const CircularAllocatorOptions& options)
    : options_(options),
      stride_(round_up(options.unit_bytes, kAlignment)),
      allocator_(std::move(allocator)) {}

absl::StatusOr<std::unique_ptr<CircularAllocator>> CircularAllocator::create(
    std::shared_ptr<RDMAAllocator> allocator, const CircularAllocatorOptions& options) {
  if (allocator == nullptr || options.unit_bytes == 0 || options.initial_units == 0 ||
      options.initial_units > options.max_units ||
      options.unit_bytes > std::numeric_limits<size_t>::max() / 4) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
        absl::StrCat("a ring of ", options.initial_units, " to ", options.max_units, " units of ",
                     options.unit_bytes, " bytes", allocator == nullptr ? " without allocator" : "",
                     " cannot be made"),
        "give it an allocator, bytes, at least one unit, and a limit not below the first units");
  }
  std::unique_ptr<CircularAllocator> ring(new CircularAllocator(std::move(allocator), options));
  while (ring->units_ < options.initial_units) {
    const absl::StatusOr<size_t> added = ring->add_units(options.initial_units - ring->units_);
    if (!added.ok()) return added.status();
  }
  return ring;
}

CircularAllocator::~CircularAllocator() {
  // Passes the units and segments that a device still uses to release_after(), so that the
  // RDMAAllocator reuses their chunk only after these transfers have ended.
  std::vector<std::vector<RDMAMemory>> in_flight(chunks_.size());
  for (const Block& block : blocks_) {
    for (size_t i = 0; i < block.count; ++i) {
      RDMAMemory& memory = block.units[i].memory;
      if (!memory.is_free()) in_flight[block.chunk].push_back(std::move(memory));
    }
  }
  for (RDMAMemory& segment : segments_in_flight_) {
    const auto chunk =
        std::find_if(chunks_.begin(), chunks_.end(), [&segment](const Chunk& candidate) {
          return segment.get_buffer() >= candidate.data() &&
                 segment.get_buffer() <= candidate.data() + candidate.size();
        });
    in_flight[static_cast<size_t>(chunk - chunks_.begin())].push_back(std::move(segment));
  }
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].release_after(std::move(in_flight[i]));
}

CircularAllocator::Unit* CircularAllocator::grow() {
  Unit* const stalled = last_->next;
  // After a failed growth at this unit, grow() does not retry at every poll, but only when the ring
  // has advanced.
  if (units_ >= options_.max_units || stalled == stalled_at_) return nullptr;
  const size_t step = options_.growth == Growth::kLinear ? options_.initial_units : units_;
  size_t wanted = std::min(step, options_.max_units - units_);
  growth_status_ = absl::OkStatus();
  while (wanted > 0) {
    const absl::StatusOr<size_t> added = add_units(wanted);
    if (!added.ok()) {
      growth_status_ = added.status();
      break;
    }
    wanted -= *added;
  }
  if (last_->next != stalled) return last_->next;
  stalled_at_ = stalled;
  return nullptr;
}

absl::StatusOr<size_t> CircularAllocator::add_units(size_t count) {
  if (chunks_.empty() || chunks_.back().size() - used_of_last_chunk_ < stride_) {
    absl::StatusOr<Chunk> chunk = allocator_->allocate_chunk(stride_);
    if (!chunk.ok()) return chunk.status();
    chunks_.push_back(*std::move(chunk));
    used_of_last_chunk_ = 0;
  }
  const Chunk& chunk = chunks_.back();
  count = std::min(count, (chunk.size() - used_of_last_chunk_) / stride_);
  std::unique_ptr<Unit[]> units = std::make_unique<Unit[]>(count);
  for (size_t i = 0; i < count; ++i) {
    units[i].next = &units[(i + 1) % count];
    units[i].memory = chunk.memory(used_of_last_chunk_ + i * stride_, options_.unit_bytes);
  }
  // First: it may throw.
  blocks_.push_back({chunks_.size() - 1, count, std::move(units)});
  Unit* const first = blocks_.back().units.get();
  Unit* const last = first + (count - 1);
  used_of_last_chunk_ += count * stride_;
  if (last_ == nullptr) {
    last_ = last;
  } else {
    last->next = last_->next;
    last_->next = first;
  }
  units_ += count;
  return count;
}

}  // namespace cariama
