// Calls that their receiver cannot run yet (IncomingCall::postponed), in every arrival mode on
// every transport that supports it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "dsfabric/function_table.h"
#include "gtest/gtest.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::WhenNoRoom;
using testing::ChannelRig;
using testing::RigOptions;

std::vector<uint64_t>* postponed_log = nullptr;

struct PromptCall {
  uint64_t number;
  void operator()() const { postponed_log->push_back(number); }
};

// A call that its receiver runs at the third attempt only.
struct PostponableCall {
  uint64_t number;
  [[nodiscard]] static FunctionId id() { return FunctionTable::id_of<&PostponableCall::run>(); }
  [[nodiscard]] size_t bytes() const { return sizeof number; }
  void write(std::byte* at) const { std::memcpy(at, &number, sizeof number); }
  static void run(IncomingCall& call) {
    static uint64_t attempts = 0;
    if (++attempts % 3 != 0) {
      call.outcome = CallOutcome::kMalformed;
      call.postponed = true;
      return;
    }
    uint64_t number = 0;
    std::memcpy(&number, call.closure.data(), sizeof number);
    postponed_log->push_back(number);
  }
};

class Postponed : public ::testing::TestWithParam<RigOptions> {};
INSTANTIATE_TEST_SUITE_P(On, Postponed, ::testing::ValuesIn(testing::every_rig()),
                         [](const auto& info) { return testing::rig_name(info.param); });

TEST_P(Postponed, CallsRunOnceAndAreNotOvertaken) {
  constexpr uint64_t kCalls = 200;
  std::vector<uint64_t> log;
  postponed_log = &log;
  ChannelRig rig(GetParam(), {.max_chunks = 4, .chunk_bytes = 1024});
  std::mt19937_64 random(1);
  const auto send = [&](const auto& call) {
    constexpr WhenNoRoom kWhen = WhenNoRoom::of(Retry, false);
    return random() % 2 == 0 ? rig.sender().send<true>(call, kWhen)
                             : rig.sender().send<false>(call, kWhen);
  };
  for (uint64_t i = 0; i < kCalls; ++i) {
    ASSERT_TRUE(
        (random() % 4 == 0 ? send(PostponableCall{i}) : send(make_call(PromptCall{i}))).ok());
    if (i % 5 == 0) rig.receive(random() % 6);
  }
  ASSERT_TRUE(rig.sender().flush().ok());
  ASSERT_TRUE(rig.receive_all());
  ASSERT_EQ(log.size(), kCalls);
  for (uint64_t i = 0; i < kCalls; ++i) EXPECT_EQ(log[i], i);
  EXPECT_TRUE(rig.outcomes.empty());
  EXPECT_TRUE(rig.breaks.empty());
}

}  // namespace
}  // namespace cariama
