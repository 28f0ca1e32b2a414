// The state of one range in a registration cache.
#ifndef CARIAMA_DTUTILS_INTERNAL_REGISTRATION_ENTRY_H_
#define CARIAMA_DTUTILS_INTERNAL_REGISTRATION_ENTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "dtutils/internal/mapping_monitor.h"
#include "dtutils/memory.h"
#include "dtutils/registration/policy.h"

namespace cariama::internal {

struct RegistrationEntry {
  // The word of an entry: uses in progress, state, and the version, which differs for each range
  // that the entry is given to. An entry is registered, or busy (one thread registers or
  // deregisters it), or neither. An invalidated entry is not in the index; its last user
  // deregisters it. Memory that cannot be watched has an entry that is invalidated from the
  // beginning: it belongs to one use, since its pages may change while it is registered.
  static constexpr uint64_t kUses = 0xffffffff;
  static constexpr uint64_t kRegistered = uint64_t{1} << 32;
  static constexpr uint64_t kBusy = uint64_t{1} << 33;
  static constexpr uint64_t kInvalidated = uint64_t{1} << 34;
  static constexpr int kVersionShift = 35;
  [[nodiscard]] static constexpr uint64_t version_of(uint64_t word) {
    return word >> kVersionShift;
  }

  std::atomic<uint64_t> word{0};
  // Constant for one version. Atomic: try_begin_use() may read them while the entry is reused.
  std::atomic<uintptr_t> start{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<uint64_t> hits{0};
  std::atomic<int64_t> last_use{0};
  // Guarded by the cache's lock. The last registration ahead of a use: its time, which is last_use
  // until the use comes, and the use.
  int64_t registered_ahead = INT64_MIN;
  ExpectedUse expected{};
  uint32_t index = 0;
  bool known = false;  // it is in the cache's index
  MappingMonitor::Watch watch;
  std::shared_ptr<MemoryRegion> region;  // written by the thread that made the entry busy

  [[nodiscard]] uint64_t version() const {
    return version_of(word.load(std::memory_order_relaxed));
  }
  [[nodiscard]] bool is_registered() const {
    return (word.load(std::memory_order_acquire) & kRegistered) != 0;
  }
  [[nodiscard]] uint64_t bytes() const {
    return end.load(std::memory_order_relaxed) - start.load(std::memory_order_relaxed);
  }
  // Returns true if the memory is registered ahead of a use that is still expected at `now`, and
  // not later than `other`.
  [[nodiscard]] bool is_expected_before(const ExpectedUse& other, int64_t now) const {
    return last_use.load(std::memory_order_relaxed) == registered_ahead && now < expected.latest &&
           expected.earliest <= other.earliest;
  }
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_REGISTRATION_ENTRY_H_
