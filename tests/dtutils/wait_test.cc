#include "dtutils/wait.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A hook that lets the thread sleep from round `awake` on, and counts its pauses.
class CountingHook final : public WaitHook {
 public:
  explicit CountingHook(uint64_t awake = 0) : awake_(awake) {}
  bool pause(uint64_t round) override {
    EXPECT_EQ(round, expected_round_);
    ++expected_round_;
    ++pauses;
    return round >= awake_;
  }
  void begin() { expected_round_ = 0; }
  uint64_t pauses = 0;

 private:
  uint64_t awake_;
  uint64_t expected_round_ = 0;
};

class CountingSleeper final : public Sleeper {
 public:
  void arm() override { ++armed; }
  bool recheck() override {
    ++rechecked;
    return in_flight;
  }
  void wait(Deadline) override { ++slept; }
  bool in_flight = false;
  int armed = 0, rechecked = 0, slept = 0;
};

TEST(WaitUntil, ChecksBeforeItWaits) {
  CountingHook hook;
  const ScopedWaitHook installed(hook);
  EXPECT_TRUE(wait_until([] { return true; }, kForever));
  // The condition is checked also if the deadline has passed already.
  EXPECT_TRUE(wait_until([] { return true; }, steady_clock::now() - milliseconds(1)));
  EXPECT_EQ(hook.pauses, 0U);
}

TEST(WaitUntil, PausesThroughTheThreadsHookOnly) {
  WaitHook& usual = this_thread_wait_hook();
  CountingHook outer(~uint64_t{0});
  {
    const ScopedWaitHook installed(outer);
    EXPECT_EQ(&this_thread_wait_hook(), &outer);
    {
      CountingHook inner(~uint64_t{0});
      const ScopedWaitHook nested(inner);
      int looks = 0;
      EXPECT_TRUE(wait_until([&] { return ++looks == 5; }, kForever));
      EXPECT_EQ(inner.pauses, 4U);
    }
    EXPECT_EQ(&this_thread_wait_hook(), &outer);
    EXPECT_EQ(outer.pauses, 0U);
    std::thread([&] { EXPECT_EQ(&this_thread_wait_hook(), &usual); }).join();
  }
  EXPECT_EQ(&this_thread_wait_hook(), &usual);
}

TEST(WaitUntil, SleepsWhenTheHookAllowsAndChecksOnceMoreBefore) {
  CountingHook hook(3);
  const ScopedWaitHook installed(hook);
  CountingSleeper sleeper;
  int looks = 0;
  // Checks: 1 immediately, 3 awake, then (arm, check, sleep, check, pause, check) ...
  EXPECT_TRUE(wait_until([&] { return ++looks == 11; }, kForever, &sleeper));
  EXPECT_EQ(sleeper.armed, 2);
  EXPECT_EQ(sleeper.slept, 2);

  // The condition becomes true between arm() and the sleep: no sleep.
  hook.begin();
  CountingSleeper armed;
  EXPECT_TRUE(wait_until([&] { return armed.armed == 1; }, kForever, &armed));
  EXPECT_EQ(armed.slept, 0);
  EXPECT_EQ(armed.rechecked, 0);

  // Something is in flight: no sleep, and the condition is checked again.
  hook.begin();
  CountingSleeper told;
  told.in_flight = true;
  EXPECT_TRUE(wait_until([&] { return told.rechecked == 2; }, kForever, &told));
  EXPECT_EQ(told.slept, 0);
}

TEST(WaitUntil, EndsAtTheDeadlineAwakeOrAsleep) {
  int looks = 0;
  EXPECT_FALSE(wait_until(
      [&] {
        ++looks;
        return false;
      },
      deadline_after(milliseconds(2))));
  EXPECT_GT(looks, 1);
  Doorbell doorbell;
  DoorbellSleeper sleeper(doorbell);
  const Deadline deadline = deadline_after(milliseconds(10));
  EXPECT_FALSE(wait_until([] { return false; }, deadline, &sleeper));
  EXPECT_GE(steady_clock::now(), deadline);
}

