#include "dtutils/shm/receive_queue.h"

#include <bit>

#include "dtutils/internal/validate.h"

namespace cariama::shm {

std::shared_ptr<ReceiveQueue> ReceiveQueue::create(const std::shared_ptr<ControlSegment>& control,
                                                   uint32_t depth, uint32_t max_segments) {
  const uint32_t entries = std::bit_ceil(depth);
  ControlBlock block(control, receive_queue_bytes(entries, depth, max_segments));
  if (!block.valid()) return nullptr;
  const ReceiveQueueView view(block.data(), entries, depth, max_segments);
  view.header()->entries = entries;
  view.header()->slots = depth;
  view.header()->max_segments = max_segments;
  return std::shared_ptr<ReceiveQueue>(new ReceiveQueue(std::move(block), view));
}

ReceiveQueue::ReceiveQueue(ControlBlock block, ReceiveQueueView view)
    : block_(std::move(block)), view_(view), requests_(depth()), posted_(depth()) {
  free_.reserve(depth());
  for (uint32_t slot = depth(); slot-- > 0;) free_.push_back(slot);
}

PostResult ReceiveQueue::post(std::span<const ReceiveRequest> requests, const RegionTable& regions,
                              uint32_t domain) {
  std::lock_guard lock(mutex_);
  PostResult result;
  for (const ReceiveRequest& request : requests) {
    result.error = internal::validate(request, view_.max_segments());
    if (result.error == PostError::kNone && free_.empty()) result.error = PostError::kQueueFull;
    if (result.error != PostError::kNone) break;
    const uint32_t slot = free_.back();
    free_.pop_back();
    requests_[slot] = {request.id, fill(slot, request, regions, domain)};
    posted_[slot] = true;
    view_.publish(next_position_++, slot);
    ++result.posted;
  }
  return result;
}

uint64_t ReceiveQueue::fill(uint32_t index, const ReceiveRequest& request,
                            const RegionTable& regions, uint32_t domain) {
  ReceiveSlot* slot = view_.slot(index);
  slot->segment_count = request.segment_count;
  uint64_t capacity = 0;
  slot->invalid = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    const Segment& segment = request.segments[i];
    SharedSegment& shared = slot->segments()[i];
    shared.address = reinterpret_cast<uint64_t>(segment.address);
    shared.length = segment.length;
    shared.key = 0;
    capacity += segment.length;
    if (segment.length == 0) continue;
    const LocalRegion& region = regions.local()[key_index(segment.key.value)];
    if (!region.allows(segment.key, segment.address, segment.length, domain) ||
        !region.writable()) {
      slot->invalid = 1;  // reported when the receive is consumed, as verbs does
      continue;
    }
    shared.key = regions.remote_key(segment.key);
  }
  slot->capacity = capacity;
  return capacity;
}

bool ReceiveQueue::is_claimed_by(uint32_t slot, uint32_t claimant) const {
  constexpr uint64_t kClaimant = (uint64_t{1} << kClaimantBits) - 1;
  return posted_[slot] &&
         (view_.slot(slot)->word.load(std::memory_order_acquire) & kClaimant) == claimant;
}

std::optional<ReceiveQueue::Posted> ReceiveQueue::finish(uint32_t slot, uint32_t claimant) {
  std::lock_guard lock(mutex_);
  if (slot >= depth() || !is_claimed_by(slot, claimant)) return std::nullopt;
  view_.slot(slot)->word.store(0, std::memory_order_relaxed);
  posted_[slot] = false;
  free_.push_back(slot);
  return requests_[slot];
}

std::optional<uint64_t> ReceiveQueue::take_back() {
  for (;;) {
    const std::optional<uint32_t> slot = view_.claim(kOwnerClaims);
    if (!slot.has_value()) return std::nullopt;
    if (const auto request = finish(*slot, kOwnerClaims)) return request->id;
  }
}

std::vector<uint32_t> ReceiveQueue::claimed_by(uint32_t claimant) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < depth(); ++slot) {
    if (is_claimed_by(slot, claimant)) slots.push_back(slot);
  }
  return slots;
}

void ReceiveQueue::repost(uint32_t slot, uint32_t claimant) {
  std::lock_guard lock(mutex_);
  if (slot < depth() && is_claimed_by(slot, claimant)) view_.publish(next_position_++, slot);
}

}  // namespace cariama::shm
