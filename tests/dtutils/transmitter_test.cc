// Transmitter over a simulated fabric: tests that need small limits, virtual time, slow connections
// or failed peers. contract/transmitter_contract_test.cc tests Transmitter on every transport.
#include "dtutils/transmitter.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/linear_circular_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/transmit_line.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using testing::Bytes;
using ::testing::HasSubstr;
using testing::Local;
using testing::must;
using testing::pattern;
using testing::soon;
using testing::TransmitLine;

std::string text(const absl::Status& status) { return std::string(status.message()); }

class TransmitterTest : public ::testing::Test {
 protected:
  explicit TransmitterTest(const SimOptions& options = {}) : fabric_(options) {
    near_ = must(near_device_->create_domain());
    far_ = must(far_device_->create_domain());
  }

  TransmitLine make_line(uint32_t depth = 64, const TransmitOptions& behaviour = {},
                         const ConnectOptions& connect = {}, uint32_t segments = 4) {
    return testing::make_transmit_line(*near_, *far_, depth, behaviour, connect, "the far end",
                                       segments);
  }

  // Waits for `done` and returns the status that the wait ends with.
  static absl::Status ended(Transmitter& transmitter, Synchronizer& done) {
    return transmitter.wait(done, soon());
  }

  SimFabric fabric_;
  std::shared_ptr<Device> near_device_ = fabric_.create_endpoint();
  std::shared_ptr<Device> far_device_ = fabric_.create_endpoint();
  std::shared_ptr<ProtectionDomain> near_;
  std::shared_ptr<ProtectionDomain> far_;
};

// ---- Accounting --------------------------------------------------------------------------------

TEST_F(TransmitterTest, FreesBuffersInBulkByOneFlush) {
  TransmitLine line = make_line(1024);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, 100 * 512);
  testing::Buffer to(*far_, 512);
  std::vector<RDMAMemory> units;
  for (size_t i = 0; i < 100; ++i) {
    units.emplace_back(from.buffer.data() + i * 512, 512, &from.range);
    must(transmitter.write(units[i], 0, 512, to.locator()));
  }
  EXPECT_TRUE(fabric_.run_until_idle());
  line.near->progress();
  // All operations are complete, but no completion was requested: a hundred operations fit into the
  // first signaling interval.
  for (const RDMAMemory& unit : units) EXPECT_FALSE(unit.is_free());
  EXPECT_EQ(line.near->statistics().signaled, 0U);
  must(transmitter.signal_all());
  EXPECT_TRUE(line.near->has_outstanding());
  EXPECT_TRUE(fabric_.run_until_idle());
  EXPECT_EQ(line.near->progress(), 1U);
  EXPECT_FALSE(line.near->has_outstanding());
  for (const RDMAMemory& unit : units) EXPECT_TRUE(unit.is_free());
  EXPECT_EQ(line.near->statistics().operations, 101U);
}

TEST_F(TransmitterTest, InlineDataLeavesItsBufferFree) {
  TransmitLine line = make_line();
  const uint32_t inlined = line.near->queue_pair().limits().max_inline;
  ASSERT_GT(inlined, 0U);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, inlined + 1);
  testing::Buffer to(*far_, 2 * inlined + 1);
  for (int i = 0; i < 3; ++i) {  // covers the slow path of write() and the fast path
    from.buffer.fill(1);
    must(transmitter.write(from.memory, 0, inlined, to.locator()));
    EXPECT_TRUE(from.memory.is_free());
    from.buffer.fill(2);
  }
  must(transmitter.write(from.memory, 0, inlined + 1, to.locator(inlined, inlined + 1)));
  EXPECT_FALSE(from.memory.is_free());
  EXPECT_TRUE(fabric_.run_until_idle());
  EXPECT_TRUE(testing::holds(to, 0, pattern(1, inlined)));
  EXPECT_TRUE(testing::holds(to, inlined, pattern(2, inlined + 1)));
}

