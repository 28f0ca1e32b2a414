// Completion channels over verbs: events are acknowledged, so that destroying a queue never blocks.
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ChannelTest : public testing::VerbsTest {};

// ibv_destroy_cq waits until each event that was read is acknowledged. The numbers of events lie
// below and above the number at which the channel acknowledges.
TEST_F(ChannelTest, AQueueWithUnacknowledgedEventsCanBeDestroyed) {
  auto channel = testing::value_of(domain_->create_channel());
  for (const int events : {1, 63, 64, 65, 150}) {
    auto sends =
        testing::value_of(domain_->create_completion_queue({.depth = 64, .channel = channel}));
    testing::VerbsEnd near = make_end({.send_completions = sends});
    testing::VerbsEnd far = make_end();
    connect(near, far);
    testing::VerbsBuffer to(*domain_, 8);
    for (int i = 0; i < events; ++i) {
      ASSERT_TRUE(sends->arm().ok());
      ASSERT_TRUE(near.pair
                      ->post_send(WorkRequest{.opcode = Opcode::kWrite,
                                              .flags = kSignaled,
                                              .remote_address = to.region->locator().address,
                                              .remote_key = to.region->remote_key()})
                      .ok());
      ASSERT_TRUE(channel->wait(seconds(10)));
      ASSERT_EQ(testing::take_completions(*sends, 1).size(), 1U);
    }
    // An event that is in the channel but was not read does not block the destruction either.
    ASSERT_TRUE(sends->arm().ok());
    ASSERT_TRUE(
        near.pair->post_send(WorkRequest{.opcode = Opcode::kWrite, .flags = kSignaled}).ok());
    ASSERT_EQ(testing::take_completions(*sends, 1).size(), 1U);
  }
  // The last event was discarded with its queue. No event remains that could wake a thread.
  while (channel->wait(milliseconds(0))) {
  }
  EXPECT_FALSE(channel->wait(milliseconds(5)));
}

TEST_F(ChannelTest, WakeIsStoredOnceAndEndsASleep) {
  auto channel = testing::value_of(domain_->create_channel());
  EXPECT_FALSE(channel->wait(milliseconds(1)));
  EXPECT_FALSE(channel->wait(milliseconds(-5)));
  channel->wake();
  EXPECT_TRUE(channel->wait(seconds(10)));
  EXPECT_FALSE(channel->wait(milliseconds(1)));
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(20));
    channel->wake();
  });
  EXPECT_TRUE(channel->wait(std::chrono::nanoseconds::max()));
  waker.join();
}

TEST_F(ChannelTest, ArmingWithoutAChannelIsAnError) {
  testing::VerbsEnd end = make_end();
  EXPECT_EQ(end.sends->arm().code(), absl::StatusCode::kFailedPrecondition);
}

// One channel serves several queues, and the receiver sleeps for completions. It misses none.
TEST_F(ChannelTest, SleepingReceiversMissNoCompletion) {
  auto channel = testing::value_of(domain_->create_channel());
  constexpr int kPairs = 3;
  constexpr uint32_t kMessages = 60;
  std::vector<testing::VerbsEnd> receivers;
  std::vector<testing::VerbsEnd> senders;
  for (int i = 0; i < kPairs; ++i) {
    auto queue =
        testing::value_of(domain_->create_completion_queue({.depth = 128, .channel = channel}));
    receivers.push_back(make_end({.receive_completions = queue, .receive_depth = 64}));
    senders.push_back(make_end({.send_depth = 64}));
    connect(senders.back(), receivers.back());
    for (uint32_t k = 0; k < kMessages; ++k) {
      ASSERT_TRUE(receivers.back().pair->post_receive({.id = k}).ok());
    }
  }
  std::thread sending([&] {
    for (uint32_t k = 0; k < kMessages; ++k) {
      for (testing::VerbsEnd& sender : senders) {
        while (!sender.pair
                    ->post_send(WorkRequest{
                        .opcode = Opcode::kWriteImmediate, .flags = kSignaled, .immediate = k})
                    .ok()) {
          std::this_thread::yield();
        }
      }
      if (k % 7 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::vector<uint32_t> next(kPairs, 0);
  uint32_t received = 0;
  for (testing::VerbsEnd& receiver : receivers) ASSERT_TRUE(receiver.receives->arm().ok());
  while (received < kPairs * kMessages) {
    uint32_t found = 0;
    for (int i = 0; i < kPairs; ++i) {
      Completion completion;
      while (receivers[i].receives->poll({&completion, 1}) == 1) {
        EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
        EXPECT_EQ(completion.immediate, next[i]);
        EXPECT_EQ(completion.id, next[i]);
        ++next[i];
        ++found;
      }
    }
    received += found;
    if (found > 0 || received == kPairs * kMessages) continue;
    if (!channel->wait(seconds(10))) break;
    for (testing::VerbsEnd& receiver : receivers) ASSERT_TRUE(receiver.receives->arm().ok());
  }
  sending.join();
  EXPECT_EQ(received, kPairs * kMessages);
}

}  // namespace
}  // namespace cariama
