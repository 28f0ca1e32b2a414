// fib, UTS and n queens on oneTBB task groups, with as many tasks as the programs of
// task_programs.h, for bench_tasks --peer tbb. Available if Debian's libtbb-dev is installed.
#ifndef CARIAMA_BENCH_SUPPORT_TBB_PROGRAMS_H_
#define CARIAMA_BENCH_SUPPORT_TBB_PROGRAMS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "bench/support/uts_tree.h"

namespace cariama::bench {

[[nodiscard]] bool tbb_is_there();
// Runs `work` with at most `threads` threads of oneTBB, including the calling thread.
void on_tbb(int threads, const std::function<void()>& work);
// Must be called within on_tbb().
[[nodiscard]] uint64_t tbb_fib(long n);
[[nodiscard]] UtsCount tbb_uts(const UtsOptions& options);
[[nodiscard]] uint64_t tbb_queens(int n);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TBB_PROGRAMS_H_
