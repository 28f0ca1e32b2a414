// Transmitter over every transport: data, accounting, recycling, failure and repair. Tests that
// need a fabric with virtual time are in transmitter_test.cc.
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "dtutils/allocators/rdma_allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/transmit_line.h"

namespace cariama {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;
using testing::Local;
using testing::must;
using testing::pattern;
using testing::soon;
using testing::TransmitLine;

class TransmitterContract : public testing::ContractTest {
 protected:
  TransmitLine make_line(uint32_t depth = 64) {
    return testing::make_transmit_line(*near_domain_, *far_domain_, depth, {}, {}, kFarLabel);
  }
  // Posts `count` receives at the far end, each into `target`.
  static void post_receives(const TransmitLine& line, const testing::Buffer& target,
                            uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      testing::post_receive(line.far, i, {target.segment()});
    }
  }
};

TEST_P(TransmitterContract, WritesOfAllSizes) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 100'000;
  Local from(*near_domain_, kBytes);
  testing::Buffer to(*far_domain_, kBytes);
  from.buffer.fill(3);
  const Bytes expected = pattern(3, kBytes);
  for (const uint64_t bytes : {0, 1, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, 70'000}) {
    for (const uint64_t offset : {0, 1, 64}) {
      to.clear();
      Synchronizer done;
      must(transmitter.write(from.memory, offset, bytes, to.locator(offset, bytes), &done));
      must(transmitter.wait(done, soon()));
      EXPECT_TRUE(from.memory.is_free());  // the completion of the write frees its buffer
      EXPECT_TRUE(testing::untouched(to, 0, offset));
      EXPECT_TRUE(testing::holds(to, offset, std::span(expected).subspan(offset, bytes)));
      EXPECT_TRUE(testing::untouched(to, offset + bytes, kBytes - offset - bytes));
    }
  }
}

TEST_P(TransmitterContract, EveryOperationIsCountedAndFewAreSignaled) {
  for (const uint32_t depth : {1, 2, 3, 16, 256}) {
    SCOPED_TRACE(depth);
    TransmitLine line = make_line(depth);
    Transmitter transmitter = must(Transmitter::create(*line.near));
    const uint64_t operations = 4 * uint64_t{line.near->depth()} + 7;
    Local from(*near_domain_, 8 * operations);
    testing::Buffer to(*far_domain_, 8 * operations);
    from.buffer.fill(depth);
    for (uint64_t i = 0; i < operations; ++i) {
      must(transmitter.write(from.memory, 8 * i, 8, to.locator(8 * i, 8)));
    }
    Synchronizer done;
    must(transmitter.signal_all(&done));
    must(transmitter.wait(done, soon()));
    EXPECT_TRUE(testing::holds(to, 0, pattern(depth, 8 * operations)));

    const TransmitStatistics statistics = line.near->statistics();
    EXPECT_EQ(statistics.operations, operations + 1);
    EXPECT_EQ(statistics.bytes, 8 * operations);
    EXPECT_EQ(statistics.completions, statistics.signaled);
    EXPECT_EQ(statistics.failures, 0U);
    // WRITEs that the process stores itself need no signal. (The first one, for which the transport
    // maps the region, is posted.)
    EXPECT_EQ(statistics.stored, GetParam().name == "shm" ? operations - 1 : 0U);
    // Of the posted operations one per interval is signaled. A nearly full queue grants smaller
    // batches, so it may be more.
    const uint64_t posted = statistics.operations - statistics.stored;
    const uint64_t intervals = posted / line.near->interval();
    EXPECT_GE(statistics.signaled, intervals);
    if (line.near->interval() > 1) {
      EXPECT_LT(statistics.signaled, operations / 2);
    }
    EXPECT_EQ(line.near->interval(), std::max<uint32_t>(1, line.near->depth() / 4));
  }
}

TEST_P(TransmitterContract, NoThreadWaitsWhileCreditsRemain) {
  TransmitLine line = make_line(128);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_domain_, 1024);
  testing::Buffer to(*far_domain_, 1024);
  for (uint32_t i = 0; i < line.near->depth(); ++i) {
    must(transmitter.write(from.memory, 0, 1024, to.locator()));
  }
  EXPECT_EQ(line.near->statistics().full_waits, 0U);
}

