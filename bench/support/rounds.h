// Measurements in rounds by the threads of several processes. One thread, the leader, starts each
// round; all threads begin it together. The leader gets each thread's start and end times, counts
// and preemptions.
#ifndef CARIAMA_BENCH_SUPPORT_ROUNDS_H_
#define CARIAMA_BENCH_SUPPORT_ROUNDS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"

namespace cariama::bench {

// A round. The program defines the meaning of the numbers, except kEnd.
struct Round {
  static constexpr uint32_t kEnd = UINT32_MAX;
  uint32_t what = kEnd;
  uint64_t messages = 0;
};

struct RoundResult {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint64_t count = 0;
  uint64_t sum = 0;
  uint64_t preemptions = 0;
  uint64_t out_of_order = 0;
  // Counters of the worker's process in the round; only worker 0 of a process sets them.
  uint64_t operations = 0;  // posted transfers and messages
  uint64_t bytes = 0;       // their payload
  uint64_t receives = 0;    // polled receive completions

  // Sets the counters to the differences of two readings.
  void set_counts(const RoundResult& before, const RoundResult& after) {
    operations = after.operations - before.operations;
    bytes = after.bytes - before.bytes;
    receives = after.receives - before.receives;
  }
};

// Returns the counters of this process since its start.
[[nodiscard]] RoundResult process_counts(const Fabric& fabric);

// Lies in memory that the processes share. Created before the fork. Blocking functions poll; the
// others are wait-free.
class Rounds {
 public:
  // Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<Rounds*> create(uint32_t workers);

  // Called by the leader (worker 0): starts a round.
  void start(const Round& round);
  // Called by the leader: blocks until all workers have finished the round, and returns their
  // results. Calls poll() while it waits.
  template <typename Poll>
  std::vector<RoundResult> results(Poll&& poll) {
    for (uint32_t i = 0; i < count_; ++i) {
      wait([&] { return workers_[i].finished.load(std::memory_order_acquire) >= number(); }, poll);
    }
    std::vector<RoundResult> all;
    for (uint32_t i = 0; i < count_; ++i) all.push_back(workers_[i].result);
    return all;
  }

  // Called by a worker: blocks until the round after the first `taken` rounds starts, and returns
  // it. Calls poll() while it waits.
  template <typename Poll>
  Round next(uint64_t taken, Poll&& poll) {
    wait([&] { return number_.load(std::memory_order_acquire) > taken; }, poll);
    return round_;
  }
  // Barrier: blocks until all workers have called it in this round, and returns the time.
  int64_t meet();
  void finish(uint32_t worker, const RoundResult& result);

 private:
  struct alignas(128) Worker {
    RoundResult result;
    std::atomic<uint64_t> finished{0};
  };
  explicit Rounds(uint32_t workers, Worker* all) : count_(workers), workers_(all) {}
  [[nodiscard]] uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  static void sleep_a_little(uint64_t waited);
  template <typename Condition, typename Poll>
  static void wait(Condition&& condition, Poll&& poll) {
    for (uint64_t waited = 0; !condition(); ++waited) {
      poll();
      sleep_a_little(waited);
    }
  }

  const uint32_t count_;
  Worker* const workers_;
  Round round_;
  alignas(128) std::atomic<uint64_t> number_{0};
  alignas(128) std::atomic<uint64_t> met_{0};
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_ROUNDS_H_
