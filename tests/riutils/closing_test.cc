// A fabric that is closed without finalize(), as after an error, while peers' calls still run.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;
using testing::transport_case;

TEST(Closing, CallsThatRunUntilTheEndUseNoDestroyedConnection) {
  static std::atomic<bool> blocked, sent;
  static std::atomic<int> ran_late;
  blocked = sent = false;
  ran_late = 0;
  LocalJobOptions options{.transport = transport_case("shm")};
  options.init_thread = options.finalize = false;
  LocalJob job(options);
  // The job destroys the fabric of rank 0 first. Its process consumer is then still in a call. When
  // it returns from that, it runs the calls that wait, and reports their chunks as consumed.
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      const auto self = must(fabric.init_thread(0, CallConsumer::kProcess));
      EXPECT_TRUE(wait_until([] { return sent.load(); }, soon()));
      return;
    }
    const auto self = must(fabric.init_thread(0));
    MessengerOptions small;
    small.chunk_bytes = 1024;
    small.consumption = Consumption::kPush;
    // Both fabrics are in one process here, so memory of rank 0 would not stay mapped.
    small.arrival = Arrival::kPolled;
    RDMAMessenger messenger(*self, 0, small);
    must(messenger.call([] {
      blocked = true;
      const Fabric& here = *running_fabric();
      EXPECT_TRUE(wait_until([&] { return here.finalized(); }, soon()));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }));
    must(messenger.flush());
    EXPECT_TRUE(fabric.wait_polling([] { return blocked.load(); }, soon()));
    for (int i = 0; i < 30; ++i) {
      must(messenger.call([load = std::array<char, 200>{}] { ran_late += 1 + load[0]; }));
    }
    must(messenger.flush());
    sent = true;
  });
  EXPECT_GT(ran_late, 0);
}

}  // namespace
}  // namespace cariama
