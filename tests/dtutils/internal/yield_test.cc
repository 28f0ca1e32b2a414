#include "dtutils/internal/yield.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using std::chrono::steady_clock;

// Lets the threads that are created by this one run on one core, while it exists.
class OnOneCore {
 public:
  OnOneCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_;
};

// Calls yield_core() until yields_are_long() is `expected`, for at most 20 s.
bool yields_become(bool expected) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (yields_are_long() != expected && steady_clock::now() < deadline) yield_core();
  return yields_are_long() == expected;
}

TEST(Yield, SleepsWhileAnotherThreadComputesOnTheCore) {
  const OnOneCore pinned;
  std::atomic<bool> computes{true};
  std::atomic<uint64_t> rounds{0};
  std::thread other([&] {
    while (computes.load(std::memory_order_relaxed)) rounds.fetch_add(1, std::memory_order_relaxed);
  });
  EXPECT_TRUE(yields_become(true));
  // The sleeps leave the core to the other thread.
  const uint64_t before = rounds.load();
  for (int i = 0; i < 100; ++i) yield_core();
  EXPECT_GT(rounds.load(), before);
  computes = false;
  other.join();
  EXPECT_TRUE(yields_become(false));
}

}  // namespace
}  // namespace cariama::internal