TEST_P(TransmitterContract, ThreadsShareAQueueAndRecycleBuffers) {
  constexpr size_t kThreads = 3;
  constexpr size_t kBuffers = 4;  // of each thread
  constexpr size_t kWrites = 200;
  constexpr size_t kBytes = 512;
  for (const uint32_t depth : {1, 3, 16, 128}) {
    SCOPED_TRACE(depth);
    TransmitLine line = make_line(depth);
    testing::Buffer to(*far_domain_, kThreads * kWrites * kBytes);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Transmitter transmitter = must(Transmitter::create(*line.near));
        std::vector<std::unique_ptr<Local>> buffers;
        for (size_t i = 0; i < kBuffers; ++i) {
          buffers.push_back(std::make_unique<Local>(*near_domain_, kBytes));
        }
        for (size_t i = 0; i < kWrites; ++i) {
          Local& from = *buffers[i % kBuffers];
          if (!from.memory.is_free()) {
            if (!transmitter.signal_all().ok()) ++failures;
            if (!wait_until(
                    [&] {
                      line.near->progress();
                      return from.memory.is_free();
                    },
                    soon())) {
              ++failures;
              return;
            }
          }
          const size_t slot = t * kWrites + i;
          from.buffer.fill(slot);  // if the device still reads the buffer, the data arrives damaged
          if (!transmitter.write(from.memory, 0, kBytes, to.locator(slot * kBytes, kBytes)).ok()) {
            ++failures;
          }
        }
        Synchronizer done;
        if (!transmitter.signal_all(&done).ok() || !transmitter.wait(done, soon()).ok()) ++failures;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(failures, 0);
    for (size_t slot = 0; slot < kThreads * kWrites; ++slot) {
      ASSERT_TRUE(testing::holds(to, slot * kBytes, pattern(slot, kBytes)));
    }
    const TransmitStatistics statistics = line.near->statistics();
    EXPECT_EQ(statistics.bytes, kThreads * kWrites * kBytes);
    EXPECT_GE(statistics.operations, kThreads * kWrites + kThreads);
    EXPECT_EQ(statistics.failures, 0U);
  }
}

TEST_P(TransmitterContract, PiecesAreGatheredAndScattered) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kPieces = 23;  // more than fit into one work request
  constexpr size_t kBytes = 4000;
  Local near(*near_domain_, kBytes);
  testing::Buffer far(*far_domain_, kBytes);
  // Pieces of 0, 1, 2, 3, 4, 0, 1, ... times 37 bytes, with gaps between them.
  std::vector<Transmitter::Piece> pieces;
  Bytes gathered;
  near.buffer.fill(5);
  const Bytes source = pattern(5, kBytes);
  uint64_t offset = 11;
  for (size_t i = 0; i < kPieces; ++i) {
    const uint64_t bytes = i % 5 * 37;
    pieces.push_back({&near.memory, offset, bytes});
    gathered.insert(gathered.end(), source.begin() + static_cast<ptrdiff_t>(offset),
                    source.begin() + static_cast<ptrdiff_t>(offset + bytes));
    offset += bytes + 3;
  }
  ASSERT_LE(offset, kBytes);
  Synchronizer done(2);
  must(transmitter.write_pieces(pieces, far.locator(8, gathered.size()), &done));
  // A transfer of no bytes completes, too.
  must(transmitter.write_pieces({}, far.locator(0, 0), &done));
  must(transmitter.wait(done, soon()));
  EXPECT_TRUE(testing::untouched(far, 0, 8));
  EXPECT_TRUE(testing::holds(far, 8, gathered));
  EXPECT_TRUE(testing::untouched(far, 8 + gathered.size(), kBytes - 8 - gathered.size()));

  near.buffer.clear();
  done.reset();
  must(transmitter.read_pieces(pieces, far.locator(8, gathered.size()), &done));
  must(transmitter.wait(done, soon()));
  offset = 0;
  for (const Transmitter::Piece& piece : pieces) {
    EXPECT_TRUE(testing::untouched(near.buffer, offset, piece.offset - offset));
    EXPECT_TRUE(testing::holds(near.buffer, piece.offset,
                               std::span(source).subspan(piece.offset, piece.bytes)));
    offset = piece.offset + piece.bytes;
  }
  EXPECT_TRUE(testing::untouched(near.buffer, offset, kBytes - offset));
}

