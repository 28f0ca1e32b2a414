// The states of a channel at its sending end, and requests for chunks whose answers come late. Only
// the steps that are documented to wait do so.
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::ChannelState;
using internal::WhenNoRoom;
using testing::ChannelRig;
using testing::RigOptions;
using testing::RigTransport;

std::vector<uint64_t>* states_log = nullptr;

// A call of 16 bytes.
struct Logged {
  uint64_t number;
  void operator()() const { states_log->push_back(number); }
};

class ChannelStates : public ::testing::TestWithParam<RigOptions> {
 protected:
  static constexpr WhenNoRoom kRefuse = WhenNoRoom::of(Fail, false);
  static constexpr WhenNoRoom kWait = WhenNoRoom::of(Retry, false);
  static constexpr WhenNoRoom kDefer = WhenNoRoom::of(RetryAsync, false);

  void SetUp() override { states_log = &log_; }

  using milliseconds = std::chrono::milliseconds;

  // Chunks for 55 calls each.
  static MessengerOptions small_chunks(uint32_t at_first, uint32_t most,
                                       milliseconds timeout = std::chrono::seconds(10)) {
    return {.chunks_per_request = at_first,
            .max_chunks = most,
            .chunk_bytes = 1024,
            .timeout = timeout};
  }
  // The timeout of a test in which a request is not answered, but other calls succeed.
  static milliseconds short_timeout() { return milliseconds(pulls() ? 1500 : 100); }
  // On these transports the sender READs the receiver's count, which has to complete within the
  // timeout, too: each poll of a simulated fabric executes one event, and the sender sleeps between
  // polls.
  static bool pulls() {
    const RigTransport transport = GetParam().transport;
    return transport == RigTransport::kTornSim || transport == RigTransport::kWithinSim ||
           transport == RigTransport::kBlockSim;
  }
  CallResult send(ChannelRig& rig, WhenNoRoom when) {
    CallResult sent = rig.sender().send<false>(make_call(Logged{next_}), when);
    if (sent) ++next_;
    return sent;
  }
  void fill_a_chunk(ChannelRig& rig) {
    for (size_t i = rig.calls_per_chunk(16); i > 0; --i) ASSERT_TRUE(send(rig, kRefuse).ok());
    // A READ of the receiver's count comes behind these WRITEs, and a poll of a simulated fabric
    // executes one event: execute them here rather than while the sender waits, which sleeps.
    for (int i = 0; i < 1000; ++i) rig.deliver();
  }
  // Expects that every accepted call ran once, in order.
  void expect_all_run() {
    ASSERT_EQ(log_.size(), next_);
    for (uint64_t i = 0; i < next_; ++i) ASSERT_EQ(log_[i], i);
  }

  std::vector<uint64_t> log_;
  uint64_t next_ = 0;
};

std::string rig_of(const ::testing::TestParamInfo<RigOptions>& info) {
  return testing::rig_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(On, ChannelStates, ::testing::ValuesIn(testing::every_rig()), rig_of);

TEST_P(ChannelStates, FollowTheTable) {
  ChannelRig rig(GetParam(), small_chunks(1, 1, short_timeout()));
  const auto state = [&] { return rig.sender().state(); };
  EXPECT_EQ(state(), ChannelState::kUnopened);
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().setup()));
  EXPECT_EQ(state(), ChannelState::kOpening);
  rig.grants_late = false;
  ASSERT_TRUE(rig.sender().setup().ok());
  EXPECT_EQ(state(), ChannelState::kOpen);
  fill_a_chunk(rig);
  EXPECT_EQ(state(), ChannelState::kOpen);
  ASSERT_TRUE(send(rig, kDefer).ok());
  EXPECT_EQ(state(), ChannelState::kBacklogged);
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(state(), ChannelState::kOpen);
  while (send(rig, kRefuse).ok()) ASSERT_LT(next_, 1000u);
  ASSERT_TRUE(send(rig, kDefer).ok());
  rig.polls_while_waiting = false;
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().shutdown(Deadline::min())));
  EXPECT_EQ(state(), ChannelState::kClosing);
  EXPECT_TRUE(absl::IsFailedPrecondition(send(rig, kWait).status()));
  // Without the owner, the drain thread ends the channel.
  while (!rig.receiver()->ended()) {
    if (rig.drain_wanted) rig.drain();
    rig.receive();
  }
  EXPECT_EQ(state(), ChannelState::kClosed);
  EXPECT_TRUE(rig.sender().shutdown(kForever).ok());
  rig.sender().close(absl::UnavailableError("the end"));
  EXPECT_EQ(state(), ChannelState::kClosed);
  expect_all_run();

  ChannelRig failing(GetParam(), small_chunks(1, 1));
  ASSERT_TRUE(failing.sender().setup().ok());
  failing.sender().close(absl::UnavailableError("the end"));
  EXPECT_EQ(failing.sender().state(), ChannelState::kFailed);
  EXPECT_TRUE(failing.sender().is_released());
}

