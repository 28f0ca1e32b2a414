// How long a worker that has found nothing pauses before it looks again: it spins, yields its core,
// then sleeps, each time longer.
#ifndef CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_
#define CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_

#include <algorithm>
#include <cstdint>

namespace cariama::tasks {

inline constexpr uint64_t kSpinRounds = 64;    // of kSpinPauses each
inline constexpr int kSpinPauses = 16;         // pause instructions
inline constexpr uint64_t kYieldRounds = 128;  // until then
inline constexpr uint64_t kDozeRounds = 192;   // from then on, where it can be woken

// Nanoseconds of the sleep in `round` >= kYieldRounds; `most`: TaskOptions::idle_sleep.
[[nodiscard]] constexpr uint64_t idle_sleep_ns(uint64_t round, uint64_t most) {
  return std::min(most, uint64_t{1000} << std::min<uint64_t>(round / 16, 20));
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_IDLE_POLICY_H_
