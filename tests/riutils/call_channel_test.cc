// The protocol of a channel between a sender and a receiver that are executed by one thread, for
// every arrival mode on every transport that supports it.
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dsfabric/function_table.h"
#include "dtutils/trace.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/trace_file.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::BatchWord;
using internal::ChannelControl;
using internal::chunk_capacity;
using internal::ChunkHeader;
using internal::EndMarker;
using internal::WhenNoRoom;
using testing::Bytes;
using testing::ChannelRig;
using testing::RigOptions;
using testing::RigTransport;
using testing::TraceFile;

constexpr WhenNoRoom kFail = WhenNoRoom::of(Fail, false);
constexpr WhenNoRoom kRetry = WhenNoRoom::of(Retry, false);
constexpr WhenNoRoom kRetryAsync = WhenNoRoom::of(RetryAsync, false);
constexpr WhenNoRoom kOverflow = WhenNoRoom::of(Fail, true);

// Records the calls that ran in a test.
struct Log {
  std::vector<uint64_t> numbers;
  std::vector<uint64_t> sizes;
  uint64_t damaged = 0;
};
Log* run_log = nullptr;

// A call that carries its number, and a buffer whose content is a function of the number.
struct Numbered {
  uint64_t number;
  void operator()(void* buffer, uint64_t size) const {
    run_log->numbers.push_back(number);
    run_log->sizes.push_back(size);
    const Bytes expected = testing::pattern(number, size);
    if (size != 0 && std::memcmp(buffer, expected.data(), size) != 0) ++run_log->damaged;
  }
};

// A call of 16 bytes.
struct Small {
  uint64_t number;
  void operator()() const { run_log->numbers.push_back(number); }
};

class Channel : public ::testing::TestWithParam<RigOptions> {
 protected:
  void SetUp() override { run_log = &log_; }

  // Sends call number `next_` and counts it if it was accepted.
  template <bool kBatch>
  CallResult send(ChannelRig& rig, WhenNoRoom when) {
    CallResult sent = rig.sender().send<kBatch>(make_call(Small{next_}), when);
    if (sent) ++next_;
    return sent;
  }
  template <bool kBatch>
  CallResult send(ChannelRig& rig, WhenNoRoom when, size_t size) {
    const Bytes bytes = testing::pattern(next_, size);
    CallResult sent = rig.sender().send<kBatch>(make_buffer_call(Numbered{next_}, bytes), when);
    if (sent) ++next_;
    return sent;
  }

  // Expects that every accepted call ran once, in order, with an undamaged buffer.
  void expect_all_run() {
    ASSERT_EQ(log_.numbers.size(), next_);
    for (uint64_t i = 0; i < next_; ++i) ASSERT_EQ(log_.numbers[i], i);
    EXPECT_EQ(log_.damaged, 0u);
  }

  // Sends and receives at random, with random options. `before_step` is called before each step.
  void follow_random_schedules(const std::function<void(std::mt19937_64& random)>& before_step);

  Log log_;
  uint64_t next_ = 0;
};

std::string name_of(const ::testing::TestParamInfo<RigOptions>& info) {
  return testing::rig_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(On, Channel, ::testing::ValuesIn(testing::every_rig()), name_of);

TEST_P(Channel, CallsRunOnceInOrder) {
  ChannelRig rig(GetParam(), {.chunk_bytes = 1024});
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(send<false>(rig, kRetry, static_cast<size_t>(i) % 200).status().ok());
    if (i % 7 == 0) rig.receive(5);
  }
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  EXPECT_TRUE(rig.breaks.empty());
}