TEST_F(TransmitterTest, RefusesWhenFullAndPostsNothing) {
  TransmitLine line = make_line(16);
  Transmitter transmitter = must(Transmitter::create(*line.near, FullQueue::kRefuse));
  Transmitter other = must(Transmitter::create(*line.near, FullQueue::kRefuse));
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  absl::Status status;
  uint32_t posted = 0;
  // Polling advances virtual time, so that operations complete and the queue would never stay full.
  // The fabric is therefore partitioned.
  const uint32_t island[] = {0};
  fabric_.partition(island);
  while ((status = transmitter.write(from.memory, 0, 1024, to.locator())).ok()) ++posted;
  EXPECT_EQ(posted, line.near->depth());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(text(status), HasSubstr("the send queue to the far end (16 operations) is full"));
  // Other transmitters on the queue are refused, too, and a refusal takes no credit.
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(other.write(from.memory, 0, 1024, to.locator()).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(other.signal_all().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(line.near->statistics().operations, posted);
  EXPECT_GE(line.near->statistics().full_waits, 81U);
  fabric_.heal();
  EXPECT_TRUE(fabric_.run_until_idle());
  line.near->progress();
  for (uint32_t i = 0; i < line.near->depth(); ++i) {
    must(other.write(from.memory, 0, 1024, to.locator()));
  }
}

TEST_F(TransmitterTest, WaitsWhenFullAndContinues) {
  TransmitLine line = make_line(4);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  for (int i = 0; i < 100; ++i) must(transmitter.write(from.memory, 0, 1024, to.locator()));
  EXPECT_GT(line.near->statistics().full_waits, 0U);
}

// ---- Splitting ---------------------------------------------------------------------------------

class TransmitterSplitTest : public TransmitterTest {
 protected:
  static constexpr uint64_t kMessage = 256;
  TransmitterSplitTest()
      : TransmitterTest({.limits = {.max_send_depth = 64,
                                    .max_receive_depth = 64,
                                    .max_completions = 4096,
                                    .max_segments = 3,
                                    .max_inline = 16,
                                    .max_outstanding_reads = 4,
                                    .mtu = 256,
                                    .max_message = kMessage,
                                    .atomics = true}}) {}
};

TEST_F(TransmitterSplitTest, SplitsExactly) {
  TransmitLine line = make_line(8);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 8192;
  Local near(*near_, kBytes);
  testing::Buffer far(*far_, kBytes);
  for (const uint64_t bytes : {kMessage - 1, kMessage, kMessage + 1, 2 * kMessage - 1, 2 * kMessage,
                               2 * kMessage + 1, 17 * kMessage, 17 * kMessage + 5}) {
    SCOPED_TRACE(bytes);
    const uint64_t requests = (bytes + kMessage - 1) / kMessage;
    const Bytes expected = pattern(bytes, kBytes);
    near.buffer.fill(bytes);
    far.clear();
    uint64_t before = line.near->statistics().operations;
    Synchronizer done;
    must(transmitter.write(near.memory, 3, bytes, far.locator(5, bytes), &done));
    must(ended(transmitter, done));
    EXPECT_EQ(line.near->statistics().operations - before, requests);
    EXPECT_TRUE(testing::untouched(far, 0, 5));
    EXPECT_TRUE(testing::holds(far, 5, std::span(expected).subspan(3, bytes)));
    EXPECT_TRUE(testing::untouched(far, 5 + bytes, kBytes - 5 - bytes));

    near.buffer.clear();
    before = line.near->statistics().operations;
    done.reset();
    must(transmitter.read(near.memory, 7, bytes, far.locator(5, bytes), &done));
    must(ended(transmitter, done));
    EXPECT_EQ(line.near->statistics().operations - before, requests);
    EXPECT_TRUE(testing::untouched(near.buffer, 0, 7));
    EXPECT_TRUE(testing::holds(near.buffer, 7, std::span(expected).subspan(3, bytes)));
    EXPECT_TRUE(testing::untouched(near.buffer, 7 + bytes, kBytes - 7 - bytes));
  }
}

TEST_F(TransmitterSplitTest, SplitsPiecesAtMessagesAndSegments) {
  TransmitLine line = make_line(8, {}, {}, 3);
  ASSERT_EQ(line.near->queue_pair().limits().max_send_segments, 3U);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 8192;
  Local near(*near_, kBytes);
  testing::Buffer far(*far_, kBytes);
  near.buffer.fill(4);
  const Bytes source = pattern(4, kBytes);
  // Empty pieces, pieces of one byte, one of exactly a message, one of several messages.
  const std::vector<uint64_t> sizes = {0, 1, 1, 1, 1, 0, 0, kMessage, 0, 3 * kMessage + 1, 10, 0};
  std::vector<Transmitter::Piece> pieces;
  Bytes gathered;
  uint64_t offset = 0;
  for (const uint64_t size : sizes) {
    pieces.push_back({&near.memory, offset, size});
    gathered.insert(gathered.end(), source.begin() + static_cast<ptrdiff_t>(offset),
                    source.begin() + static_cast<ptrdiff_t>(offset + size));
    offset += size + 2;
  }
  Synchronizer done;
  must(transmitter.write_pieces(pieces, far.locator(1, gathered.size()), &done));
  must(ended(transmitter, done));
  EXPECT_TRUE(testing::untouched(far, 0, 1));
  EXPECT_TRUE(testing::holds(far, 1, gathered));
  EXPECT_TRUE(testing::untouched(far, 1 + gathered.size(), kBytes - 1 - gathered.size()));

  near.buffer.clear();
  done.reset();
  must(transmitter.read_pieces(pieces, far.locator(1, gathered.size()), &done));
  must(ended(transmitter, done));
  for (const Transmitter::Piece& piece : pieces) {
    EXPECT_TRUE(testing::holds(near.buffer, piece.offset,
                               std::span(source).subspan(piece.offset, piece.bytes)));
    EXPECT_TRUE(testing::untouched(near.buffer, piece.offset + piece.bytes, 2));
  }
}

TEST_F(TransmitterSplitTest, OnlyTheLastPartCarriesTheImmediate) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local near(*near_, 1000);
  testing::Buffer far(*far_, 1000);
  near.buffer.fill(4);
  testing::post_receive(line.far, 1);
  testing::post_receive(line.far, 2);
  Synchronizer done;
  must(transmitter.write_immediate(near.memory, 0, 1000, far.locator(), 99, &done));
  must(ended(transmitter, done));
  const Completion arrived = testing::take_one(*line.far.receives);
  EXPECT_TRUE(testing::succeeded(arrived, 1, CompletionKind::kReceiveImmediate));
  EXPECT_EQ(arrived.immediate, 99U);
  EXPECT_TRUE(testing::holds(far, 0, pattern(4, 1000)));
  EXPECT_TRUE(testing::quiet(*line.far.receives));
}

TEST_F(TransmitterSplitTest, ASendIsNeverSplit) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local near(*near_, 1000);
  const absl::Status status = transmitter.send(near.memory, 0, kMessage + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(text(status), HasSubstr("exceeds one message (256 bytes"));
  EXPECT_EQ(line.near->statistics().operations, 0U);
}

TEST_F(TransmitterSplitTest, ASplitTransferIsNeverRefusedHalfWay) {
  TransmitLine line = make_line(4);
  Transmitter transmitter = must(Transmitter::create(*line.near, FullQueue::kRefuse));
  Local near(*near_, 16 * kMessage);
  testing::Buffer far(*far_, 16 * kMessage);
  near.buffer.fill(6);
  Synchronizer done;
  must(transmitter.write(near.memory, 0, 16 * kMessage, far.locator(), &done));
  must(ended(transmitter, done));
  EXPECT_TRUE(testing::holds(far, 0, pattern(6, 16 * kMessage)));
}

// ---- Recycling ---------------------------------------------------------------------------------

// A connection is slow as long as its receiver posts no receive: its sends stay in flight.
TEST_F(TransmitterTest, ABroadcastBufferIsFreeOnlyWhenAllQueuesAreDone) {
  constexpr size_t kQueues = 6;  // more uses than RDMAMemory can record
  constexpr size_t kSlow = 2;
  std::vector<TransmitLine> lines;
  std::vector<Transmitter> transmitters;
  for (size_t i = 0; i < kQueues; ++i) {
    lines.push_back(make_line());
    transmitters.push_back(must(Transmitter::create(*lines[i].near)));
  }
  Local from(*near_, 1024);
  from.buffer.fill(8);
  testing::Buffer inboxes(*far_, kQueues * 1024);
  const auto post_receive = [&](size_t i) {
    testing::post_receive(lines[i].far, i, {inboxes.segment(i * 1024, 1024)});
  };
  for (size_t i = 0; i < kQueues; ++i) {
    if (i != kSlow) post_receive(i);
  }
  std::vector<std::unique_ptr<Synchronizer>> done;
  for (size_t i = 0; i < kQueues; ++i) {
    done.push_back(std::make_unique<Synchronizer>());
    must(transmitters[i].send(from.memory, 0, 1024, done[i].get()));
    EXPECT_FALSE(from.memory.is_free());
  }
  for (size_t i = 0; i < kQueues; ++i) {
    if (i != kSlow) must(ended(transmitters[i], *done[i]));
  }
  EXPECT_FALSE(done[kSlow]->done());
  EXPECT_FALSE(from.memory.is_free());
  post_receive(kSlow);
  must(ended(transmitters[kSlow], *done[kSlow]));
  EXPECT_TRUE(from.memory.is_free());
  for (size_t i = 0; i < kQueues; ++i) {
    EXPECT_TRUE(testing::holds(inboxes, i * 1024, pattern(8, 1024)));
  }
}

// A full queue refuses a request before it is posted. So recording the use of a posted request
// never fails.
TEST_F(TransmitterTest, AFifthUseIsRecordedThoughTheQueueRefuses) {
  std::vector<TransmitLine> lines;
  std::vector<Transmitter> transmitters;
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  for (size_t i = 0; i < 5; ++i) {
    lines.push_back(make_line(1));
    transmitters.push_back(must(Transmitter::create(*lines[i].near, FullQueue::kRefuse)));
    must(transmitters[i].write(from.memory, 0, 1024, to.locator()));
  }
  EXPECT_FALSE(lines[4].near->has_outstanding());  // the fifth write waited for its own completion
  EXPECT_TRUE(fabric_.run_until_idle());
  for (TransmitLine& line : lines) line.near->progress();
  EXPECT_TRUE(from.memory.is_free());
}

// The use of a posted transfer cannot be recorded, so the transfer is waited for; it fails. It was
// posted, so only its Synchronizer has the error.
TEST_F(TransmitterTest, AFifthUseThatFailsIsReportedOnce) {
  std::vector<TransmitLine> lines;
  std::vector<Transmitter> transmitters;
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  for (size_t i = 0; i < 5; ++i) {
    lines.push_back(make_line());
    transmitters.push_back(must(Transmitter::create(*lines[i].near)));
    if (i < 4) must(transmitters[i].write(from.memory, 0, 1024, to.locator()));
  }
  RemoteMemoryLocator revoked = to.locator();
  revoked.key.value ^= 1;
  Synchronizer done(1);
  must(transmitters[4].write(from.memory, 0, 1024, revoked, &done));
  EXPECT_TRUE(done.done());  // waited for
  EXPECT_FALSE(done.status().ok());
  EXPECT_EQ(done.operations_left(), 0u);
  EXPECT_FALSE(transmitters[4].write(from.memory, 0, 1024, to.locator()).ok());
}

class RecyclingTest : public TransmitterTest {
 protected:
  static constexpr size_t kUnit = 512;

  std::unique_ptr<CircularAllocator> make_ring(size_t units) {
    return must(CircularAllocator::create(
        memory_, {.unit_bytes = kUnit, .initial_units = units, .max_units = units}));
  }
  // The sends on these connections stay in flight as long as the far end posts no receive.
  TransmitLine fast_ = make_line();
  TransmitLine slow_ = make_line();
  Transmitter to_fast_ = must(Transmitter::create(*fast_.near));
  Transmitter to_slow_ = must(Transmitter::create(*slow_.near));
  testing::Buffer target_{*far_, kUnit};
  std::shared_ptr<RDMAAllocator> memory_ = must(RDMAAllocator::create({near_}, kAnyNode, {}));

  // Sends a unit of `ring`. It stays in flight.
  RDMAMemory* send_slowly(CircularAllocator& ring) {
    RDMAMemory* const unit = must(to_slow_.acquire(ring, soon()));
    must(to_slow_.send(*unit, 0, kUnit));
    return unit;
  }
  // Writes `count` units of `ring`. Returns the first error.
  absl::Status write_many(CircularAllocator& ring, size_t count,
                          std::chrono::milliseconds patience) {
    for (size_t i = 0; i < count; ++i) {
      auto unit = to_fast_.acquire(ring, deadline_after(patience));
      if (!unit.ok()) return unit.status();
      must(to_fast_.write(**unit, 0, kUnit, target_.locator()));
    }
    return absl::OkStatus();
  }
};

TEST_F(RecyclingTest, ASmallRingIsFlushedWhenItIsExhausted) {
  // The ring has fewer units than the signaling interval, so no operation becomes signaled unless
  // acquire() calls signal_all().
  ASSERT_GT(fast_.near->interval(), 4U);
  const auto ring = make_ring(4);
  must(write_many(*ring, 100, testing::kPatience));
  EXPECT_EQ(ring->units(), 4U);
}

// Segments of any size. No operation on them becomes signaled unless acquire() calls signal_all().
TEST_F(RecyclingTest, ASmallRingOfSegmentsIsFlushedWhenItIsExhausted) {
  const auto ring = must(LinearCircularAllocator::create(
      memory_, {.unit_bytes = kUnit, .initial_units = 2, .max_units = 2}));
  for (size_t i = 0; i < 200; ++i) {
    const size_t bytes = 1 + i * 37 % kUnit;
    RDMAMemory* const segment = must(to_fast_.acquire(*ring, bytes, soon()));
    ASSERT_EQ(segment->size(), bytes);
    EXPECT_TRUE(segment->is_free());
    segment->get_buffer()[0] = static_cast<std::byte>(i);
    must(to_fast_.write(*segment, 0, bytes, target_.locator()));
  }
  Synchronizer done;
  must(to_fast_.signal_all(&done));
  must(to_fast_.wait(done, soon()));
  EXPECT_EQ(target_.data()[0], std::byte{199});
  EXPECT_EQ(ring->units(), 2U);
}

TEST_F(RecyclingTest, SegmentsInFlightElsewhereEndAtTheDeadline) {
  const auto ring = must(LinearCircularAllocator::create(
      memory_, {.unit_bytes = kUnit, .initial_units = 1, .max_units = 1}));
  for (int i = 0; i < 2; ++i) {
    RDMAMemory* const segment = must(to_slow_.acquire(*ring, kUnit / 2, soon()));
    must(to_slow_.send(*segment, 0, kUnit / 2));
  }
  const auto refused =
      to_fast_.acquire(*ring, kUnit / 2, deadline_after(std::chrono::milliseconds(1)));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kDeadlineExceeded) << refused.status();
}

