// Completions and results of routed calls, on every transport that connects fabrics and with every
// arrival mode of the first hop.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using ::testing::HasSubstr;
using testing::LocalJob;
using testing::must;
using testing::soon;

class RoutedReports : public ::testing::TestWithParam<ChannelCase> {
 protected:
  void SetUp() override {
    const std::string reason =
        testing::reason_to_skip(testing::transport_case(GetParam().transport));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes) {
    return testing::job_on(GetParam(), processes, 1);
  }
  [[nodiscard]] static RoutingOptions by_nodes_of(uint32_t processes) {
    return {.routing = Routing::kNode,
            .processes_per_node = processes,
            .messenger = testing::small_channel(GetParam())};
  }
};
INSTANTIATE_TEST_SUITE_P(On, RoutedReports,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"sim", Arrival::kAuto},
                                           ChannelCase{"fault_shm", Arrival::kAuto},
                                           ChannelCase{"verbs", Arrival::kAuto}),
                         testing::channel_case_name);

// Waits until `ended` of each of the job's processes is true. `agreed` is shared by these.
template <typename Condition>
void wait_for_all(Fabric& fabric, std::atomic<uint32_t>& agreed, const Condition& ended) {
  bool mine = false;
  EXPECT_TRUE(fabric.wait_polling(
      [&] {
        if (!mine && ended()) {
          mine = true;
          ++agreed;
        }
        return agreed.load() == fabric.size();
      },
      soon()));
}

// Each thread of six calls each thread, in every form that reports.
TEST_P(RoutedReports, EveryFormReportsItsEnd) {
  constexpr uint32_t kProcesses = 6;
  constexpr uint32_t kRounds = 30;
  std::atomic<uint32_t> agreed{0};
  LocalJob(job(kProcesses)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const uint32_t me = fabric.rank();
    constexpr uint32_t kCalls = kProcesses * kRounds;
    Synchronizer ran(kCalls);
    Synchronizer returned(kCalls);
    Synchronizer transmitted(kCalls);
    uint32_t buffers = 0;
    std::vector<uint64_t> results(kCalls);
    std::vector<Future<std::string>> texts;
    for (uint32_t i = 0; i < kCalls; ++i) {
      const uint32_t to = i % kProcesses;
      // The function runs at its destination, and its caller is known there.
      ASSERT_TRUE(aggregator.call<RemoteNotify>(
          to,
          [me, to] {
            EXPECT_EQ(running_fabric()->rank(), Rank(to));
            EXPECT_EQ(running_source(), Rank(me));
          },
          ran));
      ASSERT_TRUE(aggregator.call_return(
          to, [to](uint64_t x) { return x * 10 + to; }, results[i], returned, uint64_t{i}));
      const std::vector<std::byte> bytes(i % 100, std::byte{7});
      ASSERT_TRUE(aggregator.call_buffer(
          to, [](void*, uint64_t size) { EXPECT_LT(size, 100u); }, bytes,
          on_transmitted(transmitted) | on_consumed([&buffers](const absl::Status& status) {
            EXPECT_TRUE(status.ok()) << status;
            ++buffers;
          })));
      texts.push_back(aggregator.async_call(
          to, [](const std::string& text) { return text + "!"; }, std::string(i % 50, 'a')));
    }
    EXPECT_TRUE(aggregator.flush().ok());
    wait_for_all(fabric, agreed, [&] {
      return ran.done() && returned.done() && transmitted.done() && buffers == kCalls &&
             texts.back().ready();
    });
    EXPECT_TRUE(ran.status().ok() && returned.status().ok() && transmitted.status().ok());
    for (uint32_t i = 0; i < kCalls; ++i) {
      EXPECT_EQ(results[i], i * 10 + i % kProcesses);
      EXPECT_EQ(must(texts[i].get(soon())), std::string(i % 50, 'a') + "!");
    }
    EXPECT_EQ(aggregator.statistics().routed, 4 * kRounds * 2);  // two of six take two hops
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
}

TEST_P(RoutedReports, AnExceptionIsReportedToTheSender) {
  std::atomic<uint32_t> agreed{0};
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const uint32_t to = (fabric.rank() + 2) % 4 ^ 1;  // another node, not the router
    int result = 0;
    Synchronizer failed(1);
    EXPECT_TRUE(aggregator.call_return(
        to, []() -> int { throw std::runtime_error("no answer today"); }, result, failed));
    EXPECT_TRUE(aggregator.flush().ok());
    wait_for_all(fabric, agreed, [&] { return failed.done(); });
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(failed.status().message()), HasSubstr("no answer today"));
    EXPECT_THAT(std::string(failed.status().message()), HasSubstr(fabric.label(to)));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
}

