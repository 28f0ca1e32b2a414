// Handles of calls that wait for an answer: each is good once, for the process that it was made
// for.
#include "dsfabric/internal/pending_calls.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

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

  PendingCalls calls_;
  std::atomic<int> completed_{0};
};

TEST_F(PendingCallsTest, AnAnswerIsTakenOnce) {
  const uint64_t handle = add(3);
  EXPECT_NE(handle, 0u);
  EXPECT_TRUE(calls_.waits_for(3));
  EXPECT_EQ(calls_.take(handle, 2), nullptr);  // another process has nothing to say about it
  EXPECT_NE(calls_.take(handle, 3), nullptr);
  EXPECT_EQ(calls_.take(handle, 3), nullptr);
  EXPECT_FALSE(calls_.waits_for(3));
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

TEST_F(PendingCallsTest, AllOfOneProcessAreTaken) {
  std::vector<uint64_t> of_one, of_other;
  for (int i = 0; i < 10; ++i) {
    of_one.push_back(add(1));
    of_other.push_back(add(2));
  }
  EXPECT_NE(calls_.take(of_one[4], 1), nullptr);
  EXPECT_EQ(calls_.take_all(1).size(), 9u);
  EXPECT_TRUE(calls_.take_all(1).empty());
  for (uint64_t handle : of_one) EXPECT_EQ(calls_.take(handle, 1), nullptr);
  for (uint64_t handle : of_other) EXPECT_NE(calls_.take(handle, 2), nullptr);
}

// Answers and the failure of the peer at the same time: each call is completed by one of them.
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
    for (auto& call : calls_.take_all(1)) call->complete(absl::UnavailableError(""), {});
  });
  answers.join();
  failure.join();
  EXPECT_EQ(completed_, kCalls);
}

}  // namespace
}  // namespace cariama::internal
