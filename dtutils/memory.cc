#include "dtutils/memory.h"

namespace cariama {

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
