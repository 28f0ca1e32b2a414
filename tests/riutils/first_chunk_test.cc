// Channels that begin with a small chunk, which larger chunks replace.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dtutils/statistics.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_case.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::ChannelState;
using internal::WhenNoRoom;
using testing::Bytes;
using testing::ChannelCase;
using testing::ChannelRig;
using testing::LocalJob;
using testing::must;
using testing::RigOptions;
using testing::soon;

constexpr WhenNoRoom kRefuse = WhenNoRoom::of(Fail, false);
constexpr WhenNoRoom kWait = WhenNoRoom::of(Retry, false);
constexpr WhenNoRoom kDefer = WhenNoRoom::of(RetryAsync, false);

constexpr uint64_t kSmall = 1024;
constexpr uint64_t kFull = 4096;
constexpr size_t kLong = 2000;  // bytes of a buffer that only a full chunk takes

struct FirstChunkLog {
  std::vector<uint64_t> numbers;
  uint64_t damaged = 0;
};
FirstChunkLog* first_chunk_log = nullptr;

struct FirstChunkCall {
  uint64_t number;
  void operator()(void* buffer, uint64_t size) const {
    first_chunk_log->numbers.push_back(number);
    const Bytes expected = testing::pattern(number, size);
    if (size != 0 && std::memcmp(buffer, expected.data(), size) != 0) ++first_chunk_log->damaged;
  }
};

class FirstChunk : public ::testing::TestWithParam<RigOptions> {
 protected:
  void SetUp() override { first_chunk_log = &log_; }

  static MessengerOptions options(uint32_t per_request = 1, uint32_t most = 4) {
    return {.first_chunk_bytes = kSmall,
            .chunks_per_request = per_request,
            .max_chunks = most,
            .chunk_bytes = kFull,
            .timeout = std::chrono::seconds(10)};
  }
  template <bool kBatch = false>
  CallResult send(ChannelRig& rig, WhenNoRoom when, size_t size = 100) {
    const Bytes bytes = testing::pattern(next_, size);
    CallResult sent =
        rig.sender().send<kBatch>(make_buffer_call(FirstChunkCall{next_}, bytes), when);
    if (sent) ++next_;
    return sent;
  }
  void expect_all_run(ChannelRig& rig) {
    ASSERT_TRUE(rig.receive_all());
    ASSERT_EQ(log_.numbers.size(), next_);
    for (uint64_t i = 0; i < next_; ++i) ASSERT_EQ(log_.numbers[i], i);
    EXPECT_EQ(log_.damaged, 0u);
    EXPECT_TRUE(rig.breaks.empty());
  }
  // Expects that the ring of the receiver is `chunks` chunks of kFull bytes, and that the sender
  // counts the same bytes.
  static void expect_full_ring(ChannelRig& rig, size_t chunks) {
    EXPECT_EQ(rig.receiver()->chunks().size(), chunks);
    for (const auto chunk : rig.receiver()->chunks()) EXPECT_EQ(chunk.size(), kFull);
    EXPECT_EQ(rig.sender().statistics().chunk_bytes, chunks * kFull);
  }

  FirstChunkLog log_;
  uint64_t next_ = 0;
};

INSTANTIATE_TEST_SUITE_P(On, FirstChunk, ::testing::ValuesIn(testing::every_rig()),
                         [](const auto& info) { return testing::rig_name(info.param); });

