// Routed calls in a job whose processes live in one operating-system process, on every transport
// that connects fabrics and with every arrival mode of the first hop.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/quiescence.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::Bytes;
using testing::ChannelCase;
using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

constexpr uint32_t kMostRouted = 12;  // threads of the jobs of these tests

// Records the calls that ran, by sender and destination.
struct RoutedRuns {
  std::array<std::array<std::atomic<uint64_t>, kMostRouted>, kMostRouted> next{};
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> disorder{0};
  std::atomic<uint64_t> damaged{0};
  std::atomic<uint64_t> misplaced{0};  // calls that ran in another thread than their destination
};
RoutedRuns* routed_runs = nullptr;

struct RoutedCall {
  uint32_t from;
  uint32_t to;
  uint64_t number;
  void operator()(void* buffer, uint64_t size) const {
    RoutedRuns& runs = *routed_runs;
    if (runs.next[from][to].exchange(number + 1) != number) ++runs.disorder;
    const Bytes expected = testing::pattern(number, size);
    if (size != 0 && std::memcmp(buffer, expected.data(), size) != 0) ++runs.damaged;
    const ThreadContext* const here = running_fabric()->this_thread();
    if (here != nullptr && here->global_id() != to) ++runs.misplaced;
    if (running_source() != running_fabric()->rank_of(from)) ++runs.misplaced;
    ++runs.count;
  }
};

class Routed : public ::testing::TestWithParam<ChannelCase> {
 protected:
  void SetUp() override {
    const std::string reason = testing::reason_to_skip(transport_case(GetParam().transport));
    if (!reason.empty()) GTEST_SKIP() << reason;
    routed_runs = &runs_;
  }
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes, uint32_t threads = 1) {
    return testing::job_on(GetParam(), processes, threads);
  }
  [[nodiscard]] static RoutingOptions by_nodes_of(uint32_t processes) {
    return {.routing = Routing::kNode,
            .processes_per_node = processes,
            .messenger = testing::small_channel(GetParam())};
  }

  RoutedRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(
    On, Routed,
    ::testing::Values(ChannelCase{"shm", Arrival::kAuto}, ChannelCase{"shm", Arrival::kPolled},
                      ChannelCase{"shm", Arrival::kEvent}, ChannelCase{"sim", Arrival::kAuto},
                      ChannelCase{"sim", Arrival::kEvent}, ChannelCase{"fault_shm", Arrival::kAuto},
                      ChannelCase{"verbs", Arrival::kAuto}),
    testing::channel_case_name);

// Without sim, in which no thread runs on its own.
class RoutedInThreads : public Routed {};
INSTANTIATE_TEST_SUITE_P(On, RoutedInThreads,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"verbs", Arrival::kAuto}),
                         testing::channel_case_name);

// The size of a call's buffer: from nothing to the largest that a chunk takes.
size_t routed_size(uint64_t number) {
  constexpr std::array<size_t, 6> kSizes = {0, 8, 24, 200, 1000, 3900};
  return kSizes[number % kSizes.size()];
}

// Sends `calls` calls to each thread of the job, and returns when all calls of the job have run.
void call_all(Fabric& fabric, RoutedAggregator& aggregator, const RoutedRuns& runs,
              uint64_t calls) {
  const uint32_t me = fabric.this_thread()->global_id();
  for (uint64_t i = 0; i < calls; ++i) {
    const Bytes bytes = testing::pattern(i, routed_size(i));
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      ASSERT_EQ(aggregator.call_buffer(to, RoutedCall{me, to, i}, bytes).status(),
                absl::OkStatus());
    }
  }
  ASSERT_EQ(aggregator.flush(), absl::OkStatus());
  const uint64_t all = uint64_t{fabric.total_threads()} * fabric.total_threads() * calls;
  // Calls to other processes wake no thread of this one: poll.
  EXPECT_TRUE(fabric.wait_polling([&] { return runs.count.load() == all; }, soon()))
      << runs.count.load();
  EXPECT_EQ(aggregator.shutdown(soon()), absl::OkStatus());
}

void expect_in_order(const RoutedRuns& runs) {
  EXPECT_EQ(runs.disorder.load(), 0u);
  EXPECT_EQ(runs.damaged.load(), 0u);
  EXPECT_EQ(runs.misplaced.load(), 0u);
}