// With random schedules and random sizes no call is lost, duplicated, damaged or overtaken.
void Channel::follow_random_schedules(
    const std::function<void(std::mt19937_64& random)>& before_step) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    log_ = {};
    next_ = 0;
    RigOptions options = GetParam();
    options.seed = seed;
    std::mt19937_64 random(seed);
    const uint32_t most = 1 + static_cast<uint32_t>(random() % 6);
    ChannelRig rig(options,
                   {.chunks_per_request = 1 + static_cast<uint32_t>(random() % most),
                    .max_chunks = most,
                    .chunk_bytes = 1024 + 64 * (random() % 16),
                    .flush_bytes = static_cast<uint32_t>(1 + random() % 700),
                    .deferred_bytes = 2000 + random() % 3000,
                    .consumption = seed % 3 == 0 ? Consumption::kPull : Consumption::kPush});
    for (int step = 0; step < 300; ++step) {
      static constexpr WhenNoRoom kPolicies[] = {kFail, kRetry, kRetryAsync, kOverflow};
      const WhenNoRoom when = kPolicies[random() % 4];
      before_step(random);
      rig.in_call = random() % 5 == 0;
      switch (random() % 8) {
        case 0:
          rig.receive(random() % 20);
          break;
        case 1:
          ASSERT_TRUE(rig.sender().flush().ok());
          break;
        case 2:
          if (rig.drain_wanted) rig.drain();
          break;
        case 4:
        case 5: {
          const CallResult sent = send<true>(rig, when, random() % 600);
          ASSERT_TRUE(sent.ok() || absl::IsResourceExhausted(sent.status())) << sent.status();
          break;
        }
        case 6: {
          const CallResult sent = send<false>(rig, when, random() % 60);
          ASSERT_TRUE(sent.ok() || absl::IsResourceExhausted(sent.status())) << sent.status();
          break;
        }
        default:
          for (int i = 0; i < 20; ++i) {
            const CallResult sent = send<true>(rig, when);
            ASSERT_TRUE(sent.ok() || absl::IsResourceExhausted(sent.status())) << sent.status();
          }
      }
    }
    rig.in_call = false;
    ASSERT_TRUE(rig.sender().flush().ok());
    if (next_ != 0) {
      ASSERT_TRUE(rig.receive_all());
    }
    expect_all_run();
    EXPECT_LE(rig.granted, most);
    ASSERT_TRUE(rig.breaks.empty()) << rig.breaks.front();
    ASSERT_TRUE(rig.sender().shutdown(testing::kPatience + std::chrono::steady_clock::now()).ok());
  }
}

TEST_P(Channel, EveryScheduleKeepsOrder) {
  follow_random_schedules([](std::mt19937_64&) {});
}

// A trace changes what sender and receiver do, but not the order of calls. Each publication that
// was run has an arrow with two ends.
TEST_P(Channel, EveryScheduleKeepsOrderInATrace) {
  TraceFile trace;
  ASSERT_TRUE(start_trace(trace.path()).ok());
  follow_random_schedules([](std::mt19937_64&) {});
  ASSERT_TRUE(stop_trace().ok());
  const auto ids = [&](const std::string& phase) {
    std::multiset<std::string> found;
    for (const std::string& line : trace.lines_with("{\"ph\":\"" + phase + "\"")) {
      const size_t at = line.find("\"id\":");
      found.insert(line.substr(at, line.find(',', at) - at));
    }
    return found;
  };
  const auto begins = ids("s");
  const auto ends = ids("f");
  EXPECT_GT(begins.size(), 1000u);
  EXPECT_EQ(begins.size(), ends.size());
  EXPECT_TRUE(begins == ends);
}

// Sender and receiver detect at different points that a trace begins or ends.
TEST_P(Channel, EveryScheduleKeepsOrderWhileTracesBeginAndEnd) {
  TraceFile trace;
  follow_random_schedules([&](std::mt19937_64& random) {
    if (random() % 20 != 0) return;
    ASSERT_TRUE((trace_enabled() ? stop_trace() : start_trace(trace.path())).ok());
  });
}

