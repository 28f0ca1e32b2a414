// Routed calls between real processes, and routers and destinations that are killed.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "dsfabric/future.h"
#include "dsfabric/quiescence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::run_job_with_a_victim;
using testing::run_process_job;
using testing::soon;

struct RoutedArrivals {
  uint64_t next[16] = {};  // by sender
  uint64_t disorder = 0;
  uint64_t sum = 0;
  std::atomic<uint64_t> count{0};
};
RoutedArrivals routed_arrivals;

void note_routed(uint32_t from, uint64_t number, uint64_t sum) {
  if (routed_arrivals.next[from]++ != number) ++routed_arrivals.disorder;
  routed_arrivals.sum += sum;
  routed_arrivals.count.fetch_add(1);
}

// Waits until the aggregator has been told of a failure. Returns the failure.
absl::Status flush_until_it_fails(Fabric& fabric, RoutedAggregator& aggregator) {
  absl::Status flushed;
  EXPECT_TRUE(fabric.wait(
      [&] {
        flushed = aggregator.flush();
        return !flushed.ok();
      },
      soon()));
  return flushed;
}

const RoutingOptions kNodesOfTwo{.routing = Routing::kNode, .processes_per_node = 2};

// 16 processes as 4 x 4. Calls of 8 bytes, and calls with long arguments.
TEST(RoutedProcesses, SixteenProcessesCallEachOther) {
  run_process_job(16, {}, [](Fabric& fabric) {
    constexpr uint64_t kCalls = 300;
    TerminationDetector detector(fabric);
    RoutedAggregator aggregator(*fabric.this_thread(),
                                {.routing = Routing::kNode, .processes_per_node = 4});
    const uint32_t me = fabric.rank();
    for (uint64_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = 0; to < 16; ++to) {
        if (i % 10 != 0) {
          ASSERT_TRUE(aggregator.call(to, [me, i] { note_routed(me, i, 1); }));
        } else {
          ASSERT_TRUE(aggregator.call(
              to, [me, i](const std::string& text) { note_routed(me, i, text.size()); },
              std::string(3000, 'x')));
        }
      }
    }
    EXPECT_TRUE(aggregator.flush().ok());
    must(detector.wait(soon()));
    EXPECT_EQ(routed_arrivals.count.load(), 16 * kCalls);
    EXPECT_EQ(routed_arrivals.disorder, 0u);
    EXPECT_EQ(routed_arrivals.sum, 16 * kCalls / 10 * (9 + 3000));
    const RoutingStatistics statistics = aggregator.statistics();
    EXPECT_EQ(statistics.channels, 3u + 4u);        // instead of 16
    EXPECT_EQ(statistics.forwarding_channels, 3u);  // its own calls take one hop
    EXPECT_EQ(statistics.routed, 3 * 3 * kCalls);   // three destinations on three nodes
    EXPECT_EQ(statistics.forwarded, 3 * 3 * kCalls);
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
}

// The job: the nodes {0, 1} and {2, 3}. Rank 0 reaches rank 3 by rank 2, and rank 1 reaches rank 2
// by rank 3. Rank 2 is killed.
void lose_a_router(Fabric& fabric) {
  static std::atomic<int> ready, ended;
  if (fabric.rank() == 2) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != 2) must(call(fabric, fabric.thread_of(rank), [] { ++ready; }));
    }
    testing::wait_to_be_killed(fabric);
    return;
  }
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  EXPECT_TRUE(fabric.wait([&] { return ready.load() == 1; }, soon()));
  const auto tell = [&](uint32_t rank) {
    must(call(fabric, fabric.thread_of(rank), [] { ++ended; }));
  };
  if (fabric.rank() == 0) {
    EXPECT_EQ(aggregator.next_hop(3), ThreadId(2));
    EXPECT_TRUE(aggregator.call(3, [] { note_routed(0, 0, 0); }));
    EXPECT_TRUE(aggregator.call(1, [] {}));
    EXPECT_TRUE(aggregator.flush().ok());
    const pid_t victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(2).ok(); }, soon()));
    // The calls that rank 2 had not forwarded are lost, which these say.
    testing::expect_dead(aggregator.flush(), fabric, 2);
    EXPECT_TRUE(fabric.wait(
        [&] {
          const CallResult refused = aggregator.call(3, [] {});
          if (refused) return static_cast<void>(aggregator.flush()), false;
          testing::expect_dead(refused, fabric, 2);
          EXPECT_THAT(std::string(refused.status().message()), HasSubstr("thread 3 of "));
          return true;
        },
        soon()));
    // Calls within the sender's node are not affected.
    EXPECT_TRUE(aggregator.call(1, [] { ++ended; }));
    testing::expect_dead(aggregator.flush(), fabric, 2);
    testing::expect_dead(aggregator.shutdown(soon()), fabric, 2);
    // A new object has another router.
    RoutedAggregator later(*fabric.this_thread(), kNodesOfTwo);
    EXPECT_EQ(later.next_hop(3), ThreadId(3));
    EXPECT_TRUE(later.call(3, [] { ++ended; }));
    EXPECT_TRUE(later.flush().ok());
    EXPECT_TRUE(later.shutdown(soon()).ok());
    EXPECT_TRUE(fabric.wait([&] { return ended.load() == 2; }, soon()));
  } else {
    if (fabric.rank() == 1) {
      // The router of rank 1 lives. Its calls to rank 2 are lost with rank 2; those to rank 3 run.
      EXPECT_TRUE(fabric.wait([&] { return ended.load() == 1; }, soon()));  // rank 2 is dead
      EXPECT_EQ(aggregator.next_hop(2), ThreadId(3));
      EXPECT_TRUE(aggregator.call(3, [] { ++ended; }));
      EXPECT_TRUE(aggregator.flush().ok());
    } else {
      EXPECT_TRUE(fabric.wait([&] { return ended.load() == 2; }, soon()));  // from 0 and 1
    }
    tell(0);
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  }
  must(fabric.finalize(soon()));
}

