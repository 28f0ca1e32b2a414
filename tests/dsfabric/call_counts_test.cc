// The counts of calls for termination detection: none is lost for want of memory.
#include "dsfabric/calls/call_counts.h"

#include <atomic>
#include <new>

#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::testing {
namespace {

TEST(CallCounts, ReservedCountsNeedNoMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  internal::CallCounts counts(1000);
  counts.reserve(999);
  {
    const FailAllocation fail(1);
    counts.begin(999);
    counts.end(999);
    counts.end(999);
  }
  EXPECT_EQ(counts.begun(999), 1u);
  EXPECT_EQ(counts.ended(999), 2u);
}

TEST(CallCounts, ABeginningWithoutMemoryIsNotCounted) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  internal::CallCounts counts(1000);
  {
    const FailAllocation fail(1);
    EXPECT_THROW(counts.begin(7), std::bad_alloc);
  }
  EXPECT_EQ(counts.begun(7), 0u);
  counts.begin(7);
  EXPECT_EQ(counts.begun(7), 1u);
}

// finalize() of the job waits until all calls that were begun have ended.
TEST(CallCounts, ACallWithoutMemoryDoesNotCountAsBegun) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  static std::atomic<int> ran;
  ran = 0;
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    const ThreadId self = fabric.thread_of(fabric.rank());
    const auto count = [] { ++ran; };
    {
      const FailAllocation fail(1);
      EXPECT_THROW(static_cast<void>(call(fabric, self, count)), std::bad_alloc);
    }
    must(call(fabric, self, count));
  });
  EXPECT_EQ(ran, 2);
}

// A control call that finds no memory counts as begun and ended: termination is still detected.
TEST(CallCounts, AControlCallWithoutMemoryHasEnded) {
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    internal::ControlTraffic traffic(fabric);
    EXPECT_THROW(traffic.sending(1, []() -> bool { throw std::bad_alloc(); }), std::bad_alloc);
    EXPECT_EQ(traffic.begun_to(1), 1u);
    EXPECT_EQ(traffic.ended_from(1), 1u);
  });
}

}  // namespace
}  // namespace cariama::testing
