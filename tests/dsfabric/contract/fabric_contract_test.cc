// The guarantees of a fabric, the same on every transport.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/remote_object.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

class FabricContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

TEST_P(FabricContract, CallsAnswersAndNotifications) {
  static std::atomic<uint64_t> run;
  run = 0;
  LocalJob job({.processes = 3, .transport = GetParam(), .fabric = {.threads = 2}});
  job.run([](Fabric& fabric, uint32_t) {
    const uint32_t self = fabric.this_thread()->global_id();
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      must(call(fabric, to, [] { ++run; }));
      EXPECT_EQ(must(async_call(
                         fabric, to, [](std::string a, uint32_t b) { return a.size() + b; },
                         std::string(100, 'x'), self)
                         .get(soon())),
                100 + self);
      auto written = must(RemoteObject<Synchronizer>::create(fabric));
      must(call<RemoteNotify>(
          fabric, to, [] { ++run; }, written));
      must(written.wait(soon()));
    }
  });
  EXPECT_EQ(run, 2u * 6 * 6);
}

TEST_P(FabricContract, BuffersArePushedAndPulled) {
  static RemoteMemoryLocator target;
  static std::atomic<bool> named;
  static std::atomic<uint64_t> sums[4];
  named = false;
  for (auto& sum : sums) sum = 0;
  LocalJob job({.processes = 2, .transport = GetParam()});
  job.run([](Fabric& fabric, uint32_t) {
    constexpr size_t kBytes = 20'000;
    if (fabric.rank() == 1) {
      const RDMAMemory room = must(fabric.memory().allocate(kBytes));
      target = room.locator(fabric.domain(0), fabric.rank());
      named = true;
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return named.load(); }, soon()));
    RDMAMemory memory = must(fabric.memory().allocate(kBytes));
    uint64_t expected = 0;
    for (size_t i = 0; i < kBytes; ++i) {
      memory.get_buffer()[i] = static_cast<std::byte>(i * 7 % 251);
      expected += i * 7 % 251;
    }
    const auto add = [](int which) {
      return [which](void* buffer, uint64_t size) {
        for (uint64_t i = 0; i < size; ++i) sums[which] += static_cast<uint8_t*>(buffer)[i];
      };
    };
    Synchronizer done(3);
    must(call_buffer<RemoteNotify>(fabric, 1, add(0), &memory, 0, kBytes, target, done));
    must(call_buffer<RemoteNotify, Sync>(fabric, 1, add(1), &memory, 0, kBytes, done));
    must(call_buffer<RemoteNotify, Async>(fabric, 1, add(2), &memory, 0, kBytes, done));
    EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    must(done.status());
    // When the call was transmitted, the source may be overwritten.
    Synchronizer sent;
    done.reset(1);
    must(call_buffer(fabric, 1, add(3), &memory, 0, kBytes, target,
                     on_transmitted(sent) | on_consumed(done)));
    EXPECT_TRUE(sent.done());
    EXPECT_TRUE(memory.is_free());
    std::memset(memory.get_buffer(), 0xff, kBytes);
    EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    must(done.status());
    for (auto& sum : sums) EXPECT_EQ(sum, expected);
    must(fabric.memory().free(std::move(memory)));
  });
}

// More calls than there are credits, in both directions, with handlers that call back.
TEST_P(FabricContract, FloodsEnd) {
  static std::atomic<int> run;
  run = 0;
  LocalJobOptions options{.processes = 2, .transport = GetParam()};
  options.fabric.receive_units = 2;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    for (int i = 0; i < 50; ++i) {
      must(call(fabric, fabric.thread_of(1 - fabric.rank()), [] {
        ++run;
        Fabric& here = *running_fabric();
        must(call(here, 1 - here.rank(), [] { ++run; }));
      }));
    }
  });
  EXPECT_EQ(run, 2 * 50 * 2);
}

INSTANTIATE_TEST_SUITE_P(On, FabricContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