// Seriema §4.4.1: the channel grows up to max_chunks without any step of the receiver; then calls
// are refused until the receiver consumes chunks; the pushed count equals the consumed chunks.
TEST_P(Channel, ExactlyThreeChunksThenFail) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 3, .chunk_bytes = 1024});
  CallResult sent;
  while ((sent = send<false>(rig, kFail)).ok()) ASSERT_LT(next_, 1000u);
  EXPECT_TRUE(absl::IsResourceExhausted(sent.status())) << sent.status();
  EXPECT_NE(sent.status().message().find("far is behind"), std::string::npos);
  EXPECT_EQ(rig.granted, 3u);
  EXPECT_EQ(rig.grants, 3u);  // 1 chunk; 1 more; then 1, since doubling is limited by max_chunks
  // As many calls of 16 bytes as fit.
  EXPECT_EQ(next_, 3 * rig.calls_per_chunk(16));
  EXPECT_FALSE(send<false>(rig, kFail).ok());
  EXPECT_EQ(rig.pushes, 0u);
  EXPECT_TRUE(log_.numbers.empty());

  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(send<false>(rig, kRetry).ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  EXPECT_EQ(rig.granted, 3u);
  const bool pushes = rig.consumption() == Consumption::kPush;
  EXPECT_EQ(rig.pushes, pushes ? rig.receiver()->consumed_chunks() : 0);
  EXPECT_EQ(rig.last_push, pushes ? rig.receiver()->consumed_chunks() : 0);
  const MessengerStatistics statistics = rig.sender().statistics();
  EXPECT_EQ(statistics.pulls != 0, !pushes);
  EXPECT_EQ(statistics.chunks_filled, rig.receiver()->consumed_chunks());
  EXPECT_EQ(statistics.chunks, 3u);
  EXPECT_EQ(statistics.refused, 2u);
}

// The ring grows 2 → 4 → 8 chunks while the receiver does not run. Afterwards sender and receiver
// wrap around identical rings several times.
TEST_P(Channel, RingsStayIdenticalThroughGrowth) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 2, .max_chunks = 8, .chunk_bytes = 1024});
  while (rig.granted < 4) ASSERT_TRUE(send<false>(rig, kFail, 100).ok());
  // The receiver consumes part of the first ring, then does not run during the next growth.
  rig.receive(8);
  while (send<false>(rig, kFail, 100).ok()) ASSERT_LT(next_, 1000u);
  EXPECT_EQ(rig.granted, 8u);
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(rig.receiver()->chunks().size(), 8u);
  const uint64_t before = rig.receiver()->consumed_chunks();
  while (rig.receiver()->consumed_chunks() < before + 20) {
    ASSERT_TRUE(send<false>(rig, kRetry, 100).ok());
    rig.receive(3);
  }
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// Chunks that arrive in several grants, also those of the first request, become members of both
// rings in the same order.
TEST_P(Channel, RingsStayIdenticalWithPartialGrants) {
  for (const uint32_t most_per_grant : {1u, 3u, 4u}) {
    for (const uint32_t per_request : {1u, 5u, 9u}) {
      SCOPED_TRACE(std::to_string(per_request) + " by " + std::to_string(most_per_grant));
      log_ = {};
      next_ = 0;
      ChannelRig rig(GetParam(),
                     {.chunks_per_request = per_request, .max_chunks = 21, .chunk_bytes = 1024});
      rig.most_per_grant = most_per_grant;
      rig.grants_left = 20;
      ASSERT_EQ(rig.sender().setup(), absl::OkStatus());
      EXPECT_EQ(rig.granted, per_request);
      for (int i = 0; i < 40; ++i) ASSERT_TRUE(send<false>(rig, kRetry, 100).ok());
      rig.receive(8);
      while (send<false>(rig, kFail, 100).ok()) ASSERT_LT(next_, 1000u);
      ASSERT_TRUE(rig.receive_all());
      EXPECT_EQ(rig.granted, 20u);
      EXPECT_EQ(rig.receiver()->chunks().size(), 20u);
      EXPECT_EQ(rig.sender().statistics().chunks, 20u);
      EXPECT_EQ(rig.sender().statistics().requests, rig.grants);
      const uint64_t before = rig.receiver()->consumed_chunks();
      while (rig.receiver()->consumed_chunks() < before + 50) {
        ASSERT_TRUE(send<false>(rig, kRetry, 100).ok());
        rig.receive(3);
      }
      ASSERT_TRUE(rig.receive_all());
      expect_all_run();
      EXPECT_TRUE(rig.breaks.empty());
    }
  }
}

