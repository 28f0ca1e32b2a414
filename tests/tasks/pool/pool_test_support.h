// Helpers for tests of task pools: pools on forked workers, and small programs with known results.
#ifndef CARIAMA_TESTS_TASKS_POOL_POOL_TEST_SUPPORT_H_
#define CARIAMA_TESTS_TASKS_POOL_POOL_TEST_SUPPORT_H_

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>

#include "dsfabric/fabric.h"
#include "dtutils/wait.h"
#include "tasks/pool.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/tasks/task_test_support.h"

namespace cariama::testing {

// Forks `workers` processes, creates a pool in each, and calls body(pool, fabric).
inline void with_pool(int workers, const PoolOptions& options,
                      const std::function<void(TaskPool&, Fabric&)>& body) {
  run_process_job(workers, {}, [&](Fabric& fabric) {
    auto pool = TaskPool::create(fabric, options);
    ASSERT_TRUE(pool.ok()) << pool.status();
    body(**pool, fabric);
  });
}

// Waits in a task until condition() is true; answers thieves meanwhile. Returns false after 30 s.
template <typename Condition>
[[nodiscard]] bool communicate_until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    pool::communicate();
    sched_yield();
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

inline long pool_fib(long n) {
  if (n < 2) return n;
  pool::Children<pool_fib> child;
  child.spawn(n - 1);
  const long right = pool::call<pool_fib>(n - 2);
  return child.sync() + right;
}

struct PoolBoard {
  std::array<uint8_t, 16> column;
};

// Returns the number of ways to complete the board from row `row` on.
inline uint64_t pool_queens(int n, PoolBoard board, int row) {
  if (row == n) return 1;
  pool::Children<pool_queens> children;
  for (int column = 0; column < n; ++column) {
    bool is_legal = true;
    for (int i = 0; i < row; ++i) {
      const int other = board.column[static_cast<size_t>(i)];
      is_legal =
          is_legal && other != column && other - (row - i) != column && other + (row - i) != column;
    }
    if (!is_legal) continue;
    board.column[static_cast<size_t>(row)] = static_cast<uint8_t>(column);
    children.spawn(n, board, row + 1);
  }
  uint64_t count = 0;
  while (!children.empty()) count += children.sync();
  return count;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_TASKS_POOL_POOL_TEST_SUPPORT_H_
