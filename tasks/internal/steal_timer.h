// Worker::StealTimer: measures the times of the steps of a steal (steal_sample.h).
#ifndef CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_
#define CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_

#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tasks/internal/worker.h"

namespace cariama::tasks {

// Measures the times of the steps if StealSampling::steals asks for more samples.
class Worker::StealTimer {
 public:
  explicit StealTimer(Worker& worker)
      : worker_(worker), sampled_(worker.samples_.size() < worker.sampling_.steals) {
    if (sampled_) faults_ = page_faults();
    mark(0);
  }
  // Records the time at which step number `step` of the steal ended. mark(0) is the beginning.
  void mark(size_t step) {
    if (sampled_) [[unlikely]]
      times_[step] = steal_clock();
  }
  // Stores the sample of a successful steal, which ends now, in the worker.
  void sample(uint64_t bytes, uint64_t trips) {
    mark(4);
    if (!sampled_) return;
    const auto step = [&](size_t i) { return static_cast<uint32_t>(times_[i] - times_[i - 1]); };
    worker_.samples_.push_back({step(1), step(2), step(3), step(4), static_cast<uint32_t>(bytes),
                                static_cast<uint32_t>(trips),
                                static_cast<uint32_t>(page_faults() - faults_), times_[4]});
  }

 private:
  [[nodiscard]] uint64_t page_faults() const {
    rusage usage{};
    if (worker_.sampling_.faults) getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_minflt);
  }

  Worker& worker_;
  const bool sampled_;
  std::array<uint64_t, 5> times_{};
  uint64_t faults_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STEAL_TIMER_H_
