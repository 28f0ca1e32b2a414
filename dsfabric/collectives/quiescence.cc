#include "dsfabric/quiescence.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "absl/strings/str_replace.h"
#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/work_counts.h"
#include "dtutils/error.h"
#include "dtutils/trace.h"

namespace cariama {
namespace {

// The number of waves without a pause; afterwards the pauses double.
constexpr uint64_t kEagerWaves = 8;
constexpr std::chrono::microseconds kFirstWavePause{100};
constexpr std::chrono::microseconds kLongestWavePause{10'000};
// The number of polls for calls between waves if there are no service threads: then the wait does
// not sleep, and elapsed time says nothing about progress.
constexpr uint64_t kPollsPerWave = 64;

// An attachment: the registered work counters of other layers.
class WorkCounters {
 public:
  explicit WorkCounters(Fabric&) {}

  void add(const WorkCounter* counter) {
    const std::lock_guard lock(mutex_);
    counters_.push_back(counter);
  }
  void remove(const WorkCounter* counter) {
    const std::lock_guard lock(mutex_);
    std::erase(counters_, counter);
  }
  template <typename Function>
  void for_each(Function&& function) {
    const std::lock_guard lock(mutex_);
    for (const WorkCounter* counter : counters_) function(*counter);
  }

 private:
  std::mutex mutex_;
  std::vector<const WorkCounter*> counters_;
};

WorkCounters& counters_of(Fabric& fabric) { return internal::attachment_of<WorkCounters>(fabric); }

struct Wave {
  uint64_t begun = 0;
  uint64_t ended = 0;
  // minimum and maximum of the participants' failed sets, as numbers; equal if all sets are equal
  uint64_t least_dead = 0;
  uint64_t most_dead = 0;
};

Wave count(Fabric& fabric) {
  const internal::CallCounts& counts = internal::counts_of(fabric);
  const internal::CallSources& sources = internal::sources_of(fabric);
  const auto& control = internal::attachment_of<internal::ControlTraffic>(fabric);
  std::vector<uint32_t> dead;  // ascending
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    if (rank != fabric.rank() && !fabric.peer_status(rank).ok()) dead.push_back(rank);
  }
  const auto for_each_living = [&](const auto& function) {
    for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
      if (!std::binary_search(dead.begin(), dead.end(), rank)) function(rank);
    }
  };
  internal::WorkCounts sum;
  for_each_living([&](uint32_t rank) { sum.add_calls(rank, counts, sources, &control); });
  counters_of(fabric).for_each([&](const WorkCounter& counter) {
    for_each_living([&](uint32_t rank) {
      sum.begun += counter.begun(rank);
      sum.ended += counter.ended(rank);
    });
  });
  const uint64_t dead_set = internal::number_of(dead);
  return {sum.begun, sum.ended, dead_set, dead_set};
}

// The errors of the all_reduce name a function that the user has not called.
absl::Status with_own_name(const absl::Status& status) {
  return make_error(
      status.code(), error_scope(status),
      absl::StrReplaceAll(status.message(), {{"all_reduce", "TerminationDetector::wait"}}));
}

absl::Status work_left_error() {
  return make_error(
      absl::StatusCode::kDeadlineExceeded, ErrorScope::kProcess,
      "TerminationDetector::wait: calls or tasks of the job have not ended in time",
      "flush every aggregator before wait(), let every thread run its calls, and call "
      "wait() again to continue");
}

}  // namespace

WorkRegistration::WorkRegistration(Fabric& fabric, const WorkCounter& counter)
    : fabric_(fabric), counter_(counter) {
  counters_of(fabric).add(&counter);
}
WorkRegistration::~WorkRegistration() { counters_of(fabric_).remove(&counter_); }

TerminationDetector::TerminationDetector(Fabric& fabric, const CollectiveOptions& options)
    : collectives_(fabric, options),
      comparisons_(options.participants == Participants::kThreads ? fabric.threads() : 1) {}

absl::Status TerminationDetector::wait(Deadline deadline) {
  const TraceScope trace("dsfabric", "quiescence");
  Fabric& fabric = collectives_.fabric();
  const uint32_t self = collectives_.self();
  // If the caller is not a worker of a kThreads detector, the all_reduce below returns the error.
  const uint32_t index = self == kNoThread ? 0 : self % static_cast<uint32_t>(comparisons_.size());
  WaveComparison& comparison = comparisons_[index];
  std::chrono::microseconds pause = kFirstWavePause;
  bool work_left = false;  // when the last wave ended
  for (uint64_t round = 1;; ++round) {
    Wave mine = count(fabric);
    // One member reads the counts of the whole process; the other members contribute zeros.
    if (index != 0) mine.begun = mine.ended = 0;
    const auto sum = collectives_.all_reduce(
        mine,
        [](const Wave& a, const Wave& b) {
          return Wave{a.begun + b.begun, a.ended + b.ended, std::min(a.least_dead, b.least_dead),
                      std::max(a.most_dead, b.most_dead)};
        },
        deadline);
    if (!sum.ok()) {
      // After DEADLINE_EXCEEDED the wave is still in progress: keep the comparison, as the other
      // participants do.
      if (!absl::IsDeadlineExceeded(sum.status())) comparison.reset();
      if (absl::IsDeadlineExceeded(sum.status()) && work_left) return work_left_error();
      return with_own_name(sum.status());
    }
    work_left = sum->begun != sum->ended;
    const uint64_t left_out = internal::number_of(collectives_.left_out());
    if (sum->least_dead != left_out || sum->most_dead != left_out) {
      comparison.reset();
    } else if (comparison.ended(sum->begun, sum->ended, left_out)) {
      comparison.reset();
      return absl::OkStatus();
    }
    if (round < kEagerWaves) continue;
    uint64_t looks = 0;
    const bool counted = fabric.options().service_threads == 0;
    static_cast<void>(fabric.wait([&] { return counted && ++looks == kPollsPerWave; },
                                  std::min(deadline, deadline_after(pause))));
    pause = std::min(2 * pause, kLongestWavePause);
  }
}

}  // namespace cariama