// An error between two grants loses no chunk: the next request continues behind the chunks that
// were granted before.
TEST_P(Channel, AnErrorBetweenGrantsLosesNoChunk) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 5, .max_chunks = 9, .chunk_bytes = 1024});
  rig.most_per_grant = 2;
  rig.on_obtain = [&] {
    if (rig.grants == 1) rig.link_status = absl::DeadlineExceededError("later");
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().setup()));
  EXPECT_EQ(rig.granted, 2u);
  rig.on_obtain = nullptr;
  rig.link_status = absl::OkStatus();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(send<false>(rig, kRetry, 100).ok());
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(rig.receiver()->chunks().size(), rig.granted);
  expect_all_run();
  EXPECT_TRUE(rig.breaks.empty());
}

// Consumption::kPull (paper): the receiver pushes no count; the sender READs it.
TEST_P(Channel, ConsumptionCanBePulled) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1,
                              .max_chunks = 2,
                              .chunk_bytes = 1024,
                              .consumption = Consumption::kPull});
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(send<false>(rig, kRetry, 50).ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  EXPECT_EQ(rig.pushes, 0u);
  EXPECT_GT(rig.sender().statistics().pulls, 0u);
}

// With one chunk: no later call overtakes a deferred call, for each policy of the later call.
TEST_P(Channel, NoCallOvertakesDeferredCalls) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024});
  while (send<false>(rig, kFail).ok()) ASSERT_LT(next_, 1000u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(send<false>(rig, kRetryAsync).ok());
  EXPECT_TRUE(rig.drain_wanted);
  EXPECT_EQ(rig.sender().statistics().deferred, 10u);
  // The receiver consumes everything: there is room now, but calls are still deferred.
  rig.receive();
  rig.receive();
  EXPECT_TRUE(absl::IsResourceExhausted(send<false>(rig, kFail).status()));
  EXPECT_TRUE(send<true>(rig, kOverflow).ok());
  EXPECT_TRUE(send<false>(rig, kRetry).ok());  // waits until all deferred calls are published
  EXPECT_FALSE(send<false>(rig, kFail).status() == absl::UnknownError(""));
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  EXPECT_EQ(rig.granted, 1u);
}

