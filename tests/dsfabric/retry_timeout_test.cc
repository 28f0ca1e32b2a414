// FabricOptions::retry_timeout: a call with Retry does not wait for ever for a destination that
// runs no calls.
#include <atomic>
#include <chrono>
#include <string>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

std::atomic<int> retried_calls{0};  // calls that have run

LocalJobOptions short_retries() {
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  options.fabric.receive_units = 4;
  options.fabric.buffered_bytes = 1024;
  options.fabric.retry_timeout = std::chrono::milliseconds(100);
  return options;
}

// Sends calls to a thread that runs none until one is refused. Returns the number of the others.
int fill(Fabric& fabric, ThreadId to) {
  int accepted = 0;
  absl::Status sent;
  while (sent.ok()) {
    sent = call(fabric, to, [] { ++retried_calls; }).status();
    if (sent.ok()) ++accepted;
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  EXPECT_THAT(std::string(sent.message()), ::testing::HasSubstr(fabric.label(fabric.rank_of(to))));
  EXPECT_THAT(std::string(sent.message()), ::testing::HasSubstr("retry_timeout"));
  return accepted;
}

void end_a_call_to_another_process(const LocalJobOptions& options, int units) {
  LocalJob job(options);
  retried_calls = 0;
  std::atomic<bool> refused{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until([&] { return refused.load(); }, soon()));  // runs no calls
      return;
    }
    const int accepted = fill(fabric, 1);
    EXPECT_GE(accepted, units);
    refused = true;
    EXPECT_TRUE(fabric.wait_polling([&] { return retried_calls == accepted; }, soon()));
    must(call(fabric, 1, [] { ++retried_calls; }));
    EXPECT_TRUE(fabric.wait_polling([&] { return retried_calls == accepted + 1; }, soon()));
  });
}

TEST(RetryTimeout, EndsACallToAnotherProcess) { end_a_call_to_another_process(short_retries(), 4); }

// The receiver's budget of units does not suffice for the calls.
TEST(RetryTimeout, EndsACallWithoutSharedUnits) {
  LocalJobOptions options = short_retries();
  options.fabric.receive_units = 16;
  options.fabric.reserved_units = 1;
  options.fabric.shared_unit_bytes = options.fabric.receive_unit_bytes;
  end_a_call_to_another_process(options, 1);
}

TEST(RetryTimeout, EndsACallToAThreadOfThisProcess) {
  LocalJobOptions options = short_retries();
  options.fabric.threads = 2;
  LocalJob job(options);
  retried_calls = 0;
  std::atomic<bool> refused{false};
  job.run([&](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() == 1) return;
    if (thread == 1) {
      EXPECT_TRUE(wait_until([&] { return refused.load(); }, soon()));  // runs no calls
      return;
    }
    const int accepted = fill(fabric, fabric.thread_of(0, 1));
    EXPECT_GE(accepted, 1);
    refused = true;
    EXPECT_TRUE(fabric.wait_polling([&] { return retried_calls == accepted; }, soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
