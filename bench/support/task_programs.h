// The programs of the task papers, each with and without tasks: fib, binary task creation, UTS and
// n queens. The versions without tasks make the same calls.
#ifndef CARIAMA_BENCH_SUPPORT_TASK_PROGRAMS_H_
#define CARIAMA_BENCH_SUPPORT_TASK_PROGRAMS_H_

#include <cstdint>

#include "bench/support/uts_tree.h"

namespace cariama::bench {

// How a loop over children forks: by halves, as in the uni-address paper, or one fork per child.
enum class TaskLoop : uint8_t { kHalves, kPerChild };

[[nodiscard]] long fib_plain(long n);
[[nodiscard]] long fib_tasks(long n);
// Return fib(n), and the number of spawns of fib_tasks(n).
[[nodiscard]] uint64_t fib_value(int n);
[[nodiscard]] uint64_t fib_spawns(int n);

// Each task forks two children and joins them, `iter` times. Returns the number of tasks.
[[nodiscard]] uint64_t btc_plain(int depth, int iter);
[[nodiscard]] uint64_t btc_tasks(int depth, int iter);
[[nodiscard]] uint64_t btc_value(int depth, int iter);

// Sets the tree of uts_tasks(). Must be called in every worker before tasks run.
void set_uts_tree(const UtsOptions& options);
[[nodiscard]] const UtsOptions& uts_tree();
[[nodiscard]] UtsCount uts_tasks(TaskLoop loop);

// Return the number of solutions for n <= 20. queens_tasks forks one task per placement.
[[nodiscard]] uint64_t queens_plain(int n);
[[nodiscard]] uint64_t queens_tasks(int n, TaskLoop loop);
[[nodiscard]] uint64_t queens_value(int n);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TASK_PROGRAMS_H_
