// Arrival::kTrailing: every order in which the words of a few publications can become visible.
//
// A card makes the bytes of one WRITE visible in ascending order, and orders nothing else. The test
// records the WRITEs of a real sender, then replays them to a real receiver, some bytes at a time,
// in every interleaving that keeps each WRITE's own order. After each step the receiver must have
// run exactly the calls of the complete publications in front of the first incomplete one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/function_table.h"
#include "gtest/gtest.h"
#include "riutils/internal/channel_receiver.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::BatchWord;
using internal::ChannelReceiver;
using internal::chunk_capacity;
using internal::ChunkHeader;
using internal::EndMarker;
using internal::ReceiverBackend;
using internal::TrailingWord;
using internal::WhenNoRoom;
using testing::Bytes;
using testing::ChannelRig;
using testing::RigTransport;

constexpr uint64_t kChunkBytes = 1024;
constexpr WhenNoRoom kRetry = WhenNoRoom::of(Retry, false);

std::vector<uint64_t>* run_calls_of = nullptr;

struct TrailedCall {
  uint64_t number;
  void operator()() const { run_calls_of->push_back(number); }
};

// A part of a WRITE: bytes that become visible together.
struct Piece {
  size_t chunk;
  uint64_t offset;
  Bytes bytes;
};
struct Write {
  std::vector<Piece> pieces;
  size_t calls = 0;  // number of calls that run when this WRITE and all earlier ones are complete
};

class Backend final : public ReceiverBackend {
 public:
  Taken take_chunks(uint32_t, std::vector<std::span<std::byte>>&) override {
    return Taken::kMissing;
  }
  void replaced(std::span<std::byte>) override {}
  [[nodiscard]] bool push(uint64_t) override { return true; }
  void finished(const NotifyTarget*, const IncomingCall&, const std::string&) override {}
  void broken(std::string_view why) override { ADD_FAILURE() << why; }
};

// Records the WRITEs of a sender. The rig's own receiver only makes room for it.
class Recorder {
 public:
  explicit Recorder(size_t piece_bytes)
      : piece_bytes_(piece_bytes),
        rig_({.transport = RigTransport::kSim, .arrival = Arrival::kTrailing},
             {.chunks_per_request = 2, .max_chunks = 2, .chunk_bytes = kChunkBytes}) {
    EXPECT_TRUE(rig_.sender().setup().ok());
    chunks_ = rig_.receiver()->chunks();
    before_ = snapshot();
  }

  void call() {
    EXPECT_TRUE(rig_.sender().send<false>(make_call(TrailedCall{next_++}), kRetry).ok());
    record(1);
  }
  void batch(size_t calls) {
    for (size_t i = 0; i < calls; ++i) {
      EXPECT_TRUE(rig_.sender().send<true>(make_call(TrailedCall{next_++}), kRetry).ok());
    }
    EXPECT_TRUE(rig_.sender().flush().ok());
    record(calls);
  }
  // Fills the chunk with one call so that the next one does not fit.
  void fill() {
    const Bytes bytes(kChunkBytes - 300);
    EXPECT_TRUE(
        rig_.sender()
            .send<false>(make_buffer_call([number = next_++](
                                              void*, uint64_t) { run_calls_of->push_back(number); },
                                          bytes),
                         kRetry)
            .ok());
    record(1);
    while (writes_.back().pieces.front().chunk == current_) call();
    // The last call went into the next chunk.
    current_ = writes_.back().pieces.front().chunk;
  }
  // Lets the rig's receiver run everything, so that the sender may reuse the chunks.
  void consume() {
    std::vector<uint64_t> ignored;
    run_calls_of = &ignored;
    EXPECT_TRUE(rig_.receive_all());
    run_calls_of = nullptr;
    before_ = snapshot();
  }

  [[nodiscard]] const std::vector<Write>& writes() const { return writes_; }

