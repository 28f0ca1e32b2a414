// FabricOptions::retry_timeout for calls of a messenger, whose receiver runs no calls.
#include <atomic>
#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

TEST(RetryTimeoutOfMessengers, EndsACall) {
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  options.fabric.retry_timeout = std::chrono::milliseconds(100);
  LocalJob job(options);
  static std::atomic<int> ran;
  ran = 0;
  std::atomic<bool> refused{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until([&] { return refused.load(); }, soon()));  // runs no calls
      return;
    }
    RDMAMessenger messenger(
        *fabric.this_thread(), 1,
        {.first_chunk_bytes = 1024, .chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024});
    int accepted = 0;
    absl::Status sent;
    while (sent.ok()) {
      sent = messenger.call([] { ++ran; }).status();
      if (sent.ok()) ++accepted;
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
    EXPECT_THAT(std::string(sent.message()), ::testing::HasSubstr(fabric.label(1)));
    EXPECT_GT(accepted, 0);
    refused = true;
    EXPECT_TRUE(fabric.wait_polling([&] { return ran == accepted; }, soon()));
    must(messenger.call([] { ++ran; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_TRUE(fabric.wait_polling([&] { return ran == accepted + 1; }, soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
