// How long an idle worker pauses between two attempts to find work. In the first rounds it spins,
// then it yields its core, then it sleeps for increasing times.
#ifndef CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_
#define CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "dtutils/internal/yield.h"

namespace cariama::tasks {

inline constexpr uint64_t kSpinRounds = 64;    // spins in rounds below this one
inline constexpr int kSpinPauses = 16;         // pause instructions of a round that spins
inline constexpr uint64_t kYieldRounds = 128;  // yields its core in rounds below this one
// From this round on, a worker that its peers can wake sleeps until it is woken.
inline constexpr uint64_t kWakeableSleepRounds = 192;

// Returns the length of the sleep in `round` >= kYieldRounds, in nanoseconds. `most` is
// TaskOptions::idle_sleep in nanoseconds.
[[nodiscard]] constexpr uint64_t idle_sleep_ns(uint64_t round, uint64_t most) {
  return std::min(most, uint64_t{1000} << std::min<uint64_t>(round / 16, 20));
}

// A pause instruction of the processor, for loops that poll memory.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Pauses as an idle worker does between two attempts. `most` is TaskOptions::idle_sleep in
// nanoseconds; 0: never sleeps.
inline void idle_pause(uint64_t round, uint64_t most) {
  if (round < kSpinRounds) {
    for (int i = 0; i < kSpinPauses; ++i) cpu_relax();
    return;
  }
  if (round < kYieldRounds) {
    internal::yield_core();
    return;
  }
  // nanosleep() of 0 ns sleeps too: for the timer slack of the thread, by default 50 us.
  const uint64_t sleep = idle_sleep_ns(round, most);
  if (sleep == 0) {
    sched_yield();
    return;
  }
  constexpr uint64_t kSecond = 1'000'000'000;
  const timespec time{static_cast<time_t>(sleep / kSecond), static_cast<long>(sleep % kSecond)};
  nanosleep(&time, nullptr);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_
