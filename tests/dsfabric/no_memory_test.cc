// Threads that find no memory while they run, answer or end calls: no call, answer or failure is
// lost, and the process goes on.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

// An answer to the own process needs memory.
TEST(CallsWithoutMemory, AnAnswerIsSentWhenThereIsMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Future<void> ended = async_call(fabric, 0, lose_memory);
    const absl::Status status = ended.get(soon());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(failing_bytes, 0u) << "the answer needed no memory";
  });
}

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
  job.run([](Fabric& fabric, uint32_t) {
    const Rank other = 1 - fabric.rank();
    for (int i = 0; i < 20; ++i) {
      Synchronizer ended;
      must(service_call<RemoteNotify>(fabric, other, lose_memory, ended));
      EXPECT_TRUE(fabric.wait([&] { return ended.done(); }, soon()));
      EXPECT_TRUE(ended.status().ok()) << ended.status();
    }
  });
}

// Whichever allocation of rank 0's service thread fails after the loss of its peer, the calls that
// wait for the peer end.
TEST(CallsWithoutMemory, TheCallsToAFailedProcessEnd) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  for (const size_t bytes : {1, 24, 48, 100}) {
    SCOPED_TRACE(bytes);
    LocalJobOptions options{.processes = 2, .transport = transport_case("fault_shm")};
    options.faults = [](uint64_t seed) {
      FaultOptions faults;
      faults.seed = seed;
      return faults;
    };
    options.fabric.heartbeat = std::chrono::milliseconds(20);
    options.finalize = false;
    LocalJob job(options);
    static std::atomic<bool> ended;
    ended = false;
    job.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        // Runs no calls, so that the calls of rank 0 wait.
        EXPECT_TRUE(wait_until([] { return ended.load(); }, soon()));
        return;
      }
      std::vector<Future<int>> answers;
      for (int i = 0; i < 4; ++i) answers.push_back(async_call(fabric, 1, [] { return 1; }));
      // Rank 1's service thread returns the call to rank 0's service thread.
      Synchronizer prepared;
      must(service_call<RemoteNotify>(
          fabric, 1,
          [](size_t failing) {
            must(service_call(*running_fabric(), 0, [failing] { failing_bytes = failing; }));
          },
          prepared, bytes));
      EXPECT_TRUE(fabric.wait([&] { return prepared.done(); }, soon()));
      job.faults(0)->lose_peer(fabric.label(1));
      for (Future<int>& answer : answers) {
        const absl::Status status = answer.get(soon()).status();
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      }
      EXPECT_TRUE(absl::IsUnavailable(fabric.peer_status(1)));
      ended = true;
    });
  }
}

}  // namespace
}  // namespace cariama::testing
