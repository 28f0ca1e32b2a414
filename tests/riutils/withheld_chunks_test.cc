// The chunks of a channel that was broken off go to no other channel, because its sender may still
// write to them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "riutils/call.h"
#include "riutils/internal/chunk_ring.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;
using testing::transport_case;

// Gives access to the place in the mapped chunk at which the sender writes its next call.
class Window : public ChannelSender {
 public:
  [[nodiscard]] static std::byte* position(ChannelSender& sender) {
    return sender.*(&Window::position_);
  }
};

TEST(WithheldChunks, ABrokenSenderReachesNoOtherChannel) {
  constexpr int kWithheldCalls = 50;
  static std::atomic<int> ran;
  static std::atomic<bool> closed, written, finished;
  ran = 0;
  closed = written = finished = false;
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(
          fabric.wait_polling([&] { return fabric.statistics().calls_rejected != 0; }, soon()));
      fabric.process_calls();  // closes the channel
      closed = true;
      // Receives nothing meanwhile, so that the calls stay in their chunks.
      EXPECT_TRUE(wait_until([] { return written.load(); }, soon()));
      EXPECT_TRUE(fabric.wait([] { return ran.load() >= 1 + kWithheldCalls; }, soon()));
      finished = true;
      return;
    }
    RDMAMessenger broken(*fabric.this_thread(), 1);
    must(broken.call([] { ++ran; }));
    ASSERT_EQ(broken.arrival(), Arrival::kMapped);
    std::byte* const place = Window::position(broken.sender());
    internal::publish_word(place, internal::word_of(internal::EndMarker::make(0, 0x7f)));
    must(call(fabric, 1, [] {}));  // wakes the receiver
    EXPECT_TRUE(fabric.wait_polling([] { return closed.load(); }, soon()));
    RDMAMessenger other(*fabric.this_thread(), 1);
    for (int i = 0; i < kWithheldCalls; ++i) must(other.call([] { ++ran; }));
    std::memset(place, 0xff, 4096);
    written = true;
    must(call(fabric, 1, [] {}));
    EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(ran, 1 + kWithheldCalls);
}

}  // namespace
}  // namespace cariama
