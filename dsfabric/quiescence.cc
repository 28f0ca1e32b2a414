#include "dsfabric/quiescence.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "dsfabric/internal/control_traffic.h"
#include "dsfabric/internal/fabric_core.h"

namespace cariama {
namespace {

// Waves without a pause, then pauses that double.
constexpr uint64_t kEagerWaves = 8;
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{10'000};
// Where nobody sleeps and time is not what decides (no service threads): looks for calls instead.
constexpr uint64_t kLooks = 64;

// An attachment: the paths of other layers.
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

WorkCounters& counters_of(Fabric& fabric) {
  return fabric.core().attachments().get<WorkCounters>(fabric);
}

// A set of ranks as a number: sums of well mixed numbers (splitmix64).
uint64_t mixed(uint32_t rank) {
  uint64_t z = (uint64_t{rank} + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

struct Wave {
  uint64_t begun = 0;
  uint64_t over = 0;
  uint64_t least_dead = 0;  // of the sets of the dead, as numbers: if the two are equal, all are
  uint64_t most_dead = 0;
};

Wave count(Fabric& fabric) {
  internal::FabricCore& core = fabric.core();
  auto& control = core.attachments().get<internal::ControlTraffic>(fabric);
  std::vector<bool> dead(fabric.size());
  uint64_t dead_set = 0;
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    if (rank == fabric.rank() || fabric.peer_status(rank).ok()) continue;
    dead[rank] = true;
    dead_set += mixed(rank);
  }
  Wave wave{.least_dead = dead_set, .most_dead = dead_set};
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    if (dead[rank]) continue;
    // The order of these four reads: see ControlTraffic.
    const uint64_t control_begun = control.begun_to(rank);
    wave.begun += core.calls_begun(rank) - control_begun;
    const uint64_t calls_over = core.calls_over(rank);
    wave.over += calls_over - control.over_from(rank);
  }
  counters_of(fabric).for_each([&](const WorkCounter& counter) {
    for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
      if (dead[rank]) continue;
      wave.begun += counter.begun(rank);
      wave.over += counter.over(rank);
    }
  });
  return wave;
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
  Fabric& fabric = collectives_.fabric();
  const uint32_t self = collectives_.self();
  // A kThreads detector, and no worker: the wave below says so.
  const uint32_t index = self == kNoThread ? 0 : self % static_cast<uint32_t>(comparisons_.size());
  WaveComparison& comparison = comparisons_[index];
  std::chrono::microseconds pause = kFirstPause;
  for (uint64_t round = 1;; ++round) {
    Wave mine = count(fabric);
    // One member counts for all of the process.
    if (index != 0) mine.begun = mine.over = 0;
    const auto sum = collectives_.all_reduce(
        mine,
        [](const Wave& a, const Wave& b) {
          return Wave{a.begun + b.begun, a.over + b.over, std::min(a.least_dead, b.least_dead),
                      std::max(a.most_dead, b.most_dead)};
        },
        deadline);
    if (!sum.ok()) {
      // The wave is not over: what was compared stays, as it does in the others.
      if (!absl::IsDeadlineExceeded(sum.status())) comparison.reset();
      return sum.status();
    }
    uint64_t left_out = 0;
    for (const uint32_t rank : collectives_.left_out()) left_out += mixed(rank);
    if (sum->least_dead != left_out || sum->most_dead != left_out) {
      comparison.reset();
    } else if (comparison.ended(sum->begun, sum->over, left_out)) {
      comparison.reset();
      return absl::OkStatus();
    }
    if (round < kEagerWaves) continue;
    uint64_t looks = 0;
    const bool counted = fabric.options().service_threads == 0;
    static_cast<void>(fabric.wait([&] { return counted && ++looks == kLooks; },
                                  std::min(deadline, deadline_after(pause))));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace cariama