TEST_P(FirstChunk, IsReplacedWhenItIsFull) {
  ChannelRig rig(GetParam(), options());
  ASSERT_TRUE(send(rig, kRefuse).ok());
  EXPECT_EQ(rig.chunk_bytes, std::vector<uint64_t>{kSmall});
  EXPECT_EQ(rig.sender().statistics().chunk_bytes, kSmall);
  while (rig.granted == 1) ASSERT_TRUE(send(rig, kRefuse).ok());
  EXPECT_EQ(rig.chunk_bytes, (std::vector<uint64_t>{kSmall, kFull}));
  expect_all_run(rig);
  EXPECT_EQ(rig.replacements, 1u);
  expect_full_ring(rig, 1);
  const MessengerStatistics counts = rig.sender().statistics();
  EXPECT_EQ(counts.chunks, 2u);
  EXPECT_EQ(counts.chunks_replaced, 1u);
  // As many chunks as without a small one.
  while (send(rig, kRefuse).ok()) ASSERT_LT(next_, 1000u);
  EXPECT_EQ(rig.granted, 5u);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(send(rig, kWait).ok());
  expect_all_run(rig);
  expect_full_ring(rig, 4);
  EXPECT_EQ(rig.replacements, 1u);
  EXPECT_EQ(rig.sender().shutdown(kForever), absl::OkStatus());
  EXPECT_EQ(rig.sender().statistics().chunk_bytes, 0u);
}

TEST_P(FirstChunk, IsReplacedByAsManyChunksAsARequestHas) {
  for (const uint32_t most_per_grant : {1u, 2u, 3u}) {
    SCOPED_TRACE(most_per_grant);
    log_ = {};
    next_ = 0;
    ChannelRig rig(GetParam(), options(3, 3));
    rig.most_per_grant = most_per_grant;
    ASSERT_TRUE(rig.sender().setup().ok());
    EXPECT_EQ(rig.granted, 1u);
    while (rig.granted == 1) ASSERT_TRUE(send(rig, kRefuse).ok());
    EXPECT_EQ(rig.chunk_bytes, (std::vector<uint64_t>{kSmall, kFull, kFull, kFull}));
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(send(rig, kWait).ok());
    expect_all_run(rig);
    expect_full_ring(rig, 3);
  }
}

TEST_P(FirstChunk, IsReplacedByAsManyChunksAsAChannelMayHave) {
  constexpr uint32_t kMost = MessengerOptions::kMaxChunks;
  ChannelRig rig(GetParam(), options(kMost, kMost));
  rig.most_per_grant = 16;
  while (rig.granted <= 1) ASSERT_TRUE(send(rig, kWait).ok());
  EXPECT_EQ(rig.granted, 1 + kMost);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(rig, kWait).ok());
  expect_all_run(rig);
  expect_full_ring(rig, kMost);
}

TEST_P(FirstChunk, IsReplacedWhereTheRingHasOneChunkAtMost) {
  ChannelRig rig(GetParam(), options(1, 1));
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(send(rig, i % 3 == 0 ? kDefer : kWait).ok());
  expect_all_run(rig);
  expect_full_ring(rig, 1);
}

// No further request: the call needs a full chunk, so that is the first one.
TEST_P(FirstChunk, IsFullForALongCall) {
  for (const WhenNoRoom when : {kRefuse, kWait, kDefer}) {
    log_ = {};
    next_ = 0;
    ChannelRig rig(GetParam(), options());
    ASSERT_TRUE(send(rig, when, kLong).ok());
    EXPECT_EQ(rig.chunk_bytes, std::vector<uint64_t>{kFull});
    expect_all_run(rig);
    EXPECT_EQ(rig.replacements, 0u);
  }
}

// The longest call that the small chunk takes, and the first one that it does not take.
TEST_P(FirstChunk, TakesEachCallThatFits) {
  for (const bool fits : {true, false}) {
    log_ = {};
    next_ = 0;
    ChannelRig rig(GetParam(), options());
    const auto none = make_buffer_call(FirstChunkCall{0}, Bytes());
    const size_t length = max_call_bytes(kSmall) - OutgoingCall::of(none).total() + (fits ? 0 : 1);
    ASSERT_TRUE(send<true>(rig, kRefuse, length).ok());
    EXPECT_EQ(rig.chunk_bytes[0], fits ? kSmall : kFull);
    ASSERT_TRUE(rig.sender().flush().ok());
    expect_all_run(rig);
  }
}

