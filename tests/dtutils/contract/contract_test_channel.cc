// Sleeping on a completion channel instead of polling: no wake-up is lost.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "dtutils/doorbell.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

class ChannelContract : public ContractTest {
 protected:
  // Returns a link whose receive completions at the far end wake far_channel_.
  [[nodiscard]] Link make_sleeping_link() {
    far_channel_ = must(far_domain_->create_channel());
    LinkOptions options;
    options.far.receive_completions =
        must(far_domain_->create_completion_queue({.depth = 512, .channel = far_channel_}));
    return make_link(options);
  }

  // Repeats the wait until kPatience has passed in real time. Virtual time may pass faster than the
  // threads run that a test waits for, so that a single wait could time out too early.
  static bool wait_patiently(CompletionChannel& channel) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) {
      if (channel.wait(seconds(1))) return true;
    }
    return false;
  }

  // The usual loop of a sleeper: poll, arm, poll again, wait.
  static Completion sleep_for_one(CompletionQueue& queue, CompletionChannel& channel) {
    Completion completion;
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) {
      if (queue.poll(std::span(&completion, 1)) == 1) return completion;
      EXPECT_TRUE(queue.arm().ok());
      if (queue.poll(std::span(&completion, 1)) == 1) return completion;
      static_cast<void>(channel.wait(seconds(1)));
    }
    ADD_FAILURE() << "no completion was polled before the deadline";
    return {};
  }

  // Returns the number of five short waits that end before their timeout.
  static int early_returns(CompletionChannel& channel) {
    int early = 0;
    for (int i = 0; i < 5; ++i) early += channel.wait(milliseconds(10)) ? 1 : 0;
    return early;
  }

  std::shared_ptr<CompletionChannel> far_channel_;
};

TEST_P(ChannelContract, ASleeperWakesForACompletion) {
  Link link = make_sleeping_link();
  const Segments none;
  for (uint64_t round = 0; round < 10; ++round) {
    post_receive(link.far, round);
    ASSERT_TRUE(link.far.receives->arm().ok());
    std::thread sender([&] {
      std::this_thread::sleep_for(milliseconds(2));
      post(link.near, to_peer(Opcode::kSend, round, none));
    });
    EXPECT_TRUE(wait_patiently(*far_channel_));
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), round, CompletionKind::kReceive));
    sender.join();
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kSend));
  }
}

TEST_P(ChannelContract, SendCompletionsWakeToo) {
  const auto channel = must(near_domain_->create_channel());
  LinkOptions options;
  options.near.send_completions =
      must(near_domain_->create_completion_queue({.depth = 512, .channel = channel}));
  Link link = make_link(options);
  Buffer from(*near_domain_, 1 << 20);
  Buffer to(*far_domain_, 1 << 20);
  from.fill(1);
  const Segments source = {from.segment()};
  for (uint64_t round = 0; round < 10; ++round) {
    ASSERT_TRUE(link.near.sends->arm().ok());
    post(link.near, to_remote(Opcode::kWrite, round, source, to.locator()));
    EXPECT_TRUE(wait_patiently(*channel));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kWrite));
  }
  EXPECT_TRUE(holds(to, 0, pattern(1, 1 << 20)));
}

// Every second message finds the doorbells armed. A transport that maps no memory of the receiver
// ignores them.
TEST_P(ChannelContract, ASendWakesTheThreadThatItNamesOrTheChannel) {
  Link link = make_sleeping_link();
  Buffer place(*far_domain_, sizeof(ReceiverDoorbells));
  auto* const doorbells = new (place.data()) ReceiverDoorbells;
  std::byte* const mapped = link.near->direct_access(place.locator());
  const Segments none;
  for (uint64_t round = 0; round < 10; ++round) {
    post_receive(link.far, round);
    ASSERT_TRUE(link.far.receives->arm().ok());
    const bool armed = round % 2 == 0;
    if (armed) {
      static_cast<void>(doorbells->doorbell.arm());
      static_cast<void>(doorbells->receives.arm());
    }
    WorkRequest request = to_peer(Opcode::kSend, round, none, kSignaled | kWakesReceiver);
    request.operand = reinterpret_cast<uint64_t>(mapped);
    post(link.near, request);
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kSend));
    if (mapped != nullptr && armed) {
      EXPECT_FALSE(doorbells->receives.is_armed());
      EXPECT_FALSE(doorbells->doorbell.is_armed());
      EXPECT_FALSE(far_channel_->wait(milliseconds(10)));
    } else {
      EXPECT_TRUE(wait_patiently(*far_channel_));
    }
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), round, CompletionKind::kReceive));
  }
}

