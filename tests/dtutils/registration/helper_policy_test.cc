// The helper policy on a virtual clock: the size of its tables, and when it registers memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/registration/helper_thread.h"
#include "tests/dtutils/registration/pinning_domain.h"
#include "tests/dtutils/registration/virtual_cache.h"

namespace cariama {
namespace {

using ::cariama::testing::kMicrosecond;
using ::cariama::testing::kMillisecond;
using ::cariama::testing::kTestPage;
using ::cariama::testing::MappedPages;
using ::cariama::testing::stepped_helper;
using ::cariama::testing::virtual_time;
using ::cariama::testing::VirtualCache;

TEST(HelperTables, DoNotGrowWithTheNumberOfRegistrations) {
  constexpr int64_t kCycles = 100'000;
  HelperOptions gives_up;
  gives_up.give_up_after = 1;
  for (const HelperOptions& options : {HelperOptions{}, gives_up, HelperOptions::improved()}) {
    const auto policy = stepped_helper(options);
    const MappedPages pages(1);
    VirtualCache it(policy);
    for (int64_t cycle = 1; cycle <= kCycles; ++cycle) {
      it.run_until(cycle * 3 * kMillisecond);
      ASSERT_TRUE(it.cache->acquire(pages.get(), 1).ok());
    }
    const HelperStatistics statistics = policy->statistics();
    EXPECT_GT(statistics.registered_ahead, kCycles * 9 / 10);
    EXPECT_LE(statistics.listed, 1u);
    EXPECT_LE(statistics.known, 1u);
  }
}

// Threads that communicate all the time: the helper never finds all queues empty.
TEST(HelperTables, DropForgottenRegionsUnderSteadyLoad) {
  const auto policy = stepped_helper();
  const MappedPages pages(1);
  VirtualCache it(policy);
  for (uint64_t round = 0; round < 1000; ++round) {
    for (int i = 0; i < 64; ++i) {
      EXPECT_TRUE(policy->ended({.region = {round}, .bytes = kTestPage, .begin = virtual_time}));
      virtual_time += kMicrosecond;
    }
    policy->forgotten({round});
    static_cast<void>(policy->step());
  }
  EXPECT_EQ(policy->statistics().records, 64'000u);
  EXPECT_LE(policy->statistics().forgotten, 2u);
  EXPECT_LE(policy->statistics().known, 2u);
}

// A record may come after the helper has dropped the name of its region.
TEST(HelperTables, DropARegionThatTheCacheDoesNotKnow) {
  const auto policy = stepped_helper();
  VirtualCache it(policy);
  EXPECT_TRUE(policy->ended({.region = {4711}, .bytes = kTestPage, .begin = virtual_time}));
  it.run_until(10 * kMillisecond);
  EXPECT_EQ(policy->statistics().records, 1u);
  EXPECT_EQ(policy->statistics().known, 0u);
}

TEST(HelperTables, AThreadUsesFourPoliciesWithoutALock) {
  constexpr uint64_t kRounds = 100;
  const MappedPages pages(1);
  for (const size_t count : {4, 5}) {
    std::vector<std::shared_ptr<HelperPolicy>> policies;
    std::vector<std::unique_ptr<VirtualCache>> caches;
    for (size_t i = 0; i < count; ++i) {
      policies.push_back(stepped_helper());
      caches.push_back(std::make_unique<VirtualCache>(policies.back()));
    }
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (const auto& one : caches) EXPECT_TRUE(one->cache->acquire(pages.get(), 1).ok());
    }
    for (size_t i = 0; i < count; ++i) {
      caches[i]->run_until(virtual_time + 10 * kMillisecond);
      EXPECT_EQ(policies[i]->statistics().records, kRounds) << "in the queue of its policy";
      EXPECT_EQ(policies[i]->statistics().queue_searches, count == 4 ? 1 : kRounds);
    }
  }
}

RegistrationUse acquire(const VirtualCache& it, const void* address, size_t bytes,
                        const UseContext& context = {}) {
  auto use = it.cache->acquire(address, bytes, context);
  EXPECT_TRUE(use.ok()) << use.status();
  return *std::move(use);
}

// Each fourth use comes earlier than predicted, registers the memory itself, and is in progress
// when the helper wants to register it.
TEST(HelperPolicy, MemoryThatAUseHasRegisteredIsNotCountedAsRegisteredAhead) {
  HelperOptions options;
  options.predictor.estimate = PeriodEstimate::kMedian;
  const auto policy = stepped_helper(options);
  const MappedPages pages(4);
  VirtualCache it(policy);
  int64_t time = 0;
  for (int use = 1; use <= 40; ++use) {
    const bool early = use > 8 && use % 4 == 0;
    time += (early ? 8 : 10) * kMillisecond;
    it.run_until(time);
    const auto acquired = it.cache->acquire(pages.get(), pages.bytes());
    ASSERT_TRUE(acquired.ok());
    EXPECT_EQ(acquired->was_hit(), use > 4 && !early) << use;
    if (early) it.run_until(time + 4 * kMillisecond);
  }
  EXPECT_GT(policy->statistics().registered_ahead, 20u);
  EXPECT_EQ(policy->statistics().registered_ahead, it.cache->statistics().registered_ahead);
}

// The budget ends a registration before the helper decides about it.
TEST(HelperPolicy, EvictedMemoryIsRegisteredAhead) {
  HelperOptions options;
  options.predictor.window = 0;  // the other memory is used at a new call site each time
  const auto policy = stepped_helper(options);
  const MappedPages pages(1);
  const MappedPages others(32);
  VirtualCache it(policy, 4 * kTestPage);
  for (size_t round = 1; round <= 12; ++round) {
    it.run_until(static_cast<int64_t>(round) * 10 * kMillisecond);
    auto acquired = it.cache->acquire(pages.get(), 1);
    ASSERT_TRUE(acquired.ok());
    EXPECT_EQ(acquired->was_hit(), round > 2) << round;
    acquired->release();
    if (round <= 4) continue;
    const CallStack elsewhere{round};
    EXPECT_TRUE(
        it.cache->acquire(others.page((round - 5) * 4), 4 * kTestPage, {.stack = &elsewhere}).ok());
    EXPECT_EQ(it.cache->statistics().evictions, round - 4);
  }
}

// A loop with a period of 20 ms over one page, whose registration takes 500 µs and whose
// deregistration takes 300 µs. Returns the time from the start of the registration to the use.
int64_t lead_time(const HelperOptions& options) {
  const auto policy = stepped_helper(options);
  const MappedPages pages(1);
  VirtualCache it(policy);
  int64_t pinned_at = 0;
  it.counts->on_pin = [&](size_t /*bytes*/) {
    pinned_at = virtual_time;
    virtual_time += 500 * kMicrosecond;
  };
  it.counts->on_unpin = [](size_t /*bytes*/) { virtual_time += 300 * kMicrosecond; };
  int64_t lead = 0;
  for (int64_t round = 1; round <= 100; ++round) {
    it.run_until(round * 20 * kMillisecond);
    const auto acquired = it.cache->acquire(pages.get(), 1);
    EXPECT_TRUE(acquired.ok());
    EXPECT_EQ(acquired->was_hit(), round > 4) << round;
    lead = round * 20 * kMillisecond - pinned_at;
  }
  return lead;
}

TEST(HelperPolicy, TheLeadTimeContainsTheCostsOfBothOperations) {
  const int64_t lead = lead_time({});
  EXPECT_GE(lead, 800 * kMicrosecond);
  EXPECT_LE(lead, 1200 * kMicrosecond);
}

TEST(HelperPolicy, HelpersThatShareACoreRegisterATimeSliceEarlier) {
  HelperOptions shared;
  shared.sharing_helpers = 2;
  shared.time_slice = std::chrono::microseconds(3000);
  shared.context_switch = std::chrono::microseconds(5);
  EXPECT_NEAR(static_cast<double>(lead_time(shared) - lead_time({})), 2 * 3005 * kMicrosecond,
              600 * kMicrosecond);
}

// Eight buffers are used at one time. The registration of one takes 50 µs.
TEST(HelperPolicy, DeadlinesLeaveTimeForEachOther) {
  constexpr size_t kBuffers = 8;
  HelperOptions options;
  options.predictor.estimate = PeriodEstimate::kMedian;  // forgets that the first uses were late
  const auto policy = stepped_helper(options);
  const MappedPages pages(kBuffers);
  VirtualCache it(policy);
  int64_t pinned_at = 0;
  it.counts->on_pin = [&](size_t /*bytes*/) {
    virtual_time += 50 * kMicrosecond;
    pinned_at = virtual_time;
  };
  for (int64_t round = 1; round <= 30; ++round) {
    const int64_t time = round * 10 * kMillisecond;
    it.run_until(time);
    EXPECT_TRUE(round <= 16 || pinned_at <= time + 10 * kMicrosecond) << round;
    for (size_t i = 0; i < kBuffers; ++i) {
      const auto acquired = it.cache->acquire(pages.page(i), 1);
      ASSERT_TRUE(acquired.ok());
      EXPECT_TRUE(round <= 16 || acquired->was_hit()) << round << ' ' << i;
    }
  }
}

// A small buffer is used just before a large one, whose registration takes longer than the time
// between the two uses. The large one waits for its registration first.
TEST(HelperPolicy, ASmallBufferDoesNotDelayALargeOne) {
  constexpr size_t kLarge = 8000;  // pages: 432 µs
  const auto policy = stepped_helper(HelperOptions::improved());
  const MappedPages pages(kLarge + 1);
  VirtualCache it(policy);
  const auto use_small = [&](int64_t time, uintptr_t site) {
    const CallStack stack{site};
    it.run_until(time);
    return acquire(it, pages.page(kLarge), 1, {.stack = &stack}).was_hit();
  };
  for (int64_t round = 1; round <= 30; ++round) {
    const int64_t time = round * 20 * kMillisecond;
    EXPECT_TRUE(use_small(time - 40 * kMicrosecond, 1) || round <= 10) << round;
    it.run_until(time);
    EXPECT_TRUE(acquire(it, pages.get(), kLarge * kTestPage).was_hit() || round <= 10) << round;
    EXPECT_TRUE(use_small(time + 10 * kMillisecond, 2) || round <= 10) << round;
  }
}

// A loop sends one buffer to several peers, one after the other, and then computes: each use has
// the same signature, and the next one comes after 30 µs or after 20 ms.
TEST(HelperPolicy, ABurstOfUsesOfOneBufferIsLateInItsFirstRoundsOnly) {
  for (const int peers : {2, 8}) {
    HelperOptions options = HelperOptions::improved();
    const auto policy = stepped_helper(options);
    const MappedPages pages(1);
    VirtualCache it(policy);
    for (int64_t round = 1; round <= 40; ++round) {
      for (int64_t peer = 0; peer < peers; ++peer) {
        it.run_until(round * 20 * kMillisecond + peer * 30 * kMicrosecond);
        const bool hit = acquire(it, pages.get(), 1).was_hit();
        EXPECT_TRUE(hit || round <= 3) << peers << ' ' << round << ' ' << peer;
      }
      it.run_until(round * 20 * kMillisecond + 10 * kMillisecond);
      EXPECT_EQ(it.cache->statistics().registered_bytes, 0u) << peers << ' ' << round;
    }
  }
}

// Transfers to two peers from one buffer complete in the other order.
TEST(HelperPolicy, UsesThatEndInAnotherOrderArePredicted) {
  const auto policy = stepped_helper();
  const MappedPages pages(1);
  VirtualCache it(policy);
  for (int64_t round = 1; round <= 20; ++round) {
    it.run_until(round * 20 * kMillisecond);
    auto first = acquire(it, pages.get(), 1);
    EXPECT_TRUE(first.was_hit() || round <= 3) << round;
    virtual_time += 1 * kMicrosecond;
    auto second = acquire(it, pages.get(), 1);
    virtual_time += 5 * kMicrosecond;
    second.release();
    first.release();
  }
}

// Executes functions, one at a time, in a thread of its own.
class OtherThread {
 public:
  ~OtherThread() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> function) {
    function_ = std::move(function);
    go_.release();
    done_.acquire();
  }

