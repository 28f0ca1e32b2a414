#include "dtutils/allocators/linear_circular_allocator.h"

#include <utility>

namespace cariama {
namespace {

// A cell whose flush number stays 0. Units with open segments are tagged with it, so that the ring
// treats them as in use until the segments themselves are free.
const FlushCell kInUse;

}  // namespace

absl::StatusOr<std::unique_ptr<LinearCircularAllocator>> LinearCircularAllocator::create(
    std::shared_ptr<RDMAAllocator> allocator, const CircularAllocatorOptions& options) {
  absl::StatusOr<std::unique_ptr<CircularAllocator>> ring =
      CircularAllocator::create(std::move(allocator), options);
  if (!ring.ok()) return ring.status();
  return std::unique_ptr<LinearCircularAllocator>(new LinearCircularAllocator(*std::move(ring)));
}

LinearCircularAllocator::LinearCircularAllocator(std::unique_ptr<CircularAllocator> ring)
    : ring_(std::move(ring)), unit_bytes_(ring_->options().unit_bytes) {}

LinearCircularAllocator::~LinearCircularAllocator() {
  if (current_ != nullptr) {
    current_->next = oldest_;
    oldest_ = current_;
  }
  for (OpenUnit* open = oldest_; open != nullptr; open = open->next) {
    open->unit->clear_uses();  // the ring tracks the unit's segments instead
    for (Handles* handles = open->first; handles != nullptr; handles = handles->next) {
      for (uint32_t i = 0; i < handles->count; ++i) {
        if (!handles->memory[i].is_free()) {
          ring_->segments_in_flight_.push_back(std::move(handles->memory[i]));
        }
      }
    }
  }
}

RDMAMemory* LinearCircularAllocator::allocate_slowly(size_t bytes, size_t alignment) {
  if (bytes > unit_bytes_) return nullptr;
  // The segment does not fit into the unit, or the unit's last block of handles is full.
  const auto fits = [&] {
    const size_t start = (used_ + alignment - 1) & ~(alignment - 1);
    return start <= unit_bytes_ && bytes <= unit_bytes_ - start;
  };
  if (current_ == nullptr || !fits()) {
    if (!open_next_unit()) return nullptr;
  } else if (current_->last->count == Handles::kCapacity) {
    current_->last = current_->last->next = take_handles();
  }
  return allocate(bytes, alignment);
}

bool LinearCircularAllocator::open_next_unit() {
  if (current_ != nullptr) {
    (newest_ == nullptr ? oldest_ : newest_->next) = current_;
    newest_ = std::exchange(current_, nullptr);
  }
  recycle();
  RDMAMemory* const unit = ring_->allocate();
  if (unit == nullptr) return false;
  unit->set_last_use(&kInUse, 0);
  OpenUnit* const open = take_open_unit();
  *open = {unit, take_handles(), nullptr, 0, nullptr};
  open->last = open->first;
  current_ = open;
  buffer_ = unit->get_buffer();
  range_ = unit->range();
  used_ = 0;
  return true;
}

void LinearCircularAllocator::recycle() {
  // Units are opened in the order of the ring, so the ring's next unit, if it is open, is the
  // oldest open one. Only that unit is checked: an untransferred segment counts as free, so
  // checking other units early could recycle a segment that is still to be transferred.
  OpenUnit* const open = oldest_;
  if (open == nullptr || open->unit != &ring_->last_->next->memory || !is_free(*open)) return;
  oldest_ = open->next;
  if (oldest_ == nullptr) newest_ = nullptr;
  open->unit->clear_uses();
  open->first->next = spare_handles_;
  spare_handles_ = open->first;
  open->next = spare_units_;
  spare_units_ = open;
}

// Returns true if all segments of the unit are free. Each call continues at the first handle that
// the call before found in use, so that each free handle is checked once. Frees the blocks of
// handles that are all free, except the last one.
bool LinearCircularAllocator::is_free(OpenUnit& open) {
  while (true) {
    Handles* const handles = open.first;
    for (; open.free_before < handles->count; ++open.free_before) {
      if (!handles->memory[open.free_before].is_free()) return false;
    }
    if (handles->next == nullptr) return true;
    open.first = handles->next;
    open.free_before = 0;
    handles->next = spare_handles_;
    spare_handles_ = handles;
  }
}

LinearCircularAllocator::Handles* LinearCircularAllocator::take_handles() {
  if (spare_handles_ == nullptr) {
    all_handles_.push_back(std::make_unique<Handles>());
    return all_handles_.back().get();
  }
  Handles* const handles = spare_handles_;
  spare_handles_ = handles->next;
  handles->next = nullptr;
  handles->count = 0;
  return handles;
}

LinearCircularAllocator::OpenUnit* LinearCircularAllocator::take_open_unit() {
  if (spare_units_ == nullptr) {
    all_open_units_.push_back(std::make_unique<OpenUnit>());
    return all_open_units_.back().get();
  }
  return std::exchange(spare_units_, spare_units_->next);
}

}  // namespace cariama
