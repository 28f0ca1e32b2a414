// Results that own memory (strings, vectors, unique_ptr), several outstanding at a time, in runs
// whose tasks change their process.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tasks/parallel.h"
#include "tasks/runtime.h"
#include "tasks/task.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::poll_until;
using testing::Shared;
using testing::with_workers;

struct OwnedFlags {
  std::atomic<pid_t> parent{0};
  std::atomic<pid_t> first{0};    // the process that maps index 0
  std::atomic<int> elsewhere{0};  // another process has mapped an index
};

// The caller continues in another process: its child ends only after a thief has taken it.
void move_to_another_process(OwnedFlags* flags) {
  const pid_t before = getpid();
  flags->parent = 0;
  task<void> child = spawn([flags, before] {
    EXPECT_TRUE(poll_until([flags] { return flags->parent != 0; })) << "no steal happened";
    EXPECT_NE(flags->parent, before);
  });
  flags->parent = getpid();
  join(std::move(child));
}

// Runs with this number of workers.
class OwnedResults : public ::testing::TestWithParam<int> {
 protected:
  const Shared<OwnedFlags> flags_;
};
INSTANTIATE_TEST_SUITE_P(Workers, OwnedResults, ::testing::Values(2, 3));

// Has three outstanding results of its own while its caller has others. Returns the sum of the
// lengths.
size_t inner_lengths(OwnedFlags* flags, size_t length) {
  task<std::string> text = spawn_tied([length] { return std::string(length, 'i'); });
  task<std::vector<long>> numbers = spawn_tied([length] { return std::vector<long>(length, 4); });
  task<std::unique_ptr<size_t>> number =
      spawn_tied([length] { return std::make_unique<size_t>(length); });
  move_to_another_process(flags);
  const auto [a, b, c] = join_all(std::move(text), std::move(numbers), std::move(number));
  EXPECT_EQ(a, std::string(length, 'i'));
  EXPECT_EQ(b, std::vector<long>(length, 4));
  return a.size() + b.size() + *c;
}

TEST_P(OwnedResults, OfNestedFunctionsFollowTheTask) {
  with_workers(GetParam(), {}, [f = flags_.get()](TaskRuntime& runtime) {
    const auto sum = runtime.run([f] {
      size_t lengths = 0;
      for (size_t round = 1; round <= 5; ++round) {
        task<std::string> text = spawn_tied([round] { return std::string(1000 * round, 'o'); });
        task<std::vector<int>> numbers = spawn_tied([] { return std::vector<int>{1, 2, 3}; });
        task<std::unique_ptr<long>> dropped = spawn_tied([] { return std::make_unique<long>(7); });
        move_to_another_process(f);
        lengths += inner_lengths(f, 100 * round);
        move_to_another_process(f);
        const auto [a, b] = join_all(std::move(text), std::move(numbers));
        EXPECT_EQ(a, std::string(1000 * round, 'o'));
        EXPECT_EQ(b, (std::vector<int>{1, 2, 3}));
        lengths += a.size() + b.size();
      }
      return lengths;
    });
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(*sum, size_t{(1000 + 3 * 100) * (1 + 2 + 3 + 4 + 5) + 5 * 3});
  });
}

// The first indices wait until another process maps an index, so the reduction is split over
// processes, which return vectors.
TEST_P(OwnedResults, OfAReductionOverProcesses) {
  with_workers(GetParam(), {}, [f = flags_.get()](TaskRuntime& runtime) {
    const auto all = runtime.run([f] {
      f->first = getpid();
      return parallel_reduce(
          0, 1000, [] { return std::vector<int>(); },
          [f](int i) {
            if (i == 0) {
              EXPECT_EQ(f->first, getpid());
              EXPECT_TRUE(poll_until([f] { return f->elsewhere != 0; })) << "no steal happened";
            } else if (f->first != getpid()) {
              f->elsewhere = 1;
            }
            return std::vector<int>{i};
          },
          [](std::vector<int> left, const std::vector<int>& right) {
            left.insert(left.end(), right.begin(), right.end());
            return left;
          },
          10);
    });
    ASSERT_TRUE(all.ok()) << all.status();
    std::vector<int> expected(1000);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(*all, expected);
  });
  EXPECT_EQ(flags_->elsewhere, 1);
}

// A tree whose tasks have up to three outstanding children that return memory. The sum of its
// leaves does not depend on the processes that compute them.
uint64_t sum_of(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}
template <bool kParallel>
uint64_t owned_tree(uint64_t seed, int depth) {
  if (depth == 0) {
    if constexpr (kParallel) poll();
    return seed * 0x9E3779B97F4A7C15 >> 40;
  }
  if constexpr (kParallel) {
    task<std::string> a =
        spawn([=] { return std::to_string(owned_tree<true>(seed * 3, depth - 1)); });
    task<std::vector<uint64_t>> b = spawn([=] {
      return std::vector<uint64_t>{owned_tree<true>(seed * 3 + 1, depth - 1), seed};
    });
    task<std::unique_ptr<uint64_t>> c = spawn(
        [=] { return std::make_unique<uint64_t>(owned_tree<true>(seed * 3 + 2, depth - 1)); });
    poll();
    const auto [text, values, value] = join_all(std::move(a), std::move(b), std::move(c));
    return std::stoull(text) + sum_of(values) + *value;
  } else {
    uint64_t sum = seed;
    for (uint64_t i = 0; i < 3; ++i) sum += owned_tree<false>(seed * 3 + i, depth - 1);
    return sum;
  }
}

TEST_P(OwnedResults, OfTreesOfTasks) {
  with_workers(GetParam(), {}, [](TaskRuntime& runtime) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const auto sum = runtime.run([seed] { return owned_tree<true>(seed, 6); });
      ASSERT_TRUE(sum.ok()) << sum.status();
      EXPECT_EQ(*sum, owned_tree<false>(seed, 6)) << "seed " << seed;
    }
  });
}

}  // namespace
}  // namespace cariama