TEST_P(TransmitterContract, ReadsAndAtomics) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local near(*near_domain_, 4096);
  testing::Buffer far(*far_domain_, 4096);
  far.fill(9);
  Synchronizer done;
  must(transmitter.read(near.memory, 100, 3000, far.locator(50, 3000), &done));
  must(transmitter.wait(done, soon()));
  const Bytes expected = pattern(9, 4096);
  EXPECT_TRUE(testing::untouched(near.buffer, 0, 100));
  EXPECT_TRUE(testing::holds(near.buffer, 100, std::span(expected).subspan(50, 3000)));
  EXPECT_TRUE(testing::untouched(near.buffer, 3100, 996));

  far.set_word(64, 1000);
  done.reset(3);
  must(transmitter.fetch_add(near.memory, 0, far.locator(64, 8), 5, &done));
  must(transmitter.compare_swap(near.memory, 8, far.locator(64, 8), 1005, 7, &done));
  must(transmitter.compare_swap(near.memory, 16, far.locator(64, 8), 1005, 8, &done));
  must(transmitter.wait(done, soon()));
  EXPECT_EQ(near.buffer.word(0), 1000U);
  EXPECT_EQ(near.buffer.word(8), 1005U);
  EXPECT_EQ(near.buffer.word(16), 7U);
  EXPECT_EQ(far.word(64), 7U);
}

TEST_P(TransmitterContract, SendsAndEventsReachReceives) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_domain_, 256);
  testing::Buffer inbox(*far_domain_, 256);
  testing::Buffer to(*far_domain_, 256);
  from.buffer.fill(2);
  post_receives(line, inbox, 3);
  Synchronizer done(3);
  must(transmitter.send(from.memory, 0, 200, &done));
  must(transmitter.write_immediate(from.memory, 0, 256, to.locator(), 77, &done));
  must(transmitter.notify(78, &done));
  must(transmitter.wait(done, soon()));
  const std::vector<Completion> arrived = testing::take(*line.far.receives, 3);
  EXPECT_TRUE(testing::succeeded(arrived[0], 0, CompletionKind::kReceive));
  EXPECT_EQ(arrived[0].bytes, 200U);
  EXPECT_TRUE(testing::holds(inbox, 0, pattern(2, 200)));
  EXPECT_TRUE(testing::succeeded(arrived[1], 1, CompletionKind::kReceiveImmediate));
  EXPECT_EQ(arrived[1].immediate, 77U);
  EXPECT_TRUE(testing::holds(to, 0, pattern(2, 256)));
  EXPECT_TRUE(testing::succeeded(arrived[2], 2, CompletionKind::kReceiveImmediate));
  EXPECT_EQ(arrived[2].immediate, 78U);
  EXPECT_EQ(arrived[2].bytes, 0U);
}

TEST_P(TransmitterContract, ABadRangeIsRefusedWithoutEffect) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_domain_, 64);
  testing::Buffer to(*far_domain_, 64);
  RDMAMemory unregistered(from.buffer.data(), 64, nullptr);
  const auto refused = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr(kFarLabel));
  };
  refused(transmitter.write(from.memory, 60, 5, to.locator()), "does not fit into 64 bytes here");
  refused(transmitter.write(from.memory, UINT64_MAX, 2, to.locator()), "does not fit");
  refused(transmitter.write(from.memory, 0, 64, to.locator(0, 63)), "and 63 bytes there");
  refused(transmitter.read(from.memory, 65, 0, to.locator()), "does not fit");
  refused(transmitter.fetch_add(from.memory, 57, to.locator(), 1), "does not fit");
  refused(transmitter.fetch_add(from.memory, 0, to.locator(0, 7), 1), "does not fit");
  refused(transmitter.write(unregistered, 0, 8, to.locator()), "is not registered");
  refused(transmitter.fetch_add(unregistered, 0, to.locator(), 1), "is not registered");
  // A request that the queue pair refuses costs no credit, however often it is refused.
  for (uint32_t i = 0; i < 3 * line.near->depth(); ++i) {
    const absl::Status status = transmitter.fetch_add(from.memory, 0, to.locator(4, 8), 1);
    EXPECT_FALSE(status.ok());
  }
  EXPECT_EQ(line.near->statistics().operations, 0U);
  EXPECT_TRUE(from.memory.is_free());
  from.buffer.fill(1);
  Synchronizer done;
  must(transmitter.write(from.memory, 0, 64, to.locator(), &done));
  must(transmitter.wait(done, soon()));
  EXPECT_TRUE(testing::holds(to, 0, pattern(1, 64)));
  EXPECT_EQ(line.near->statistics().full_waits, 0U);
}

