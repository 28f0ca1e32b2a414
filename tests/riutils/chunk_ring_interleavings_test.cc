// Explores every interleaving of a sender, a receiver and the network on the chunks of a channel
// (riutils/internal/chunk_ring.h). RingSender, ChunkWriter, Transmitter and ChannelReceiver are the
// real code. Every call must run once, in order, with its own data. Each step that the headers name
// is then weakened, and the exploration must detect that.
//
// chunk_ring_interleavings_wire.h implements the queue pair. A WRITE consists of pieces.
// Each piece becomes visible in a step of its own, at any time and in any order that the
// ArrivalOrder of the path permits. The network reads a piece from the sender's memory when the
// piece becomes visible, or when the sender polls a completion that covers the WRITE. So a sender
// that reuses the memory of a transfer in flight is detected.
//
// The steps of a system are: an action of the sender, a polling round of the receiver, a round of
// the drain thread, the arrival of a piece, and the arrival of a count of consumed chunks. The
// objects of the real code cannot be copied. Therefore the test reaches a state by repeating the
// steps that lead to it, and compares states by the values that determine them: everything that the
// sender has read, the position of the receiver, the chunks, and the transfers in flight.
//
// The sender acts only while fewer than kMaxInFlight transfers are in flight. Not modelled:
// wake-ups (doorbell_interleavings_test.cc), mapped chunks, and pieces that arrive between two
// loads of one polling round.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/function_table.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/transmitter.h"
#include "gtest/gtest.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/channel_receiver.h"
#include "riutils/internal/incoming_map.h"
#include "riutils/internal/ring_sender.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/chunk_ring_interleavings_wire.h"

namespace cariama::ring_model {
namespace {

using internal::ChannelControl;
using internal::ChannelLink;
using internal::ChannelReceiver;
using internal::ChunkHeader;
using internal::ReceiverBackend;
using internal::RingSender;
using internal::WhenNoRoom;
using testing::must;

constexpr uint64_t kSmallChunkBytes = MessengerOptions::kMinChunkBytes;
constexpr uint64_t kChunkBytes = kSmallChunkBytes + 64;
constexpr size_t kDataWords = 41;  // of a call, so that a chunk of either size has room for two
constexpr size_t kMaxChunks = 3;
constexpr size_t kMaxInFlight = 3;  // the sender acts only while fewer transfers are in flight

enum class Action : uint8_t { kCall, kBatched, kFlush, kDeferred, kShutdown };

struct Instance {
  std::string name;
  Arrival arrival;
  ArrivalOrder order;
  Consumption consumption;
  std::vector<Action> actions;
  uint32_t first_chunks = 1;  // of the first request
  uint32_t max_chunks = 2;
  uint64_t first_chunk_bytes = kChunkBytes;
};

// The calls that the receiver has run.
struct Ran {
  uint64_t count = 0;
  std::string violation;
  std::function<void(const std::byte*, size_t)> check;
};
Ran* ran = nullptr;

struct RingCall {
  uint64_t number;
  std::array<uint64_t, kDataWords> data;
  [[nodiscard]] static uint64_t data_of(uint64_t number) { return number * 0x0101010101010101; }
  void operator()() const {
    if (number != ran->count + 1) ran->violation = "a call was lost, repeated or reordered";
    for (const uint64_t word : data) {
      if (word != data_of(number)) ran->violation = "a call ran with other data";
    }
    ran->count = number;
    ran->check(reinterpret_cast<const std::byte*>(this), sizeof *this);
  }
};

// Objects that all executions use, one after the other.
struct Machinery {
  std::shared_ptr<Domain> domain = std::make_shared<Domain>();
  std::shared_ptr<RDMAAllocator> allocator =
      must(RDMAAllocator::create({domain}, kAnyNode, {.chunk_bytes = 64u << 10}));
  Chunk control_chunk = must(allocator->allocate_chunk());
  Chunk backlog_chunk = must(allocator->allocate_chunk());

