// Worker::StealTimer: counts a steal and measures the times of its steps (steal_sample.h).
#ifndef CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_
#define CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_

#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tasks/internal/scheduler.h"

namespace cariama::tasks {

// Counts a successful steal in the worker's statistics, and measures the times of its steps if
// TaskOptions::steal_samples asks for more samples.
class Worker::StealTimer {
 public:
  explicit StealTimer(Worker& worker)
      : worker_(worker),
        trips_(worker.access_.round_trips()),
        sampled_(worker.samples_.size() < worker.options_.steal_samples) {
    if (sampled_) faults_ = page_faults();
    mark(0);
  }
  // Records the time at which step number `step` of the steal ended. mark(0) is the beginning.
  void mark(size_t step) {
    if (sampled_) [[unlikely]]
      times_[step] = steal_clock();
  }
  // Returns the number of dependent round trips since the beginning of the steal.
  [[nodiscard]] uint64_t trips() const { return worker_.access_.round_trips() - trips_; }
  // Counts a successful steal. Requires: mark(4) was called.
  void succeeded(uint64_t bytes, uint64_t trips) {
    ++worker_.statistics_.steals;
    worker_.statistics_.stolen_bytes += bytes;
    worker_.statistics_.steal_trips += trips;
    if (!sampled_) return;
    const auto step = [&](size_t i) { return static_cast<uint32_t>(times_[i] - times_[i - 1]); };
    worker_.samples_.push_back({step(1), step(2), step(3), step(4), static_cast<uint32_t>(bytes),
                                static_cast<uint32_t>(trips),
                                static_cast<uint32_t>(page_faults() - faults_), times_[4]});
  }

 private:
  [[nodiscard]] uint64_t page_faults() const {
    rusage usage{};
    if (worker_.options_.sample_faults) getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_minflt);
  }

  Worker& worker_;
  const uint64_t trips_;
  const bool sampled_;
  std::array<uint64_t, 5> times_{};
  uint64_t faults_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_