// RetryAsync never waits for a grant, however late it comes.
TEST_P(ChannelStates, ADeferredCallDoesNotWaitForAGrant) {
  ChannelRig rig(GetParam(), small_chunks(1, 4));
  fill_a_chunk(rig);
  rig.grants_late = true;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(rig, kDefer).ok());
  EXPECT_EQ(rig.waits, 0u);
  EXPECT_EQ(rig.sender().statistics().deferred, 100u);
  EXPECT_EQ(rig.sender().state(), ChannelState::kBacklogged);
  // The drain thread does not wait for the grant either.
  for (int i = 0; i < 3; ++i) rig.drain();
  EXPECT_EQ(rig.waits, 0u);
  EXPECT_TRUE(rig.drain_wanted);
  rig.grants_late = false;
  // If the sender pulls the receiver's count, the READ has to complete first.
  for (int i = 0; i < 100'000 && rig.granted == 1; ++i) rig.drain();
  EXPECT_GT(rig.granted, 1u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// Neither for the first one.
TEST_P(ChannelStates, ADeferredCallDoesNotWaitForTheFirstGrant) {
  ChannelRig rig(GetParam(), small_chunks(1, 4, short_timeout()));
  rig.grants_late = true;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(rig, kDefer).ok());
  EXPECT_EQ(rig.waits, 0u);
  EXPECT_EQ(rig.sender().statistics().deferred, 100u);
  EXPECT_EQ(rig.sender().state(), ChannelState::kOpening);
  // Other calls wait for it until the timeout.
  ChannelRig other(GetParam(), small_chunks(1, 4, short_timeout()));
  other.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(send(other, kWait).status()));
  rig.grants_late = false;
  ASSERT_TRUE(wait_until(
      [&] {
        rig.drain();
        return rig.granted != 0;
      },
      deadline_after(testing::kPatience)));
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// The grants come one at a time, and the first one has room for the call.
TEST_P(ChannelStates, ADeferredFirstCallObtainsAllRequestedChunks) {
  constexpr uint32_t kChunks = 40;
  ChannelRig rig(GetParam(), small_chunks(kChunks, kChunks));
  rig.most_per_grant = 16;
  rig.on_obtain = [&] { rig.grants_late = !rig.grants_late; };
  ASSERT_TRUE(send(rig, kDefer).ok());
  EXPECT_EQ(rig.granted, 0u);
  for (int i = 0; i < 100'000 && rig.drain_wanted; ++i) {
    rig.drain();
    rig.receive();
  }
  EXPECT_FALSE(rig.drain_wanted);
  EXPECT_EQ(rig.granted, kChunks);
  EXPECT_EQ(rig.waits, 0u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// The receiver refuses further chunks: the channel works with those that it has.
TEST_P(ChannelStates, ADeferredFirstCallDoesNotNeedAllRequestedChunks) {
  ChannelRig rig(GetParam(), small_chunks(40, 40));
  rig.most_per_grant = 16;
  rig.grants_left = 20;
  rig.on_obtain = [&] { rig.grants_late = !rig.grants_late; };
  ASSERT_TRUE(send(rig, kDefer).ok());
  for (int i = 0; i < 100'000 && rig.drain_wanted; ++i) {
    rig.drain();
    rig.receive();
  }
  EXPECT_FALSE(rig.drain_wanted);
  EXPECT_EQ(rig.granted, 20u);
  EXPECT_EQ(rig.sender().state(), ChannelState::kOpen);
  ASSERT_TRUE(send(rig, kWait).ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// The receiver consumes all ended chunks before the sender needs one of them. With a READ for each
// chunk there would be 188.
TEST_P(ChannelStates, FewReadsTellThatARingIsConsumed) {
  if (GetParam().arrival == Arrival::kMapped) return;  // the sender loads the count
  constexpr uint32_t kChunks = 64;
  MessengerOptions options = small_chunks(kChunks, kChunks);
  options.consumption = Consumption::kPull;
  ChannelRig rig(GetParam(), options);
  for (int lap = 0; lap < 4; ++lap) {
    // The last chunk of a lap stays open until the next one.
    for (uint32_t i = 0; i < kChunks - 1; ++i) fill_a_chunk(rig);
    ASSERT_TRUE(rig.receive_all());
  }
  expect_all_run();
  const MessengerStatistics counts = rig.sender().statistics();
  EXPECT_GT(counts.chunks_filled, 3 * kChunks);
  EXPECT_GT(counts.pulls, 0u);
  EXPECT_LE(counts.pulls, 80u);
}

// Fail and Retry wait for a grant no longer than the timeout. The late grant is used by a later
// call.
TEST_P(ChannelStates, OtherCallsWaitForAGrantUntilTheTimeout) {
  ChannelRig rig(GetParam(), small_chunks(1, 2, short_timeout()));
  fill_a_chunk(rig);
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(send(rig, kRefuse).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(send(rig, kWait).status()));
  EXPECT_EQ(rig.sender().state(), ChannelState::kOpen);
  rig.grants_late = false;
  fill_a_chunk(rig);
  EXPECT_EQ(rig.granted, 2u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// If memory is exhausted while the answer to a request is outstanding, the answer is taken later.
// Otherwise the sender could never return the chunks.
TEST_P(ChannelStates, AnAnswerThatFoundNoMemoryIsTakenLater) {
  ChannelRig rig(GetParam(), small_chunks(1, 2, short_timeout()));
  fill_a_chunk(rig);
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(send(rig, kRefuse).status()));
  rig.on_obtain = [] { throw std::bad_alloc(); };
  EXPECT_TRUE(absl::IsResourceExhausted(send(rig, kRefuse).status()));
  rig.on_obtain = nullptr;
  rig.grants_late = false;
  ASSERT_TRUE(rig.receive_all());
  bool ended = false;
  for (int i = 0; i < 100'000 && !ended; ++i) {
    ended = rig.sender().end_if_quiet();
    rig.receive();  // also lets transfers of the simulation complete
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(rig.granted, 2u);
}

// If the first grant comes after shutdown(), the channel still ends at the receiver, which would
// keep the chunks otherwise.
TEST_P(ChannelStates, AGrantAfterShutdownIsReturned) {
  ChannelRig rig(GetParam(), small_chunks(2, 4, milliseconds(50)));
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().setup()));
  EXPECT_TRUE(rig.sender().shutdown(kForever).ok()) << "no call waits for the chunks";
  EXPECT_EQ(rig.sender().state(), ChannelState::kClosing);
  EXPECT_FALSE(rig.sender().is_released());
  ASSERT_TRUE(rig.drain_wanted);
  rig.drain();
  EXPECT_TRUE(rig.drain_wanted) << "the request has no answer yet";
  rig.grants_late = false;
  rig.drain();
  EXPECT_FALSE(rig.drain_wanted);
  EXPECT_EQ(rig.sender().state(), ChannelState::kClosed);
  ASSERT_NE(rig.receiver(), nullptr);
  for (int i = 0; i < 1000 && !rig.sender().is_released(); ++i) rig.receive();
  EXPECT_TRUE(rig.receiver()->ended());
  EXPECT_TRUE(rig.sender().is_released());
}

// If the receiver's process refuses the first chunks after shutdown(), nothing has to be ended.
TEST_P(ChannelStates, ARefusalAfterShutdownEndsTheChannel) {
  ChannelRig rig(GetParam(), small_chunks(2, 4, milliseconds(50)));
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().setup()));
  EXPECT_TRUE(rig.sender().shutdown(kForever).ok());
  rig.grants_late = false;
  rig.grants_left = 0;
  rig.drain();
  EXPECT_EQ(rig.sender().state(), ChannelState::kClosed);
  EXPECT_TRUE(rig.sender().is_released());
}

// A failed receiver makes no room any more: calls that find none say that it has failed.
TEST_P(ChannelStates, ACallThatFindsNoRoomReportsAFailedReceiver) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  EXPECT_TRUE(absl::IsResourceExhausted(send(rig, kRefuse).status()));
  rig.link_status = absl::UnavailableError("rank 1 has died");
  EXPECT_TRUE(absl::IsUnavailable(send(rig, kRefuse).status()));
  EXPECT_EQ(rig.sender().state(), ChannelState::kFailed);
}

// A call that runs while setup() waits may batch another one, which flush() then publishes.
TEST_P(ChannelStates, FlushPublishesABatchThatWasBegunDuringSetup) {
  ChannelRig rig(GetParam(), small_chunks(1, 2));
  rig.grants_late = true;
  rig.on_wait = [&] {
    rig.grants_late = false;
    ASSERT_TRUE(rig.sender().send<true>(make_call(Logged{next_}), kDefer).ok());
    ++next_;
  };
  ASSERT_TRUE(rig.sender().setup().ok());
  ASSERT_EQ(next_, 1u);
  ASSERT_TRUE(rig.sender().flush().ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// Without memory the drain thread may not be told of a deferred call. The next one tells it.
TEST_P(ChannelStates, TheDrainThreadIsAskedAgainAfterAnException) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  rig.on_drain_later = [] { throw std::bad_alloc(); };
  EXPECT_THROW(static_cast<void>(send(rig, kDefer)), std::bad_alloc);
  ++next_;  // the call was deferred
  EXPECT_FALSE(rig.drain_wanted);
  rig.on_drain_later = nullptr;
  ASSERT_TRUE(send(rig, kDefer).ok());
  EXPECT_TRUE(rig.drain_wanted);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// An exception of a call that runs while the sender waits leaves the channel usable.
TEST_P(ChannelStates, AnExceptionEndsAWait) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  rig.polls_while_waiting = false;
  rig.on_wait = [] { throw std::bad_alloc(); };
  EXPECT_THROW(static_cast<void>(send(rig, kWait)), std::bad_alloc);
  rig.polls_while_waiting = true;
  ASSERT_TRUE(rig.receive_all());
  bool ended = false;
  for (int i = 0; i < 100'000 && !ended; ++i) {
    ended = rig.sender().end_if_quiet();
    rig.receive();  // also lets transfers of the simulation complete
  }
  EXPECT_TRUE(ended);
  expect_all_run();
}

// Without memory to push a count, the chunk still ends once, and the count is pushed later.
TEST_P(ChannelStates, AChunkEndsOnceIfTheCountCannotBePushed) {
  ChannelRig rig(GetParam(), small_chunks(1, 2));
  fill_a_chunk(rig);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(rig, kDefer).ok());
  bool throws = rig.consumption() == Consumption::kPush;
  rig.on_push = [&] {
    if (std::exchange(throws, false)) throw std::bad_alloc();
  };
  for (int i = 0; i < 100'000 && throws; ++i) {
    if (rig.drain_wanted) rig.drain();
    try {
      rig.receive();
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(throws);
      EXPECT_EQ(rig.receiver()->consumed_chunks(), 1u);
    }
  }
  EXPECT_FALSE(throws);
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(rig.receiver()->consumed_chunks(), 1u);
  EXPECT_EQ(rig.last_push, rig.consumption() == Consumption::kPush ? 1u : 0u);
  expect_all_run();
}

// If the count cannot be posted, it is pushed later.
TEST_P(ChannelStates, ACountWhosePushFailsIsPushedAgain) {
  ChannelRig rig(GetParam(), small_chunks(1, 2));
  fill_a_chunk(rig);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(rig, kDefer).ok());
  rig.pushes_to_fail = rig.consumption() == Consumption::kPush ? 2 : 0;
  ASSERT_TRUE(rig.receive_all());
  for (int i = 0; i < 3; ++i) rig.receive();
  EXPECT_EQ(rig.pushes_to_fail, 0u);
  EXPECT_EQ(rig.receiver()->consumed_chunks(), 1u);
  EXPECT_EQ(rig.last_push, rig.consumption() == Consumption::kPush ? 1u : 0u);
  expect_all_run();
}

// Each deferred call of a failed channel is reported once, if a call waits for its end.
TEST_P(ChannelStates, AFailedChannelReportsTheCallsThatItHasLost) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  for (const uint64_t awaited : {7, 0, 9}) {
    const auto call = make_call(Logged{next_++});
    OutgoingCall outgoing = OutgoingCall::of(call);
    outgoing.awaited = awaited;
    internal::EventReceiver nothing;
    ASSERT_TRUE(rig.sender().send_slowly(outgoing, kDefer, false, nothing).ok());
  }
  EXPECT_TRUE(rig.lost_calls.empty());
  rig.sender().close(absl::UnavailableError("the end"));
  EXPECT_EQ(rig.lost_calls, (std::vector<uint64_t>{7, 9}));
  EXPECT_FALSE(rig.sender().flush().ok());
  EXPECT_EQ(rig.lost_calls.size(), 2u);
}