TEST_P(Channel, DeferredBytesAreLimited) {
  ChannelRig rig(
      GetParam(),
      {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024, .deferred_bytes = 160});
  while (send<false>(rig, kFail).ok()) ASSERT_LT(next_, 1000u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(send<false>(rig, kOverflow).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(send<false>(rig, kRetryAsync).status()));
  EXPECT_EQ(rig.sender().statistics().deferred_bytes_high_water, 160u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// A batch is invisible until it is published by flush(), by its size, or by a call that is
// published immediately; then all of it arrives.
TEST_P(Channel, BatchedCallsArePublishedTogether) {
  ChannelRig rig(GetParam(), {.flush_bytes = 160});
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(send<true>(rig, kFail).ok());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rig.receive(), 0u);
  ASSERT_TRUE(rig.sender().flush().ok());
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(log_.numbers.size(), 9u);
  EXPECT_EQ(rig.sender().statistics().publications, 1u);
  // 10 calls fill flush_bytes, which does not count the batch word; the 11th publishes the batch.
  for (int i = 0; i < 11; ++i) ASSERT_TRUE(send<true>(rig, kFail).ok());
  EXPECT_EQ(rig.sender().statistics().publications, 2u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  // A call that is published immediately also publishes the batch before it.
  ASSERT_TRUE(send<true>(rig, kFail).ok());
  ASSERT_TRUE(send<false>(rig, kFail).ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

// The batch word of an empty batch is discarded by flush(), by a call that is published immediately
// and at the end of a chunk, and is not counted in accepted_bytes().
TEST_P(Channel, AnEmptyBatchIsNotPublished) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 2, .max_chunks = 2, .chunk_bytes = 1024});
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(send<true>(rig, kRetry).ok());
    ASSERT_TRUE(rig.sender().flush().ok());
    const uint64_t publications = rig.sender().statistics().publications;
    ASSERT_TRUE(rig.sender().flush().ok());
    EXPECT_EQ(rig.sender().statistics().publications, publications);
    ASSERT_TRUE(rig.receive_all());  // compares consumed bytes with accepted bytes
    ASSERT_TRUE(send<false>(rig, kRetry).ok());
    ASSERT_TRUE(rig.receive_all());
  }
  expect_all_run();
  EXPECT_TRUE(rig.breaks.empty());
}

// A call is published without a batch word if its length alone reaches flush_bytes, or if the chunk
// has room for the call but not for a batch word before it.
TEST_P(Channel, LongBatchedCallsArePublishedAtOnce) {
  ChannelRig rig(GetParam(), {.max_chunks = 2, .chunk_bytes = 1024, .flush_bytes = 200});
  const size_t most = max_call_bytes(1024) - sizeof(CallHeader) - 2 * sizeof(uint64_t);
  for (const size_t size : {most, size_t{200}, most - 8, most, size_t{300}}) {
    ASSERT_TRUE(send<true>(rig, kRetry, size).ok());
    ASSERT_TRUE(rig.receive_all());
  }
  expect_all_run();
  EXPECT_EQ(rig.sender().statistics().refused, 0u);
}

// The receiver can stop at every call, also within a batch.
TEST_P(Channel, ABatchMayBeRunInParts) {
  ChannelRig rig(GetParam(), {});
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(i % 3 == 0 ? send<true>(rig, kRetry).ok()
                           : send<true>(rig, kRetry, static_cast<size_t>(i)).ok());
  }
  ASSERT_TRUE(rig.sender().flush().ok());
  for (int i = 0; i < 100000 && log_.numbers.size() < next_; ++i) EXPECT_LE(rig.receive(3), 3u);
  expect_all_run();
}

TEST_P(Channel, PublicationCountsSynchronizersDown) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024});
  const auto send_watched = [&](bool batch, WhenNoRoom when, Synchronizer& done) {
    const auto call = make_call(Small{next_++});
    internal::EventReceiver transmitted(done);
    return rig.sender().send_slowly(OutgoingCall::of(call), when, batch, transmitted);
  };
  Synchronizer batched;
  ASSERT_TRUE(send_watched(true, kFail, batched).ok());
  EXPECT_FALSE(batched.done());
  ASSERT_TRUE(rig.sender().flush().ok());
  EXPECT_TRUE(batched.done());
  while (send<false>(rig, kFail).ok()) ASSERT_LT(next_, 1000u);
  Synchronizer deferred;
  ASSERT_TRUE(send_watched(false, kRetryAsync, deferred).ok());
  EXPECT_FALSE(deferred.done());
  ASSERT_TRUE(rig.receive_all());
  EXPECT_TRUE(deferred.done());
  EXPECT_TRUE(deferred.status().ok());
  expect_all_run();
}

TEST_P(Channel, ACallLongerThanAChunkIsRefused) {
  ChannelRig rig(GetParam(), {.chunk_bytes = 1024});
  // A call consists of the header, the size of the buffer, Numbered, and the buffer.
  const size_t most = max_call_bytes(1024) - sizeof(CallHeader) - 2 * sizeof(uint64_t);
  EXPECT_TRUE(send<false>(rig, kRetry, most).ok());
  const CallResult refused = send<false>(rig, kRetry, most + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_NE(refused.status().message().find("call_buffer with Sync, Async or a target"),
            std::string::npos);
  EXPECT_NE(refused.status().message().find("928 bytes"), std::string::npos) << refused.status();
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
}

TEST_P(Channel, ShutdownReturnsEverything) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024});
  while (send<true>(rig, kFail).ok()) ASSERT_LT(next_, 1000u);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send<false>(rig, kRetryAsync).ok());
  // The receiver makes no room: shutdown() returns at its deadline, and may be called again.
  rig.polls_while_waiting = false;
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.sender().shutdown(Deadline::min())));
  rig.polls_while_waiting = true;
  ASSERT_TRUE(rig.sender().shutdown(kForever).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(send<false>(rig, kRetry).status()));
  EXPECT_TRUE(rig.sender().shutdown(kForever).ok());
  while (!rig.receiver()->ended()) rig.receive();
  for (int i = 0; i < 1000 && !rig.sender().is_released(); ++i) rig.receive();
  EXPECT_TRUE(rig.sender().is_released());
  expect_all_run();
  EXPECT_TRUE(rig.breaks.empty());
}