TEST_F(RecyclingTest, ASegmentThatNeverFitsIsRefusedAtOnce) {
  const auto ring =
      must(LinearCircularAllocator::create(memory_, {.unit_bytes = kUnit, .initial_units = 1}));
  const auto refused = to_fast_.acquire(*ring, kUnit + 1, soon());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  EXPECT_NE(refused.status().message().find("513 bytes"), std::string::npos) << refused.status();
  EXPECT_TRUE(to_fast_.acquire(*ring, kUnit, soon()).ok());
}

TEST_F(RecyclingTest, ASlowConnectionStallsASharedRing) {
  const auto shared = make_ring(4);
  send_slowly(*shared);
  const absl::Status stalled = write_many(*shared, 100, milliseconds(50));
  EXPECT_EQ(stalled.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(stalled), HasSubstr("bind it to this queue"));
  // The ring was waiting for the slow connection: after that has completed, the ring advances.
  testing::post_receive(slow_.far, 1, {target_.segment()});
  ASSERT_TRUE(wait_until(
      [&] {
        to_slow_.queue().progress();
        return !testing::drain(*slow_.far.receives).empty();
      },
      soon()));
  must(to_slow_.signal_all());
  EXPECT_TRUE(wait_until([&] { return to_slow_.queue().progress() != 0; }, soon()));
  must(write_many(*shared, 100, testing::kPatience));
}

