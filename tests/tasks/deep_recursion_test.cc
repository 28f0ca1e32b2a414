// A million nested tasks in a stack of 512 MiB. Prints the stack bytes of each level.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>

#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::with_workers;

[[gnu::noinline]] long deep(long levels) {
  if (levels == 0) return 0;
  task<long> below = spawn([levels] { return deep(levels - 1); });
  return join(std::move(below)) + 1;
}

// Sanitizers make frames several times as large.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long kLevels = 1000;  // ThreadSanitizer has room for 65 536 calls
#else
constexpr long kLevels = 1'000'000;
#endif

TEST(DeepRecursion, AMillionLevelsInHalfAGiB) {
  for (const int workers : {1, 2}) {
    with_workers(workers, {.stack_bytes = size_t{512} << 20}, [&](TaskRuntime& runtime) {
      const auto levels = runtime.run([] { return deep(kLevels); });
      ASSERT_TRUE(levels.ok()) << levels.status();
      EXPECT_EQ(*levels, kLevels);
      if (runtime.rank() == 0) {
        const double each = static_cast<double>(runtime.statistics().stack_high_water) / kLevels;
        std::printf("%.0f bytes a level\n", each);
      }
    });
  }
}

}  // namespace
}  // namespace cariama
