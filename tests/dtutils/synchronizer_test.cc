#include "dtutils/synchronizer.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

absl::Status broken(const char* text) { return absl::UnavailableError(text); }

TEST(Synchronizer, CountsDown) {
  Synchronizer done(3);
  EXPECT_FALSE(done.done());
  done.decrease();
  EXPECT_EQ(done.operations_left(), 2U);
  done.add(2);
  done.decrease(3);
  EXPECT_EQ(done.operations_left(), 1U);
  done.decrease();
  EXPECT_TRUE(done.done());
  EXPECT_TRUE(done.wait_without_polling(kForever).ok());
  done.spin_nonzero_operations_left();
}

TEST(Synchronizer, ZeroOperationsAreDone) {
  Synchronizer done(0);
  EXPECT_TRUE(done.done());
  EXPECT_TRUE(done.wait_without_polling(deadline_after(milliseconds(0))).ok());
}

TEST(Synchronizer, CountsUpToMaxOperations) {
  Synchronizer done(Synchronizer::kMaxOperations);
  EXPECT_EQ(done.operations_left(), Synchronizer::kMaxOperations);
  done.decrease(Synchronizer::kMaxOperations - 1);
  EXPECT_EQ(done.operations_left(), 1U);
  done.decrease();
  EXPECT_TRUE(done.done());
  EXPECT_TRUE(done.status().ok());
}

TEST(Synchronizer, TooManyDecreasesStopAtZeroAndKeepTheStatus) {
  Synchronizer done(1);
  done.decrease(5);
  EXPECT_TRUE(done.done());
  done.decrease();
  EXPECT_EQ(done.operations_left(), 0U);
  EXPECT_TRUE(done.status().ok());
  done.reset(2);
  EXPECT_EQ(done.operations_left(), 2U);
}

TEST(Synchronizer, KeepsTheFirstFailure) {
  Synchronizer done(3);
  done.fail(broken("the first"));
  EXPECT_EQ(done.operations_left(), 2U);
  done.decrease();
  done.fail(broken("the second"));
  const absl::Status status = done.wait_without_polling(kForever);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the first"));
  done.reset();
  done.decrease();
  EXPECT_TRUE(done.wait_without_polling(kForever).ok());
}

TEST(Synchronizer, TheDeadlineEndsTheWaitNotTheOperations) {
  Synchronizer done(2);
  done.decrease();
  const absl::Status status = done.wait_without_polling(deadline_after(milliseconds(5)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 operation(s) not finished"));
  done.decrease();
  EXPECT_TRUE(done.wait_without_polling(kForever).ok());
}

// A wait hook that lets every wait sleep immediately.
class SleepAtOnce final : public WaitHook {
 public:
  bool pause(uint64_t) override { return true; }
};

TEST(Synchronizer, WakesEverySleeper) {
  constexpr int kRounds = 300;
  constexpr int kSleepers = 3;
  for (int round = 0; round < kRounds; ++round) {
    Synchronizer done(2);
    std::atomic<int> woken{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < kSleepers; ++i) {
      sleepers.emplace_back([&] {
        SleepAtOnce hook;
        const ScopedWaitHook installed(hook);
        // No deadline: a lost wake-up hangs the test until the watchdog ends it.
        if (done.wait_without_polling(kForever).ok()) ++woken;
      });
    }
    done.decrease();  // not the last operation: no sleeper may continue
    if (round % 3 == 0) std::this_thread::yield();
    EXPECT_EQ(woken, 0);
    done.decrease();
    for (std::thread& sleeper : sleepers) sleeper.join();
    ASSERT_EQ(woken, kSleepers);
  }
}

// Writes made before a decrease are visible after the wait. ThreadSanitizer checks the
// happens-before edges, the comparison checks the values.
TEST(Synchronizer, IsAHappensBeforeEdge) {
  constexpr int kRounds = 500;
  constexpr uint32_t kWorkers = 3;
  for (int round = 1; round <= kRounds; ++round) {
    Synchronizer done(kWorkers);
    int plain[kWorkers] = {};
    std::vector<std::thread> workers;
    for (uint32_t i = 0; i < kWorkers; ++i) {
      workers.emplace_back([&, i] {
        plain[i] = round;
        if (i == 0) {
          done.fail(broken("a failure with a text that does not fit into a short string"));
        } else {
          done.decrease();
        }
      });
    }
    const absl::Status status = done.wait_without_polling(kForever);
    for (const int value : plain) ASSERT_EQ(value, round);
    ASSERT_THAT(std::string(status.message()), HasSubstr("a failure with a text"));
    for (std::thread& worker : workers) worker.join();
  }
}

// The waiter frees the object as soon as its wait returns, while the last decrease() may still be
// executing. AddressSanitizer and ThreadSanitizer report any access to the object after that.
TEST(Synchronizer, MayBeDestroyedWhileTheLastDecreaseRuns) {
  constexpr int kRounds = 20'000;
  std::atomic<Synchronizer*> handed_over{nullptr};
  std::thread worker([&] {
    for (int round = 0; round < kRounds; ++round) {
      Synchronizer* done = nullptr;
      static_cast<void>(wait_until(
          [&] {
            done = handed_over.exchange(nullptr, std::memory_order_acquire);
            return done != nullptr;
          },
          kForever));
      if (round % 2 == 0) {
        done->decrease();
      } else {
        done->fail(broken("intended, and long enough to be allocated"));
      }
    }
  });
  SleepAtOnce sleepy;
  for (int round = 0; round < kRounds; ++round) {
    auto done = std::make_unique<Synchronizer>();
    handed_over.store(done.get(), std::memory_order_release);
    absl::Status status;
    if (round % 4 < 2) {
      status = done->wait_without_polling(kForever);
    } else {
      const ScopedWaitHook installed(sleepy);
      status = done->wait_without_polling(kForever);
    }
    ASSERT_EQ(status.ok(), round % 2 == 0);
  }
  worker.join();
}

}  // namespace
}  // namespace cariama