TEST_P(TransmitterContract, AFailureIsReportedToAllThatItCoversAndRepaired) {
  TransmitLine line = make_line(16);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_domain_, 1024);
  testing::Buffer to(*far_domain_, 1024);
  // More rounds than the queue has slots, so that a credit lost per round would be noticed.
  for (uint64_t round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    from.buffer.fill(round);
    Synchronizer before;
    Synchronizer failing;
    Synchronizer after;
    must(transmitter.write(from.memory, 0, 1024, to.locator(), &before));
    // A varying number of unsignaled operations, so that batches end at different places.
    for (uint64_t i = 0; i < round % 3; ++i) {
      must(transmitter.write(from.memory, 0, 1024, to.locator()));
    }
    must(transmitter.wait(before, soon()));
    RemoteMemoryLocator nowhere = to.locator();
    nowhere.key.value ^= 0x5a5a5a;
    must(transmitter.write(from.memory, 0, 1024, nowhere, &failing));
    // A transport may already have reported the failure. Then this write is refused, and `after` is
    // unused.
    const absl::Status posted = transmitter.write(from.memory, 0, 1024, to.locator(), &after);

    const absl::Status failure = transmitter.wait(failing, soon());
    EXPECT_THAT(std::string(failure.message()), HasSubstr(kFarLabel));
    EXPECT_THAT(std::string(failure.message()), HasSubstr("remote access"));
    EXPECT_FALSE(failing.status().ok());
    EXPECT_TRUE(before.status().ok());
    if (posted.ok()) {
      const absl::Status consequence = transmitter.wait(after, soon());
      EXPECT_THAT(std::string(consequence.message()), HasSubstr("remote access"));
    }
    // Further operations are refused with the reason of the failure.
    const absl::Status refused = transmitter.write(from.memory, 0, 1024, to.locator());
    EXPECT_EQ(refused, line.near->status());
    EXPECT_THAT(std::string(refused.message()), HasSubstr("remote access"));

    line.repair();
    must(line.near->status());
    EXPECT_TRUE(from.memory.is_free());
    to.clear();
    for (uint32_t i = 0; i < line.near->depth() - 1; ++i) {
      must(transmitter.write(from.memory, 0, 8, to.locator(0, 8)));
    }
    Synchronizer again;
    must(transmitter.write(from.memory, 0, 1024, to.locator(), &again));
    must(transmitter.wait(again, soon()));
    EXPECT_TRUE(testing::holds(to, 0, pattern(round, 1024)));
    EXPECT_EQ(line.near->statistics().full_waits, 0U);
  }
}

// A new range may lie at the address of a destroyed one, but it has other keys: a Transmitter must
// not remember the keys of a range.
TEST_P(TransmitterContract, ANewRangeAtTheAddressOfADestroyedOne) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 4096;
  testing::Buffer to(*far_domain_, kBytes);
  std::optional<RegisteredRange> range;
  for (uint64_t round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    const Bytes expected = pattern(round, kBytes);
    Bytes data = expected;
    // Registered before the range of the last round is destroyed, so that the keys differ.
    auto region = must(near_domain_->register_memory(
        {.address = data.data(), .length = data.size()}, Access::kAll));
    range.emplace(std::vector<RegisteredRange::Registration>{{near_domain_.get(), region}});
    RDMAMemory memory(data.data(), data.size(), &*range);
    region.reset();
    const auto flushed = [&] {
      Synchronizer done;
      must(transmitter.signal_all(&done));
      return transmitter.wait(done, soon());
    };
    // Each of the forms is the first to use the new range once.
    switch (round) {
      case 2: {
        must(transmitter.read(memory, 0, kBytes, to.locator()));
        EXPECT_EQ(flushed(), absl::OkStatus());
        EXPECT_EQ(data, pattern(round - 1, kBytes));
        std::memcpy(data.data(), expected.data(), kBytes);
        break;
      }
      case 3:
        must(transmitter.fetch_add(memory, 0, to.locator(0, 8), 0));
        EXPECT_EQ(flushed(), absl::OkStatus());
        std::memcpy(data.data(), expected.data(), kBytes);
        break;
      case 4: {
        Synchronizer done;
        must(transmitter.write(memory, 0, kBytes, to.locator(), &done));
        EXPECT_EQ(transmitter.wait(done, soon()), absl::OkStatus());
        break;
      }
      default:
        break;
    }
    must(transmitter.write(memory, 0, kBytes, to.locator()));
    EXPECT_EQ(flushed(), absl::OkStatus());
    EXPECT_TRUE(testing::holds(to, 0, expected));
    if (HasFailure()) return;
  }
}

