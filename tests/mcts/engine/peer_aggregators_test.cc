// The aggregators of a worker publish every call, also if other calls run while it is being sent.
#include "mcts/engine/peer_aggregators.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/host.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::mcts {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::soon;
using cariama::testing::transport_case;

// The first call from rank 1 to rank 2 has to open the channel. Meanwhile rank 1 runs a call of
// rank 0 that flushes, as answers to commands do. Afterwards rank 1 sends no other call, so only
// the flush before its sleep can publish the call to rank 2.
TEST(PeerAggregators, ACallThatFlushesWhileAnotherOneIsSentLeavesNothingBehind) {
  std::atomic<bool> asked{false};
  std::atomic<bool> flushed{false};  // in rank 1
  std::atomic<bool> arrived{false};  // in rank 2
  LocalJob job({.processes = 3, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    PeerAggregators& aggregators = *Host::here().aggregators;
    if ((*host)->rank() == 0) {
      EXPECT_TRUE(aggregators.call((*host)->id(1, 0), [flushed = &flushed] {
        Host::here().aggregators->flush();
        *flushed = true;
      }));
      aggregators.flush();
      asked = true;
      EXPECT_TRUE((*host)->work_until([&] { return arrived.load(); }, soon()));
      (*host)->end();
      return;
    }
    if ((*host)->rank() == 1) {
      const Deadline deadline = soon();
      while (!asked && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_FALSE(flushed);
      EXPECT_TRUE(aggregators.call((*host)->id(2, 0), [arrived = &arrived] { *arrived = true; }));
      EXPECT_TRUE(flushed) << "no call of rank 0 ran while the channel was opened";
    }
    EXPECT_EQ((*host)->serve(), absl::OkStatus());
  });
}

// A handler cannot wait for room in a channel. Its calls are deferred, however many they are: a
// refused call would be an answer that another process waits for without end.
TEST(PeerAggregators, NoCallOfAHandlerIsRefused) {
  constexpr uint32_t kCalls = 700;
  constexpr size_t kBytes = 28 << 10;
  static_assert(kCalls * kBytes >
                MessengerOptions{}.deferred_bytes +
                    MessengerOptions{}.max_chunks * MessengerOptions{}.chunk_bytes);
  std::atomic<uint32_t> refused{0};
  std::atomic<bool> sent{false};
  std::atomic<uint32_t> arrived{0};
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    if ((*host)->rank() != 0) {
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
      return;
    }
    PeerAggregators& aggregators = *Host::here().aggregators;
    const auto send = [refused = &refused, sent = &sent, arrived = &arrived] {
      const std::vector<std::byte> bytes(kBytes);
      PeerAggregators& back = *Host::here().aggregators;
      for (uint32_t i = 0; i < kCalls; ++i) {
        if (!back.call_buffer(
                0, [arrived](void*, uint64_t) { ++*arrived; }, bytes))
          ++*refused;
      }
      back.flush();
      *sent = true;
    };
    ASSERT_TRUE(aggregators.call((*host)->id(1, 0), send));
    aggregators.flush();
    const Deadline deadline = soon();  // this thread runs no calls meanwhile
    while (!sent && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(refused, 0u);
    EXPECT_TRUE((*host)->work_until([&] { return arrived + refused == kCalls; }, soon()));
    (*host)->end();
  });
}

// Without service threads, a process that runs no calls grants no chunks. A request may be refused
// then, which the requester repeats. An answer may not: another process waits for it without end.
TEST(PeerAggregators, AnAnswerToAProcessThatIsLateIsNotRefused) {
  constexpr std::chrono::milliseconds kTimeout{50};
  std::atomic<bool> refused{false};
  std::atomic<uint32_t> arrived{0};
  FabricOptions options;
  options.service_threads = 0;
  LocalJob job({.processes = 2,
                .transport = transport_case("shm"),
                .fabric = options,
                .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    if ((*host)->rank() != 0) {
      const Deadline deadline = soon();
      while (!refused && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      std::this_thread::sleep_for(4 * kTimeout);  // the answer is late, too
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
      return;
    }
    PostCounts posts((*host)->size());
    PeerAggregators late(*Host::here().context, Aggregation::kTraditional, posts, kTimeout);
    const auto arrive = [arrived = &arrived] { ++*arrived; };
    refused = !late.call((*host)->id(1, 0), arrive);
    EXPECT_TRUE(refused);
    const std::vector<std::byte> bytes(8);
    EXPECT_TRUE(late.answer_buffer((*host)->id(1, 0),
                                   [arrived = &arrived](void*, uint64_t) { ++*arrived; }, bytes));
    EXPECT_TRUE(late.post((*host)->id(1, 0), arrive));
    late.flush();
    EXPECT_TRUE((*host)->work_until([&] { return arrived == 2; }, soon()));
    (*host)->end();
    late.shutdown(soon());
  });
}

// A refused call that no repetition sends ends the process. The failure of the destination does
// not, nor a call that was refused because the channel is shut down.
TEST(PeerAggregatorsDeathTest, ACallThatCannotBeSentEndsTheProcess) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    EXPECT_EXIT(
        {
          internal::check_refusal(absl::Status(code, "the reason"));
          _exit(0);
        },
        ::testing::ExitedWithCode(1), "cannot send a call: the reason");
  }
  internal::check_refusal(absl::UnavailableError("the destination has failed"));
  internal::check_refusal(absl::FailedPreconditionError("shut down"));
}

}  // namespace
}  // namespace cariama::mcts