TEST_F(RecyclingTest, ASlowConnectionDoesNotStallABoundRing) {
  const auto bound_to_slow = make_ring(4);
  const auto bound_to_fast = make_ring(4);
  const RDMAMemory* const slow_unit = send_slowly(*bound_to_slow);
  must(write_many(*bound_to_fast, 1000, testing::kPatience));
  // The slow connection's unit was in flight all the time.
  must(to_slow_.signal_all());
  slow_.near->progress();
  EXPECT_TRUE(slow_.near->has_outstanding());
  EXPECT_FALSE(slow_unit->is_free());
}

// ---- Failure -----------------------------------------------------------------------------------

constexpr ConnectOptions impatient() {
  return {.retry_count = 1, .ack_timeout = std::chrono::microseconds(100)};
}

// A layer above explains failures in its own words.
TEST_F(TransmitterTest, TheOwnerOfAQueueExplainsItsFailures) {
  const TransmitOptions options{
      .explain_failure = [](const Completion& completion, std::string_view peer) {
        return absl::DataLossError(std::string(peer) + ": " +
                                   std::string(status_name(completion.status)));
      }};
  TransmitLine line = make_line(32, options, impatient());
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, 64);
  testing::Buffer to(*far_, 64);
  fabric_.kill(1);
  Synchronizer done;
  must(transmitter.write(from.memory, 0, 64, to.locator(), &done));
  const absl::Status failed = ended(transmitter, done);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss) << failed;
  EXPECT_THAT(text(failed), HasSubstr("the far end: the peer"));
  EXPECT_EQ(line.near->status(), failed);
  EXPECT_EQ(transmitter.write(from.memory, 0, 64, to.locator(), nullptr), failed);
}

