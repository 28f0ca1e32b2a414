// Channels that return their chunks to the receiver and obtain chunks again.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "dtutils/statistics.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using testing::LocalJob;
using testing::must;
using testing::run_job_with_a_victim;
using testing::soon;

// Returns the number of chunks that receivers have granted and not freed, over all fabrics of this
// process, which may have ended.
uint64_t chunks_granted() {
  uint64_t granted = 0;
  for (const Statistic& statistic : statistics_snapshot()) {
    if (statistic.kind != "one_sided") continue;
    if (statistic.name == "chunks_granted") granted += statistic.value;
    if (statistic.name == "chunks_freed") granted -= statistic.value;
  }
  return granted;
}

struct OrderedArrivals {
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> disorder{0};
  void reset() { count = disorder = 0; }
  void note(uint64_t number) {
    if (count.load() != number) ++disorder;
    ++count;
  }
};
OrderedArrivals arrivals;

class ReturnedChunks : public ::testing::TestWithParam<ChannelCase> {
 protected:
  void SetUp() override { arrivals.reset(); }
};
INSTANTIATE_TEST_SUITE_P(On, ReturnedChunks,
                         ::testing::Values(ChannelCase{"shm", Arrival::kMapped},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"sim", Arrival::kPolled},
                                           ChannelCase{"sim", Arrival::kEvent},
                                           ChannelCase{"fault_sim", Arrival::kPolled},
                                           ChannelCase{"fault_sim", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kPolled}),
                         testing::channel_case_name);

TEST_P(ReturnedChunks, CallsRunOnceInOrderAndTheReceiverFreesItsChunks) {
  constexpr uint64_t kCalls = 3000;
  const bool replays = std::string(GetParam().transport).find("sim") != std::string::npos;
  for (uint64_t seed = 1; seed <= (replays ? 6 : 2); ++seed) {
    SCOPED_TRACE(seed);
    arrivals.reset();
    const uint64_t granted = chunks_granted();
    LocalJob local(testing::job_on(GetParam(), 2, 1, seed));
    local.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        EXPECT_TRUE(fabric.wait(
            [&] { return arrivals.count.load() == kCalls && chunks_granted() == granted; },
            soon()));
        return;
      }
      std::mt19937_64 random(seed);
      RDMAMessenger messenger(*fabric.this_thread(), 1, testing::small_channel(GetParam()));
      RDMAAggregator aggregator(messenger);
      EXPECT_TRUE(messenger.return_chunks()) << "it has none";
      uint64_t returns = 0;
      for (uint64_t i = 0; i < kCalls; ++i) {
        const auto note = [i] { arrivals.note(i); };
        switch (random() % 4) {
          case 0:
            ASSERT_TRUE(messenger.call(note));
            break;
          case 1:
            ASSERT_TRUE(messenger.call<RetryAsync>(note));
            break;
          default:
            ASSERT_TRUE(aggregator.call(note));
        }
        if (random() % 64 == 0 && messenger.return_chunks()) {
          ++returns;
          EXPECT_EQ(messenger.statistics().chunks, messenger.statistics().chunks_returned);
        }
      }
      EXPECT_GT(returns, 5u);
      EXPECT_GE(messenger.statistics().chunks_returned, returns);
      EXPECT_GE(messenger.statistics().publications, returns);
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
      EXPECT_TRUE(messenger.return_chunks()) << "a channel that was shut down uses none";
    });
    EXPECT_EQ(arrivals.count.load(), kCalls);
    EXPECT_EQ(arrivals.disorder.load(), 0u);
  }
}