  static Machinery& get() {
    static Machinery machinery;
    return machinery;
  }
};

// ---- One execution ------------------------------------------------------------------------------

struct alignas(64) Memory {
  std::byte bytes[kChunkBytes];
};

// The steps are numbered: these, and from kArrival on the arrivals.
enum Step : uint8_t { kSend, kRunOne, kRunAll, kHelp, kCount, kLaterCount, kArrival };

class Execution final : public ChannelLink, public ReceiverBackend {
 public:
  Execution(const Instance& instance, Mistake mistake)
      : instance_(instance), mistake_(mistake), wire_(instance.arrival, instance.order, mistake) {
    wire = &wire_;
    ran = &ran_;
    ran_.check = [this](const std::byte* call, size_t bytes) { check_unchanged(call, bytes); };
    Machinery& machinery = Machinery::get();
    machinery.domain->order = instance.order;
    queue_ = must(TransmitQueue::create(*machinery.domain, {.send_depth = 64}));
    transmitter_.emplace(must(Transmitter::create(*queue_)));
    control_ = machinery.control_chunk.memory(0, 2 * sizeof(ChannelControl));
    std::memset(control_.get_buffer(), 0, control_.size());
    for (Memory& chunk : chunks_) std::memset(chunk.bytes, 0x5a, sizeof chunk.bytes);
    sender_.emplace(*this,
                    MessengerOptions{.first_chunk_bytes = instance.first_chunk_bytes,
                                     .chunks_per_request = instance.first_chunks,
                                     .max_chunks = instance.max_chunks,
                                     .chunk_bytes = kChunkBytes,
                                     .deferred_bytes = 700},
                    "far");
  }
  ~Execution() override {
    sender_.reset();
    transmitter_.reset();
    queue_.reset();
    wire = nullptr;
    ran = nullptr;
  }

  [[nodiscard]] const std::string& violation() const { return ran_.violation; }

  [[nodiscard]] std::vector<uint8_t> steps() const {
    std::vector<uint8_t> found;
    const size_t arrivals = wire_.arrivals().size();
    for (size_t i = 0; i < arrivals; ++i) found.push_back(static_cast<uint8_t>(kArrival + i));
    if (!counts_.empty()) found.push_back(kCount);
    if (counts_.size() > 1 && mistake_ == Mistake::kCountsOvertake) found.push_back(kLaterCount);
    if (receiver_.has_value() && !receiver_->ended()) {
      found.push_back(kRunOne);
      found.push_back(kRunAll);
    }
    if (wire_.in_flight.size() < kMaxInFlight) {
      if (drain_wanted_) found.push_back(kHelp);
      if (action_ < instance_.actions.size()) found.push_back(kSend);
    }
    return found;
  }

  void step(uint8_t step) {
    switch (step) {
      case kSend:
        return act();
      case kRunOne:
        return run(1);
      case kRunAll:
        return run(SIZE_MAX);
      case kHelp:
        observe();
        drain_wanted_ = !sender_->drain([this] { return &*transmitter_; });
        return read_once();
      case kCount:
        return take_count(0);
      case kLaterCount:
        return take_count(1);
      default: {
        const auto [operation, piece] = wire_.arrivals()[step - kArrival];
        if (const uint32_t words = wire_.arrive(operation, piece); words != 0) {
          receiver_->announced(words);
          announced_ += words;
        }
      }
    }
  }

  // The values that determine how the execution can continue. The state of the sender is a function
  // of its steps and of the values that it has read. Its counts show which steps had an effect.
  [[nodiscard]] std::string key() const {
    std::string key = sender_read_;
    const auto add = [&](uint64_t word) {
      key.append(reinterpret_cast<const char*>(&word), sizeof word);
    };
    add(action_);
    add(ran_.count);
    add(announced_);
    add(drain_wanted_);
    add(sender_->accepted_bytes());
    const MessengerStatistics sent = sender_->statistics();
    for (const uint64_t count :
         {sent.publications, sent.chunks, sent.chunks_filled, sent.deferred}) {
      add(count);
    }
    if (receiver_.has_value()) {
      add(receiver_->consumed_bytes());
      add(receiver_->consumed_chunks());
      add(receiver_->ended());
    }
    add(control().consumed_chunks.load());
    for (const uint64_t count : counts_) add(count);
    for (const Operation& operation : wire_.in_flight) {
      add(operation.serial);
      uint64_t arrived = 0;
      for (const Piece& piece : operation.pieces) {
        arrived = arrived * 4 + (piece.arrived ? 2 : 0) + (piece.captured.empty() ? 0 : 1);
      }
      add(arrived);
    }
    for (const Memory& chunk : chunks_) {
      key.append(reinterpret_cast<const char*>(chunk.bytes), sizeof chunk.bytes);
    }
    return key;
  }

