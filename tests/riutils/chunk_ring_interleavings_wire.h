// The queue pair of chunk_ring_interleavings_test.cc: WRITEs arrive in pieces, in any order that an
// ArrivalOrder permits.
#ifndef CARIAMA_TESTS_RIUTILS_CHUNK_RING_INTERLEAVINGS_WIRE_H_
#define CARIAMA_TESTS_RIUTILS_CHUNK_RING_INTERLEAVINGS_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "gtest/gtest.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::ring_model {

enum class Mistake : uint8_t {
  kNone,
  // The network.
  kWritesOvertake,  // WRITEs overtake each other, although the mode relies on their order
  kBytesDisorder,   // the bytes of a WRITE arrive in any order, although the mode relies on it
  kEventOvertakes,  // an event overtakes the WRITEs that it announces
  kCountsOvertake,  // counts of consumed chunks overtake each other
  // The sender.
  kHeaderFirst,      // the publishing word is posted before the words behind it
  kNoZeroWord,       // no word of zeros is written at the place of the next header
  kTrailingApart,    // the trailing word has a WRITE of its own
  kTrailingInFront,  // the trailing word is posted before its publication
  kNoInsertedCount,  // the end marker does not report the chunks that were granted
  kNotReplaced,      // the end marker does not say that these chunks replace the small one
  // The receiver.
  kNotCleared,             // the receiver does not clear the publications that it has run
  kFirstHeaderNotCleared,  // the receiver does not clear the first header of a consumed chunk
  kConsumedEarly,          // the receiver counts a chunk as consumed when it begins to read it
  kNeverConsumed,          // the receiver does not report the consumed chunks
  kNotPrepared,            // a chunk is granted before it is cleared
  kGrantsReversed,         // the receiver inserts the chunks of a grant in the reverse order
};

class Region final : public MemoryRegion {
 public:
  Region(const MemorySource& source, Access access) : MemoryRegion(source, access) {}
};

// The operations of the sender's queue pair in flight. One exploration executes at a time.
struct Piece {
  const std::byte* from;
  std::byte* to;
  size_t bytes;
  std::vector<std::byte> captured;  // empty: the piece is read when it arrives
  bool arrived = false;
};
struct Operation {
  uint64_t serial = 0;
  std::vector<Piece> pieces;  // empty: an event
  uint32_t words = 0;         // that the event announces
};

class Wire {
 public:
  Wire(Arrival arrival, ArrivalOrder order, Mistake mistake)
      : arrival_(arrival), order_(order), mistake_(mistake) {}

  void post(const WorkRequest& request) {
    switch (request.opcode) {
      case Opcode::kWrite: {
        const auto* const from = static_cast<const std::byte*>(
            request.segment_count == 0 ? nullptr : request.segments[0].address);
        post_write(from, reinterpret_cast<std::byte*>(request.remote_address),
                   request.segment_count == 0 ? 0 : request.segments[0].length);
        break;
      }
      case Opcode::kWriteImmediate:
        in_flight.push_back({++posted_, {}, request.immediate});
        break;
      case Opcode::kRead:
        // A count only grows: a READ that is executed later is the READ of a later action.
        std::memcpy(request.segments[0].address,
                    reinterpret_cast<const void*>(request.remote_address),
                    request.segments[0].length);
        std::memcpy(&last_read, request.segments[0].address, sizeof last_read);
        break;
      default:
        ADD_FAILURE() << "an operation that is not modelled";
    }
    if ((request.flags & kSignaled) != 0) {
      completions_.push_back({.id = request.id, .status = CompletionStatus::kSuccess});
      signaled_ = posted_;
    }
  }

  size_t poll(std::span<Completion> completions) {
    const size_t count = std::min(completions.size(), completions_.size());
    if (count == 0) return 0;
    std::copy_n(completions_.begin(), count, completions.begin());
    completions_.erase(completions_.begin(), completions_.begin() + static_cast<ptrdiff_t>(count));
    for (Operation& operation : in_flight) {
      if (operation.serial > signaled_) continue;
      for (Piece& piece : operation.pieces) capture(piece);
    }
    return count;
  }

