#include "dtutils/allocators/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/system_info.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;

TEST(MemoryBudget, ReservesUpToItsLimitAndReleases) {
  MemoryBudget budget(100);
  EXPECT_TRUE(budget.reserve(60).ok());
  EXPECT_TRUE(budget.reserve(40).ok());
  EXPECT_FALSE(budget.reserve(1).ok());
  EXPECT_TRUE(budget.reserve(0).ok());
  budget.release(60);
  EXPECT_EQ(budget.used(), 40u);
  EXPECT_EQ(budget.high_water(), 100u);
  EXPECT_TRUE(budget.reserve(60).ok());
}

TEST(MemoryBudget, RefusalNamesBudgetUseAndRemedy) {
  MemoryBudget budget(uint64_t{4} << 20, "budget of the test", "ask the tester");
  ASSERT_TRUE(budget.reserve(uint64_t{3} << 20).ok());
  const absl::Status status = budget.reserve(uint64_t{2} << 20);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error_scope(status), ErrorScope::kProcess);
  EXPECT_EQ(std::string(status.message()),
            "the budget of the test is 4 MiB, 3 MiB are in use, 2 MiB more are needed: "
            "ask the tester");
  EXPECT_EQ(budget.used(), uint64_t{3} << 20) << "a refusal takes nothing";
}

TEST(MemoryBudget, KeepsSpareBytesFree) {
  MemoryBudget budget(100);
  EXPECT_FALSE(budget.reserve(76, 25).ok());
  EXPECT_TRUE(budget.reserve(75, 25).ok());
  const absl::Status status = budget.reserve(1, 25);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("25 B are kept free"));
  EXPECT_TRUE(budget.reserve(25).ok());
  budget.release(100);
  EXPECT_FALSE(budget.reserve(0, 101).ok());
  EXPECT_FALSE(budget.reserve(100, UINT64_MAX).ok());
}

TEST(MemoryBudget, HugeRequestsDoNotWrapAround) {
  MemoryBudget budget(kUnlimited - 1);
  ASSERT_TRUE(budget.reserve(10).ok());
  EXPECT_FALSE(budget.reserve(kUnlimited - 5).ok());
}

TEST(MemoryBudget, LimitBelowUseRefusesMoreAndFreesNothing) {
  MemoryBudget budget(100);
  ASSERT_TRUE(budget.reserve(80).ok());
  budget.set_limit(50);
  EXPECT_FALSE(budget.reserve(1).ok());
  EXPECT_EQ(budget.used(), 80u);
  budget.set_limit(81);
  EXPECT_TRUE(budget.reserve(1).ok());
}

TEST(MemoryBudget, ThreadsNeverExceedItTogether) {
  MemoryBudget budget(1000);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> reserved{0};
  std::atomic<uint64_t> most{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 20000; ++step) {
        if (!budget.reserve(300).ok()) continue;
        const uint64_t now = reserved.fetch_add(300) + 300;
        uint64_t old = most.load();
        while (old < now && !most.compare_exchange_weak(old, now)) {
        }
        reserved.fetch_sub(300);
        budget.release(300);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(most.load(), 1000u);
  EXPECT_LE(budget.high_water(), 1000u);
  EXPECT_GE(budget.high_water(), most.load());
}

// The environment variable is read once per process, so each case runs in its own process.
void exit_with_process_limit(const char* value) {
  if (value == nullptr) {
    unsetenv("CARIAMA_MEMORY_BUDGET");
  } else {
    setenv("CARIAMA_MEMORY_BUDGET", value, 1);
  }
  std::fprintf(stderr, "limit=%llu.",
               static_cast<unsigned long long>(MemoryBudget::process().limit()));
  std::_Exit(0);
}

TEST(MemoryBudgetDeathTest, ProcessLimitComesFromTheEnvironment) {
  EXPECT_EXIT(exit_with_process_limit("4MiB"), ::testing::ExitedWithCode(0), "limit=4194304\\.");
  EXPECT_EXIT(exit_with_process_limit("lots"), ::testing::ExitedWithCode(0),
              "CARIAMA_MEMORY_BUDGET=lots is not a size, ignored: write it like 4GiB");
  EXPECT_EXIT(exit_with_process_limit(nullptr), ::testing::ExitedWithCode(0),
              "limit=" + std::to_string(usable_memory() / 2) + "\\.");
}

TEST(MemoryBudget, ProcessErrorNamesTheVariable) {
  const uint64_t limit = MemoryBudget::process().limit();
  MemoryBudget::process().set_limit(0);
  const absl::Status status = MemoryBudget::process().reserve(1);
  MemoryBudget::process().set_limit(limit);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CARIAMA_MEMORY_BUDGET"));
}

}  // namespace
}  // namespace cariama