TEST_F(TransmitterTest, APeerThatDiesMidStreamEndsEveryWait) {
  TransmitLine line = make_line(32, {}, impatient());
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  std::vector<std::unique_ptr<Synchronizer>> done;
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    if (i == 50) fabric_.kill(1);
    done.push_back(std::make_unique<Synchronizer>());
    status = transmitter.write(from.memory, 0, 1024, to.locator(), done.back().get());
    if (!status.ok()) done.pop_back();  // the operation was not posted
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(status), HasSubstr("the far end"));
  size_t failed = 0;
  for (const auto& each : done) {
    const absl::Status result = ended(transmitter, *each);
    EXPECT_TRUE(each->done());
    if (!result.ok()) {
      EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(text(result), HasSubstr("the far end"));
      ++failed;
    } else {
      EXPECT_EQ(failed, 0U);  // operations fail in the order of posting
    }
  }
  EXPECT_GT(failed, 0U);
  EXPECT_GT(done.size() - failed, 0U);
  EXPECT_TRUE(from.memory.is_free());
  EXPECT_FALSE(line.near->repair().ok());
}

TEST_F(TransmitterTest, AnIdleWaitForADeadPeerIsEndedByAProbe) {
  for (const bool tail : {false, true}) {
    SCOPED_TRACE(tail);
    const std::shared_ptr<Device> victim = fabric_.create_endpoint();
    const auto domain = must(victim->create_domain());
    TransmitLine line = testing::make_transmit_line(
        *near_, *domain, 64, {.probe_interval = milliseconds(1)}, impatient(), "the victim");
    Transmitter transmitter = must(Transmitter::create(*line.near));
    Local from(*near_, 1024);
    testing::Buffer to(*domain, 1024);
    if (tail) {  // the operations complete, but no signaled operation covers them
      must(transmitter.write(from.memory, 0, 1024, to.locator()));
      EXPECT_TRUE(fabric_.run_until_idle());
    }
    fabric_.kill(fabric_.endpoint_count() - 1);
    Synchronizer never;  // for a notification that the dead peer never sends
    const absl::Status status = ended(transmitter, never);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(text(status), HasSubstr("the victim"));
    EXPECT_EQ(never.operations_left(), 1U);
  }
}