TEST_P(Routed, EachCallRunsOnceAndInOrder) {
  constexpr uint64_t kCalls = 60;
  std::atomic<uint64_t> routed{0};
  std::atomic<uint64_t> forwarded{0};
  LocalJob(job(6, 2)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    call_all(fabric, aggregator, runs_, kCalls);
    const RoutingStatistics statistics = aggregator.statistics();
    routed += statistics.routed;
    forwarded += statistics.forwarded;
    // Two other nodes, and the four threads of the sender's node.
    EXPECT_EQ(statistics.channels, 6u);
    EXPECT_LE(statistics.forwarding_channels, 3u);
    EXPECT_EQ(statistics.lost, 0u);
  });
  expect_in_order(runs_);
  // Of the twelve threads, eight are on other nodes, and two of these are routers.
  EXPECT_EQ(routed.load(), 12 * 6 * kCalls);
  EXPECT_EQ(forwarded.load(), routed.load());
}

// The last node has one process only, which is the router for both places.
TEST_P(Routed, NodesMayHaveDifferentSizes) {
  LocalJob(job(5)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    call_all(fabric, aggregator, runs_, 30);
    if (fabric.rank() < 4) {
      EXPECT_EQ(aggregator.next_hop(4), ThreadId(4));
    }
    const uint32_t other = fabric.rank() < 2 ? 2 : 0;
    EXPECT_EQ(aggregator.next_hop(other + 1),
              ThreadId(fabric.rank() == 4 ? other : other + fabric.rank() % 2));
  });
  expect_in_order(runs_);
}

TEST_P(Routed, DirectRoutingTakesOneHop) {
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutingOptions options = by_nodes_of(2);
    options.routing = Routing::kDirect;
    RoutedAggregator aggregator(*fabric.this_thread(), options);
    call_all(fabric, aggregator, runs_, 30);
    EXPECT_EQ(aggregator.statistics().channels, 4u);
    EXPECT_EQ(aggregator.statistics().routed, 0u);
    EXPECT_EQ(aggregator.statistics().forwarded, 0u);
  });
  expect_in_order(runs_);
}

// All processes of this job are on one host.
TEST_P(Routed, HostsAreNodes) {
  LocalJob(job(3)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(0));
    call_all(fabric, aggregator, runs_, 10);
    for (uint32_t to = 0; to < 3; ++to) EXPECT_EQ(aggregator.next_hop(to), ThreadId(to));
  });
  expect_in_order(runs_);
}

TEST_P(Routed, ACallLongerThanAChunkIsRefused) {
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const uint32_t me = fabric.rank();
    const uint32_t to = (me + 2) % 4 ^ 1;  // another node, not the router
    EXPECT_NE(aggregator.next_hop(to), ThreadId(to));
    const CallResult refused = aggregator.call_buffer(to, RoutedCall{me, to, 0}, Bytes(5000));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    EXPECT_TRUE(absl::IsOutOfRange(aggregator.call(4, [] {}).status()));
    const Bytes bytes = testing::pattern(0, 8);
    EXPECT_TRUE(aggregator.call_buffer(to, RoutedCall{me, to, 0}, bytes));
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait_polling([&] { return runs_.count.load() == 4; }, soon()));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
  expect_in_order(runs_);
}

// Two senders that share a router have chunks of different sizes.
TEST_P(Routed, EachSenderMayHaveItsOwnChunkSize) {
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutingOptions options = by_nodes_of(2);
    const uint32_t me = fabric.rank();
    options.messenger.chunk_bytes = 4096u << me;
    RoutedAggregator aggregator(*fabric.this_thread(), options);
    const size_t size = options.messenger.chunk_bytes - 300;
    for (uint64_t i = 0; i < 20; ++i) {
      const Bytes bytes = testing::pattern(i, size);
      for (uint32_t to = 0; to < 4; ++to) {
        ASSERT_TRUE(aggregator.call_buffer(to, RoutedCall{me, to, i}, bytes));
      }
    }
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait_polling([&] { return runs_.count.load() == 4 * 4 * 20; }, soon()));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
  expect_in_order(runs_);
}

