// Threads that find no memory while they run or answer calls: each call ends, with its result or
// with an error, and the process goes on.
#include <chrono>
#include <cstdint>
#include <string>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/synchronizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// The next allocation of the thread that runs the call fails.
constexpr auto lose_memory = [] { failing_bytes = 1; };

TEST(CallsWithoutMemory, AResultIsLostWithAnError) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Future<uint64_t> result = async_call(fabric, 0, [] {
      lose_memory();
      return uint64_t{7};
    });
    const absl::Status status = result.get(soon()).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad_alloc"));
    EXPECT_EQ(failing_bytes, 0u) << "the answer needed no memory";
  });
}

// The thread that answers is the service thread; it allocates at its heartbeats, too.
TEST(CallsWithoutMemory, AServiceThreadGoesOn) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJobOptions options{.processes = 2};
  options.fabric.heartbeat = std::chrono::milliseconds(5);
  LocalJob job(options);
  job.run([&job](Fabric& fabric, uint32_t) {
    const Rank other = 1 - fabric.rank();
    for (int i = 0; i < 20; ++i) {
      Synchronizer ended;
      must(service_call<RemoteNotify>(fabric, other, lose_memory, ended));
      // Does not poll, so that the service threads run the calls.
      EXPECT_TRUE(wait_until([&] { return ended.done(); }, soon()));
      EXPECT_TRUE(ended.status().ok()) << ended.status();
    }
    job.meet(2);  // finalize() polls
  });
}

}  // namespace
}  // namespace cariama::testing