TEST(Deadline, NeverOverflows) {
  EXPECT_EQ(deadline_after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_EQ(deadline_after(milliseconds::max()), kForever);
  EXPECT_EQ(deadline_after(std::chrono::hours::max()), kForever);
  EXPECT_EQ(deadline_after(std::chrono::duration<double>(1e300)), kForever);
  EXPECT_LT(deadline_after(std::chrono::hours(24)), kForever);
  EXPECT_LT(deadline_after(std::chrono::duration<int32_t>(3600)), kForever);
  EXPECT_GT(deadline_after(std::chrono::duration<float>(60)),
            steady_clock::now() + std::chrono::seconds(30));
}

TEST(Deadline, OfANegativeSpanHasPassed) {
  const auto before = steady_clock::now();
  for (const Deadline deadline :
       {deadline_after(milliseconds(-1)), deadline_after(milliseconds::min()),
        deadline_after(std::chrono::nanoseconds::min())}) {
    EXPECT_GE(deadline, before);
    EXPECT_LE(deadline, steady_clock::now());
  }
}

// The word of a doorbell counts its rings modulo this number.
constexpr uint32_t kRingsOfAWord = uint32_t{1} << 31;

// At first, and when the count of its rings wraps.
TEST(Doorbell, IsRungOncePerArming) {
  for (const uint32_t rings : {uint32_t{0}, kRingsOfAWord - 2, kRingsOfAWord - 1}) {
    Doorbell doorbell;
    doorbell.begin_at(rings);
    EXPECT_FALSE(doorbell.ring());
    const uint32_t first = doorbell.arm();
    EXPECT_EQ(doorbell.arm(), first);  // two sleepers may expect the same value
    EXPECT_TRUE(doorbell.is_armed());
    EXPECT_TRUE(doorbell.ring());
    EXPECT_FALSE(doorbell.ring());
    doorbell.wait(first, kForever);  // returns immediately: the doorbell was rung since arm()
    const uint32_t second = doorbell.arm();
    EXPECT_NE(first, second);
    doorbell.wait(first, kForever);  // likewise
    doorbell.wait(second, deadline_after(milliseconds(1)));
    EXPECT_TRUE(doorbell.take());
    EXPECT_FALSE(doorbell.take());
    EXPECT_FALSE(doorbell.is_armed());
  }
}

TEST(SleeperSet, SlotsAreDisarmedOneByOne) {
  SleeperSet sleepers;
  EXPECT_EQ(sleepers.armed(), 0U);
  sleepers.arm(63);
  sleepers.arm(5);
  sleepers.arm(5);
  EXPECT_EQ(sleepers.armed(), uint64_t{1} << 63 | uint64_t{1} << 5);
  sleepers.disarm(63);
  EXPECT_EQ(sleepers.armed(), uint64_t{1} << 5);
}

// Two players pass a turn to each other, and each sleeps until it has the turn. They sleep without
// a deadline: a lost wake-up stops the game, and the watchdog of the test ends it.
struct PingPong {
  Doorbell doorbells[2];
  std::atomic<uint64_t> turn{0};
  uint64_t plain = 0;  // handed over with the turn
};

class AwakeFor final : public WaitHook {
 public:
  explicit AwakeFor(uint64_t rounds) : rounds_(rounds) {}
  bool pause(uint64_t round) override { return round >= rounds_; }

 private:
  uint64_t rounds_;
};

void play(PingPong& game, uint64_t side, uint64_t turns) {
  for (uint64_t turn = side; turn < turns; turn += 2) {
    // Sleeps after 0 to 6 checks, so that wake-ups hit the sleeper at every point.
    AwakeFor hook(turn / 2 % 7);
    const ScopedWaitHook installed(hook);
    DoorbellSleeper sleeper(game.doorbells[side]);
    ASSERT_TRUE(wait_until([&] { return game.turn.load(std::memory_order_acquire) == turn; },
                           kForever, &sleeper));
    ASSERT_EQ(game.plain, turn);
    game.plain = turn + 1;
    game.turn.store(turn + 1, std::memory_order_release);
    game.doorbells[1 - side].ring();
  }
}

TEST(Doorbell, LosesNoWakeUpBetweenThreads) {
  PingPong game;
  for (Doorbell& doorbell : game.doorbells) doorbell.begin_at(kRingsOfAWord - 100);
  std::thread other([&] { play(game, 1, 20'000); });
  play(game, 0, 20'000);
  other.join();
  EXPECT_EQ(game.plain, 20'000U);
}

TEST(Doorbell, LosesNoWakeUpBetweenProcesses) {
  const int descriptor = memfd_create("doorbell", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(ftruncate(descriptor, sizeof(PingPong)), 0);
  testing::run_test_processes(2, [&](Exchange& exchange) {
    // Each process maps the memory itself, at an address of its own.
    void* const memory =
        mmap(nullptr, sizeof(PingPong), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ASSERT_NE(memory, MAP_FAILED);
    // Zero-initialised memory is a valid PingPong.
    auto& game = *static_cast<PingPong*>(memory);
    play(game, static_cast<uint64_t>(exchange.rank()), 10'000);
    ASSERT_TRUE(exchange.fence(deadline_after(std::chrono::seconds(30))).ok());
    EXPECT_EQ(game.plain, 10'000U);
    munmap(memory, sizeof(PingPong));
  });
  close(descriptor);
}

TEST(Doorbell, WakesAllSleepers) {
  constexpr int kSleepers = 4;
  constexpr uint32_t kRounds = 500;
  Doorbell doorbell;
  Doorbell arrivals;
  doorbell.begin_at(kRingsOfAWord - kRounds / 2);
  arrivals.begin_at(kRingsOfAWord - kRounds / 2);
  std::atomic<uint32_t> round{0};
  std::atomic<int> arrived{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&] {
      AwakeFor hook(0);
      const ScopedWaitHook installed(hook);
      DoorbellSleeper sleeper(doorbell);
      for (uint32_t next = 1; next <= kRounds; ++next) {
        EXPECT_TRUE(wait_until([&] { return round.load(std::memory_order_acquire) >= next; },
                               kForever, &sleeper));
        arrived.fetch_add(1, std::memory_order_acq_rel);
        arrivals.ring();
      }
    });
  }
  DoorbellSleeper sleeper(arrivals);
  for (uint32_t next = 1; next <= kRounds; ++next) {
    round.store(next, std::memory_order_release);
    doorbell.ring();
    EXPECT_TRUE(wait_until(
        [&] {
          return arrived.load(std::memory_order_acquire) == static_cast<int>(next) * kSleepers;
        },
        kForever, &sleeper));
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace cariama
