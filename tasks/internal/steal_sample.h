// Measures the steps of the steals of this process's worker, for `bench_tasks steal`.
#ifndef CARIAMA_TASKS_INTERNAL_STEAL_SAMPLE_H_
#define CARIAMA_TASKS_INTERNAL_STEAL_SAMPLE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tasks/export.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cariama::tasks {

// Times of the steps of a steal at the thief, in ticks of steal_clock(). The names in quotes are
// those of Akiyama and Taura (HPDC'15, Figure 10 and Table 3).
struct StealSample {
  uint32_t look = 0;    // reading the public part and its entries: "empty check" and "steal"
  uint32_t claim = 0;   // the compare-and-swap: "lock"
  uint32_t copy = 0;    // reading the frames: "stack transfer"
  uint32_t finish = 0;  // posting operations that the thief does not wait for: "unlock"
  uint32_t bytes = 0;   // size of the frames
  uint32_t trips = 0;   // dependent round trips of the steal
  uint32_t faults = 0;  // page faults during the steal (StealSampling::faults)
  uint64_t at = 0;      // steal_clock() after these steps; from here until the task runs: "resume"
};

// Selects the steals that a worker measures.
struct StealSampling {
  size_t steals = 0;    // the first ones after each take_steal_samples()
  bool faults = false;  // counts their page faults too, with two system calls for each steal
};

// Requires, both: this process has a TaskRuntime, which is not in run().
// Sets which steals the worker measures from now on. Initially it measures none.
CARIAMA_TASKS_EXPORT void sample_steals(const StealSampling& sampling);
// Returns the samples of the worker's steals since the last call.
[[nodiscard]] CARIAMA_TASKS_EXPORT std::vector<StealSample> take_steal_samples();

// Returns the time stamp counter of the processor on x86-64, nanoseconds on other processors.
inline uint64_t steal_clock() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STEAL_SAMPLE_H_
