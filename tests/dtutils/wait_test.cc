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

class CountingParking final : public Parking {
 public:
  void announce() override { ++announced; }
  void sleep(Deadline) override { ++slept; }
  void retract() override { ++retracted; }
  int announced = 0, slept = 0, retracted = 0;
};

TEST(WaitUntil, ChecksBeforeItWaits) {
  CountingHook hook;
  const ScopedWaitHook installed(hook);
  EXPECT_TRUE(wait_until([] { return true; }));
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
      EXPECT_TRUE(wait_until([&] { return ++looks == 5; }));
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
  CountingParking parking;
  int looks = 0;
  // Checks: 1 at once, 3 awake, then (announce, check, sleep, check, pause, check) ...
  EXPECT_TRUE(wait_until([&] { return ++looks == 11; }, kForever, &parking));
  EXPECT_EQ(parking.announced, 2);
  EXPECT_EQ(parking.slept, 2);

  // The condition becomes true between the announcement and the sleep: no sleep.
  hook.begin();
  CountingParking announced;
  EXPECT_TRUE(wait_until([&] { return announced.announced == 1; }, kForever, &announced));
  EXPECT_EQ(announced.slept, 0);
  EXPECT_EQ(announced.retracted, 1);
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
  WakeWord word;
  WakeWordParking parking(word);
  const Deadline deadline = deadline_after(milliseconds(10));
  EXPECT_FALSE(wait_until([] { return false; }, deadline, &parking));
  EXPECT_GE(steady_clock::now(), deadline);
  word.wake();  // no announcement remains: see WakeWord.NoAnnouncementRemains
}

TEST(Deadline, NeverOverflows) {
  EXPECT_EQ(deadline_after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_LT(deadline_after(std::chrono::hours(24)), kForever);
}

TEST(WakeWord, NoAnnouncementRemains) {
  // wake() changes the sequence only if a sleeper is announced, so a ticket shows whether one is.
  WakeWord word;
  const uint32_t first = word.announce();
  word.wake();
  const uint32_t second = word.announce();
  EXPECT_NE(first, second);
  word.sleep(first, kForever);  // returns at once: wake() was called since this announcement
  word.retract();
  word.wake();
  const uint32_t third = word.announce();
  EXPECT_EQ(third, second);
  word.sleep(third, deadline_after(milliseconds(1)));
  word.wake();
  EXPECT_EQ(word.announce(), third);
  word.retract();
}

// Two players pass a turn to each other, and each sleeps until it has the turn. They sleep without
// a deadline: a lost wake-up stops the game, and the watchdog of the test ends it.
struct PingPong {
  WakeWord words[2];
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
    WakeWordParking parking(game.words[side]);
    ASSERT_TRUE(wait_until([&] { return game.turn.load(std::memory_order_acquire) == turn; },
                           kForever, &parking));
    ASSERT_EQ(game.plain, turn);
    game.plain = turn + 1;
    game.turn.store(turn + 1, std::memory_order_release);
    game.words[1 - side].wake();
  }
}

TEST(WakeWord, LosesNoWakeUpBetweenThreads) {
  PingPong game;
  std::thread other([&] { play(game, 1, 20'000); });
  play(game, 0, 20'000);
  other.join();
  EXPECT_EQ(game.plain, 20'000U);
}

TEST(WakeWord, LosesNoWakeUpBetweenProcesses) {
  const int descriptor = memfd_create("wake word", MFD_CLOEXEC);
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

TEST(WakeWord, WakesAllSleepers) {
  constexpr int kSleepers = 4;
  constexpr uint32_t kRounds = 500;
  WakeWord word;
  WakeWord arrived_word;
  std::atomic<uint32_t> round{0};
  std::atomic<int> arrived{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&] {
      AwakeFor hook(0);
      const ScopedWaitHook installed(hook);
      WakeWordParking parking(word);
      for (uint32_t next = 1; next <= kRounds; ++next) {
        EXPECT_TRUE(wait_until([&] { return round.load(std::memory_order_acquire) >= next; },
                               kForever, &parking));
        arrived.fetch_add(1, std::memory_order_acq_rel);
        arrived_word.wake();
      }
    });
  }
  WakeWordParking parking(arrived_word);
  for (uint32_t next = 1; next <= kRounds; ++next) {
    round.store(next, std::memory_order_release);
    word.wake();
    EXPECT_TRUE(wait_until(
        [&] {
          return arrived.load(std::memory_order_acquire) == static_cast<int>(next) * kSleepers;
        },
        kForever, &parking));
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace cariama