TEST_F(TransmitterTest, AWaitWithoutEndHasADeadline) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Synchronizer never(2);
  const absl::Status status = transmitter.wait(never, deadline_after(milliseconds(3)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(status), HasSubstr("2 operation(s) towards the far end"));
  must(line.near->status());
}

TEST_F(TransmitterTest, ThreadsThatWaitForRoomAreToldOfTheFailure) {
  TransmitLine line = make_line(4, {}, impatient());
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  fabric_.kill(1);
  absl::Status status;
  int posted = 0;
  while (status.ok() && posted < 100) {
    status = transmitter.write(from.memory, 0, 1024, to.locator());
    if (status.ok()) ++posted;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_LE(posted, 4 + 1);
}

TEST_F(TransmitterTest, DestroyingAQueueFailsOutstandingOperations) {
  TransmitLine line = make_line();
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  Synchronizer done(2);
  {
    Transmitter transmitter = must(Transmitter::create(*line.near));
    must(transmitter.write(from.memory, 0, 1024, to.locator(), &done));
    must(transmitter.write(from.memory, 0, 1024, to.locator()));
    must(transmitter.write(from.memory, 0, 1024, to.locator(), &done));
  }
  EXPECT_FALSE(done.done());
  EXPECT_FALSE(from.memory.is_free());
  line.near.reset();
  EXPECT_TRUE(done.done());
  EXPECT_EQ(done.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(done.status()), HasSubstr("the queue to the far end was closed"));
  // The handle outlives the queue, and its memory is free, also after another queue has reused the
  // queue's flush cell.
  EXPECT_TRUE(from.memory.is_free());
  TransmitLine next = make_line();
  EXPECT_TRUE(from.memory.is_free());
  Transmitter transmitter = must(Transmitter::create(*next.near));
  must(transmitter.write(from.memory, 0, 1024, to.locator()));
  EXPECT_FALSE(from.memory.is_free());
}

// A Transmitter that is moved keeps its lane, and a Transmitter that is destroyed returns its lane.
TEST_F(TransmitterTest, MovesWithItsLane) {
  TransmitLine line = make_line(16);
  TransmitLine other_line = make_line(16);
  Local from(*near_, 1024);
  testing::Buffer to(*far_, 1024);
  Transmitter a = must(Transmitter::create(*line.near));
  must(a.write(from.memory, 0, 1024, to.locator()));
  Transmitter b = std::move(a);
  must(b.write(from.memory, 0, 1024, to.locator()));
  b = must(Transmitter::create(*other_line.near));
  must(b.write(from.memory, 0, 1024, to.locator()));
  EXPECT_EQ(line.near->statistics().operations, 2U);
  EXPECT_EQ(other_line.near->statistics().operations, 1U);
  // Transmitters that use one lane in turn: none of them keeps credits.
  for (int i = 0; i < 100; ++i) {
    Transmitter brief = must(Transmitter::create(*line.near));
    must(brief.write(from.memory, 0, 1024, to.locator()));
  }
  EXPECT_EQ(line.near->statistics().operations, 102U);
}

// All benign faults with many seeds: late completions, late operations, torn writes, short queues.
TEST_F(TransmitterTest, ToleratesEveryBenignFault) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto control = std::make_shared<FaultControl>();
    FaultOptions options = FaultOptions::benign(seed);
    options.max_send_depth = static_cast<uint32_t>(1 + seed % 5);
    const auto device = make_fault_device(fabric_.create_endpoint(), options, control);
    const auto domain = must(device->create_domain());
    TransmitLine line = testing::make_transmit_line(*domain, *far_, 64);
    ASSERT_LE(line.near->depth(), *options.max_send_depth);
    Transmitter transmitter = must(Transmitter::create(*line.near));
    constexpr size_t kBytes = 300;
    constexpr size_t kWrites = 60;
    Local from(*domain, kBytes);
    testing::Buffer to(*far_, kWrites * kBytes);
    for (size_t i = 0; i < kWrites; ++i) {
      if (!from.memory.is_free()) {
        Synchronizer done;
        must(transmitter.signal_all(&done));
        must(ended(transmitter, done));
        ASSERT_TRUE(from.memory.is_free());
      }
      from.buffer.fill(i);
      must(transmitter.write(from.memory, 0, kBytes, to.locator(i * kBytes, kBytes)));
    }
    Synchronizer done;
    must(transmitter.signal_all(&done));
    must(ended(transmitter, done));
    for (size_t i = 0; i < kWrites; ++i) {
      EXPECT_TRUE(testing::holds(to, i * kBytes, pattern(i, kBytes)));
    }
    EXPECT_GT(control->injected(Fault::kTornWrite), 0U);
  }
}

}  // namespace
}  // namespace cariama
