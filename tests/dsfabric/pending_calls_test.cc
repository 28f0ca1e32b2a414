// Handles of pending calls: each is valid once, for the process that is to answer.
#include "dsfabric/calls/pending_calls.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::internal {
namespace {

class Counted final : public PendingCall {
 public:
  explicit Counted(std::atomic<int>& completed) : completed_(completed) {}
  void complete(const absl::Status&, std::span<const std::byte>) override { ++completed_; }

 private:
  std::atomic<int>& completed_;
};

class PendingCallsTest : public ::testing::Test {
 protected:
  uint64_t add(uint32_t rank) { return calls_.add(rank, std::make_unique<Counted>(completed_)); }
  // Takes all calls that a failed process was to answer. Returns their number.
  int take_failed(uint32_t rank) {
    int taken = 0;
    PendingCalls::Cursor from;
    while (calls_.take_failed(rank, from) != nullptr) ++taken;
    return taken;
  }

  PendingCalls calls_;
  std::atomic<int> completed_{0};
};

TEST_F(PendingCallsTest, AnAnswerIsTakenOnce) {
  const uint64_t handle = add(3);
  EXPECT_NE(handle, 0u);
  EXPECT_TRUE(calls_.waits_for(3));
  EXPECT_EQ(calls_.take(handle, 2), nullptr);  // another process must not complete the call
  EXPECT_NE(calls_.take(handle, 3), nullptr);
  EXPECT_EQ(calls_.take(handle, 3), nullptr);
  EXPECT_FALSE(calls_.waits_for(3));
}

// A call that is removed and then lost for want of memory would never be completed.
TEST_F(PendingCallsTest, TakingCallsNeedsNoMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  std::vector<uint64_t> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(add(3));
  const testing::FailAllocation fail(1);
  for (const uint64_t handle : handles) EXPECT_NE(calls_.take(handle, 3), nullptr);
}

// A channel that fails ends the calls that it carries, without memory, and no others.
TEST_F(PendingCallsTest, CallsOfAChannelAreTakenOnce) {
  const uint64_t first = add(3);
  const uint64_t other = add(3);
  const uint64_t second = add(3);
  const uint64_t ended = add(3);
  for (const uint64_t handle : {first, second, ended}) calls_.assign(handle, 8);
  calls_.assign(other, 9);
  EXPECT_NE(calls_.take(ended, 3), nullptr);
  calls_.assign(ended, 8);        // does nothing
  const uint64_t later = add(3);  // the entry of the ended call, which no channel carries yet
  const auto count = [&](uint32_t rank, uint64_t channel) {
    int taken = 0;
    PendingCalls::Cursor from;
    while (calls_.take_carried(rank, channel, from) != nullptr) ++taken;
    return taken;
  };
  EXPECT_EQ(count(2, 8), 0);  // another process must not end the calls
  {
    const testing::FailAllocation fail(1);
    EXPECT_EQ(count(3, 8), 2);
  }
  EXPECT_EQ(count(3, 8), 0);
  EXPECT_EQ(calls_.take(first, 3), nullptr);
  EXPECT_NE(calls_.take(other, 3), nullptr);
  EXPECT_NE(calls_.take(later, 3), nullptr);
}

// A call that is added while a failure is reported may be answered. The first one added gets the
// entry of the call that was taken, the second one an entry behind it.
TEST_F(PendingCallsTest, CallsThatAreAddedDuringASearchAreNotTaken) {
  static_cast<void>(add(3));
  static_cast<void>(add(4));
  PendingCalls::Cursor from;
  EXPECT_NE(calls_.take_failed(3, from), nullptr);
  const uint64_t first = add(3);
  const uint64_t second = add(3);
  EXPECT_EQ(calls_.take_failed(3, from), nullptr);
  EXPECT_NE(calls_.take(first, 3), nullptr);
  EXPECT_NE(calls_.take(second, 3), nullptr);
}

TEST_F(PendingCallsTest, HandlesAreNotUsedTwice) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t handle = add(0);
    EXPECT_TRUE(seen.insert(handle).second);
    EXPECT_NE(calls_.take(handle, 0), nullptr);
    for (uint64_t forged :
         {handle, handle + 1, handle ^ uint64_t{1} << 32, uint64_t{0}, ~uint64_t{0}}) {
      EXPECT_EQ(calls_.take(forged, 0), nullptr);
    }
  }
}

// The number of uses of an entry has 32 bits. When they are used up, the entry is not used again.
TEST_F(PendingCallsTest, HandlesAreNotUsedTwiceWhenCountersWrap) {
  constexpr uint64_t kIndexMask = (uint64_t{1} << 26) - 1;
  calls_.begin_at(UINT32_MAX - 3);
  std::set<uint64_t> seen;
  std::set<uint64_t> indices;
  for (int i = 0; i < 52; ++i) {
    // Two at a time, which complete in turn: an entry wraps while another one is in use.
    const uint64_t first = add(0);
    const uint64_t second = add(0);
    for (const uint64_t handle : {first, second}) {
      EXPECT_NE(handle, 0u);
      EXPECT_NE(handle >> 32, 0u);
      EXPECT_TRUE(seen.insert(handle).second);
      indices.insert(handle & kIndexMask);
    }
    if (i % 3 == 0) {
      EXPECT_EQ(take_failed(0), 2);
    } else {
      EXPECT_NE(calls_.take(first, 0), nullptr);
      EXPECT_NE(calls_.take(second, 0), nullptr);
    }
    for (const uint64_t handle : seen) EXPECT_EQ(calls_.take(handle, 0), nullptr);
  }
  EXPECT_FALSE(calls_.waits_for(0));
  EXPECT_EQ(indices.size(), 26u);  // 104 calls, 4 uses of each entry
}

TEST_F(PendingCallsTest, AllOfOneProcessAreTaken) {
  std::vector<uint64_t> of_one, of_other;
  for (int i = 0; i < 10; ++i) {
    of_one.push_back(add(1));
    of_other.push_back(add(2));
  }
  EXPECT_NE(calls_.take(of_one[4], 1), nullptr);
  {
    const testing::FailAllocation fail(1);  // a process fails without memory, too
    EXPECT_EQ(take_failed(1), 9);
  }
  EXPECT_EQ(take_failed(1), 0);
  for (uint64_t handle : of_one) EXPECT_EQ(calls_.take(handle, 1), nullptr);
  for (uint64_t handle : of_other) EXPECT_NE(calls_.take(handle, 2), nullptr);
}

// Answers and the peer's failure at the same time: each call is completed by exactly one of them.
TEST_F(PendingCallsTest, AnswersRaceWithFailure) {
  constexpr int kCalls = 2000;
  std::vector<uint64_t> handles;
  for (int i = 0; i < kCalls; ++i) handles.push_back(add(1));
  std::thread answers([&] {
    for (uint64_t handle : handles) {
      if (auto call = calls_.take(handle, 1)) call->complete(absl::OkStatus(), {});
    }
  });
  std::thread failure([&] {
    PendingCalls::Cursor from;
    while (const auto call = calls_.take_failed(1, from)) {
      call->complete(absl::UnavailableError(""), {});
    }
  });
  answers.join();
  failure.join();
  EXPECT_EQ(completed_, kCalls);
}

}  // namespace
}  // namespace cariama::internal
