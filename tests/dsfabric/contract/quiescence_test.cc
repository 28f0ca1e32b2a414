// Termination detection, on every transport: never early, always ends.
#include "dsfabric/quiescence.h"

#include <atomic>
#include <random>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// The test's own count of calls of the whole job that were begun and have not ended. Incremented
// before a call is made, and decremented as the last action of the call.
std::atomic<int64_t> running{0};
std::atomic<uint64_t> run{0};

// Makes up to two more calls, to destinations that the seed determines.
void spread(Fabric& fabric, uint64_t seed, uint32_t depth) {
  std::mt19937_64 random(seed);
  for (uint64_t i = depth == 0 ? 0 : random() % 3; i > 0; --i) {
    const auto to = static_cast<uint32_t>(random() % fabric.total_threads());
    const uint64_t next = random();
    ++running;
    must(call(fabric, to, [next, depth] {
      spread(*running_fabric(), next, depth - 1);
      ++run;
      --running;
    }));
  }
}

class QuiescenceContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    running = 0;
    run = 0;
  }
};

TEST_P(QuiescenceContract, CallsThatCauseCalls) {
  LocalJob job({.processes = 4, .transport = GetParam(), .fabric = {.receive_units = 4}});
  job.run([](Fabric& fabric, uint32_t) {
    TerminationDetector detector(fabric);
    for (uint64_t round = 0; round < 5; ++round) {
      for (uint64_t i = 0; i < 8; ++i) spread(fabric, round * 100 + i * 10 + fabric.rank(), 6);
      must(detector.wait(soon()));
      EXPECT_EQ(running, 0);
      // No process begins the next round before all have checked `running`.
      must(detector.wait(soon()));
    }
  });
  EXPECT_GT(run, 100u);
}

TEST_P(QuiescenceContract, OfAllThreads) {
  LocalJob job({.processes = 2, .transport = GetParam(), .fabric = {.threads = 3}});
  std::array<std::unique_ptr<TerminationDetector>, 2> detectors;
  std::array<std::atomic<bool>, 2> made{};
  job.run([&](Fabric& fabric, uint32_t thread) {
    const uint32_t rank = fabric.rank();
    if (thread == 0) {
      detectors[rank] = std::make_unique<TerminationDetector>(
          fabric, CollectiveOptions{.participants = Participants::kThreads});
      made[rank] = true;
    }
    ASSERT_TRUE(wait_until([&] { return made[rank].load(); }, soon()));
    for (uint64_t round = 0; round < 5; ++round) {
      for (uint64_t i = 0; i < 8; ++i) {
        spread(fabric, round * 100 + i * 10 + fabric.this_thread()->global_id(), 6);
      }
      must(detectors[rank]->wait(soon()));
      EXPECT_EQ(running, 0);
      must(detectors[rank]->wait(soon()));
    }
  });
  EXPECT_GT(run, 100u);
}

INSTANTIATE_TEST_SUITE_P(On, QuiescenceContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