// Calls that are sent inside calls are routed, too. A TerminationDetector counts calls on both
// hops, so that nothing runs after it has returned.
TEST_P(Routed, ATerminationDetectorWaitsForBothHops) {
  constexpr uint32_t kProcesses = 6;
  constexpr uint32_t kSteps = 40;
  static std::array<RoutedAggregator*, kProcesses> aggregators;
  static std::atomic<uint64_t> hops;
  hops = 0;
  struct Walk {
    uint32_t steps;
    void operator()() const {
      ++hops;
      if (steps == 0) return;
      const uint32_t here = running_fabric()->rank();
      must(aggregators[here]->call((here * 5 + steps) % kProcesses, Walk{steps - 1}).status());
      must(aggregators[here]->flush());
    }
  };
  LocalJob local(job(kProcesses));
  local.run([&](Fabric& fabric, uint32_t) {
    TerminationDetector detector(fabric);
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    aggregators[fabric.rank()] = &aggregator;
    for (uint32_t to = 0; to < kProcesses; ++to) EXPECT_TRUE(aggregator.next_hop(to) < 6u);
    must(detector.wait(soon()));  // all aggregators exist
    for (uint32_t to = 0; to < kProcesses; ++to) {
      EXPECT_TRUE(aggregator.call(to, Walk{kSteps}));
    }
    EXPECT_TRUE(aggregator.flush().ok());
    must(detector.wait(soon()));
    EXPECT_EQ(hops.load(), kProcesses * kProcesses * (kSteps + 1));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
}

// A destination runs no calls. Its router defers some, then stops reading; the sender is refused.
// When the destination continues, exactly the accepted calls run, in order.
TEST_P(RoutedInThreads, ASlowDestinationIsFeltByTheSender) {
  constexpr uint64_t kMost = 100'000;
  std::atomic<bool> refused{false};
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> postponed{0};
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const auto pause = [] { return deadline_after(std::chrono::milliseconds(10)); };
    const auto all_run = [&] { return refused.load() && runs_.count.load() == accepted.load(); };
    if (fabric.rank() == 0) {
      EXPECT_EQ(aggregator.next_hop(3), ThreadId(2));
      uint64_t sent = 0;
      // Whenever the sender is refused, the router empties the channel as far as it may. In the end
      // it postpones the next call.
      for (uint64_t before = UINT64_MAX; (before != sent || postponed == 0) && sent < kMost;) {
        before = sent;
        while (sent < kMost) {
          const CallResult result = aggregator.call<Fail>(3, [sent] {
            RoutedCall{0, 3, sent}(nullptr, 0);
          });
          if (!result) {
            EXPECT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
            break;
          }
          ++sent;
        }
        EXPECT_TRUE(aggregator.flush().ok());
        static_cast<void>(fabric.wait([] { return false; }, pause()));
      }
      EXPECT_LT(sent, kMost) << "memory is not bounded";
      accepted = sent;
      refused = true;
    } else if (fabric.rank() == 3) {
      while (!refused.load()) std::this_thread::yield();  // runs no calls
    } else if (fabric.rank() == 2) {
      while (!refused.load()) {
        static_cast<void>(fabric.wait([] { return false; }, pause()));
        postponed = aggregator.statistics().postponed;
      }
    }
    EXPECT_TRUE(fabric.wait_polling(all_run, soon()))
        << runs_.count.load() << " of " << accepted.load();
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
  EXPECT_NE(postponed.load(), 0u);
  expect_in_order(runs_);
}

// Helper threads run the calls to the routers' workers.
TEST_P(RoutedInThreads, HelpersForward) {
  testing::LocalJobOptions options = job(4);
  options.fabric.helper_threads = 1;
  options.init_thread = false;
  LocalJob(options).run([&](Fabric& fabric, uint32_t thread) {
    const auto self = must(fabric.init_thread(thread, CallConsumer::kHelpers));
    RoutedAggregator aggregator(*self, by_nodes_of(2));
    call_all(fabric, aggregator, runs_, 200);
  });
  EXPECT_EQ(runs_.disorder.load(), 0u);
  EXPECT_EQ(runs_.damaged.load(), 0u);
}

}  // namespace
}  // namespace cariama