// The sender does not know which of them have run. The record of calls that wait for their end
// does: it ends those that have not ended.
TEST_P(ChannelStates, AFailedChannelReportsTheCallsThatItHasPublished) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  const auto call = make_call(Logged{next_++});
  OutgoingCall outgoing = OutgoingCall::of(call);
  outgoing.awaited = 7;
  internal::EventReceiver nothing;
  ASSERT_TRUE(rig.sender().send_slowly(outgoing, kDefer, false, nothing).ok());
  ASSERT_TRUE(rig.receive_all());
  EXPECT_TRUE(rig.lost_calls.empty());
  rig.sender().close(absl::UnavailableError("the end"));
  EXPECT_EQ(rig.lost_calls, (std::vector<uint64_t>{7}));
  EXPECT_FALSE(send(rig, kDefer).ok());
}

TEST_P(ChannelStates, AFailedChannelReportsTheCallsOfItsBatch) {
  ChannelRig rig(GetParam(), small_chunks(1, 2));
  ASSERT_EQ(rig.sender().setup(), absl::OkStatus());
  for (const uint64_t awaited : {7, 9}) {
    const auto call = make_call(Logged{next_++});
    OutgoingCall outgoing = OutgoingCall::of(call);
    outgoing.awaited = awaited;
    internal::EventReceiver nothing;
    ASSERT_TRUE(rig.sender().send_slowly(outgoing, kWait, true, nothing).ok());
  }
  rig.sender().close(absl::UnavailableError("the end"));
  EXPECT_EQ(rig.lost_calls, (std::vector<uint64_t>{7, 9}));
}