 private:
  std::function<void()> function_;
  std::binary_semaphore go_{0};
  std::binary_semaphore done_{0};
  std::thread thread_{[this] {
    while (true) {
      go_.acquire();
      if (function_ == nullptr) break;
      function_();
      done_.release();
    }
    done_.release();
  }};
};

// One thread uses a buffer each 10 ms. Another one uses it each 100 ms, and a communication before
// that predicts this use.
TEST(HelperPolicy, APredictionOfOneThreadDoesNotDelayThatOfAnother) {
  const auto policy = stepped_helper(HelperOptions::improved());
  const MappedPages pages(2);
  VirtualCache it(policy);
  OtherThread other;
  for (int64_t round = 1; round <= 12; ++round) {
    for (int64_t step = 0; step < 10; ++step) {
      const int64_t time = (round * 100 + step * 10) * kMillisecond;
      it.run_until(time);
      const bool hit = acquire(it, pages.get(), 1).was_hit();
      EXPECT_TRUE(hit || round <= 3) << round << ' ' << step;
      if (step != 0 && step != 9) continue;
      it.run_until(time + 3 * kMillisecond);
      other.run([&] { acquire(it, pages.page(step == 0 ? 1 : 0), 1).release(); });
    }
  }
}

// The queue of a thread that has ended serves another one.
TEST(HelperPolicy, RecordsTheUsesOfManyThreads) {
  constexpr uint64_t kThreads = HelperPolicy::kMaxThreads + 20;
  const auto policy = stepped_helper();
  const MappedPages pages(1);
  VirtualCache it(policy);
  for (uint64_t i = 1; i <= kThreads; ++i) {
    std::thread([&] { acquire(it, pages.get(), 1).release(); }).join();
    it.run_until(static_cast<int64_t>(i) * 10 * kMillisecond);
  }
  EXPECT_EQ(policy->statistics().records, kThreads);
}

TEST(HelperPolicy, AThreadBeyondTheLimitIsRecordedAfterAnotherHasEnded) {
  const auto policy = stepped_helper();
  const MappedPages pages(1);
  VirtualCache it(policy);
  std::vector<std::jthread> others;
  std::latch used(HelperPolicy::kMaxThreads);
  std::latch end(1);
  for (size_t i = 0; i < HelperPolicy::kMaxThreads; ++i) {
    others.emplace_back([&] {
      acquire(it, pages.get(), 1).release();
      used.count_down();
      end.wait();
    });
  }
  used.wait();
  const auto use = [&](int times) {
    for (int i = 0; i < times; ++i) acquire(it, pages.get(), 1).release();
    it.run_until(virtual_time + 10 * kMillisecond);
    return policy->statistics().records;
  };
  EXPECT_EQ(use(1), HelperPolicy::kMaxThreads);
  end.count_down();
  others.clear();
  EXPECT_GT(use(100), HelperPolicy::kMaxThreads);
}

// A thread's own objects may end uses after the thread has given its queue back.
TEST(HelperPolicy, UsesThatEndWithTheirThreadAreNotRecorded) {
  const auto policy = stepped_helper();
  const MappedPages pages(2);
  VirtualCache it(policy);
  std::thread([&] {
    static thread_local RegistrationUse ends_last;
    ends_last = acquire(it, pages.page(0), 1);  // made before the queue of the thread
    acquire(it, pages.page(1), 1).release();
  }).join();
  it.run_until(virtual_time + 10 * kMillisecond);
  EXPECT_EQ(policy->statistics().records, 1u);
  EXPECT_EQ(it.cache->statistics().registered_bytes, kTestPage);
}

// Memory of another use fills the budget when the helper wants to register, and is free 50 µs
// later, still before the next use.
TEST(HelperPolicy, ARefusedRegistrationIsTriedAgain) {
  HelperOptions options;
  options.predictor.window = 0;  // the other memory is used at a new call site each time
  const auto policy = stepped_helper(options);
  const MappedPages pages(1);
  const MappedPages others(4);
  VirtualCache it(policy, 4 * kTestPage);
  it.counts->on_pin = [](size_t /*bytes*/) { virtual_time += 200 * kMicrosecond; };
  for (int64_t round = 1; round <= 20; ++round) {
    const int64_t time = round * 10 * kMillisecond;
    it.run_until(time - kMillisecond);
    const CallStack elsewhere{static_cast<uintptr_t>(round)};
    auto in_use = acquire(it, others.get(), others.bytes(), {.stack = &elsewhere});
    // The lead time is between 200 and 500 µs.
    it.run_until(time - 210 * kMicrosecond);
    in_use.release();
    it.cache->forget(others.get(), others.bytes());
    it.run_until(time);
    EXPECT_TRUE(acquire(it, pages.get(), 1).was_hit() || round <= 5) << round;
  }
}

// While the regions of a loop are not registered, the helper sleeps until their next use.
TEST(HelperPolicy, SleepsUntilTheNextForeseenUse) {
  const auto policy = stepped_helper(HelperOptions::improved());
  const MappedPages pages(1);
  VirtualCache it(policy);
  for (int64_t round = 1; round <= 100; ++round) {
    it.run_until(round * 20 * kMillisecond);
    acquire(it, pages.get(), 1).release();
  }
  // One that finds the record, one that registers, a poll after 8 ms, at most two in vain.
  EXPECT_LE(policy->statistics().steps, 100u * 5);
}

// The horizon is 0 from three quarters of the budget on.
TEST(HelperPolicy, TheHorizonEndsUnderMemoryPressure) {
  for (const bool pressure : {false, true}) {
    HelperOptions options;
    options.horizon = std::chrono::milliseconds(500);
    const auto policy = stepped_helper(options);
    const MappedPages pages(1);
    const MappedPages other(12);
    VirtualCache it(policy, (pressure ? 16 : 1600) * kTestPage);
    const auto in_use = it.cache->acquire(other.get(), other.bytes());
    ASSERT_TRUE(in_use.ok());
    for (int64_t round = 1; round <= 20; ++round) {
      it.run_until(round * 10 * kMillisecond);
      ASSERT_TRUE(it.cache->acquire(pages.get(), 1).ok());
    }
    if (pressure) {
      EXPECT_GE(it.counts->unpinned, 18u);
    } else {
      EXPECT_LE(it.counts->unpinned, 4u);
    }
  }
}

// Each thread has a queue and a window of its own. In one window the loops, whose periods differ,
// would make ever new contexts of each other.
TEST(HelperPolicy, ThreadsAreLateInTheirFirstRoundsOnly) {
  constexpr std::array<int64_t, 2> kPeriods{10 * kMillisecond, 7300 * kMicrosecond};
  const auto policy = stepped_helper();
  const MappedPages pages(2);
  VirtualCache it(policy);
  std::array<std::binary_semaphore, 2> go{std::binary_semaphore(0), std::binary_semaphore(0)};
  std::binary_semaphore done(0);
  std::array<int, 2> late{};
  constexpr int kRounds = 40;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const CallStack stack{t + 1};
      for (int round = 0; round < kRounds; ++round) {
        go[t].acquire();
        const auto acquired = it.cache->acquire(pages.page(t), 1, {.stack = &stack});
        late[t] += acquired.ok() && acquired->was_hit() ? 0 : 1;
        done.release();
      }
    });
  }
  std::array<int64_t, 2> next = kPeriods;
  std::array<int, 2> rounds{};
  for (int use = 0; use < 2 * kRounds; ++use) {
    const size_t t = rounds[1] == kRounds || (rounds[0] < kRounds && next[0] < next[1]) ? 0 : 1;
    it.run_until(next[t]);
    go[t].release();
    done.acquire();
    next[t] += kPeriods[t];
    ++rounds[t];
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(late[0], 4);
  EXPECT_LE(late[1], 4);
}

}  // namespace
}  // namespace cariama
