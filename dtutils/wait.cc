#include "dtutils/wait.h"

#include <sched.h>

#include "dtutils/internal/futex.h"

namespace cariama {
namespace {

// Spinning covers what the other core answers within a cache-line round trip (about 0.1 µs) or a
// few; yielding lets the process that we wait for run when there are more of them than cores; after
// that the wait is long, and sleeping costs less than it disturbs.
constexpr uint64_t kSpinRounds = 256;
constexpr uint64_t kYieldRounds = 512;

class DefaultWaitHook final : public WaitHook {
 public:
  bool pause(uint64_t round) override {
    if (round < kSpinRounds) {
      internal::cpu_relax();
      return false;
    }
    sched_yield();
    return round >= kSpinRounds + kYieldRounds;
  }
};

DefaultWaitHook default_hook;
thread_local WaitHook* current_hook = &default_hook;

}  // namespace

void WakeWord::sleep(uint32_t ticket, Deadline deadline) {
  internal::futex_wait(&sequence_, ticket, deadline);
  retract();
}

void WakeWord::wake_sleepers() {
  // The sequence changes first: a sleeper that has not reached the kernel yet will not go to sleep.
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  internal::futex_wake(&sequence_);
}

WaitHook& this_thread_wait_hook() { return *current_hook; }

ScopedWaitHook::ScopedWaitHook(WaitHook& hook) : previous_(current_hook) { current_hook = &hook; }
ScopedWaitHook::~ScopedWaitHook() { current_hook = previous_; }

}  // namespace cariama
