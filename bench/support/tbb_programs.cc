#include "bench/support/tbb_programs.h"

#include <array>

#if defined(CARIAMA_BENCH_TBB)
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#endif

namespace cariama::bench {

#if defined(CARIAMA_BENCH_TBB)

bool tbb_is_there() { return true; }

void on_tbb(int threads, const std::function<void()>& work) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<size_t>(threads));
  tbb::task_arena(threads).execute(work);
}

uint64_t tbb_fib(long n) {
  if (n < 2) return static_cast<uint64_t>(n);
  uint64_t left = 0;
  tbb::task_group group;
  group.run([&] { left = tbb_fib(n - 1); });
  const uint64_t right = tbb_fib(n - 2);
  group.wait();
  return left + right;
}

namespace {

// Creates one task per child, except for the last child.
UtsCount tbb_uts_node(const UtsOptions& options, const UtsNode& node) {
  const int children = uts_children(options, node);
  UtsCount count{1, static_cast<uint64_t>(node.depth), children == 0 ? uint64_t{1} : 0};
  if (children == 0) return count;
  constexpr int kAtOnce = 16;
  for (int begin = 0; begin < children; begin += kAtOnce) {
    const int end = children < begin + kAtOnce ? children : begin + kAtOnce;
    std::array<UtsCount, kAtOnce> counts{};
    tbb::task_group group;
    for (int i = begin; i + 1 < end; ++i) {
      group.run([&options, &counts, child = uts_child(node, i), i, begin] {
        counts[static_cast<size_t>(i - begin)] = tbb_uts_node(options, child);
      });
    }
    count.add(tbb_uts_node(options, uts_child(node, end - 1)));
    group.wait();
    for (const UtsCount& each : counts) count.add(each);
  }
  return count;
}

struct TbbBoard {
  std::array<uint8_t, 20> column;
};
uint64_t tbb_place(int n, const TbbBoard& board, int row) {
  if (row == n) return 1;
  std::array<uint64_t, 20> counts{};
  tbb::task_group group;
  for (int column = 0; column < n; ++column) {
    bool legal = true;
    for (int i = 0; i < row && legal; ++i) {
      const int other = board.column[static_cast<size_t>(i)];
      legal = other != column && other - (row - i) != column && other + (row - i) != column;
    }
    if (!legal) continue;
    TbbBoard next = board;
    next.column[static_cast<size_t>(row)] = static_cast<uint8_t>(column);
    group.run([&counts, next, n, row, column] {
      counts[static_cast<size_t>(column)] = tbb_place(n, next, row + 1);
    });
  }
  group.wait();
  uint64_t sum = 0;
  for (const uint64_t each : counts) sum += each;
  return sum;
}

}  // namespace

UtsCount tbb_uts(const UtsOptions& options) { return tbb_uts_node(options, uts_root(options)); }
uint64_t tbb_queens(int n) { return tbb_place(n, TbbBoard{}, 0); }

#else

bool tbb_is_there() { return false; }
void on_tbb(int, const std::function<void()>&) {}
uint64_t tbb_fib(long) { return 0; }
UtsCount tbb_uts(const UtsOptions&) { return {}; }
uint64_t tbb_queens(int) { return 0; }

#endif

}  // namespace cariama::bench
