// Task pools on every transport that connects processes, also with the fault decorator, which
// delays and tears; with both ways of termination detection, with device atomics and served ones,
// and with batches. Results are compared with plain recursion.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/tasks/pool/pool_test_support.h"

namespace cariama::testing {
namespace {

struct PoolVariant {
  const char* name;
  PoolTermination termination;
  uint32_t steal;
  RemoteAtomics atomics;
};
void PrintTo(const PoolVariant& variant, std::ostream* out) { *out << variant.name; }

constexpr PoolVariant kPoolVariants[] = {
    {"detector", PoolTermination::kDetector, 1, RemoteAtomics::kDevice},
    {"scan", PoolTermination::kStatusScan, 1, RemoteAtomics::kDevice},
    {"half", PoolTermination::kDetector, kStealHalf, RemoteAtomics::kDevice},
    {"served", PoolTermination::kDetector, 3, RemoteAtomics::kServed},
};

class PoolContract : public ::testing::TestWithParam<std::tuple<TransportCase, PoolVariant>> {
 protected:
  void SetUp() override {
    const std::string reason = reason_to_skip(std::get<0>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  static void on_workers(int workers, const std::function<void(TaskPool&)>& body) {
    const TransportCase& transport = std::get<0>(GetParam());
    const PoolVariant& variant = std::get<1>(GetParam());
    run_test_processes(workers, [&](Exchange& exchange) {
      FabricOptions fabric_options;
      fabric_options.device = must(open_case(transport, static_cast<uint64_t>(exchange.rank())));
      auto fabric = must(fabric_of_group(exchange, fabric_options));
      auto thread = must(fabric->init_thread(0));
      PoolOptions options;
      options.cells = 1024;  // few, because some devices pin all of them
      options.steal = variant.steal;
      options.termination = variant.termination;
      options.atomics = variant.atomics;
      {
        auto pool = must(TaskPool::create(*fabric, options));
        body(*pool);
      }
      thread.reset();
      must(fabric->finalize(soon()));
    });
  }
};

std::string name_of_case(const ::testing::TestParamInfo<PoolContract::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(On, PoolContract,
                         ::testing::Combine(::testing::ValuesIn(every_process_transport()),
                                            ::testing::ValuesIn(kPoolVariants)),
                         name_of_case);

uint64_t mixed_word(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15;
  x ^= x >> 29;
  return x;
}

// The arguments and the result fill a cell, so that all their words are checked.
using Words = std::array<uint64_t, 10>;
struct Subtree {
  Words words;
  int depth;
};

uint64_t value_of(const Words& words) {
  uint64_t sum = 0;
  for (const uint64_t word : words) sum = mixed_word(sum + word);
  return sum;
}
Subtree child_of(const Subtree& parent, uint64_t index) {
  Subtree child{{}, parent.depth - 1};
  for (size_t i = 0; i < child.words.size(); ++i) {
    child.words[i] = mixed_word(parent.words[i] + index * 7 + i);
  }
  return child;
}
Words plain_tree(const Subtree& tree) {
  Words sum = tree.words;
  const uint64_t value = value_of(tree.words);
  if (tree.depth == 0) return sum;
  for (uint64_t i = 0; i < 1 + value % 4; ++i) {
    const Words child = plain_tree(child_of(tree, i));
    for (size_t word = 0; word < sum.size(); ++word) {
      sum[word] += value_of(child) % 7 == 0 ? 1 : child[word];
    }
  }
  return sum;
}

Words pool_tree(const Subtree& tree);
// Throws if the tree's value is a multiple of 7.
Words pool_tree_or_throw(const Subtree& tree) {
  const Words sum = pool_tree(tree);
  if (value_of(sum) % 7 == 0) throw std::range_error("seven");
  return sum;
}
Words pool_tree(const Subtree& tree) {
  Words sum = tree.words;
  const uint64_t value = value_of(tree.words);
  if (tree.depth == 0) return sum;
  pool::Children<pool_tree_or_throw> children;
  for (uint64_t i = 0; i < 1 + value % 4; ++i) children.spawn(child_of(tree, i));
  while (!children.empty()) {
    Words child;
    child.fill(1);
    try {
      child = children.sync();
    } catch (const std::range_error&) {
    }
    for (size_t word = 0; word < sum.size(); ++word) sum[word] += child[word];
  }
  return sum;
}

TEST_P(PoolContract, TreesHaveTheirSums) {
  on_workers(3, [](TaskPool& pool) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Subtree tree{{}, 6};
      for (size_t i = 0; i < tree.words.size(); ++i) tree.words[i] = mixed_word(seed * 100 + i);
      const auto sum = pool.run<pool_tree>(tree);
      ASSERT_TRUE(sum.ok()) << sum.status();
      EXPECT_EQ(*sum, plain_tree(tree)) << "seed " << seed;
    }
  });
}

std::atomic<int>* both_run = nullptr;

// Each of two tasks waits for the other, so they run in different workers.
int meets(int rank_of_call) {
  const int before = both_run->fetch_add(1);
  EXPECT_TRUE(communicate_until([&] { return both_run->load() >= before / 2 * 2 + 2; }));
  return rank_of_call;
}
int returns_one(int) { return 1; }
int meet_often(int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; ++i) {
    pool::Children<meets> stolen;
    pool::Children<returns_one> second;  // a victim keeps its last task
    stolen.spawn(1);
    second.spawn(0);
    sum += pool::call<meets>(1);
    sum += second.sync();
    sum += stolen.sync();
  }
  return sum;
}

TEST_P(PoolContract, TasksRunInOtherWorkers) {
  const Shared<std::atomic<int>> running;
  both_run = running.get();
  const Shared<std::atomic<uint64_t>> steals;
  on_workers(2, [&](TaskPool& pool) {
    const auto sum = pool.run<meet_often>(10);
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(*sum, 30);
    *steals += pool.statistics().steals;
  });
  EXPECT_GE(*steals, 10u);
}

TEST_P(PoolContract, ManyShortRuns) {
  on_workers(3, [](TaskPool& pool) {
    for (int run = 0; run < 20; ++run) {
      const auto fib = pool.run<pool_fib>(run % 12);
      ASSERT_TRUE(fib.ok()) << fib.status();
      constexpr std::array<long, 12> kFib{0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
      EXPECT_EQ(*fib, kFib[static_cast<size_t>(run % 12)]);
    }
  });
}

}  // namespace
}  // namespace cariama::testing