TEST_P(RoutedReports, ARefusedCallIsNotReported) {
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const uint32_t to = (fabric.rank() + 2) % 4 ^ 1;
    Synchronizer never(1);
    int result = 0;
    const CallResult refused = aggregator.call_return(
        to, [](const std::string&) { return 1; }, result, never, std::string(100'000, 'x'));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    EXPECT_FALSE(never.done());
    auto unknown = aggregator.async_call(4, [] { return 1; });
    EXPECT_TRUE(absl::IsOutOfRange(unknown.get(soon()).status()));
    EXPECT_TRUE(absl::IsOutOfRange(aggregator
                                       .call<RemoteNotify>(
                                           4, [] {}, never)
                                       .status()));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
}

// Without sim, in which no thread runs on its own.
class RoutedReportsInThreads : public RoutedReports {};
INSTANTIATE_TEST_SUITE_P(On, RoutedReportsInThreads,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"verbs", Arrival::kAuto}),
                         testing::channel_case_name);

// The destination runs no calls until its router has postponed some. Each accepted call runs and
// is reported once.
TEST_P(RoutedReportsInThreads, CallsThatTheirRouterPostponesAreReportedOnce) {
  constexpr uint64_t kMost = 100'000;
  static std::atomic<uint64_t> run;
  run = 0;
  std::atomic<bool> refused{false};
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> postponed{0};
  LocalJob(job(4)).run([&](Fabric& fabric, uint32_t) {
    RoutedAggregator aggregator(*fabric.this_thread(), by_nodes_of(2));
    const auto pause = [] { return deadline_after(std::chrono::milliseconds(10)); };
    if (fabric.rank() == 0) {
      uint64_t sent = 0;
      std::vector<uint8_t> reports(kMost);
      uint64_t reported = 0;
      for (uint64_t before = UINT64_MAX; (before != sent || postponed == 0) && sent < kMost;) {
        before = sent;
        while (sent < kMost) {
          const CallResult result = aggregator.call<Fail>(
              3, [] { ++run; }, on_consumed([&, sent](const absl::Status& status) {
                EXPECT_TRUE(status.ok()) << status;
                ++reports[sent];
                ++reported;
              }));
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
      refused = true;
      EXPECT_TRUE(fabric.wait_polling([&] { return reported == sent; }, soon()))
          << reported << " of " << sent;
      EXPECT_EQ(run.load(), sent);
      EXPECT_EQ(static_cast<uint64_t>(std::count(reports.begin(), reports.end(), 1)), sent);
      ended = true;
    } else if (fabric.rank() == 3) {
      while (!refused.load()) std::this_thread::yield();  // runs no calls
    } else if (fabric.rank() == 2) {
      while (!refused.load()) {
        static_cast<void>(fabric.wait([] { return false; }, pause()));
        postponed = aggregator.statistics().postponed;
      }
    }
    EXPECT_TRUE(fabric.wait_polling([&] { return ended.load(); }, soon()));
    EXPECT_TRUE(aggregator.shutdown(soon()).ok());
  });
  EXPECT_NE(postponed.load(), 0u);
}

}  // namespace
}  // namespace cariama
