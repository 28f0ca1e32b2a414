// A lock for the few instructions around a driver call, which takes a spin lock itself.
#ifndef CARIAMA_DTUTILS_VERBS_SPIN_LOCK_H_
#define CARIAMA_DTUTILS_VERBS_SPIN_LOCK_H_

#include <atomic>

#include "dtutils/internal/yield.h"

namespace cariama::verbs {

// Meets the requirements of std::lock_guard. Yields after some spins, since the holder may have
// been preempted.
class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
        if (spins >= kSpinsBeforeYield) internal::yield_core();
      }
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  // About a microsecond: longer than a holder that is not preempted keeps the lock.
  static constexpr int kSpinsBeforeYield = 500;

  std::atomic<bool> locked_{false};
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_SPIN_LOCK_H_