 private:
  [[nodiscard]] std::vector<Bytes> snapshot() const {
    std::vector<Bytes> all;
    for (const auto chunk : chunks_) all.emplace_back(chunk.begin(), chunk.end());
    return all;
  }
  // Splits what arrived since the last call into WRITEs: in each chunk the header, and a
  // publication or an end marker.
  void record(size_t calls) {
    for (int i = 0; i < 200; ++i) rig_.deliver();
    const std::vector<Bytes> after = snapshot();
    std::vector<Write> found;
    for (size_t chunk : {current_, 1 - current_}) {
      Write header;
      Write publication;
      for (uint64_t at = 0; at < kChunkBytes; at += piece_bytes_) {
        const auto place = static_cast<ptrdiff_t>(at);
        const Bytes now(after[chunk].begin() + place,
                        after[chunk].begin() + place + static_cast<ptrdiff_t>(piece_bytes_));
        if (std::equal(now.begin(), now.end(), before_[chunk].begin() + place)) continue;
        (at < sizeof(ChunkHeader) ? header : publication).pieces.push_back({chunk, at, now});
      }
      for (Write* const write : {&publication, &header}) {
        if (!write->pieces.empty()) found.push_back(std::move(*write));
      }
    }
    ASSERT_FALSE(found.empty());
    // Calls are in the last publication; an end marker and a header precede it.
    for (size_t i = found.size(); i-- > 0;) {
      if (found[i].pieces.front().offset >= sizeof(ChunkHeader)) {
        found[i].calls = calls;
        break;
      }
    }
    for (Write& write : found) writes_.push_back(std::move(write));
    before_ = after;
  }

  const size_t piece_bytes_;
  ChannelRig rig_;
  std::vector<std::span<std::byte>> chunks_;
  std::vector<Bytes> before_;
  std::vector<Write> writes_;
  size_t current_ = 0;
  uint64_t next_ = 0;
};

struct alignas(64) ChunkMemory {
  std::byte bytes[kChunkBytes];
};

// Replays `first` in order, then `last` in every interleaving. Returns the number of interleavings.
size_t replay_all(const std::vector<Write>& first, const std::vector<Write>& last) {
  size_t interleavings = 0;
  std::vector<size_t> order;  // for each step the index of the WRITE that advances
  std::vector<size_t> left;
  for (const Write& write : last) left.push_back(write.pieces.size());

  const auto replay = [&] {
    ++interleavings;
    std::vector<std::unique_ptr<ChunkMemory>> memory;
    std::vector<std::span<std::byte>> chunks;
    for (int i = 0; i < 2; ++i) {
      memory.push_back(std::make_unique<ChunkMemory>());
      ChannelReceiver::prepare(memory.back()->bytes, Arrival::kTrailing);
      chunks.emplace_back(memory.back()->bytes);
    }
    Backend backend;
    ChannelReceiver receiver(backend, Arrival::kTrailing, Consumption::kPull, 0, chunks);
    std::vector<uint64_t> ran;
    run_calls_of = &ran;
    const auto land = [&](const Piece& piece) {
      std::memcpy(memory[piece.chunk]->bytes + piece.offset, piece.bytes.data(),
                  piece.bytes.size());
      receiver.run(SIZE_MAX);
      receiver.run(SIZE_MAX);
    };
    size_t expected = 0;
    for (const Write& write : first) {
      for (const Piece& piece : write.pieces) land(piece);
      expected += write.calls;
    }
    ASSERT_EQ(ran.size(), expected);
    std::vector<size_t> done(last.size());
    for (const size_t write : order) {
      land(last[write].pieces[done[write]++]);
      size_t complete = expected;
      for (size_t i = 0; i < last.size(); ++i) {
        const bool publishes = last[i].pieces.front().offset >= sizeof(ChunkHeader);
        if (publishes && done[i] < last[i].pieces.size()) break;
        complete += last[i].calls;
      }
      ASSERT_EQ(ran.size(), complete);
    }
    for (size_t i = 0; i < ran.size(); ++i) ASSERT_EQ(ran[i], i);
    run_calls_of = nullptr;
  };
  const std::function<void()> extend = [&] {
    bool any = false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] == 0 || ::testing::Test::HasFatalFailure()) continue;
      any = true;
      --left[i];
      order.push_back(i);
      extend();
      order.pop_back();
      ++left[i];
    }
    if (!any && !::testing::Test::HasFatalFailure()) replay();
  };
  extend();
  return interleavings;
}