  // Returns the pieces that may arrive next, as pairs of an operation and a piece.
  [[nodiscard]] std::vector<std::pair<size_t, size_t>> arrivals() const {
    const bool writes = orders_writes(order_) && mistake_ != Mistake::kWritesOvertake;
    const bool bytes = orders_bytes(order_) && mistake_ != Mistake::kBytesDisorder;
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < in_flight.size(); ++i) {
      const Operation& operation = in_flight[i];
      if (operation.pieces.empty()) {
        if (i == 0 || mistake_ == Mistake::kEventOvertakes) found.emplace_back(i, 0);
      } else if (i == 0 || !writes) {
        for (size_t k = 0; k < operation.pieces.size(); ++k) {
          if (operation.pieces[k].arrived) continue;
          found.emplace_back(i, k);
          if (bytes) break;
        }
      }
    }
    return found;
  }
  // Lets a piece arrive. Returns the number of words that an event has announced.
  uint32_t arrive(size_t index, size_t piece) {
    Operation& operation = in_flight[index];
    const uint32_t words = operation.words;
    if (!operation.pieces.empty()) {
      Piece& arrived = operation.pieces[piece];
      std::memcpy(arrived.to, arrived.captured.empty() ? arrived.from : arrived.captured.data(),
                  arrived.bytes);
      arrived.arrived = true;
      for (const Piece& one : operation.pieces) {
        if (!one.arrived) return 0;
      }
    }
    in_flight.erase(in_flight.begin() + static_cast<ptrdiff_t>(index));
    return words;
  }

  std::deque<Operation> in_flight;
  uint64_t last_read = 0;  // the result of the last READ

 private:
  static void capture(Piece& piece) {
    if (piece.captured.empty()) piece.captured.assign(piece.from, piece.from + piece.bytes);
  }
  void post_write(const std::byte* from, std::byte* to, size_t bytes) {
    constexpr size_t kWord = sizeof(uint64_t);
    if (bytes == 0) return;  // signal_all()
    if (arrival_ == Arrival::kTrailing &&
        (mistake_ == Mistake::kTrailingApart || mistake_ == Mistake::kTrailingInFront)) {
      const bool in_front = mistake_ == Mistake::kTrailingInFront;
      if (in_front) cut(from + bytes - kWord, to + bytes - kWord, kWord);
      cut(from, to, bytes - kWord);
      if (!in_front) cut(from + bytes - kWord, to + bytes - kWord, kWord);
      return;
    }
    if (arrival_ == Arrival::kPolled && bytes > kWord && mistake_ == Mistake::kNoZeroWord) {
      bytes -= kWord;
    }
    cut(from, to, bytes);
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    const bool changes = mistake_ == Mistake::kNoInsertedCount || mistake_ == Mistake::kNotReplaced;
    if (changes && bytes == kWord &&
        static_cast<uint32_t>(word) == internal::EndMarker::kFunction) {
      word &= ~(mistake_ == Mistake::kNotReplaced ? uint64_t{internal::EndMarker::kReplaced} << 56
                                                  : uint64_t{CallHeader::kMaxWords} << 32);
      std::vector<std::byte>& captured = in_flight.back().pieces.front().captured;
      captured.resize(kWord);
      std::memcpy(captured.data(), &word, sizeof word);
    }
    // The writer of polled calls posts the words behind a header, then the header, and then nothing
    // more of this publication.
    if (mistake_ == Mistake::kHeaderFirst && bytes == kWord && in_flight.size() >= 2) {
      Operation& before = in_flight[in_flight.size() - 2];
      if (!before.pieces.empty() && before.pieces.front().to == to + kWord) {
        std::swap(before.pieces, in_flight.back().pieces);
      }
    }
  }
  // Splits a WRITE into pieces. Where bytes are ordered, the first word arrives in two halves,
  // unless it is all of the WRITE.
  void cut(const std::byte* from, std::byte* to, size_t bytes) {
    std::vector<size_t> ends{std::min<size_t>(bytes, 8)};
    if (orders_bytes(order_) && bytes > 8) ends.insert(ends.begin(), 4);
    if (bytes > 16) ends.push_back(bytes - 8);
    if (bytes > 8) ends.push_back(bytes);
    Operation operation{++posted_, {}, 0};
    size_t begin = 0;
    for (const size_t end : ends) {
      operation.pieces.push_back({from + begin, to + begin, end - begin, {}});
      begin = end;
    }
    in_flight.push_back(std::move(operation));
  }

  const Arrival arrival_;
  const ArrivalOrder order_;
  const Mistake mistake_;
  std::deque<Completion> completions_;
  uint64_t posted_ = 0;
  uint64_t signaled_ = 0;  // serial of the last operation that a completion covers
};
inline Wire* wire = nullptr;  // of the execution that takes steps

class Completions final : public CompletionQueue {
 public:
  size_t poll(std::span<Completion> completions) override { return wire->poll(completions); }
  absl::Status arm(bool) override { return absl::UnimplementedError("arm"); }
  [[nodiscard]] uint32_t depth() const override { return 4096; }
};

class Pair final : public QueuePair {
 public:
  Pair(const ProtectionDomain* domain, ArrivalOrder order) : order_(order) {
    domain_ = domain;
    limits_ = {.send_depth = 64,
               .receive_depth = 64,
               .max_send_segments = 1,
               .max_receive_segments = 1,
               .max_inline = 0,
               .max_outstanding_reads = 16,
               .mtu = 4096,
               .max_message = 1 << 20};
  }
  [[nodiscard]] std::string address() const override { return "model"; }
  absl::Status connect(std::string_view, const ConnectOptions&) override {
    return absl::OkStatus();
  }
  absl::Status repair() override { return absl::UnimplementedError("repair"); }
  void fail() override {}
  PostResult post_send(std::span<const WorkRequest> requests) override {
    for (const WorkRequest& request : requests) wire->post(request);
    return {.posted = static_cast<uint32_t>(requests.size())};
  }
  PostResult post_receive(std::span<const ReceiveRequest>) override {
    return {.error = PostError::kUnsupported};
  }
  [[nodiscard]] QueuePairState state() const override { return QueuePairState::kConnected; }
  [[nodiscard]] ArrivalOrder write_order() const override { return order_; }

 private:
  const ArrivalOrder order_;
};

class Domain final : public ProtectionDomain {
 public:
  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override {
    return std::make_shared<Region>(source, access);
  }
  [[nodiscard]] bool pins_memory() const override { return false; }
  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override {
    return absl::UnimplementedError("channel");
  }
  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions&) override {
    return std::make_shared<Completions>();
  }
  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions&) override {
    return absl::UnimplementedError("shared receives");
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(const QueuePairOptions&) override {
    return std::make_unique<Pair>(this, order);
  }
  ArrivalOrder order = ArrivalOrder::kNone;
};

}  // namespace cariama::ring_model

#endif  // CARIAMA_TESTS_RIUTILS_CHUNK_RING_INTERLEAVINGS_WIRE_H_
