// Serial numbers, which are never used twice, distinguish the channels of a process.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "riutils/internal/runtime.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using testing::LocalJob;
using testing::soon;

class ChannelSerials : public ::testing::TestWithParam<ChannelCase> {};
INSTANTIATE_TEST_SUITE_P(On, ChannelSerials,
                         ::testing::Values(ChannelCase{"shm", Arrival::kMapped},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"sim", Arrival::kEvent}),
                         testing::channel_case_name);

// Channels that live at the same time. Some of their serial numbers differ only above the lower 32
// bits.
TEST_P(ChannelSerials, HaveMoreThan32Bits) {
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  static std::atomic<uint64_t> sums[8];
  for (auto& sum : sums) sum = 0;
  constexpr uint64_t kSerialCalls = 500;
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    const auto all_arrived = [&] {
      for (const auto& sum : sums) {
        if (sum.load() != kSerialCalls) return false;
      }
      return true;
    };
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait(all_arrived, soon()));
      return;
    }
    std::vector<std::unique_ptr<RDMAMessenger>> messengers;
    for (const uint64_t first : {uint64_t{1}, kWrap - 1, kWrap + 1, 2 * kWrap - 1}) {
      internal::Runtime::of(fabric).begin_serials_at(first);
      for (int i = 0; i < 2; ++i) {
        messengers.push_back(std::make_unique<RDMAMessenger>(*fabric.this_thread(), 1,
                                                             testing::small_channel(GetParam())));
        ASSERT_EQ(messengers.back()->setup(), absl::OkStatus());
      }
    }
    for (uint64_t i = 0; i < kSerialCalls; ++i) {
      for (size_t which = 0; which < messengers.size(); ++which) {
        ASSERT_TRUE(messengers[which]->call<RetryAsync>([which] { ++sums[which]; }));
      }
    }
    for (const auto& messenger : messengers) {
      EXPECT_EQ(messenger->shutdown(soon()), absl::OkStatus());
    }
  });
  for (const auto& sum : sums) EXPECT_EQ(sum.load(), kSerialCalls);
}

}  // namespace
}  // namespace cariama