// If the peer has failed, waiting calls return UNAVAILABLE, and deferred calls fail.
TEST_P(Channel, AFailedPeerFailsWaitingAndDeferredCalls) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024});
  while (send<false>(rig, kFail).ok()) ASSERT_LT(next_, 1000u);
  Synchronizer deferred;
  const auto call = make_call(Small{next_});
  internal::EventReceiver transmitted(deferred);
  ASSERT_TRUE(
      rig.sender().send_slowly(OutgoingCall::of(call), kRetryAsync, false, transmitted).ok());
  rig.polls_while_waiting = false;
  rig.link_status = absl::UnavailableError("the far end has died");
  EXPECT_TRUE(absl::IsUnavailable(send<false>(rig, kRetry).status()));
  EXPECT_TRUE(deferred.done());
  EXPECT_TRUE(absl::IsUnavailable(deferred.status()));
  EXPECT_TRUE(absl::IsUnavailable(send<false>(rig, kFail).status()));
  EXPECT_TRUE(absl::IsUnavailable(rig.sender().shutdown(kForever)));
}

// When the receiver's memory is exhausted, the channel continues with the chunks that it has.
TEST_P(Channel, GrowthEndsWhereMemoryEnds) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 8, .chunk_bytes = 1024});
  rig.grants_left = 2;
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(send<false>(rig, kRetry).ok());
  EXPECT_EQ(rig.granted, 2u);
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  ChannelRig none(GetParam(), {.chunk_bytes = 1024});
  none.grants_left = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(send<false>(none, kRetry).status()));
}

// Inside a call, the first call of a channel is deferred under every policy. Until the drain
// thread has set the channel up, Fail is refused; the receiver is not behind then.
TEST_P(Channel, InsideACallTheSetUpIsLeftToTheHelper) {
  ChannelRig rig(GetParam(), {.chunk_bytes = 1024});
  rig.in_call = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(rig.sender().setup()));
  EXPECT_TRUE(send<false>(rig, kFail).ok());
  const absl::Status refused = send<false>(rig, kFail).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("far is not set up yet, and 16 bytes of calls are deferred"),
            std::string::npos)
      << refused;
  EXPECT_TRUE(send<false>(rig, kRetry).ok());
  rig.in_call = false;
  while (rig.drain_wanted) rig.drain();
  EXPECT_TRUE(send<false>(rig, kFail).ok());
  ASSERT_TRUE(rig.receive_all());
  expect_all_run();
  EXPECT_EQ(next_, 3u);
  // No byte may be deferred: there is no receiver that could be behind.
  ChannelRig none(GetParam(), {.chunk_bytes = 1024, .deferred_bytes = 0});
  none.in_call = true;
  EXPECT_NE(send<false>(none, kRetry).status().message().find("is not set up yet"),
            std::string::npos);
}

