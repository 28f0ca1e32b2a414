// A channel of one chunk: the sender cannot publish anything behind an end marker before the
// receiver has consumed it, so the end marker itself must wake a sleeping receiver.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using testing::LocalJob;
using testing::soon;

constexpr uint64_t kOneChunkCalls = 100;  // 5 fit into the chunk

class OneChunk : public ::testing::TestWithParam<ChannelCase> {};
INSTANTIATE_TEST_SUITE_P(On, OneChunk,
                         ::testing::Values(ChannelCase{"fault_sim", Arrival::kPolled},
                                           ChannelCase{"fault_sim", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kPolled},
                                           ChannelCase{"fault_shm", Arrival::kEvent},
                                           ChannelCase{"shm", Arrival::kMapped}),
                         testing::channel_case_name);

TEST_P(OneChunk, ASleepingReceiverIsWokenForEndMarkers) {
  const bool replays = std::string(GetParam().transport).find("sim") != std::string::npos;
  for (uint64_t seed = 1; seed <= (replays ? 10 : 2); ++seed) {
    SCOPED_TRACE(seed);
    static std::atomic<uint64_t> run;
    run = 0;
    testing::LocalJobOptions options = testing::job_on(GetParam(), 2, 1, seed);
    // Long enough for a receiver to fall asleep between two operations of its sender.
    options.faults = [](uint64_t fault_seed) {
      return FaultOptions{.seed = fault_seed, .late_operation = 0.2, .longest_hold = 2000};
    };
    LocalJob local(options);
    local.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        EXPECT_TRUE(fabric.wait([] { return run.load() == kOneChunkCalls; }, soon()));
        return;
      }
      MessengerOptions one;
      one.chunk_bytes = 1024;
      one.chunks_per_request = one.max_chunks = 1;
      one.arrival = GetParam().arrival;
      RDMAMessenger messenger(*fabric.this_thread(), 1, one);
      struct Load {
        uint64_t words[20];
      };
      for (uint64_t i = 0; i < kOneChunkCalls; ++i) {
        // RetryAsync: only shutdown() waits for room, and it has a deadline.
        ASSERT_TRUE(messenger.call<RetryAsync>(
            [load = Load{{i}}] { run += load.words[0] < kOneChunkCalls ? 1 : 2; }));
      }
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    });
    EXPECT_EQ(run.load(), kOneChunkCalls);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cariama