TEST_P(FirstChunk, IsReplacedForALongCallBehindShortOnes) {
  for (const WhenNoRoom when : {kRefuse, kWait, kDefer}) {
    log_ = {};
    next_ = 0;
    ChannelRig rig(GetParam(), options());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(send<true>(rig, kRefuse).ok());
    ASSERT_TRUE(send(rig, when, kLong).ok());
    ASSERT_TRUE(send(rig, when).ok());
    expect_all_run(rig);
    EXPECT_EQ(rig.chunk_bytes, (std::vector<uint64_t>{kSmall, kFull}));
    expect_full_ring(rig, 1);
  }
}

// The receiver has memory for the small chunk only: calls that fit into it run, one chunk at a
// time. A long call is refused, also with Retry; with RetryAsync it is deferred, and later calls
// behind it, until there is memory.
TEST_P(FirstChunk, IsUsedAgainWhileTheReceiverHasNoMemory) {
  ChannelRig rig(GetParam(), options());
  rig.grants_left = 1;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(send(rig, kWait).ok());
  for (const WhenNoRoom when : {kRefuse, kWait}) {
    expect_all_run(rig);
    const absl::Status refused = send(rig, when, kLong).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(refused.message().find("the rig grants no more"), std::string::npos) << refused;
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(send(rig, kWait).ok());
  }
  EXPECT_EQ(rig.granted, 1u);
  expect_all_run(rig);
  ASSERT_TRUE(send(rig, kDefer, kLong).ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(send(rig, kDefer).ok());
  const size_t ran = log_.numbers.size();
  for (int i = 0; i < 100; ++i) {
    rig.drain();
    rig.receive();
  }
  EXPECT_EQ(log_.numbers.size(), ran) << "a call has overtaken the deferred one";
  EXPECT_TRUE(rig.drain_wanted);
  rig.grants_left = 10;
  expect_all_run(rig);
  EXPECT_EQ(rig.replacements, 1u);
  EXPECT_EQ(rig.sender().state(), ChannelState::kOpen);
}

// The request for full chunks is answered late.
TEST_P(FirstChunk, IsReplacedByALateGrant) {
  MessengerOptions impatient = options();
  impatient.timeout = std::chrono::milliseconds(1500);
  ChannelRig rig(GetParam(), impatient);
  ASSERT_TRUE(send(rig, kRefuse).ok());
  for (int i = 0; i < 1000; ++i) rig.deliver();
  rig.grants_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(send(rig, kRefuse, kLong).status()));
  ASSERT_TRUE(send(rig, kRefuse).ok()) << "the small chunk still has room";
  rig.grants_late = false;
  ASSERT_TRUE(send(rig, kRefuse, kLong).ok());
  expect_all_run(rig);
  expect_full_ring(rig, 1);
}

TEST_P(FirstChunk, KeepsTheOrderUnderRandomSchedules) {
  const uint64_t seeds = GetParam().transport == testing::RigTransport::kShm ? 40 : 15;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    log_ = {};
    next_ = 0;
    std::mt19937_64 random(seed);
    RigOptions with_seed = GetParam();
    with_seed.seed = seed;
    MessengerOptions some = options(1 + random() % 2, 2 + random() % 3);
    if (random() % 2 == 0) some.consumption = Consumption::kPull;
    ChannelRig rig(with_seed, some);
    rig.most_per_grant = 1 + static_cast<uint32_t>(random() % 2);
    rig.grants_left = random() % 3 == 0 ? 1 : UINT64_MAX;
    for (int i = 0; i < 200; ++i) {
      const size_t size = random() % 16 == 0 ? random() % 3000 : random() % 120;
      static constexpr WhenNoRoom kHow[] = {kRefuse, kWait, kDefer};
      WhenNoRoom when = kHow[random() % 3];
      // Behind a deferred call that finds no memory, Retry waits until there is some.
      if (rig.grants_left == 0 && rig.sender().state() == ChannelState::kBacklogged) when = kRefuse;
      const CallResult sent =
          random() % 2 == 0 ? send<true>(rig, when, size) : send<false>(rig, when, size);
      if (!sent) {
        ASSERT_TRUE(absl::IsResourceExhausted(sent.status())) << sent.status();
      }
      if (random() % 8 == 0) {
        ASSERT_TRUE(rig.sender().flush().ok());
      }
      if (random() % 3 == 0) rig.receive(random() % 6);
      if (random() % 5 == 0 && rig.drain_wanted) rig.drain();
      if (random() % 60 == 0) rig.grants_left = UINT64_MAX;
    }
    rig.grants_left = UINT64_MAX;
    ASSERT_TRUE(rig.sender().flush().ok());
    expect_all_run(rig);
    EXPECT_EQ(rig.sender().shutdown(kForever), absl::OkStatus());
    for (int i = 0; i < 100'000 && !rig.sender().is_released(); ++i) rig.receive();
    EXPECT_TRUE(rig.sender().is_released());
    if (HasFailure()) return;
  }
}