// A thread may sleep until a deferred call is transmitted, while other calls stay deferred.
TEST_P(ChannelStates, WaitersLearnThatADeferredCallWasTransmitted) {
  ChannelRig rig(GetParam(), small_chunks(1, 1));
  fill_a_chunk(rig);
  Synchronizer transmitted;
  const auto call = make_call(Logged{next_++});
  internal::EventReceiver event(transmitted);
  ASSERT_TRUE(rig.sender().send_slowly(OutgoingCall::of(call), kDefer, false, event).ok());
  while (rig.sender().statistics().deferred < 2 * rig.calls_per_chunk(16)) {
    ASSERT_TRUE(send(rig, kDefer).ok());
  }
  rig.drain();
  EXPECT_FALSE(transmitted.done());
  EXPECT_EQ(rig.told, 0u);
  for (int i = 0; i < 100'000 && !transmitted.done(); ++i) {
    rig.receive(rig.calls_per_chunk(16));
    rig.drain();
  }
  EXPECT_TRUE(transmitted.done());
  EXPECT_TRUE(rig.drain_wanted) << "further calls are deferred";
  EXPECT_GT(rig.told, 0u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// The drain thread may take the answer to the request of a thread in setup(), and the answer may
// be an error.
TEST_P(ChannelStates, SetupDoesNotTakeAnErrorOfTheHelperForAGrant) {
  ChannelRig rig(GetParam(), small_chunks(1, 2));
  rig.in_call = true;
  ASSERT_TRUE(send(rig, kDefer).ok());
  rig.in_call = false;
  ASSERT_TRUE(rig.drain_wanted);
  rig.grants_left = 0;
  int requests = 0;
  // The thread asks and looks again; then the drain thread looks and takes the answer.
  rig.on_obtain = [&] { rig.grants_late = ++requests <= 2; };
  const absl::Status set_up = rig.sender().setup();
  EXPECT_FALSE(set_up.ok()) << "no chunk was granted";
}

// The channel asks again later: exhausted memory may become free.
TEST_P(ChannelStates, GrowthContinuesWhenMemoryIsFreeAgain) {
  ChannelRig rig(GetParam(), small_chunks(1, 4));
  rig.polls_while_waiting = false;
  rig.grants_left = 1;
  uint64_t requests = 0;
  rig.on_obtain = [&] { ++requests; };
  while (send(rig, kRefuse).ok()) ASSERT_LT(next_, 1000u);
  EXPECT_EQ(rig.granted, 1u);
  EXPECT_EQ(requests, 2u);
  constexpr uint64_t kRounds = 10;
  for (uint64_t round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(rig.receive_all());
    while (send(rig, kRefuse).ok()) {
    }
  }
  EXPECT_LT(requests, 2 + kRounds) << "a full chunk does not always ask again";
  rig.grants_left = 20;
  EXPECT_TRUE(wait_until(
      [&] {
        EXPECT_TRUE(rig.receive_all());
        while (send(rig, kRefuse).ok()) {
        }
        return rig.granted == 4;
      },
      deadline_after(testing::kPatience)));
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

}  // namespace
}  // namespace cariama