  // Returns what is wrong in a state in which no step changes anything any more, or "".
  [[nodiscard]] std::string wrong_at_the_end() const {
    if (action_ < instance_.actions.size()) return "the sender waits for ever";
    if (drain_wanted_) return "the drain thread waits for ever";
    if (ran_.count != calls_) return "a call was lost";
    if (instance_.actions.back() != Action::kShutdown) return "";
    if (!receiver_->ended()) return "the receiver does not see the end";
    return sender_->is_released() ? "" : "the sender does not see that the channel has ended";
  }

  // ---- ChannelLink
  std::optional<absl::StatusOr<Path>> open() override {
    return Path{.arrival = instance_.arrival,
                .transmitter = &*transmitter_,
                .consumption = instance_.consumption,
                .allocator = Machinery::get().allocator,
                .control = &control_};
  }
  std::optional<absl::StatusOr<std::vector<Chunk>>> obtain(uint32_t count,
                                                           uint64_t bytes) override {
    if (granted_ == kMaxChunks) return absl::ResourceExhaustedError("no more chunks");
    std::vector<Chunk> chunks;
    std::vector<std::span<std::byte>> memory;
    for (; chunks.size() < count && granted_ < kMaxChunks; ++granted_) {
      const std::span<std::byte> chunk(chunks_[granted_].bytes, bytes);
      if (mistake_ != Mistake::kNotPrepared) ChannelReceiver::prepare(chunk, instance_.arrival);
      chunks.push_back(
          {RemoteMemoryLocator{reinterpret_cast<uint64_t>(chunk.data()), bytes, {}, 0, 0}});
      memory.push_back(chunk);
    }
    if (mistake_ == Mistake::kGrantsReversed) std::reverse(memory.begin(), memory.end());
    if (receiver_.has_value()) {
      for (const std::span<std::byte> chunk : memory) map_.insert(map_.prepare(kChannel, chunk));
    } else {
      receiver_.emplace(*this, instance_.arrival, instance_.consumption, 0, memory);
      if (mistake_ == Mistake::kConsumedEarly) count_early();
    }
    return chunks;
  }
  void announce(uint64_t words) override {
    must(transmitter_->notify(static_cast<uint32_t>(words)));
  }
  void ring() override {}
  [[nodiscard]] absl::Status status() const override { return absl::OkStatus(); }
  [[nodiscard]] bool inside_call() const override { return false; }
  bool wait(const std::function<bool()>& condition, Deadline) override { return condition(); }
  void drain_later() override { drain_wanted_ = true; }
  absl::StatusOr<RDMAMemory> allocate(size_t bytes) override {
    const uint64_t at = std::exchange(deferred_, deferred_ + bytes);
    return Machinery::get().backlog_chunk.memory(at, bytes);
  }
  void free(RDMAMemory&&) override {}

  // ---- ReceiverBackend
  Taken take_chunks(uint32_t count, std::vector<std::span<std::byte>>& chunks) override {
    map_.absorb();
    if (map_.count(kChannel) < count) return Taken::kMissing;
    for (uint32_t i = 0; i < count; ++i) chunks.push_back(map_.extract(kChannel));
    return Taken::kTaken;
  }
  // The chunk is free. It is used again at once: its content and its count are those of another
  // channel.
  void replaced(std::span<std::byte> chunk) override {
    for (const Operation& operation : wire_.in_flight) {
      for (const Piece& piece : operation.pieces) {
        if (!piece.arrived && piece.to >= chunk.data() && piece.to < chunk.data() + chunk.size()) {
          ran_.violation = "a transfer to a chunk that was replaced is in flight";
        }
      }
    }
    std::memset(chunk.data(), 0x5a, chunk.size());
    const uint64_t count = receiver_->consumed_chunks() + 1;
    std::memcpy(chunk.data(), &count, sizeof count);
  }
  [[nodiscard]] bool push(uint64_t consumed) override {
    if (mistake_ == Mistake::kNeverConsumed) return true;
    counts_.push_back(consumed + (mistake_ == Mistake::kConsumedEarly ? 1 : 0));
    return true;
  }
  void finished(const NotifyTarget*, const IncomingCall& call, const std::string&) override {
    if (call.outcome != CallOutcome::kDone) ran_.violation = "the receiver rejects a call";
  }
  void broken(std::string_view why) override { ran_.violation = why; }

