// The budgets of RegistrationCache: room for registrations and for known ranges.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/registration_entry.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama {

// Waits for a thread that deregisters or, if the memory is about to be used, for one that registers
// ahead: its registration can be evicted. Returns false if there is no such thread.
bool RegistrationCache::await_room(Lock& lock, const ExpectedUse* ahead) {
  if (unpinning_ == 0 && (ahead != nullptr || pinning_ahead_ == 0)) return false;
  changed_->wait(lock);
  return true;
}

// Returns what stays registered if all registrations that may be evicted end (`ahead`: see pin()).
RegistrationCache::Usage RegistrationCache::usage_without_idle(const ExpectedUse* ahead) const {
  const int64_t now = options_.clock();
  Usage usage{statistics_.registered_bytes, statistics_.registered_regions};
  for (const auto& [start, entry] : index_) {
    const uint64_t word = entry->word.load(std::memory_order_acquire);
    if ((word & (Entry::kRegistered | Entry::kUses)) != Entry::kRegistered) continue;
    if (ahead != nullptr && entry->is_expected_before(*ahead, now)) continue;
    usage.bytes -= entry->bytes();
    --usage.regions;
  }
  return usage;
}

// Makes room in the budgets. May release the lock.
absl::Status RegistrationCache::reserve(Lock& lock, uint64_t bytes, const ExpectedUse* ahead) {
  while (statistics_.registered_bytes + bytes > options_.max_bytes ||
         statistics_.registered_regions + 1 > options_.max_regions) {
    const bool evicts = options_.policy->evicts();
    const Usage usage = evicts
                            ? usage_without_idle(ahead)
                            : Usage{statistics_.registered_bytes, statistics_.registered_regions};
    // Evicts only if the freed bytes and regions suffice.
    const bool suffices =
        usage.bytes + bytes <= options_.max_bytes && usage.regions + 1 <= options_.max_regions;
    if (evicts && suffices) {
      // If another thread has begun to use all of it meanwhile, the next round sees that.
      static_cast<void>(evict_one(lock, ahead));
      continue;
    }
    if (await_room(lock, ahead)) continue;
    if (usage.bytes + bytes > options_.max_bytes) {
      return internal::explain_full_budget(
          {options_.max_bytes, usage.bytes, follows_memlock_, evicts}, bytes);
    }
    return internal::explain_full_regions(options_.max_regions, evicts);
  }
  return absl::OkStatus();
}

// Returns the known entry that was used least recently, of those whose word has the bits `bits` in
// `mask`, or nullptr. With `ahead`, leaves out those that are expected to be used before it.
RegistrationCache::Entry* RegistrationCache::least_recently_used(uint64_t mask, uint64_t bits,
                                                                 const ExpectedUse* ahead) const {
  Entry* oldest = nullptr;
  const int64_t now = ahead == nullptr ? 0 : options_.clock();
  for (const auto& [start, entry] : index_) {
    if ((entry->word.load(std::memory_order_acquire) & mask) != bits) continue;
    if (ahead != nullptr && entry->is_expected_before(*ahead, now)) continue;
    if (oldest == nullptr || entry->last_use.load(std::memory_order_relaxed) <
                                 oldest->last_use.load(std::memory_order_relaxed)) {
      oldest = entry;
    }
  }
  return oldest;
}

// Deregisters the idle region that was used least recently. Returns false if there is none. A
// registration ahead of a use does not end one that is ahead of an earlier use.
bool RegistrationCache::evict_one(Lock& lock, const ExpectedUse* ahead) {
  Entry* const oldest =
      least_recently_used(Entry::kRegistered | Entry::kUses, Entry::kRegistered, ahead);
  if (oldest == nullptr) return false;
  if (unpin(lock, *oldest, oldest->version())) ++statistics_.evictions;
  return true;  // if another thread has begun to use it, the caller looks again
}

// Forgets a range that is not registered, if too many are known.
void RegistrationCache::trim_known() {
  const size_t registered = std::min(index_.size(), statistics_.registered_regions);
  if (index_.size() - registered < options_.max_idle_ranges) return;
  static_cast<void>(forget_idle_range());
}

// Forgets the range that was used least recently, of those that are not registered. Returns false
// if there is none.
bool RegistrationCache::forget_idle_range() {
  Entry* const oldest = least_recently_used(Entry::kRegistered | Entry::kBusy, 0, nullptr);
  if (oldest == nullptr) return false;
  detach(*oldest);
  recycle(*oldest);
  return true;
}

}  // namespace cariama