TEST(RoutedProcesses, ARouterIsKilled) { run_job_with_a_victim(4, 2, lose_a_router); }

// Rank 3 of the job of lose_a_router() is killed. Its router, rank 2, reports the loss to rank 0.
void lose_a_destination(Fabric& fabric) {
  static std::atomic<int> ready, arrived, ended;
  if (fabric.rank() == 3) {
    must(call(fabric, 0, [] { ++ready; }));
    testing::wait_to_be_killed(fabric);
    return;
  }
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  if (fabric.rank() == 0) {
    EXPECT_TRUE(fabric.wait([&] { return ready.load() == 1; }, soon()));
    EXPECT_TRUE(aggregator.call(3, [] { must(call(*running_fabric(), 0, [] { ++arrived; })); }));
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait([&] { return arrived.load() == 1; }, soon()));
    const pid_t victim = must(async_call(fabric, 3, [] { return getpid(); }).get(soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    // No further call is needed: the router tells the senders of earlier calls.
    const absl::Status flushed = flush_until_it_fails(fabric, aggregator);
    testing::expect_dead(flushed, fabric, 3);
    EXPECT_THAT(std::string(flushed.message()), HasSubstr(fabric.label(2)));
    testing::expect_dead(aggregator.call(3, [] {}), fabric, 3);
    // Calls to the router itself still run.
    EXPECT_TRUE(aggregator.call(2, [] { ++ended; }));
    EXPECT_FALSE(aggregator.flush().ok());
    testing::expect_dead(aggregator.shutdown(soon()), fabric, 3);
    must(call(fabric, 1, [] { ++ended; }));
  } else {
    EXPECT_TRUE(fabric.wait([&] { return ended.load() == 1; }, soon()));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  }
  must(fabric.finalize(soon()));
}

TEST(RoutedProcesses, ADestinationIsKilled) { run_job_with_a_victim(4, 3, lose_a_destination); }

// Three nodes of two. Rank 3 is killed. Then rank 4 makes its first call to it, by the same router,
// rank 2, as rank 0 before.
void call_a_dead_destination(Fabric& fabric) {
  static std::atomic<int> ready, arrived, ended;
  if (fabric.rank() == 3) return testing::wait_to_be_killed(fabric);
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  if (fabric.rank() == 0) {
    EXPECT_TRUE(aggregator.call(3, [] { must(call(*running_fabric(), 0, [] { ++arrived; })); }));
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait([&] { return arrived.load() == 1; }, soon()));
    const pid_t victim = must(async_call(fabric, 3, [] { return getpid(); }).get(soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    testing::expect_dead(flush_until_it_fails(fabric, aggregator), fabric, 3);
    must(call(fabric, 4, [] { ++ready; }));
  } else if (fabric.rank() == 4) {
    EXPECT_TRUE(fabric.wait([&] { return ready.load() == 1; }, soon()));
    EXPECT_EQ(aggregator.next_hop(3), ThreadId(2));
    static_cast<void>(aggregator.call(3, [] {}));
    testing::expect_dead(flush_until_it_fails(fabric, aggregator), fabric, 3);
    for (const uint32_t rank : {0, 1, 2, 4, 5}) must(call(fabric, rank, [] { ++ended; }));
  }
  EXPECT_TRUE(fabric.wait([&] { return ended.load() == 1; }, soon()));
  static_cast<void>(aggregator.shutdown(soon()));  // ranks 0 and 4: rank 3 is dead
  must(fabric.finalize(soon()));
}

TEST(RoutedProcesses, TheFirstCallToADeadDestinationIsReported) {
  run_job_with_a_victim(6, 3, call_a_dead_destination);
}

std::atomic<int> reports_ended;

// The survivors run calls until rank 0 has lost rank `lost`.
void end_together(Fabric& fabric, uint32_t lost) {
  if (fabric.rank() == 0) {
    for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
      if (rank != lost) must(call(fabric, fabric.thread_of(rank), [] { ++reports_ended; }));
    }
  }
  EXPECT_TRUE(fabric.wait([] { return reports_ended.load() == 1; }, soon()));
}

// Rank 2 is stopped, and killed while it has calls that it has not forwarded.
void lose_a_router_with_a_report(Fabric& fabric) {
  if (fabric.rank() == 2) return testing::wait_to_be_killed(fabric);
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  if (fabric.rank() == 0) {
    const pid_t victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
    Future<int> first = aggregator.async_call(3, [] { return 1; });  // sets the channels up
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_EQ(must(first.get(soon())), 1);
    EXPECT_EQ(kill(victim, SIGSTOP), 0);
    Synchronizer ran(1);
    EXPECT_TRUE(aggregator.call<RemoteNotify>(
        3, [] {}, ran));
    Future<int> result = aggregator.async_call(3, [] { return 1; });
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    EXPECT_TRUE(fabric.wait([&] { return ran.done(); }, soon()));
    testing::expect_dead(ran.status(), fabric, 2);
    testing::expect_dead(result.get(soon()).status(), fabric, 2);
    // Later calls are refused, and their completions not notified.
    Synchronizer never(1);
    testing::expect_dead(aggregator.call<RemoteNotify>(
                             3, [] {}, never),
                         fabric, 2);
    EXPECT_FALSE(never.done());
  }
  end_together(fabric, 2);
  static_cast<void>(aggregator.shutdown(soon()));  // rank 0: rank 2 is dead
  must(fabric.finalize(soon()));
}

TEST(RoutedProcesses, ARouterIsKilledBeforeItForwardsAReportedCall) {
  run_job_with_a_victim(4, 2, lose_a_router_with_a_report);
}

// Rank 3 is killed while it runs a call that is to be reported. Rank 0 has no connection to it.
void lose_a_destination_with_a_report(Fabric& fabric) {
  if (fabric.rank() == 3) return testing::wait_to_be_killed(fabric);
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  if (fabric.rank() == 0) {
    Synchronizer ran(1);
    EXPECT_TRUE(aggregator.call<RemoteNotify>(
        3, [] { kill(getpid(), SIGKILL); }, ran));
    Future<int> result = aggregator.async_call(3, [] { return 1; });
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait([&] { return ran.done(); }, soon()));
    testing::expect_dead(ran.status(), fabric, 3);
    testing::expect_dead(result.get(soon()).status(), fabric, 3);
  }
  end_together(fabric, 3);
  static_cast<void>(aggregator.shutdown(soon()));  // rank 0: rank 3 is dead
  must(fabric.finalize(soon()));
}

