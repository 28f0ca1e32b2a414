#include "dtutils/registration/helper_board.h"

#include <algorithm>

namespace cariama {

void HelperBoard::post(uint32_t helper, uint64_t bytes, int64_t until) {
  if (helper >= kMaxHelpers) return;
  posts_[helper].bytes.store(bytes, std::memory_order_relaxed);
  posts_[helper].until.store(until, std::memory_order_relaxed);
  uint32_t used = used_.load(std::memory_order_relaxed);
  while (used <= helper &&
         !used_.compare_exchange_weak(used, helper + 1, std::memory_order_relaxed)) {
  }
}

void HelperBoard::leave(uint32_t helper) {
  if (helper < kMaxHelpers) posts_[helper].until.store(0, std::memory_order_relaxed);
}

bool HelperBoard::may_run(uint32_t helper, uint32_t idle_cores, int64_t now) const {
  if (helper >= kMaxHelpers || posts_[helper].until.load(std::memory_order_relaxed) <= now) {
    return false;
  }
  const uint64_t mine = posts_[helper].bytes.load(std::memory_order_relaxed);
  // Another process may have written any number.
  const uint32_t used = std::min(used_.load(std::memory_order_relaxed), kMaxHelpers);
  uint32_t larger = 0;
  for (uint32_t other = 0; other < used; ++other) {
    if (posts_[other].until.load(std::memory_order_relaxed) <= now) continue;
    const uint64_t bytes = posts_[other].bytes.load(std::memory_order_relaxed);
    if (bytes > mine || (bytes == mine && other < helper)) ++larger;
  }
  return larger < idle_cores;
}

}  // namespace cariama