// A Transmitter transfers from memory of an allocator that unmaps its superpages and maps new ones.
TEST_P(TransmitterContract, AnAllocatorMayShrinkAndGrow) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = size_t{64} << 10;
  testing::Buffer to(*far_domain_, kBytes);
  const auto allocator = must(RDMAAllocator::create(
      {near_domain_}, kAnyNode, {.chunk_bytes = kBytes, .first_superpage_bytes = kBytes}));
  for (uint64_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    Chunk chunk = must(allocator->allocate_chunk());
    RDMAMemory memory = chunk.memory();
    const Bytes data = pattern(round, kBytes);
    std::memcpy(memory.get_buffer(), data.data(), kBytes);
    Synchronizer done;
    must(transmitter.write(memory, 0, kBytes, to.locator()));
    must(transmitter.signal_all(&done));
    EXPECT_EQ(transmitter.wait(done, soon()), absl::OkStatus());
    EXPECT_TRUE(testing::holds(to, 0, data));
    if (HasFailure()) return;
    chunk.release();
    EXPECT_GE(allocator->trim(), kBytes);
  }
}

// Unsignaled requests that are posted to the queue pair directly have ids of their own. When they
// fail, the queue reports that, whatever their ids.
TEST_P(TransmitterContract, AFailedRequestThatWasPostedDirectly) {
  TransmitLine line = make_line();
  Transmitter transmitter = must(Transmitter::create(*line.near));
  Local from(*near_domain_, 64);
  testing::Buffer to(*far_domain_, 64);
  const testing::Segments segments = {from.buffer.segment()};
  uint64_t elsewhere[8] = {};
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{4096}, ~uint64_t{0},
                            reinterpret_cast<uint64_t>(&elsewhere)}) {
    SCOPED_TRACE(id);
    // The queue has records of signaled operations, finished and in flight.
    Synchronizer before;
    must(transmitter.write(from.memory, 0, 64, to.locator(), &before));
    must(transmitter.wait(before, soon()));
    RemoteMemoryLocator nowhere = to.locator();
    nowhere.key.value ^= 0x5a5a5a;
    const WorkRequest request = testing::to_remote(Opcode::kWrite, id, segments, nowhere, 0);
    ASSERT_TRUE(line.near->queue_pair().post_send(request).ok());
    EXPECT_TRUE(wait_until(
        [&] {
          line.near->progress();
          return !line.near->status().ok();
        },
        soon()));
    EXPECT_THAT(std::string(line.near->status().message()), HasSubstr("remote access"));
    EXPECT_EQ(transmitter.signal_all(), line.near->status());
    line.repair();
    Synchronizer again;
    must(transmitter.write(from.memory, 0, 64, to.locator(), &again));
    must(transmitter.wait(again, soon()));
  }
  for (const uint64_t word : elsewhere) EXPECT_EQ(word, 0U);
}

TEST_P(TransmitterContract, AsManyTransmittersAsAllowedAndNoMore) {
  TransmitLine line = make_line(256);
  std::vector<Transmitter> transmitters;
  for (size_t i = 0; i < TransmitQueue::kMaxTransmitters; ++i) {
    transmitters.push_back(must(Transmitter::create(*line.near)));
  }
  const absl::Status refused = Transmitter::create(*line.near).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("256 transmitters"));
  // All transmitters work, also if they leave most of their batch unused.
  Local from(*near_domain_, 64);
  testing::Buffer to(*far_domain_, 64);
  for (int round = 0; round < 20; ++round) {
    for (Transmitter& transmitter : transmitters) {
      must(transmitter.write(from.memory, 0, 64, to.locator()));
    }
  }
  Synchronizer done;
  must(transmitters[0].signal_all(&done));
  must(transmitters[0].wait(done, soon()));
  EXPECT_EQ(line.near->statistics().operations, 20 * TransmitQueue::kMaxTransmitters + 1);
  // The lane of a destroyed transmitter is available to a new one.
  transmitters.pop_back();
  transmitters.push_back(must(Transmitter::create(*line.near)));
}

INSTANTIATE_TEST_SUITE_P(On, TransmitterContract, ::testing::ValuesIn(testing::every_transport()),
                         testing::transport_of);

}  // namespace
}  // namespace cariama
