// Loops without a grain on two workers: they are split while they run, when a thief requests work.
#include <unistd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/cancellation.h"
#include "tasks/exceptions.h"
#include "tasks/parallel.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::Shared;
using testing::spin_until;
using testing::with_workers;

struct LoopFlags {
  std::atomic<int> parent_pid{0};
  std::atomic<bool> other_ran{false};  // a worker other than the first has run an index
};

class Loops : public ::testing::TestWithParam<DequeKind> {};
INSTANTIATE_TEST_SUITE_P(Deques, Loops, ::testing::Values(DequeKind::kSplit, DequeKind::kThe),
                         [](const auto& info) {
                           return info.param == DequeKind::kSplit ? "split" : "the";
                         });

// The loop is split while it runs: it ends only when both workers have run an index of it.
TEST_P(Loops, AreSplitForAnIdleWorker) {
  TaskOptions options;
  options.deque = GetParam();
  const Shared<LoopFlags> flags;
  with_workers(2, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run([f = flags.get()] {
      const CancellationSource both_ran;
      f->parent_pid = getpid();
      const auto body = [f, token = both_ran.token()](long) {
        if (getpid() != f->parent_pid) token.cancel();
        token.check();
      };
      EXPECT_THROW(parallel_for(both_ran.token(), 0L, std::numeric_limits<long>::max(), body),
                   task_cancelled);
    });
    EXPECT_TRUE(result.ok()) << result;
  });
}

std::string digits_of(int count) {
  std::string digits;
  for (int i = 0; i < count; ++i) digits += static_cast<char>('0' + i % 10);
  return digits;
}

// Reductions whose partial results are bytes, and whose partial results own memory, lose no index
// and keep the order.
TEST_P(Loops, ReduceInOrder) {
  TaskOptions options;
  options.deque = GetParam();
  const Shared<LoopFlags> flags;
  with_workers(2, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run([f = flags.get()] {
      f->parent_pid = getpid();
      const auto note_other = [f] {
        if (getpid() != f->parent_pid) f->other_ran = true;
      };
      // Each reduction is repeated until both workers have run indices of it.
      const auto reduce_numbers = [=] {
        return parallel_reduce(
            0, 1000, 0L,
            [=](int i) {
              note_other();
              return long{i};
            },
            std::plus<>());
      };
      EXPECT_TRUE(spin_until([=] {
        EXPECT_EQ(reduce_numbers(), 499500);
        return f->other_ran.load();
      }));
      f->other_ran = false;
      const auto reduce_texts = [=] {
        const std::string digits = parallel_reduce(
            0, 1000, [] { return std::string(); },
            [=](int i) {
              note_other();
              return std::to_string(i % 10);
            },
            std::plus<>());
        return digits == digits_of(1000);
      };
      EXPECT_TRUE(spin_until([=] {
        EXPECT_TRUE(reduce_texts());
        return f->other_ran.load();
      }));
      // The exception of a part reaches the caller, the results of the other parts are dropped.
      EXPECT_THROW(parallel_reduce(
                       0, 1000, [] { return std::string(); },
                       [](int i) {
                         if (i == 999) throw std::out_of_range("the last index");
                         return std::to_string(i);
                       },
                       std::plus<>()),
                   std::out_of_range);
    });
    EXPECT_TRUE(result.ok()) << result;
  });
}

}  // namespace
}  // namespace cariama
