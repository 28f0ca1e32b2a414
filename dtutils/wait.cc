#include "dtutils/wait.h"

#include <algorithm>

#include "dtutils/internal/futex.h"
#include "dtutils/internal/yield.h"

namespace cariama {
namespace {

// Spinning covers an answer of the other core within one or a few cache-line round trips (about 0.1
// µs). Yielding lets the awaited process run when there are more processes than cores. After that
// the wait is long, so sleeping costs less than polling takes from other threads.
constexpr std::chrono::nanoseconds kSpinTime{3000};
constexpr uint64_t kMostSpinRounds = 256;
constexpr uint64_t kYieldRounds = 512;

// Returns the number of pauses that take kSpinTime. A pause takes about 10 ns on one processor and
// 70 ns on another. A limit in time is needed because a spinning thread can keep the thread that it
// has just woken from its core.
uint64_t count_spin_rounds() {
  constexpr int kPauses = 16;
  auto least = std::chrono::nanoseconds::max();
  for (int i = 0; i < 3; ++i) {  // three measurements, since one may be interrupted
    const auto start = std::chrono::steady_clock::now();
    for (int pause = 0; pause < kPauses; ++pause) internal::cpu_relax();
    least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - start);
  }
  const auto rounds = kSpinTime * kPauses / std::max(least, std::chrono::nanoseconds(1));
  return std::min(static_cast<uint64_t>(rounds), kMostSpinRounds);
}

class DefaultWaitHook final : public WaitHook {
 public:
  bool pause(uint64_t round) override {
    static const uint64_t spin_rounds = count_spin_rounds();
    if (round < spin_rounds) {
      internal::cpu_relax();
      return false;
    }
    // A wait with a Sleeper then sleeps until its event.
    if (round == spin_rounds && internal::yields_are_long()) return true;
    internal::yield_core();
    return round >= spin_rounds + kYieldRounds || internal::yields_are_long();
  }
};

DefaultWaitHook default_hook;
thread_local WaitHook* current_hook = &default_hook;

}  // namespace

WaitHook& this_thread_wait_hook() { return *current_hook; }

ScopedWaitHook::ScopedWaitHook(WaitHook& hook) : previous_(current_hook) { current_hook = &hook; }
ScopedWaitHook::~ScopedWaitHook() { current_hook = previous_; }

}  // namespace cariama