 private:
  static constexpr uint64_t kChannel = 1;

  [[nodiscard]] const ChannelControl& control() const {
    return *reinterpret_cast<const ChannelControl*>(control_.get_buffer());
  }

  // Records the values that the sender can read at its next step. A step that changes nothing adds
  // nothing.
  void observe() {
    wire_.last_read = 0;
    observed_ = control().consumed_chunks.load();
  }
  void read_once() {
    const std::string read{static_cast<char>('a' + action_), static_cast<char>('0' + observed_),
                           static_cast<char>('0' + wire_.last_read)};
    if (!sender_read_.ends_with(read)) sender_read_ += read;
  }

  void act() {
    observe();
    const Action action = instance_.actions[action_];
    const bool sends =
        action == Action::kCall || action == Action::kBatched || action == Action::kDeferred;
    RingCall call{calls_ + 1, {}};
    call.data.fill(RingCall::data_of(call.number));
    const WhenNoRoom when = WhenNoRoom::of(Fail, action == Action::kDeferred);
    const absl::Status status = action == Action::kFlush      ? sender_->flush()
                                : action == Action::kShutdown ? sender_->shutdown({})
                                : action == Action::kBatched
                                    ? sender_->send<true>(make_call(call), when).status()
                                    : sender_->send<false>(make_call(call), when).status();
    read_once();
    if (status.ok()) {
      calls_ += sends ? 1 : 0;
      ++action_;
    } else if (!absl::IsResourceExhausted(status) && !absl::IsDeadlineExceeded(status)) {
      ran_.violation = status.ToString();
    }
  }

  void run(size_t most) {
    const std::array<Memory, kMaxChunks> before = chunks_;
    const uint64_t consumed = receiver_->consumed_chunks();
    receiver_->run(most);
    const bool clears = mistake_ != Mistake::kNotCleared;
    if (!clears ||
        (mistake_ == Mistake::kFirstHeaderNotCleared && receiver_->consumed_chunks() != consumed)) {
      const size_t end = clears ? sizeof(ChunkHeader) + sizeof(uint64_t) : kChunkBytes;
      for (size_t i = 0; i < kMaxChunks; ++i) {
        std::memcpy(chunks_[i].bytes + sizeof(ChunkHeader), before[i].bytes + sizeof(ChunkHeader),
                    end - sizeof(ChunkHeader));
      }
    }
    if (mistake_ == Mistake::kNeverConsumed) {
      for (Memory& chunk : chunks_) std::memset(chunk.bytes, 0, sizeof(ChunkHeader));
    }
    if (mistake_ == Mistake::kConsumedEarly) count_early();
  }
  // Counts the chunk that the receiver reads as consumed.
  void count_early() {
    const uint64_t consumed = receiver_->consumed_chunks() + 1;
    if (instance_.consumption == Consumption::kPush) {
      if (consumed == 1) counts_.push_back(consumed);
      return;
    }
    for (Memory& chunk : chunks_) std::memcpy(chunk.bytes, &consumed, sizeof consumed);
  }

  void take_count(size_t index) {
    if (sender_->is_released()) ran_.violation = "a count arrives after the end of the channel";
    const uint64_t count = counts_[index];
    counts_.erase(counts_.begin() + static_cast<ptrdiff_t>(index));
    std::memcpy(control_.get_buffer(), &count, sizeof count);
  }

  // No transfer in flight has a part of the call that runs as its target.
  void check_unchanged(const std::byte* call, size_t bytes) {
    for (const Operation& operation : wire_.in_flight) {
      for (const Piece& piece : operation.pieces) {
        if (!piece.arrived && piece.to < call + bytes && call < piece.to + piece.bytes) {
          ran_.violation = "a chunk is overwritten while it is read";
        }
      }
    }
  }

