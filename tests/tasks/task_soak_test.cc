// Soak test of the task runtime: combines trees, futures, exceptions and reductions, with changing
// options. Runs for CARIAMA_SOAK_SECONDS: 2 s by default, 5 minutes as the soak test (ctest -C soak
// -L soak).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tasks/cancellation.h"
#include "tasks/parallel.h"
#include "tasks/suspend.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using std::chrono::steady_clock;
using testing::fib;
using testing::with_workers;

uint64_t scrambled_seed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return x ^ x >> 27;
}

// Runs a tree of tasks whose shape follows from the seed, with several kinds of waits. Returns the
// number of its nodes.
long tree(uint64_t seed, int depth) {
  const uint64_t children = depth == 0 ? 0 : 1 + seed % 3;
  if (seed % 11 == 0) yield();
  long count = 1;
  for (uint64_t i = 0; i < children; i += 2) {
    task<long> first = spawn([=] { return tree(scrambled_seed(seed + i), depth - 1); });
    // Joined immediately: a string must not stay in a local while the task can migrate.
    if (join(spawn([=] { return std::string(seed % 200, 'x'); })).size() != seed % 200) {
      return -1'000'000'000;
    }
    if (i + 1 < children) count += tree(scrambled_seed(seed + i + 1), depth - 1);
    count += join(std::move(first));
  }
  return count;
}
long plain_tree(uint64_t seed, int depth) {
  const uint64_t children = depth == 0 ? 0 : 1 + seed % 3;
  long count = 1;
  for (uint64_t i = 0; i < children; ++i) count += plain_tree(scrambled_seed(seed + i), depth - 1);
  return count;
}

// Passes a value through a chain of tasks, each of which waits for the next one.
long chain(long length) {
  const TaskPromise<long> promise;
  task<long> waiter = spawn([future = promise.future()] { return future.get() + 1; });
  task<void> setter = spawn([=] { promise.set(length == 0 ? 0 : chain(length - 1)); });
  join(std::move(setter));
  return join(std::move(waiter));
}

// One of 8 children throws. Returns 1 if the parent gets the exception with its text.
long failing(uint64_t seed) {
  long caught = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    task<long> child = spawn([=]() -> long {
      fib(8);
      if (i == seed % 8) throw std::runtime_error("child " + std::to_string(i));
      return 1;
    });
    try {
      join(std::move(child));
    } catch (const std::runtime_error& error) {
      caught += error.what() == "child " + std::to_string(i) ? 1 : 100;
    }
  }
  return caught;
}

TEST(TaskSoak, EverythingAtOnce) {
  const char* const asked = std::getenv("CARIAMA_SOAK_SECONDS");
  const auto seconds = std::chrono::seconds(asked == nullptr ? 2 : std::atoi(asked));
  const auto until = steady_clock::now() + seconds;
  uint64_t runs = 0;
  for (uint64_t round = 1; steady_clock::now() < until; ++round) {
    TaskOptions options;
    options.seed = round;
    options.join = round % 2 == 0 ? JoinPolicy::kGreedy : JoinPolicy::kWaitQueue;
    options.deque = round % 4 == 3 ? DequeKind::kThe : DequeKind::kSplit;
    options.victim_order = round % 3 == 0 ? VictimOrder::kRandom : VictimOrder::kByDistance;
    const int workers = 1 + static_cast<int>(round % 4);
    // Each round forks new processes. The inner loop reuses the memory of one runtime many times.
    with_workers(workers, options, [&](TaskRuntime& runtime) {
      for (uint64_t seed = 50 * round; seed < 50 * round + 10; ++seed) {
        const auto trees = runtime.run([seed] { return tree(seed, 10); });
        ASSERT_TRUE(trees.ok()) << trees.status();
        ASSERT_EQ(*trees, plain_tree(seed, 10)) << "round " << round;
        const auto links = runtime.run([] { return chain(30); });
        ASSERT_TRUE(links.ok()) << links.status();
        ASSERT_EQ(*links, 31) << "round " << round;
        const auto caught = runtime.run([seed] { return failing(seed); });
        ASSERT_TRUE(caught.ok()) << caught.status();
        ASSERT_EQ(*caught, 1) << "round " << round;
        const auto sum = runtime.run([] {
          return parallel_reduce(
              0L, 5000L, 0L, [](long i) { return i; }, std::plus<>(), 7L);
        });
        ASSERT_TRUE(sum.ok()) << sum.status();
        ASSERT_EQ(*sum, 4999L * 5000 / 2) << "round " << round;
      }
    });
    if (::testing::Test::HasFailure()) return;
    runs += 40;
  }
  EXPECT_GT(runs, 0u);
  std::printf("%llu runs\n", static_cast<unsigned long long>(runs));
}

}  // namespace
}  // namespace cariama