// End markers that a hostile sender writes.
TEST(HostileReplacement, EndsTheChannel) {
  struct Marker {
    uint32_t inserted;
    uint8_t flags;
    uint32_t chunks;  // of the ring
    const char* why;
  };
  constexpr uint8_t kReplaced = internal::EndMarker::kReplaced;
  for (const Marker& marker :
       {Marker{0, kReplaced, 1, "malformed"}, Marker{1, kReplaced, 1, "not granted"},
        Marker{1, kReplaced, 2, "malformed"},
        Marker{1, kReplaced | internal::EndMarker::kShutdown, 1, "malformed"},
        Marker{MessengerOptions::kMaxChunks, 0, 1, "malformed"},
        Marker{MessengerOptions::kMaxChunks, kReplaced, 1, "not granted"},
        Marker{MessengerOptions::kMaxChunks + 1, kReplaced, 1, "malformed"}}) {
    SCOPED_TRACE(marker.inserted + 1000 * marker.flags);
    ChannelRig rig({testing::RigTransport::kShm, 1, Arrival::kMapped},
                   {.first_chunk_bytes = kFull,
                    .chunks_per_request = marker.chunks,
                    .max_chunks = 2,
                    .chunk_bytes = kFull});
    ASSERT_TRUE(rig.sender().setup().ok());
    const CallHeader header = internal::EndMarker::make(marker.inserted, marker.flags);
    std::memcpy(rig.receiver()->chunks()[0].data() + sizeof(internal::ChunkHeader), &header,
                sizeof header);
    EXPECT_EQ(rig.receive(), 0u);
    ASSERT_EQ(rig.breaks.size(), 1u);
    EXPECT_NE(rig.breaks[0].find(marker.why), std::string::npos) << rig.breaks[0];
    EXPECT_EQ(rig.replacements, 0u);
  }
}

// ---- In a job -----------------------------------------------------------------------------------

uint64_t granted_bytes_now() {
  uint64_t bytes = 0;
  for (const Statistic& statistic : statistics_snapshot()) {
    if (statistic.kind != "one_sided") continue;
    if (statistic.name == "chunk_bytes_granted") bytes += statistic.value;
    if (statistic.name == "chunk_bytes_freed") bytes -= statistic.value;
  }
  return bytes;
}

class FirstChunkInAJob : public ::testing::TestWithParam<ChannelCase> {};
INSTANTIATE_TEST_SUITE_P(On, FirstChunkInAJob,
                         ::testing::Values(ChannelCase{"shm", Arrival::kMapped},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"sim", Arrival::kPolled},
                                           ChannelCase{"fault_sim", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kPolled}),
                         testing::channel_case_name);

