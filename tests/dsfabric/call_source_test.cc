// A worker whose call source always has calls: other calls to the worker run all the same, and its
// own calls end.
#include "dsfabric/internal/call_source.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using testing::must;
using testing::soon;

std::atomic<bool> flood, came;

struct EndlessSource final : CallSource {
  size_t run(size_t most) override { return flood ? most : 0; }
};
struct EndlessCalls final : CallSourceRegistry {
  CallSource& source(ThreadIndex) override { return endless; }
  void event(Rank, uint32_t) override {}
  void peer_died(Rank) override {}
  uint64_t begun(Rank) override { return 0; }
  uint64_t ended(Rank) override { return 0; }
  void finalized() override {}
  void stop() override {}
  void disconnect() override {}
  EndlessSource endless;
};
std::unique_ptr<CallSourceRegistry> make_endless_calls(Fabric&) {
  return std::make_unique<EndlessCalls>();
}

// Rank 0 has an endless source while it calls `body`. Meanwhile rank 1 sends it a call, which sets
// `came`, and runs calls.
template <typename Body>
void with_an_endless_source(uint32_t service_threads, const Body& body) {
  flood = came = false;
  testing::LocalJobOptions options;
  options.fabric.service_threads = service_threads;
  testing::LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      static_cast<void>(internal::call_source_registry(fabric, &make_endless_calls));
      // Connects.
      EXPECT_EQ(must(async_call(fabric, fabric.thread_of(1), [] { return 1; }).get(soon())), 1);
      flood = true;
      must(call(fabric, fabric.thread_of(1), [] {
        Fabric& fabric = *running_fabric();
        must(call(fabric, fabric.thread_of(0), [] { came = true; }));
      }));
      body(fabric);
      flood = false;
    } else {
      EXPECT_TRUE(fabric.wait_polling([] { return came.load(); }, soon()));
    }
  });
}

class EndlessCallSource : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(ServiceThreads, EndlessCallSource, ::testing::Values(0, 1));

TEST_P(EndlessCallSource, DoesNotDelayMessagesInAWait) {
  with_an_endless_source(GetParam(), [](Fabric& fabric) {
    EXPECT_TRUE(fabric.wait([] { return came.load(); }, soon()));
  });
}
TEST_P(EndlessCallSource, DoesNotDelayMessagesInAPollingWait) {
  with_an_endless_source(GetParam(), [](Fabric& fabric) {
    EXPECT_TRUE(fabric.wait_polling([] { return came.load(); }, soon()));
  });
}
TEST_P(EndlessCallSource, DoesNotDelayMessagesIfTheThreadPolls) {
  with_an_endless_source(GetParam(), [](Fabric& fabric) {
    EXPECT_TRUE(wait_until(
        [&] {
          fabric.process_calls(8);
          return came.load();
        },
        soon()));
  });
}
TEST_P(EndlessCallSource, DoesNotDelayAnswers) {
  with_an_endless_source(GetParam(), [](Fabric& fabric) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(must(async_call(fabric, fabric.thread_of(1), [] { return 2; }).get(soon())), 2);
    }
  });
}

}  // namespace
}  // namespace cariama