TEST(RoutedProcesses, ADestinationIsKilledByAReportedCall) {
  run_job_with_a_victim(4, 3, lose_a_destination_with_a_report);
}

// Rank 3 has to connect to rank 0 before it can answer, and rank 0 is stopped until that attempt
// has ended with DEADLINE_EXCEEDED. The answer is repeated.
void answer_a_stopped_process(Fabric& fabric) {
  static std::atomic<pid_t> stopped{0};
  RoutedAggregator aggregator(*fabric.this_thread(), kNodesOfTwo);
  if (fabric.rank() == 0) {
    EXPECT_EQ(aggregator.next_hop(3), ThreadId(2));
    Future<int> result = aggregator.async_call(3, [self = getpid()] {
      EXPECT_TRUE(testing::wait_until_stopped(self, soon()));
      stopped = self;
      return 7;
    });
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_EQ(raise(SIGSTOP), 0);
    EXPECT_EQ(must(result.get(soon())), 7);
  } else if (fabric.rank() == 3) {
    // The thread that runs the call answers it, before the wait looks at its condition.
    EXPECT_TRUE(fabric.wait([] { return stopped.load() != 0; }, soon()));
    EXPECT_EQ(kill(stopped, SIGCONT), 0);
  }
  end_together(fabric, fabric.size());
  EXPECT_TRUE(aggregator.shutdown(soon()).ok());
}

TEST(RoutedProcesses, AnAnswerToAProcessThatWasStoppedIsRepeated) {
  FabricOptions options;
  options.timeout = std::chrono::seconds(5);
  run_process_job(4, options, answer_a_stopped_process);
}

}  // namespace
}  // namespace cariama
