// A service thread of shm that finds no memory for a peer: the peer may get an error, and the
// process goes on.
#include <gmock/gmock.h>

#include <string>

#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::shm {
namespace {

TEST(ShmServiceWithoutMemory, RefusesAPeerAndGoesOn) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  constexpr int kMostFailures = 4;
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    if (exchange.rank() == 0) {
      cariama::testing::is_exempt = true;
      ShmNode node;
      must(exchange.put("address", node.queue_pair->address()));
      for (int failures = 1; failures <= kMostFailures; ++failures) {
        cariama::testing::failures_elsewhere = failures;
        must(exchange.fence(soon()));
        must(exchange.fence(soon()));
        cariama::testing::failures_elsewhere = 0;
        must(exchange.fence(soon()));
        must(exchange.fence(soon()));
      }
      return;
    }
    const std::string address = must(exchange.get(0, "address", soon()));
    for (int failures = 1; failures <= kMostFailures; ++failures) {
      ShmNode node;  // a new device, which has no link to the other one
      must(exchange.fence(soon()));
      const absl::Status connected = node.make_queue_pair()->connect(address, {});
      if (!connected.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(connected)) << connected;
        EXPECT_THAT(std::string(connected.message()), ::testing::HasSubstr("raise ulimit -v"));
      }
      must(exchange.fence(soon()));
      must(exchange.fence(soon()));
      must(node.make_queue_pair()->connect(address, {}));
      must(exchange.fence(soon()));
    }
  });
}

}  // namespace
}  // namespace cariama::shm
