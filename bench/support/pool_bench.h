// Measures a program on task pools, beside the measurements of bench_tasks on uni-address tasks.
#ifndef CARIAMA_BENCH_SUPPORT_POOL_BENCH_H_
#define CARIAMA_BENCH_SUPPORT_POOL_BENCH_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/support/report.h"
#include "bench/support/task_workers.h"
#include "bench/support/uts_tree.h"
#include "tasks/pool.h"

namespace cariama::bench {

// The names of the distances of victims (VictimLevel) in rows.
inline constexpr const char* kLevelNames[kVictimLevels] = {"core_complex", "numa_node", "host",
                                                           "network"};

// Runs a program on a pool. Every process of the pool calls it.
using PoolRun = std::function<absl::StatusOr<UtsCount>(TaskPool& pool)>;

class PoolBench {
 public:
  // Keeps a reference to `workers`. `matrix` is the side of the matrices in global memory, or 0.
  PoolBench(TaskWorkers& workers, const PoolOptions& options, PoolRun run, size_t matrix)
      : workers_(workers), options_(options), run_(std::move(run)), matrix_(matrix) {}

  // Runs one repetition: with one worker, unless all_only; then with `workers` workers, if that is
  // more than one. Ends the program if a result is not `expected`.
  void measure(int workers, bool all_only, const UtsCount& expected);

  // The measurements without pools, in seconds by repetition, with which the pool is compared.
  struct Beside {
    std::string name;  // "fib"
    std::string per;   // "fib_per_spawn"
    double work;
    std::vector<double> plain;
    std::vector<double> uni_one;
    std::vector<double> uni_all;
  };
  void report(const Report& report, const Params& params, const Beside& beside) const;
  void print_statistics() const;

 private:
  [[nodiscard]] double run_on(int workers, const UtsCount& expected);

  TaskWorkers& workers_;
  const PoolOptions options_;
  const PoolRun run_;
  const size_t matrix_;
  std::vector<double> one_;
  std::vector<double> all_;
  PoolStatistics last_;  // of the last measurement, summed over the workers
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_POOL_BENCH_H_
