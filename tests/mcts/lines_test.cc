// A worker's lines: whatever runs while a call is being sent, the call is published.
#include "mcts/lines.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "mcts/host.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::mcts {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::soon;
using cariama::testing::transport_case;

// Rank 1's first call to rank 2 has to open the channel, and runs meanwhile what rank 0 has sent: a
// call that flushes, as answers to commands do. Afterwards rank 1 only serves.
TEST(Lines, ACallThatFlushesWhileAnotherOneIsSentLeavesNothingBehind) {
  std::atomic<bool> asked{false};
  std::atomic<bool> flushed{false};  // in rank 1
  std::atomic<bool> arrived{false};  // in rank 2
  LocalJob job({.processes = 3, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    Lines& lines = *Host::here().lines;
    if ((*host)->rank() == 0) {
      EXPECT_TRUE(lines.call((*host)->id(1, 0), [&flushed] {
        Host::here().lines->flush();
        flushed = true;
      }));
      lines.flush();
      asked = true;
      EXPECT_TRUE((*host)->work_until([&] { return arrived.load(); }, soon()));
      (*host)->end();
      return;
    }
    if ((*host)->rank() == 1) {
      const Deadline deadline = soon();
      while (!asked && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_FALSE(flushed);
      EXPECT_TRUE(lines.call((*host)->id(2, 0), [&arrived] { arrived = true; }));
      EXPECT_TRUE(flushed) << "nothing ran while the channel was opened";
    }
    EXPECT_EQ((*host)->serve(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace cariama::mcts