std::vector<Write> tail_of(const std::vector<Write>& writes, size_t begin) {
  return {writes.begin() + static_cast<ptrdiff_t>(begin), writes.end()};
}
std::vector<Write> head_of(const std::vector<Write>& writes, size_t end) {
  return {writes.begin(), writes.begin() + static_cast<ptrdiff_t>(end)};
}

TEST(TrailingArrival, CallsPublishedOneByOne) {
  Recorder recorder(8);
  for (int i = 0; i < 3; ++i) recorder.call();
  // Header, argument and trailing word of each: 9! / (3! 3! 3!). (A word of zeros is no piece: the
  // first call's argument.)
  EXPECT_EQ(replay_all({}, recorder.writes()), 560u);
}

TEST(TrailingArrival, HalfWords) {
  Recorder recorder(4);
  recorder.call();
  const size_t begin = recorder.writes().size();
  for (int i = 0; i < 2; ++i) recorder.call();
  EXPECT_GT(replay_all(head_of(recorder.writes(), begin), tail_of(recorder.writes(), begin)), 200u);
}

TEST(TrailingArrival, SingleBytes) {
  Recorder recorder(1);
  recorder.call();
  const size_t begin = recorder.writes().size();
  recorder.call();
  EXPECT_EQ(replay_all(head_of(recorder.writes(), begin), tail_of(recorder.writes(), begin)), 1u);
}

TEST(TrailingArrival, BatchesAmongCalls) {
  Recorder recorder(8);
  recorder.call();
  const size_t begin = recorder.writes().size();
  recorder.batch(2);
  recorder.call();
  recorder.batch(1);
  EXPECT_GT(replay_all(head_of(recorder.writes(), begin), tail_of(recorder.writes(), begin)),
            1000u);
}

// The end of a chunk, and the first publication of the next one.
TEST(TrailingArrival, TheEndOfAChunk) {
  Recorder recorder(8);
  recorder.fill();
  // The last two WRITEs belong to the call that did not fit: end marker, call.
  const std::vector<Write>& writes = recorder.writes();
  ASSERT_GE(writes.size(), 3u);
  EXPECT_EQ(replay_all(head_of(writes, writes.size() - 2), tail_of(writes, writes.size() - 2)),
            10u);
}

// In the second use of a chunk, the receiver finds no word of the first use.
TEST(TrailingArrival, ChunksThatAreUsedAgain) {
  Recorder recorder(8);
  for (int lap = 0; lap < 4; ++lap) {
    recorder.fill();
    recorder.consume();
  }
  const size_t begin = recorder.writes().size();
  for (int i = 0; i < 3; ++i) recorder.call();
  EXPECT_GT(replay_all(head_of(recorder.writes(), begin), tail_of(recorder.writes(), begin)),
            1000u);
}

// A function that does not exist, also if an earlier test of this process has fixed the table.
constexpr FunctionId kUnknown{0x7ffffff};