// A message that fails at the receiver is an event also if its doorbells are armed.
TEST_P(ChannelContract, ASendThatFailsWakesTheChannel) {
  Link link = make_sleeping_link();
  Buffer place(*far_domain_, sizeof(ReceiverDoorbells));
  auto* const doorbells = new (place.data()) ReceiverDoorbells;
  static_cast<void>(doorbells->doorbell.arm());
  static_cast<void>(doorbells->receives.arm());
  Buffer from(*near_domain_, 64);
  const Segments source = {from.segment()};
  post_receive(link.far, 1);
  ASSERT_TRUE(link.far.receives->arm().ok());
  WorkRequest request = to_peer(Opcode::kSend, 2, source, kSignaled | kWakesReceiver);
  request.operand = reinterpret_cast<uint64_t>(link.near->direct_access(place.locator()));
  post(link.near, request);
  EXPECT_TRUE(failed(take_one(*link.near.sends), 2, sent_too_much(), link.near));
  EXPECT_TRUE(wait_patiently(*far_channel_));
  EXPECT_TRUE(failed(take_one(*link.far.receives), 1, received_too_much(), link.far));
}

TEST_P(ChannelContract, AWaitWithoutEventsEndsAtItsTimeout) {
  Link link = make_sleeping_link();
  EXPECT_EQ(early_returns(*far_channel_), 0);
  ASSERT_TRUE(link.far.receives->arm().ok());
  EXPECT_LT(early_returns(*far_channel_), 5);
  EXPECT_FALSE(far_channel_->wait(std::chrono::nanoseconds(0)));
}

TEST_P(ChannelContract, AnEventBetweenArmAndWaitEndsTheWait) {
  Link link = make_sleeping_link();
  const Segments none;
  for (uint64_t round = 0; round < 20; ++round) {
    post_receive(link.far, round);
    ASSERT_TRUE(link.far.receives->arm().ok());
    post(link.near, to_peer(Opcode::kSend, round, none));
    // When the sender's completion has arrived, the receiver's has arrived, too, or will arrive
    // soon.
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kSend));
    EXPECT_TRUE(wait_patiently(*far_channel_));
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), round, CompletionKind::kReceive));
  }
}

// A completion that arrived before arm() causes no event. The second poll after arm() finds it.
TEST_P(ChannelContract, ACompletionBeforeArmIsFoundByPolling) {
  Link link = make_sleeping_link();
  const Segments none;
  for (uint64_t round = 0; round < 20; ++round) {
    post_receive(link.far, round);
    post(link.near, to_peer(Opcode::kSend, round, none));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kSend));
    EXPECT_TRUE(succeeded(sleep_for_one(*link.far.receives, *far_channel_), round,
                          CompletionKind::kReceive));
  }
}

TEST_P(ChannelContract, OnlySolicitedMessagesWakeASolicitedSleeper) {
  Link link = make_sleeping_link();
  const Segments none;
  for (uint64_t id = 0; id < 3; ++id) post_receive(link.far, id);
  ASSERT_TRUE(link.far.receives->arm(/*solicited_only=*/true).ok());
  post(link.near, to_peer(Opcode::kSend, 10, none));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 10, CompletionKind::kSend));
  EXPECT_LT(early_returns(*far_channel_), 5) << "an unsolicited message wakes the sleeper";

  post(link.near, to_peer(Opcode::kSend, 11, none, kSignaled | kSolicited));
  EXPECT_TRUE(wait_patiently(*far_channel_));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 0, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 1, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 11, CompletionKind::kSend));

  ASSERT_TRUE(link.far.receives->arm(true).ok());
  post(link.near, to_remote(Opcode::kWriteImmediate, 12, none, {}, kSignaled | kSolicited));
  EXPECT_TRUE(wait_patiently(*far_channel_));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 2, CompletionKind::kReceiveImmediate));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 12, CompletionKind::kWrite));
}