// An incoming call that runs while the sender waits for chunks may send on the same channel; its
// calls are sent before the waiting call.
TEST_P(Channel, CallsMadeWhileObtainingGoFirst) {
  ChannelRig rig(GetParam(), {.chunks_per_request = 1, .max_chunks = 4, .chunk_bytes = 1024});
  int nested = 0;
  rig.on_obtain = [&] {
    if (++nested > 3) return;
    rig.in_call = true;
    EXPECT_TRUE(send<false>(rig, kRetry, 300).ok());
    rig.in_call = false;
  };
  for (int i = 0; i < 60; ++i) {
    // All outer calls have the number 1000; nested calls have the numbers 0, 1 and 2.
    const Bytes bytes = testing::pattern(0, 0);
    const uint64_t before = next_;
    CallResult sent = rig.sender().send<false>(make_buffer_call(Numbered{1000}, bytes), kRetry);
    ASSERT_TRUE(sent.ok());
    (void)before;
  }
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(log_.numbers.size(), 60 + next_);
  std::vector<uint64_t> others;
  std::copy_if(log_.numbers.begin(), log_.numbers.end(), std::back_inserter(others),
               [](uint64_t number) { return number != 1000; });
  EXPECT_EQ(others, (std::vector<uint64_t>{0, 1, 2}));
}

TEST_P(Channel, OptionsAreChecked) {
  for (const MessengerOptions& options :
       {MessengerOptions{.chunk_bytes = 512}, MessengerOptions{.chunk_bytes = 1025},
        MessengerOptions{.first_chunk_bytes = 512}, MessengerOptions{.chunks_per_request = 0},
        MessengerOptions{.chunks_per_request = 2, .max_chunks = 1},
        MessengerOptions{.return_after = std::chrono::milliseconds(-1)},
        MessengerOptions{.chunks_per_request = 300, .max_chunks = 300}}) {
    ChannelRig rig(GetParam(), options);
    EXPECT_TRUE(absl::IsInvalidArgument(rig.sender().setup()));
  }
}

// A sleeping receiver of a mapped channel is woken once, by the first publication after it has
// armed its doorbell.
TEST(MappedChannel, ASleepingReceiverIsWokenOnce) {
  Log log;
  run_log = &log;
  ChannelRig rig({RigTransport::kShm, 1, Arrival::kMapped}, {});
  const auto send = [&](uint64_t number) {
    return rig.sender().send<false>(make_call(Small{number}), kFail);
  };
  ASSERT_TRUE(send(0).ok());
  EXPECT_EQ(rig.wakes, 0u);
  static_cast<void>(rig.doorbell.arm());
  ASSERT_TRUE(send(1).ok());
  ASSERT_TRUE(send(2).ok());
  EXPECT_EQ(rig.wakes, 1u);
  // After peer_died() the next publication detects that the peer has failed.
  rig.sender().peer_died();
  EXPECT_TRUE(absl::IsUnavailable(send(3).status()));
  EXPECT_TRUE(absl::IsUnavailable(send(4).status()));
}

// Malformed data that a hostile sender may write.
class HostileSender : public ::testing::Test {
 protected:
  HostileSender() : rig_({RigTransport::kShm, 1, Arrival::kMapped}, {.chunk_bytes = 1024}) {
    run_log = &log_;
    EXPECT_TRUE(rig_.sender().setup().ok());
  }
  // Writes `header` at the position of the first call header.
  std::byte* write(CallHeader header) {
    std::byte* const at = rig_.receiver()->chunks()[0].data() + sizeof(ChunkHeader);
    std::memcpy(at, &header, sizeof header);
    return at;
  }
  void expect_broken(const std::string& why) {
    EXPECT_EQ(rig_.receive(), 0u);
    ASSERT_EQ(rig_.breaks.size(), 1u);
    EXPECT_NE(rig_.breaks[0].find(why), std::string::npos) << rig_.breaks[0];
    EXPECT_TRUE(rig_.receiver()->ended());
    EXPECT_EQ(rig_.last_push, ChannelControl::kBroken);
    EXPECT_EQ(rig_.receive(), 0u);  // the receiver does not read the channel any more
  }
  Log log_;
  ChannelRig rig_;
};