// In each round both processes wait for a call of a channel that was set up for it.
TEST_P(ReturnedChunks, NoWakeUpIsLost) {
  constexpr uint64_t kRounds = 100;
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    RDMAMessenger messenger(*fabric.this_thread(), 1 - fabric.rank(),
                            testing::small_channel(GetParam()));
    for (uint64_t i = fabric.rank(); i < 2 * kRounds; i += 2) {
      ASSERT_TRUE(fabric.wait([&] { return arrivals.count.load() == i; }, soon())) << i;
      ASSERT_TRUE(messenger.call([i] { arrivals.note(i); }));
      ASSERT_TRUE(fabric.wait([&] { return messenger.return_chunks(); }, soon()));
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(arrivals.count.load(), 2 * kRounds);
  EXPECT_EQ(arrivals.disorder.load(), 0u);
}

// Only on shm: a simulated process that runs no calls does not serve requests either.
class ReturnedChunksAtABusyReceiver : public ReturnedChunks {};
INSTANTIATE_TEST_SUITE_P(On, ReturnedChunksAtABusyReceiver,
                         ::testing::Values(ChannelCase{"shm", Arrival::kMapped},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kPolled}),
                         testing::channel_case_name);

// The receiver runs no calls while several channels follow each other: each of them is granted
// chunks, and the calls of all still run in order.
TEST_P(ReturnedChunksAtABusyReceiver, SeveralChannelsFollowEachOther) {
  constexpr uint64_t kCalls = 60;
  static std::atomic<bool> sent;
  sent = false;
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until([] { return sent.load(); }, soon()));
      EXPECT_TRUE(fabric.wait([] { return arrivals.count.load() == kCalls; }, soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 1, testing::small_channel(GetParam()));
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(messenger.call([i] { arrivals.note(i); }));
      if (i % 10 == 9) {
        EXPECT_TRUE(messenger.return_chunks());
      }
    }
    EXPECT_EQ(messenger.statistics().chunks_returned, 12u) << "two chunks each time";
    sent = true;
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(arrivals.disorder.load(), 0u);
}

TEST(ReturnedChunksOfABusyChannel, StayWhileCallsAreDeferredOrTheMessengerWaits) {
  static std::atomic<bool> release;
  static std::atomic<uint64_t> ran;
  static std::atomic<int> refused;
  static RDMAMessenger* own;
  release = false;
  ran = 0;
  refused = 0;
  LocalJob local({});
  local.run([](Fabric& fabric, uint32_t) {
    static std::atomic<uint64_t> sent;
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until([] { return release.load(); }, soon()));
      EXPECT_TRUE(
          fabric.wait([] { return sent.load() != 0 && ran.load() == sent.load(); }, soon()));
      return;
    }
    sent = 0;
    MessengerOptions one;
    one.chunk_bytes = 1024;
    one.chunks_per_request = one.max_chunks = 1;
    RDMAMessenger messenger(*fabric.this_thread(), 1, one);
    own = &messenger;
    uint64_t issued = 0;
    while (messenger.call<Fail>([] { ++ran; })) ++issued;
    // A call that this thread runs while it waits for room.
    must(call(fabric, 0, [] {
      if (!own->return_chunks()) ++refused;
      release = true;
    }));
    ASSERT_TRUE(messenger.call([] { ++ran; }));
    ++issued;
    EXPECT_EQ(refused.load(), 1);
    while (messenger.statistics().deferred == 0) {
      ASSERT_TRUE(messenger.call<RetryAsync>([] { ++ran; }));
      ++issued;
    }
    // Either calls are deferred still, or they were published meanwhile.
    EXPECT_TRUE(fabric.wait([&] { return messenger.return_chunks(); }, soon()));
    ASSERT_TRUE(messenger.call([] { ++ran; }));
    sent = issued + 1;
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Objects with a channel to each thread return chunks by themselves, and only those of channels
// that were not used.
TEST(ReturnedChunksOfIdleChannels, AreReturnedAfterTheGivenTime) {
  static std::atomic<uint64_t> ran;
  static std::atomic<bool> over;
  ran = 0;
  over = false;
  LocalJob local({.processes = 3});
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) {
      EXPECT_TRUE(fabric.wait([] { return over.load(); }, soon()));
      return;
    }
    RDMAAggregatorGlobal calls(*fabric.this_thread(),
                               {.return_after = std::chrono::milliseconds(50)});
    for (uint64_t round = 0; round < 3; ++round) {
      const uint64_t before = ran.load();
      ASSERT_TRUE(calls.call(1, [] { ++ran; }));
      ASSERT_TRUE(calls.call(2, [] { ++ran; }));
      ASSERT_TRUE(calls.flush_all().ok());
      EXPECT_TRUE(wait_until([&] { return ran.load() == before + 2; }, soon()));
      uint64_t used = 0;
      const Deadline deadline = soon();
      while (calls[1].statistics().chunks_returned != round + 1) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        // The channel to thread 2 is used all the time.
        used += calls.call(2, [] { ++ran; }) ? 1 : 0;
        calls.process_calls_all();
      }
      EXPECT_EQ(calls[2].statistics().chunks_returned, 0u);
      ASSERT_TRUE(calls.flush_all().ok());
      EXPECT_TRUE(wait_until([&] { return ran.load() == before + 2 + used; }, soon()));
    }
    EXPECT_TRUE(calls.shutdown_all(soon()).ok());
    for (const uint32_t rank : {1, 2}) must(call(fabric, rank, [] { over = true; }));
  });
}

