// Where the time of a steal goes: what bench_tasks steal prints.
#ifndef CARIAMA_TASKS_STEAL_SAMPLE_H_
#define CARIAMA_TASKS_STEAL_SAMPLE_H_

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cariama {

// Ticks of steal_clock() in each step (the paper's Figure 10 and Table 3), of a thief.
struct StealSample {
  uint32_t look = 0;    // reading shelf and entries: the paper's empty check and "steal"
  uint32_t claim = 0;   // the compare-and-swap: its lock
  uint32_t copy = 0;    // its stack transfer
  uint32_t finish = 0;  // what nobody waits for: its unlock
  uint32_t bytes = 0;   // of frames
  uint32_t trips = 0;   // dependent round trips
  uint32_t faults = 0;  // page faults meanwhile (TaskOptions::sample_faults)
  uint64_t at = 0;      // when all that was done: what follows until the task runs is its "resume"
};

// The processor's time stamp counter on x86-64, nanoseconds elsewhere.
inline uint64_t steal_clock() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_STEAL_SAMPLE_H_
