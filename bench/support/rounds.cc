#include "bench/support/rounds.h"

#include <sys/mman.h>

#include <chrono>
#include <new>
#include <thread>

#include "bench/support/job.h"
#include "dtutils/error.h"
#include "dtutils/statistics.h"

namespace cariama::bench {

absl::StatusOr<Rounds*> Rounds::create(uint32_t workers) {
  void* const memory = mmap(nullptr, sizeof(Rounds) + workers * sizeof(Worker) + alignof(Rounds),
                            PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "no memory that processes share");
  }
  static_assert(sizeof(Rounds) % alignof(Worker) == 0);
  auto* const all = reinterpret_cast<Worker*>(static_cast<std::byte*>(memory) + sizeof(Rounds));
  for (uint32_t i = 0; i < workers; ++i) new (all + i) Worker;
  return new (memory) Rounds(workers, all);
}

void Rounds::start(const Round& round) {
  round_ = round;
  number_.fetch_add(1, std::memory_order_release);
}

int64_t Rounds::meet() {
  // All workers call this equally often, so that mine / count_ is the number of earlier barriers.
  const uint64_t mine = met_.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t all = (mine / count_ + 1) * count_;
  for (uint64_t looks = 0; met_.load(std::memory_order_acquire) < all; ++looks) {
    if (looks > 1000) std::this_thread::yield();
  }
  return now_ns();
}

void Rounds::finish(uint32_t worker, const RoundResult& result) {
  workers_[worker].result = result;
  workers_[worker].finished.fetch_add(1, std::memory_order_release);
}

void Rounds::sleep_a_little(uint64_t waited) {
  if (waited < 1000) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

RoundResult process_counts(const Fabric& fabric) {
  RoundResult counts;
  counts.receives = fabric.statistics().receives;
  for (const Statistic& one : statistics_snapshot()) {
    if (one.kind != "transmit_queue") continue;
    if (one.name == "operations") counts.operations += one.value;
    if (one.name == "bytes") counts.bytes += one.value;
  }
  return counts;
}

}  // namespace cariama::bench
