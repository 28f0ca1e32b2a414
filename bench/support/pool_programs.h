// The programs of task_programs.h on task pools, with equal tasks and equal results.
#ifndef CARIAMA_BENCH_SUPPORT_POOL_PROGRAMS_H_
#define CARIAMA_BENCH_SUPPORT_POOL_PROGRAMS_H_

#include "absl/status/statusor.h"
#include "bench/support/task_programs.h"
#include "bench/support/uts_tree.h"
#include "tasks/pool.h"

namespace cariama::bench {

// Collective: run the program on the pool. uts_pool() searches the tree of set_uts_tree().
[[nodiscard]] absl::StatusOr<uint64_t> fib_pool(TaskPool& pool, int n);
[[nodiscard]] absl::StatusOr<uint64_t> btc_pool(TaskPool& pool, int depth, int iter);
[[nodiscard]] absl::StatusOr<UtsCount> uts_pool(TaskPool& pool, TaskLoop loop);
[[nodiscard]] absl::StatusOr<uint64_t> queens_pool(TaskPool& pool, int n, TaskLoop loop);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_POOL_PROGRAMS_H_