  const Instance& instance_;
  const Mistake mistake_;
  Wire wire_;
  Ran ran_;
  std::array<Memory, kMaxChunks> chunks_;
  size_t granted_ = 0;
  std::unique_ptr<TransmitQueue> queue_;
  std::optional<Transmitter> transmitter_;
  RDMAMemory control_;
  internal::IncomingMap<std::span<std::byte>> map_;
  std::optional<RingSender> sender_;
  std::optional<ChannelReceiver> receiver_;
  std::deque<uint64_t> counts_;  // of consumed chunks, in flight to the sender
  size_t action_ = 0;
  uint64_t calls_ = 0;
  uint64_t announced_ = 0;
  uint64_t observed_ = 0;
  uint64_t deferred_ = 0;
  bool drain_wanted_ = false;
  std::string sender_read_;
};

// ---- The exploration ----------------------------------------------------------------------------

struct Exploration {
  size_t states = 0;
  size_t ends = 0;
  std::string violation;
};

Exploration explore(const Instance& instance, Mistake mistake = Mistake::kNone) {
  using Key = std::pair<uint64_t, uint64_t>;  // two hashes: no two states have both in common
  const auto key_of = [](const Execution& execution) {
    const std::string key = execution.key();
    const std::hash<std::string> hash;
    return Key{hash(key), hash('-' + key)};
  };
  Exploration result;
  std::set<Key> known;
  std::vector<std::vector<uint8_t>> open{{}};
  while (!open.empty()) {
    std::vector<uint8_t> path = std::move(open.back());
    open.pop_back();
    std::optional<Execution> execution;
    execution.emplace(instance, mistake);
    for (const uint8_t step : path) execution->step(step);
    for (;;) {
      result.violation = execution->violation();
      if (!result.violation.empty()) return result;
      const Key key = key_of(*execution);
      if (!known.insert(key).second) break;
      const std::vector<uint8_t> steps = execution->steps();
      const bool may_be_end =
          std::all_of(steps.begin(), steps.end(), [](uint8_t step) { return step < kCount; });
      if (may_be_end) {
        for (const uint8_t step : steps) execution->step(step);
        if (execution->violation().empty() && key_of(*execution) == key) {
          ++result.ends;
          result.violation = execution->wrong_at_the_end();
          if (!result.violation.empty()) return result;
          break;
        }
      }
      for (size_t i = may_be_end ? 0 : 1; i < steps.size(); ++i) {
        open.push_back(path);
        open.back().push_back(steps[i]);
      }
      if (may_be_end) break;
      path.push_back(steps[0]);
      execution->step(steps[0]);
    }
  }
  result.states = known.size();
  return result;
}

constexpr Action kCall = Action::kCall;
constexpr Action kBatched = Action::kBatched;
constexpr Action kFlush = Action::kFlush;
constexpr Action kDeferred = Action::kDeferred;
constexpr Action kShutdown = Action::kShutdown;

std::vector<Instance> instances_of(const std::string& prefix, Arrival arrival, ArrivalOrder order,
                                   Consumption consumption) {
  return {
      {prefix + "one_chunk",
       arrival,
       order,
       consumption,
       {kCall, kCall, kCall, kCall, kCall},
       1,
       1},
      {prefix + "two_chunks",
       arrival,
       order,
       consumption,
       {kCall, kCall, kCall, kCall, kCall, kCall, kShutdown},
       2,
       2},
      {prefix + "growing",
       arrival,
       order,
       consumption,
       {kCall, kCall, kCall, kCall, kCall, kShutdown},
       1,
       3},
      {prefix + "replacing",
       arrival,
       order,
       consumption,
       {kCall, kCall, kCall, kCall, kCall, kShutdown},
       1,
       1,
       kSmallChunkBytes},
      {prefix + "batches",
       arrival,
       order,
       consumption,
       {kBatched, kBatched, kFlush, kCall, kBatched, kBatched, kFlush, kBatched, kShutdown},
       1,
       2},
      {prefix + "deferred",
       arrival,
       order,
       consumption,
       {kCall, kDeferred, kDeferred, kDeferred, kDeferred, kDeferred, kShutdown},
       1,
       1},
  };
}

struct Mode {
  const char* name;
  Arrival arrival;
  ArrivalOrder order;
  Consumption consumption;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

class ChunkRingInterleavings : public ::testing::TestWithParam<Mode> {
 protected:
  ChunkRingInterleavings() { must(FunctionTable::build()); }
  [[nodiscard]] static std::vector<Instance> instances() {
    const Mode& mode = GetParam();
    return instances_of(std::string(mode.name) + "_", mode.arrival, mode.order, mode.consumption);
  }
};
INSTANTIATE_TEST_SUITE_P(
    On, ChunkRingInterleavings,
    ::testing::Values(
        Mode{"polled_push", Arrival::kPolled, ArrivalOrder::kWrites, Consumption::kPush},
        Mode{"polled_pull", Arrival::kPolled, ArrivalOrder::kWrites, Consumption::kPull},
        Mode{"polled_bytes", Arrival::kPolled, ArrivalOrder::kBytes, Consumption::kPush},
        Mode{"trailing", Arrival::kTrailing, ArrivalOrder::kWithinWrite, Consumption::kPull},
        Mode{"trailing_push", Arrival::kTrailing, ArrivalOrder::kBytes, Consumption::kPush},
        Mode{"event", Arrival::kEvent, ArrivalOrder::kNone, Consumption::kPull}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(ChunkRingInterleavings, EveryCallRunsOnceInOrder) {
  for (const Instance& instance : instances()) {
    const Exploration result = explore(instance);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name.c_str(), result.states);
  }
}

std::string find(const std::vector<Instance>& instances, Mistake mistake) {
  for (const Instance& instance : instances) {
    std::string found = explore(instance, mistake).violation;
    if (!found.empty()) return instance.name + ": " + found;
  }
  return "";
}

TEST_P(ChunkRingInterleavings, EachStepIsNecessary) {
  const bool polled = GetParam().arrival == Arrival::kPolled;
  const bool trailing = GetParam().arrival == Arrival::kTrailing;
  const bool push = GetParam().consumption == Consumption::kPush;
  const std::pair<const char*, Mistake> mistakes[] = {
      {"writes overtake", polled ? Mistake::kWritesOvertake : Mistake::kNone},
      {"bytes in disorder", trailing ? Mistake::kBytesDisorder : Mistake::kNone},
      {"event overtakes",
       GetParam().arrival == Arrival::kEvent ? Mistake::kEventOvertakes : Mistake::kNone},
      {"counts overtake", push ? Mistake::kCountsOvertake : Mistake::kNone},
      {"header first", polled ? Mistake::kHeaderFirst : Mistake::kNone},
      {"no word of zeros", polled ? Mistake::kNoZeroWord : Mistake::kNone},
      {"trailing word apart",
       trailing && !orders_writes(GetParam().order) ? Mistake::kTrailingApart : Mistake::kNone},
      {"trailing word in front", trailing ? Mistake::kTrailingInFront : Mistake::kNone},
      {"no inserted count", trailing ? Mistake::kNone : Mistake::kNoInsertedCount},
      {"not replaced", trailing ? Mistake::kNone : Mistake::kNotReplaced},
      {"not cleared", trailing ? Mistake::kNotCleared : Mistake::kNone},
      {"first header not cleared", polled ? Mistake::kFirstHeaderNotCleared : Mistake::kNone},
      {"consumed early", Mistake::kConsumedEarly},
      {"never consumed", Mistake::kNeverConsumed},
      {"not prepared",
       GetParam().arrival != Arrival::kEvent ? Mistake::kNotPrepared : Mistake::kNone},
      {"grants reversed", Mistake::kGrantsReversed},
  };
  for (const auto& [name, mistake] : mistakes) {
    if (mistake == Mistake::kNone) continue;
    const std::string found = find(instances(), mistake);
    EXPECT_NE(found, "") << name;
    std::printf("%s: %s\n", name, found.c_str());
  }
}

}  // namespace
}  // namespace cariama::ring_model