// Contents of the memory that a hostile sender, or a card that does not order the bytes of a WRITE,
// can cause.
class HostilePublication : public ::testing::Test {
 protected:
  HostilePublication() {
    ChannelReceiver::prepare(memory_.bytes, Arrival::kTrailing);
    receiver_.emplace(backend_, Arrival::kTrailing, Consumption::kPull, 0,
                      std::vector<std::span<std::byte>>{memory_.bytes});
    run_calls_of = &ran_;
  }
  // Puts a publication's first word in place, and its trailing word behind `bytes` bytes.
  void publish(CallHeader first, uint64_t bytes, uint64_t flaw = 0,
               uint64_t at = sizeof(ChunkHeader)) {
    const uint64_t word = internal::word_of(first);
    const uint64_t trailing = TrailingWord::of(word) ^ flaw;
    std::memcpy(memory_.bytes + at, &word, sizeof word);
    std::memcpy(memory_.bytes + at + bytes, &trailing, sizeof trailing);
  }
  void expect_broken(const std::string& why) {
    EXPECT_EQ(receiver_->run(100), 0u);
    EXPECT_TRUE(receiver_->ended());
    ASSERT_EQ(backend_.breaks.size(), 1u);
    EXPECT_NE(backend_.breaks[0].find(why), std::string::npos) << backend_.breaks[0];
  }

  struct BreakingBackend final : ReceiverBackend {
    Taken take_chunks(uint32_t, std::vector<std::span<std::byte>>&) override { return taken; }
    void replaced(std::span<std::byte>) override {}
    [[nodiscard]] bool push(uint64_t) override { return true; }
    void finished(const NotifyTarget*, const IncomingCall&, const std::string&) override {}
    void broken(std::string_view why) override { breaks.emplace_back(why); }
    Taken taken = Taken::kMissing;
    std::vector<std::string> breaks;
  };
  ChunkMemory memory_;
  BreakingBackend backend_;
  std::optional<ChannelReceiver> receiver_;
  std::vector<uint64_t> ran_;
};

TEST_F(HostilePublication, ATrailingWordThatDoesNotFitItsFirstWord) {
  publish(CallHeader::make(kUnknown, 8, 0), 16, 1);
  expect_broken("trailing word is wrong");
}
TEST_F(HostilePublication, AnIncompleteTrailingWordIsWaitedFor) {
  publish(CallHeader::make(kUnknown, 8, 0), 16, uint64_t{0xff} << 56);
  EXPECT_EQ(receiver_->run(100), 0u);
  EXPECT_FALSE(receiver_->ended());
}
TEST_F(HostilePublication, APublicationThatLeavesItsChunk) {
  publish(CallHeader::make(kUnknown, chunk_capacity(kChunkBytes), 0), 16);
  expect_broken("longer than its chunk");
}
// The chunk holds this publication and its trailing word, but no word behind them.
TEST_F(HostilePublication, APublicationThatFillsItsChunk) {
  const uint64_t room = kChunkBytes - sizeof(ChunkHeader) - sizeof(CallHeader);
  publish(CallHeader::make(kUnknown, room - sizeof(CallHeader), 0), room);
  expect_broken("no room for the end marker");
}
// The end marker names chunks that have not come yet, and is a call when the receiver reads it
// again. Behind it the chunk ends.
TEST_F(HostilePublication, AnEndMarkerThatBecomesACall) {
  const uint64_t size = kChunkBytes - sizeof(ChunkHeader) - 3 * sizeof(CallHeader);
  publish(CallHeader::make(kUnknown, size - sizeof(CallHeader), 0), size);
  const uint64_t last = kChunkBytes - 2 * sizeof(CallHeader);
  publish(EndMarker::make(1, 0), sizeof(CallHeader), 0, last);
  backend_.taken = ReceiverBackend::Taken::kNotYet;
  EXPECT_EQ(receiver_->run(100), 1u);
  EXPECT_EQ(receiver_->run(100), 0u);
  EXPECT_FALSE(receiver_->ended());
  publish(CallHeader::make(kUnknown, 0, 0), sizeof(CallHeader), 0, last);
  expect_broken("no room for the end marker");
}
TEST_F(HostilePublication, AnEmptyBatch) {
  publish(BatchWord::make(0), 8);
  expect_broken("batch is malformed");
}
TEST_F(HostilePublication, AHeaderWithAllFlags) {
  publish(CallHeader::make(kUnknown, 8, 0xff), 16);
  expect_broken("flags that do not exist");
}

}  // namespace
}  // namespace cariama
