// A channel of one chunk: nothing can be sent behind an end marker before the receiver has read it,
// so the marker itself has to keep the receiver awake.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/riutils/testing/way.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::soon;
using testing::Way;

constexpr uint64_t kCalls = 100;  // 5 fit into the chunk

class OneChunk : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(On, OneChunk,
                         ::testing::Values(Way{"fault_sim", Arrival::kPolled},
                                           Way{"fault_sim", Arrival::kEvent},
                                           Way{"fault_shm", Arrival::kPolled},
                                           Way{"fault_shm", Arrival::kEvent},
                                           Way{"shm", Arrival::kMapped}),
                         testing::way_name);

TEST_P(OneChunk, ASleepingReceiverHearsOfEndMarkers) {
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
        EXPECT_TRUE(fabric.wait([] { return run.load() == kCalls; }, soon()));
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
      for (uint64_t i = 0; i < kCalls; ++i) {
        // What is kept waits with a deadline, in shutdown().
        ASSERT_TRUE(messenger.call<RetryAsync>(
            [load = Load{{i}}] { run += load.words[0] < kCalls ? 1 : 2; }));
      }
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    });
    EXPECT_EQ(run.load(), kCalls);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cariama