TEST_P(ChannelContract, AFailureWakesEvenASolicitedSleeper) {
  Link link = make_sleeping_link();
  post_receive(link.far, 1);
  ASSERT_TRUE(link.far.receives->arm(/*solicited_only=*/true).ok());
  link.far->fail();
  EXPECT_TRUE(wait_patiently(*far_channel_));
  EXPECT_TRUE(failed(take_one(*link.far.receives), 1, CompletionStatus::kFlushed, link.far));
}

TEST_P(ChannelContract, ArmingWithoutAChannelIsAnError) {
  Link link = make_link();
  EXPECT_EQ(link.far.receives->arm().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ChannelContract, WakeEndsAPresentAndAFutureWait) {
  const auto channel = must(near_domain_->create_channel());
  for (int round = 0; round < 10; ++round) {
    channel->wake();
    EXPECT_TRUE(channel->wait(seconds(10)));
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(1));
      channel->wake();
    });
    EXPECT_TRUE(wait_patiently(*channel));
    other.join();
  }
  EXPECT_EQ(early_returns(*channel), 0);
}

TEST_P(ChannelContract, TwoQueuesShareAChannel) {
  far_channel_ = must(far_domain_->create_channel());
  std::vector<Link> links;
  for (int i = 0; i < 2; ++i) {
    LinkOptions options;
    options.far.receive_completions =
        must(far_domain_->create_completion_queue({.depth = 512, .channel = far_channel_}));
    links.push_back(make_link(options));
  }
  const Segments none;
  for (uint64_t round = 0; round < 20; ++round) {
    for (Link& link : links) {
      post_receive(link.far, round);
      ASSERT_TRUE(link.far.receives->arm().ok());
    }
    Link& talks = links[round % 2];
    Link& silent = links[1 - round % 2];
    post(talks.near, to_peer(Opcode::kSend, round, none));
    EXPECT_TRUE(wait_patiently(*far_channel_));
    EXPECT_TRUE(succeeded(take_one(*talks.far.receives), round, CompletionKind::kReceive));
    EXPECT_TRUE(succeeded(take_one(*talks.near.sends), round, CompletionKind::kSend));
    post(silent.near, to_peer(Opcode::kSend, round, none));
    EXPECT_TRUE(wait_patiently(*far_channel_));
    EXPECT_TRUE(succeeded(take_one(*silent.far.receives), round, CompletionKind::kReceive));
    EXPECT_TRUE(succeeded(take_one(*silent.near.sends), round, CompletionKind::kSend));
  }
}

// Two threads sleep until the other one sends. A single lost wake-up ends the exchange.
TEST_P(ChannelContract, SleepersPlayPingPong) {
  constexpr uint64_t kRounds = 300;
  const auto near_channel = must(near_domain_->create_channel());
  far_channel_ = must(far_domain_->create_channel());
  LinkOptions options;
  options.near.receive_completions =
      must(near_domain_->create_completion_queue({.depth = 512, .channel = near_channel}));
  options.far.receive_completions =
      must(far_domain_->create_completion_queue({.depth = 512, .channel = far_channel_}));
  Link link = make_link(options);
  const Segments none;
  std::atomic<bool> broken{false};
  const auto play = [&](End& end, CompletionChannel& channel, bool serves) {
    // Each player posts its next receive before the opponent can answer.
    for (uint64_t round = 0; round < kRounds && !broken; ++round) {
      for (const bool serving : {serves, !serves}) {
        if (serving) {
          post(end, to_peer(Opcode::kSend, round, none));
          const Completion sent = take_one(*end.sends);
          if (sent.status != CompletionStatus::kSuccess) broken = true;
        } else {
          const Completion received = sleep_for_one(*end.receives, channel);
          if (received.status != CompletionStatus::kSuccess || received.id != round) broken = true;
          if (round + 1 < kRounds) post_receive(end, round + 1);
        }
      }
    }
  };
  post_receive(link.near, 0);
  post_receive(link.far, 0);
  std::thread opponent([&] { play(link.far, *far_channel_, false); });
  play(link.near, *near_channel, true);
  opponent.join();
  EXPECT_FALSE(broken);
}

INSTANTIATE_TEST_SUITE_P(On, ChannelContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