// Routed calls take channels to few processes, which return their chunks in the same way.
TEST(ReturnedChunksOfRoutedCalls, AreObtainedAgain) {
  static std::atomic<uint64_t> ran;
  static std::atomic<bool> over;
  ran = 0;
  over = false;
  LocalJob local({.processes = 4});
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) {
      EXPECT_TRUE(fabric.wait([] { return over.load(); }, soon()));
      return;
    }
    MessengerOptions by_hand;
    by_hand.return_after = std::chrono::milliseconds(0);
    RoutedAggregator calls(
        *fabric.this_thread(),
        {.routing = Routing::kNode, .processes_per_node = 2, .messenger = by_hand});
    for (uint64_t round = 1; round <= 3; ++round) {
      for (uint32_t thread = 0; thread < 4; ++thread) {
        ASSERT_TRUE(calls.call(thread, [] { ++ran; }));
      }
      ASSERT_TRUE(calls.flush().ok());
      EXPECT_TRUE(wait_until(
          [&] {
            calls.process_calls();
            return ran.load() == 4 * round;
          },
          soon()));
      EXPECT_NE(calls.statistics().buffer_bytes, 0u);
      EXPECT_EQ(calls.return_idle_chunks(), 0u) << "they were used since the last time";
      EXPECT_EQ(calls.return_idle_chunks(), calls.statistics().channels);
      EXPECT_EQ(calls.statistics().buffer_bytes, 0u);
    }
    EXPECT_TRUE(calls.shutdown(soon()).ok());
    for (const uint32_t rank : {1, 2, 3}) must(call(fabric, rank, [] { over = true; }));
  });
}

// A sender that ends two channels and is killed: the receiver, which was busy, runs all calls that
// were published, in order.
TEST(ReturnedChunksOfAKilledSender, AllItsPublishedCallsRun) {
  struct Shared {
    std::atomic<pid_t> victim{0};
  };
  void* const mapped =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const shared = new (mapped) Shared;
  arrivals.reset();
  run_job_with_a_victim(2, 1, [shared](Fabric& fabric) {
    constexpr uint64_t kCalls = 30;
    if (fabric.rank() == 1) {
      RDMAMessenger messenger(*fabric.this_thread(), 0);
      for (uint64_t i = 0; i < kCalls; ++i) {
        ASSERT_TRUE(messenger.call([i] { arrivals.note(i); }));
        if (i % 10 == 9 && i + 1 != kCalls) {
          EXPECT_TRUE(messenger.return_chunks());
        }
      }
      shared->victim = getpid();
      testing::wait_to_be_killed(fabric);
      return;
    }
    EXPECT_TRUE(wait_until([&] { return shared->victim.load() != 0; }, soon()));
    EXPECT_EQ(kill(shared->victim.load(), SIGKILL), 0);
    EXPECT_TRUE(wait_until([&] { return !fabric.peer_status(1).ok(); }, soon()));
    EXPECT_TRUE(fabric.wait([] { return arrivals.count.load() == kCalls; }, soon()));
    EXPECT_EQ(arrivals.disorder.load(), 0u);
    must(fabric.finalize(soon()));
  });
  munmap(mapped, sizeof(Shared));
}

}  // namespace
}  // namespace cariama
