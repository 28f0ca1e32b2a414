#include "dtutils/memory.h"

namespace cariama {
namespace {

// 64 bits: at one registration per nanosecond the counter wraps after 584 years.
uint64_t next_range_serial() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

RegisteredRange::RegisteredRange(std::vector<Registration> registrations)
    : registrations_(std::move(registrations)), serial_(next_range_serial()) {}

bool RDMAMemory::add_use(const FlushCell* cell, uint64_t tag) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < use_count_; ++i) {
    const Use& use = uses_[i];
    // A later use by the same queue pair covers the earlier one, because the operations of a queue
    // pair complete in order.
    if (use.cell == cell || use.tag < use.cell->flushed.load(std::memory_order_acquire)) continue;
    uses_[kept++] = use;
  }
  use_count_ = kept;
  if (kept == kMaxUses) return false;
  uses_[use_count_++] = {cell, tag};
  return true;
}

}  // namespace cariama