TEST_F(HostileSender, ACallThatLeavesItsChunk) {
  write(CallHeader::make({1}, 1024, 0));
  expect_broken("longer than its chunk");
}
TEST_F(HostileSender, FlagsThatDoNotExist) {
  write(CallHeader::make({1}, 64, 0x80));
  expect_broken("flags");
}
TEST_F(HostileSender, NoPlaceForANotification) {
  write(CallHeader::make({1}, 16, kCallNotify));
  expect_broken("no place for its notification");
}
TEST_F(HostileSender, ChunksThatWereNotGranted) {
  write(EndMarker::make(1, 0));
  expect_broken("not granted");
}
TEST_F(HostileSender, AMalformedEndMarker) {
  write(EndMarker::make(100000, 0));
  expect_broken("malformed");
}
TEST_F(HostileSender, ABatchThatLeavesItsChunk) {
  write(BatchWord::make(1024));
  expect_broken("batch is malformed");
}
TEST_F(HostileSender, AnEmptyBatch) {
  write(BatchWord::make(0));
  expect_broken("batch is malformed");
}
TEST_F(HostileSender, ABatchWithFlags) {
  write(CallHeader::make({BatchWord::kFunction}, 8, kCallNotify));
  expect_broken("batch is malformed");
}
// The last position of a chunk may contain an end marker and nothing else.
TEST_F(HostileSender, ABatchWhereOnlyAnEndMarkerFits) {
  std::byte* const at = write(CallHeader::make({0x7ffffff}, chunk_capacity(1024) - 8, 0));
  const CallHeader batch = BatchWord::make(8);
  std::memcpy(at + chunk_capacity(1024), &batch, sizeof batch);
  EXPECT_EQ(rig_.receive(), 1u);
  ASSERT_EQ(rig_.breaks.size(), 1u);
  EXPECT_NE(rig_.breaks[0].find("batch is malformed"), std::string::npos) << rig_.breaks[0];
}
TEST_F(HostileSender, ACallThatLeavesItsBatch) {
  std::byte* const at = write(BatchWord::make(16));
  const CallHeader call = CallHeader::make({1}, 16, 0);
  std::memcpy(at + sizeof call, &call, sizeof call);
  expect_broken("longer than its chunk or batch");
}
// Zeros, end markers and batch words have no meaning within a batch: the receiver treats them as
// calls of functions that do not exist.
TEST_F(HostileSender, ABatchOfWordsThatAreNoCalls) {
  std::byte* const at = write(BatchWord::make(24));
  const CallHeader words[] = {CallHeader{}, EndMarker::make(0, 0), BatchWord::make(0),
                              CallHeader{}};
  std::memcpy(at + sizeof(CallHeader), words, sizeof words);
  EXPECT_EQ(rig_.receive(), 3u);
  EXPECT_TRUE(rig_.breaks.empty());
  EXPECT_EQ(rig_.outcomes, std::vector<CallOutcome>(3, CallOutcome::kUnknown));
}
TEST_F(HostileSender, AnUnknownFunctionHarmsNothingElse) {
  const uint64_t rejected = FunctionTable::rejected();
  write(CallHeader::make({0x7ffffff}, 8, 0));
  std::memset(rig_.receiver()->chunks()[0].data() + sizeof(ChunkHeader) + 16, 0, 8);
  EXPECT_EQ(rig_.receive(), 1u);
  EXPECT_TRUE(rig_.breaks.empty());
  EXPECT_EQ(rig_.outcomes, std::vector<CallOutcome>{CallOutcome::kUnknown});
  EXPECT_EQ(FunctionTable::rejected(), rejected + 1);
}
// The sender detects that the receiver has stopped reading the channel.
TEST_F(HostileSender, ABrokenChannelFailsItsSender) {
  write(CallHeader::make({1}, 1024, 0));
  rig_.receive();
  CallResult sent;
  for (int i = 0; i < 10000 && sent.ok(); ++i) {
    sent = rig_.sender().send<false>(make_call(Small{0}), kFail);
  }
  EXPECT_EQ(sent.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(sent.status().message().find("malformed"), std::string::npos);
}

}  // namespace
}  // namespace cariama
