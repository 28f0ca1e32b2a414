// Every deque, join policy, stack scheme and kind of atomics, on every transport that connects
// processes, also with the fault decorator, which delays and tears. Checks that started tasks move
// to another process and back, and that trees of tasks that wait, throw and return strings have the
// same sums as a plain recursion.
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tasks/parallel.h"
#include "tasks/runtime.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/tasks/task_test_support.h"

namespace cariama::testing {
namespace {

struct Variant {
  const char* name;
  DequeKind deque;
  RemoteAtomics atomics;
  JoinPolicy join;
  StackScheme scheme = StackScheme::kUni;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

constexpr Variant kVariants[] = {
    {"split", DequeKind::kSplit, RemoteAtomics::kDevice, JoinPolicy::kGreedy},
    {"the", DequeKind::kThe, RemoteAtomics::kDevice, JoinPolicy::kWaitQueue},
    {"private", DequeKind::kPrivate, RemoteAtomics::kDevice, JoinPolicy::kGreedy},
    {"split_served", DequeKind::kSplit, RemoteAtomics::kServed, JoinPolicy::kGreedy},
    {"the_served", DequeKind::kThe, RemoteAtomics::kServed, JoinPolicy::kWaitQueue},
    {"private_served", DequeKind::kPrivate, RemoteAtomics::kServed, JoinPolicy::kWaitQueue},
    {"crude", DequeKind::kSplit, RemoteAtomics::kDevice, JoinPolicy::kGreedy, StackScheme::kCrude},
    {"crude_served", DequeKind::kSplit, RemoteAtomics::kServed, JoinPolicy::kWaitQueue,
     StackScheme::kCrude},
    {"iso", DequeKind::kSplit, RemoteAtomics::kDevice, JoinPolicy::kGreedy, StackScheme::kIso},
    {"iso_served", DequeKind::kSplit, RemoteAtomics::kServed, JoinPolicy::kWaitQueue,
     StackScheme::kIso},
};

class TaskContract : public ::testing::TestWithParam<std::tuple<TransportCase, Variant>> {
 protected:
  void SetUp() override {
    const std::string reason = reason_to_skip(std::get<0>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] static const Variant& variant() { return std::get<1>(GetParam()); }

  static void with_workers(int workers, const std::function<void(TaskRuntime&)>& body) {
    TaskOptions options;
    options.stack_bytes = size_t{4} << 20;  // small, because some devices pin all of it
    options.deque = variant().deque;
    options.atomics = variant().atomics;
    options.join = variant().join;
    options.scheme = variant().scheme;
    run_test_processes(workers, [&](Exchange& exchange) {
      auto runtime = TaskRuntime::create(
          exchange, options,
          must(open_case(std::get<0>(GetParam()), static_cast<uint64_t>(exchange.rank()))));
      ASSERT_TRUE(runtime.ok()) << runtime.status();
      body(**runtime);
    });
  }
};

std::string name_of(const ::testing::TestParamInfo<TaskContract::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(On, TaskContract,
                         ::testing::Combine(::testing::ValuesIn(every_process_transport()),
                                            ::testing::ValuesIn(kVariants)),
                         name_of);

struct Flags {
  std::atomic<pid_t> parent{0};
  std::atomic<uint64_t> steals{0};
};

// Forks a child that ends only after its parent has continued in another process. Returns 1 + the
// length of the child's result, 200.
int moved(Flags* flags, int round) {
  int local[100];
  for (int i = 0; i < 100; ++i) local[i] = i * round;
  int* const inside = &local[50];
  const pid_t before = getpid();
  flags->parent = 0;
  task<std::string> child = spawn([flags, before] {
    EXPECT_TRUE(poll_until([=] { return flags->parent != 0; })) << "the parent was not stolen";
    EXPECT_NE(flags->parent, before);
    return std::string(200, 'x');
  });
  EXPECT_EQ(*inside, 50 * round);
  flags->parent = getpid();
  size_t length = 0;
  {
    const std::string text = join(std::move(child));
    length = text.size();
  }
  EXPECT_EQ(*inside, 50 * round);
  return 1 + static_cast<int>(length);
}

TEST_P(TaskContract, StartedTasksMove) {
  constexpr int kRounds = 10;
  const Shared<Flags> flags;
  with_workers(2, [f = flags.get()](TaskRuntime& runtime) {
    const auto result = runtime.run([f] {
      int sum = 0;
      for (int round = 0; round < kRounds; ++round) sum += moved(f, round);
      return sum;
    });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result, kRounds * 201);
    const TaskStatistics statistics = runtime.statistics();
    f->steals += statistics.steals;
    const uint64_t trips = round_trips_of(variant().deque) * statistics.steals;
    if (std::get<0>(GetParam()).fault) {
      EXPECT_GE(statistics.steal_trips, trips) << "with short queues some writes wait for room";
    } else if (variant().scheme == StackScheme::kCrude) {
      EXPECT_GE(statistics.steal_trips, trips);
      EXPECT_LE(statistics.steal_trips, trips + 20) << "20 more for the keys of new segments";
    } else {
      EXPECT_EQ(statistics.steal_trips, trips);
    }
  });
  EXPECT_GE(flags->steals, uint64_t{kRounds});
}

TEST_P(TaskContract, VectorsAreReduced) {
  with_workers(2, [](TaskRuntime& runtime) {
    const auto all = runtime.run([] {
      return parallel_reduce(
          0, 2000, [] { return std::vector<int>(); }, [](int i) { return std::vector<int>{i}; },
          [](std::vector<int> left, const std::vector<int>& right) {
            left.insert(left.end(), right.begin(), right.end());
            return left;
          },
          10);
    });
    ASSERT_TRUE(all.ok()) << all.status();
    std::vector<int> expected(2000);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(*all, expected);
  });
}

uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15;
  x ^= x >> 29;
  return x;
}

uint64_t plain_tree(uint64_t seed, int depth) {
  uint64_t sum = mix(seed);
  if (depth == 0) return sum;
  const uint64_t children = 1 + sum % 4;
  for (uint64_t i = 0; i < children; ++i) {
    const uint64_t child = plain_tree(seed * 5 + i, depth - 1);
    sum += child % 7 == 0 ? 1 : child;
  }
  return sum;
}

uint64_t task_tree(uint64_t seed, int depth) {
  uint64_t sum = mix(seed);
  if (depth == 0) return sum;
  const uint64_t children = 1 + sum % 4;
  if (sum % 5 == 0) yield();
  for (uint64_t i = 0; i < children; ++i) {
    task<std::string> child = spawn([=] {
      const uint64_t value = task_tree(seed * 5 + i, depth - 1);
      if (value % 7 == 0) throw std::range_error("seven");
      return std::to_string(value);
    });
    poll();
    uint64_t value = 1;
    try {
      value = std::stoull(join(std::move(child)));
    } catch (const std::range_error&) {
    }
    sum += value;
  }
  return sum;
}

TEST_P(TaskContract, TreesHaveTheirSums) {
  with_workers(3, [](TaskRuntime& runtime) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const auto result = runtime.run([seed] { return task_tree(seed, 5); });
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(*result, plain_tree(seed, 5)) << "seed " << seed;
    }
  });
}

}  // namespace
}  // namespace cariama::testing