// The receiver has a small chunk for each channel with few calls, and frees it when larger chunks
// replace it.
TEST_P(FirstChunkInAJob, CountsInTheReceiver) {
  static std::atomic<uint64_t> ran;
  ran = 0;
  const uint64_t before = granted_bytes_now();
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    constexpr uint64_t kChannels = 5;
    constexpr uint64_t kCalls = 1000;
    MessengerOptions options;
    options.arrival = GetParam().arrival;
    options.max_chunks = 1;
    if (fabric.rank() == 1) {
      const auto have_run = [&](uint64_t calls) {
        EXPECT_TRUE(fabric.wait([&] { return ran.load() == calls; }, soon()));
      };
      have_run(kChannels);
      EXPECT_EQ(granted_bytes_now() - before, kChannels * options.first_chunk_bytes);
      must(call(fabric, 0, [] { ++ran; }));
      have_run(kChannels + 1 + kCalls);
      EXPECT_TRUE(fabric.wait(
          [&] {
            return granted_bytes_now() - before ==
                   (kChannels - 1) * options.first_chunk_bytes + options.chunk_bytes;
          },
          soon()));
      must(call(fabric, 0, [] { ++ran; }));
      EXPECT_TRUE(fabric.wait([&] { return granted_bytes_now() == before; }, soon()));
      return;
    }
    std::vector<std::unique_ptr<RDMAMessenger>> messengers;
    for (uint64_t i = 0; i < kChannels; ++i) {
      messengers.push_back(std::make_unique<RDMAMessenger>(*fabric.this_thread(), 1, options));
      ASSERT_TRUE(messengers.back()->call([] { ++ran; }));
    }
    EXPECT_TRUE(fabric.wait([&] { return ran.load() == kChannels + 1; }, soon()));
    for (uint64_t i = 0; i < kCalls; ++i) ASSERT_TRUE(messengers[0]->call([] { ++ran; }));
    EXPECT_TRUE(fabric.wait([&] { return ran.load() == kChannels + kCalls + 2; }, soon()));
    for (const auto& messenger : messengers) {
      EXPECT_EQ(messenger->shutdown(soon()), absl::OkStatus());
    }
  });
}

// The receiver still has the small chunk when it grants the last of the larger ones.
TEST_P(FirstChunkInAJob, IsReplacedByAsManyChunksAsAChannelMayHave) {
  static std::atomic<uint64_t> ran;
  ran = 0;
  constexpr uint64_t kCalls = 200;
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == kCalls; }, soon()));
      return;
    }
    MessengerOptions options;
    options.arrival = GetParam().arrival;
    options.first_chunk_bytes = kSmall;
    options.chunk_bytes = kFull;
    options.chunks_per_request = options.max_chunks = MessengerOptions::kMaxChunks;
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_EQ(messenger.call([] { ++ran; }).status(), absl::OkStatus());
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_EQ(messenger.statistics().chunks, 1 + uint64_t{MessengerOptions::kMaxChunks});
  });
  EXPECT_EQ(ran.load(), kCalls);
}

// A channel that returns its chunks begins with a small one again.
TEST_P(FirstChunkInAJob, IsSmallAgainAfterChunksWereReturned) {
  static std::atomic<uint64_t> count, disorder;
  count = disorder = 0;
  LocalJob local(testing::job_on(GetParam()));
  local.run([&](Fabric& fabric, uint32_t) {
    constexpr uint64_t kRounds = 4;
    constexpr uint64_t kCalls = 200;
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([&] { return count.load() == kRounds * kCalls; }, soon()));
      return;
    }
    MessengerOptions options;
    options.arrival = GetParam().arrival;
    options.first_chunk_bytes = 1024;
    options.chunk_bytes = 4096;
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    for (uint64_t i = 0; i < kRounds * kCalls; ++i) {
      const auto note = [i] { disorder += count++ == i ? 0 : 1; };
      ASSERT_TRUE(messenger.call(note));
      if (i % kCalls == 0) {
        EXPECT_EQ(messenger.statistics().chunk_bytes, 1024u);
      }
      if (i % kCalls != kCalls - 1) continue;
      EXPECT_GE(messenger.statistics().chunk_bytes, 4096u);
      EXPECT_TRUE(fabric.wait([&] { return messenger.return_chunks(); }, soon()));
      EXPECT_EQ(messenger.statistics().chunk_bytes, 0u);
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(count.load(), 800u);
  EXPECT_EQ(disorder.load(), 0u);
}

}  // namespace
}  // namespace cariama
