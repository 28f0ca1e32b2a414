// A forwarding channel that fails while both of its processes live: the router tells the senders of
// the calls that it has forwarded, and finalize() waits for none of them.
#include <atomic>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "riutils/internal/runtime.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// The job: the nodes {0, 1} and {2, 3}. Rank 0 reaches rank 3 by rank 2. Rank 2 gets the report
// that rank 3 has found malformed data in the channel between them.
TEST(RoutedFailure, AFailedForwardingChannelIsReportedToTheSenders) {
  constexpr uint64_t kSerial = 1000;  // of the only channel that rank 2 opens
  static std::atomic<bool> arrived, broken, finished;
  arrived = broken = finished = false;
  std::atomic<internal::Runtime*> destination{nullptr};
  LocalJob job({.processes = 4, .transport = transport_case("shm")});
  job.run([&](Fabric& fabric, uint32_t) {
    internal::Runtime& runtime = internal::Runtime::of(fabric);
    if (fabric.rank() == 2) runtime.begin_serials_at(kSerial);
    if (fabric.rank() == 3) destination = &runtime;
    job.meet(4);
    if (fabric.rank() == 2) {
      // The report contains the bytes that have run: all of them.
      EXPECT_TRUE(fabric.wait_polling(
          [&] { return arrived && destination.load()->ended(2) == runtime.begun(3); }, soon()));
      runtime.channel_broken(3, kSerial, destination.load()->ended(2));
      EXPECT_TRUE(fabric.peer_status(3).ok());
      broken = true;
    }
    if (fabric.rank() != 0) {
      EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
      return;
    }
    RoutedAggregator aggregator(*fabric.this_thread(),
                                {.routing = Routing::kNode, .processes_per_node = 2});
    ASSERT_EQ(aggregator.next_hop(3), ThreadId(2));
    must(aggregator.call(3, [] { arrived = true; }));
    must(aggregator.flush());
    EXPECT_TRUE(fabric.wait_polling([] { return broken.load(); }, soon()));
    absl::Status flushed;
    EXPECT_TRUE(fabric.wait_polling(
        [&] {
          flushed = aggregator.flush();
          return !flushed.ok();
        },
        soon()));
    EXPECT_TRUE(absl::IsUnavailable(flushed)) << flushed;
    EXPECT_THAT(std::string(flushed.message()), HasSubstr(fabric.label(2)));
    EXPECT_THAT(std::string(flushed.message()), HasSubstr(fabric.label(3)));
    EXPECT_THAT(std::string(flushed.message()), HasSubstr("malformed data"));
    EXPECT_TRUE(absl::IsUnavailable(aggregator.call(3, [] {}).status()));
    EXPECT_TRUE(fabric.peer_status(2).ok());
    EXPECT_TRUE(fabric.peer_status(3).ok());
    // Calls to the router still run.
    static std::atomic<bool> ran;
    ran = false;
    must(aggregator.call(2, [] { ran = true; }));
    EXPECT_FALSE(aggregator.flush().ok());
    EXPECT_TRUE(fabric.wait_polling([] { return ran.load(); }, soon()));
    EXPECT_FALSE(aggregator.shutdown(soon()).ok());
    finished = true;
  });
}

}  // namespace
}  // namespace cariama::testing
