// Processes of a job find one another, call one another, and end together.
#include "dsfabric/fabric.h"

#include <atomic>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

class FabricTest : public ::testing::TestWithParam<const char*> {};

std::atomic<uint64_t> sum{0};

TEST_P(FabricTest, EveryThreadCallsEveryThread) {
  sum = 0;
  LocalJob job({.processes = 3, .transport = transport_case(GetParam()), .fabric = {.threads = 2}});
  job.run([](Fabric& fabric, uint32_t) {
    const uint64_t self = fabric.this_thread()->global_id();
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      EXPECT_TRUE(call(fabric, to, [self] { sum += 1 + self; }).ok());
    }
  });
  EXPECT_EQ(sum.load(), 6u * (1 + 2 + 3 + 4 + 5 + 6));
}

INSTANTIATE_TEST_SUITE_P(On, FabricTest, ::testing::Values("shm", "sim", "fault_shm", "fault_sim"));

}  // namespace
}  // namespace cariama::testing
