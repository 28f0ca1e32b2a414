// The messages by which a receiver grants chunks to a sender, from both ends.
//
// As receiver: takes requests of a misbehaving sender, and keeps the records of channels that the
// receiver keeps. A request that passes the check names a thread of its sender, and no channel gets
// more chunks, or smaller or larger ones, than the limits permit.
//
// As sender: a RingSender over mapped chunks gets the grants and the counts of consumed chunks that
// a misbehaving receiver writes. Each chunk is separate heap memory, so that AddressSanitizer
// reports a store beyond it. The sender fills a chunk again only if the count permits it, and the
// channel ends without an error of the process.
//
// Longest input: 256 bytes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/function_table.h"
#include "riutils/internal/grant_checks.h"
#include "riutils/internal/ring_sender.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::internal {
namespace {

constexpr uint64_t kSmallChunkBytes = MessengerOptions::kMinChunkBytes;
constexpr uint64_t kChunkBytes = 2048;

// ---- The receiver -------------------------------------------------------------------------------

// Returns a request that is well-formed but for the fields that the input changes.
ChunkRequest take_request(FuzzInput& input, uint32_t rank, uint32_t threads) {
  ChunkRequest request;
  const auto choice = input.take<uint8_t>();
  if ((choice & 1) != 0) return input.take<ChunkRequest>();
  request.serial = input.take<uint8_t>() % 4;
  request.source_thread = rank * threads + input.take<uint8_t>() % threads;
  request.count = 1 + input.take<uint8_t>() % ChunkRequest::kMost;
  request.chunk_bytes = kChunkBytes << (choice >> 1 & 1);
  request.control.length = sizeof(ChannelControl);
  request.arrival = static_cast<Arrival>(1 + (choice >> 2 & 3) % 4);
  request.first = choice >> 4 & 1;
  switch (choice >> 5) {
    case 0:
      request.source_thread = input.take<uint32_t>();
      break;
    case 1:
      request.count = input.take<uint32_t>();
      break;
    case 2:
      request.chunk_bytes = input.take<uint64_t>();
      break;
    case 3:
      request.arrival = static_cast<Arrival>(input.take<uint8_t>());
      request.consumption = static_cast<Consumption>(input.take<uint8_t>());
      break;
    default:
      break;
  }
  return request;
}

void receive_requests(FuzzInput& input) {
  const uint32_t threads = 1 + input.take<uint8_t>() % 8;
  std::map<std::pair<uint32_t, uint64_t>, size_t> channels;  // their chunks
  while (!input.empty()) {
    const uint32_t rank = input.take<uint8_t>() % 4;
    const ChunkRequest request = take_request(input, rank, threads);
    const auto found = channels.find({rank, request.serial});
    std::optional<size_t> granted;
    if (found != channels.end()) granted = found->second;
    if (!is_possible(request, rank, threads, granted)) continue;
    require(request.source_thread >= rank * threads &&
            request.source_thread - rank * threads < threads);
    require(request.count != 0 && request.count <= ChunkRequest::kMost);
    require(request.chunk_bytes >= MessengerOptions::kMinChunkBytes);
    require(request.chunk_bytes <= MessengerOptions::kMaxChunkBytes &&
            request.chunk_bytes % 64 == 0);
    require(request.arrival != Arrival::kAuto && request.arrival <= Arrival::kEvent);
    require(request.consumption <= Consumption::kPull);
    require((request.first != 0) == (found == channels.end()));
    size_t& chunks = channels[{rank, request.serial}];
    chunks += request.count;  // a receiver may grant fewer
    require(chunks <= MessengerOptions::kMaxChunks);
  }
}

// ---- The sender ---------------------------------------------------------------------------------

struct ChunkMemory {
  explicit ChunkMemory(size_t size)
      : bytes(static_cast<std::byte*>(::operator new (size, std::align_val_t{64}))) {
    std::memset(bytes, 0, size);
  }
  ~ChunkMemory() { ::operator delete (bytes, std::align_val_t{64}); }
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  std::byte* const bytes;
};

// A receiver whose answers the input determines. It runs no calls.
class HostileReceiver final : public ChannelLink {
 public:
  explicit HostileReceiver(FuzzInput& input)
      : input_(input), memory_(control_.data(), control_.size(), nullptr) {}

  std::optional<absl::StatusOr<Path>> open() override {
    Path path;
    path.arrival = Arrival::kMapped;
    path.doorbell = &doorbell_;
    path.consumption = (input_.take<uint8_t>() & 1) != 0 ? Consumption::kPull : Consumption::kPush;
    path.control = &memory_;
    return path;
  }
  // As FabricChannel: an answer that passes the check becomes chunks.
  std::optional<absl::StatusOr<std::vector<Chunk>>> obtain(uint32_t count,
                                                           uint64_t bytes) override {
    require(count != 0 && (bytes == kChunkBytes || bytes == kSmallChunkBytes));
    const auto choice = input_.take<uint8_t>();
    if (asked_bytes_ == 0) {  // else the request is in flight
      asked_bytes_ = bytes;
      asked_count_ = std::min(count, ChunkRequest::kMost);
    }
    if (choice % 16 == 0 && !input_.empty()) return std::nullopt;
    bytes = std::exchange(asked_bytes_, 0);
    count = asked_count_;
    ChunkAnswer answer;
    answer.count = choice % 8 == 1 ? input_.take<uint32_t>() : 1 + choice / 16;
    answer.number = choice % 8 == 2 ? input_.take<uint32_t>() : 1;
    for (RemoteMemoryLocator& chunk : answer.chunks) chunk.length = bytes;
    if (choice % 8 == 3) {
      RemoteMemoryLocator& chunk = answer.chunks[input_.take<uint8_t>() % ChunkRequest::kMost];
      chunk.length = input_.take<uint64_t>();
      chunk.address = input_.take<uint64_t>();
    }
    if (choice % 8 == 4) {
      answer.code = input_.take<int32_t>();
      answer.set_reason(input_.take_bytes(ChunkAnswer::kMostOfReason));
    }
    const absl::Status usable = check_grant(answer, count, bytes, "receiver");
    if (!usable.ok()) {
      require(answer.code != 0 || absl::IsUnavailable(usable));
      return usable;
    }
    require(answer.code == 0 && answer.count != 0 && answer.count <= count);
    require(answer.number < ChunkAnswer::kNumbers);
    std::vector<Chunk> chunks;
    for (uint32_t i = 0; i < answer.count; ++i) {
      require(answer.chunks[i].length == bytes && answer.chunks[i].address % 64 == 0);
      chunks_.push_back(std::make_unique<ChunkMemory>(bytes));
      chunks.push_back({answer.chunks[i], chunks_.back()->bytes});
    }
    return chunks;
  }
  void announce(uint64_t) override {}
  void ring() override { doorbell_.ring(); }
  [[nodiscard]] absl::Status status() const override { return absl::OkStatus(); }
  [[nodiscard]] bool inside_call() const override { return false; }
  // Never waits for real time: the condition gets a few looks.
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline) override {
    for (int look = 0; look < 3; ++look) {
      if (condition()) return true;
      step();
    }
    return false;
  }
  void drain_later() override {}
  absl::StatusOr<RDMAMemory> allocate(size_t bytes) override {
    if (bytes > kMostDeferred) return absl::ResourceExhaustedError("no memory");
    return RDMAMemory(static_cast<std::byte*>(::operator new(bytes, kAlignment)), bytes, nullptr);
  }
  void free(RDMAMemory&& memory) override { ::operator delete(memory.get_buffer(), kAlignment); }

  // The receiver writes words that it may write, with any value.
  void step() {
    const auto choice = input_.take<uint8_t>();
    const uint64_t value = (choice & 1) != 0 ? input_.take<uint64_t>() : input_.take<uint8_t>();
    switch (choice >> 1 & 3) {
      case 0:
        control().consumed_chunks.store(value);
        break;
      case 1:
        if (!chunks_.empty()) {
          const auto& chunk = chunks_[choice / 8 % chunks_.size()];
          if (chunk != nullptr) std::memcpy(chunk->bytes, &value, sizeof value);
        }
        break;
      case 2:
        static_cast<void>(doorbell_.arm());
        break;
      default:
        break;
    }
  }
  [[nodiscard]] size_t chunks() const { return chunks_.size(); }
  // Frees the first chunk, which others have replaced: the sanitizer reports a later access.
  void free_replaced() { chunks_.front().reset(); }

 private:
  static constexpr size_t kMostDeferred = size_t{64} << 10;
  static constexpr std::align_val_t kAlignment{64};
  ChannelControl& control() { return *reinterpret_cast<ChannelControl*>(control_.data()); }

  FuzzInput& input_;
  alignas(64) std::array<std::byte, sizeof(ChannelControl) + 128> control_{};
  RDMAMemory memory_;
  Doorbell doorbell_;
  std::vector<std::unique_ptr<ChunkMemory>> chunks_;
  uint64_t asked_bytes_ = 0;  // 0: no request is in flight
  uint32_t asked_count_ = 0;
};

void send_calls(FuzzInput& input) {
  static const bool built = FunctionTable::build().ok();
  require(built);
  HostileReceiver receiver(input);
  MessengerOptions options;
  options.chunk_bytes = kChunkBytes;
  options.first_chunk_bytes =
      (input.take<uint8_t>() & 1) != 0 ? kSmallChunkBytes : MessengerOptions::kMaxChunkBytes;
  options.chunks_per_request = 1 + input.take<uint8_t>() % 4;
  options.max_chunks = 1 + input.take<uint8_t>() % 32;
  if (options.chunks_per_request > options.max_chunks) options.chunks_per_request = 1;
  options.deferred_bytes = 16 << 10;
  options.timeout = std::chrono::milliseconds(1);
  RingSender sender(receiver, options, "receiver");
  const std::array<std::byte, 512> bytes{};
  const auto ignore = [](void*, uint64_t) {};
  while (!input.empty()) {
    const auto step = input.take<uint8_t>();
    const WhenNoRoom when =
        WhenNoRoom::of((step & 8) != 0 ? WhenFull::kFail : WhenFull::kRetryAsync, (step & 16) != 0);
    const auto call =
        make_buffer_call(ignore, std::span(bytes).first(input.take<uint8_t>() * size_t{2} + 2));
    switch (step & 7) {
      case 0:
        static_cast<void>(sender.setup());
        break;
      case 1:
      case 2:
        static_cast<void>(sender.send<false>(call, when));
        break;
      case 3:
        static_cast<void>(sender.send<true>(call, when));
        break;
      case 4:
        static_cast<void>(sender.flush());
        break;
      case 5:
        static_cast<void>(sender.drain([] { return nullptr; }));
        break;
      case 6:
        receiver.step();
        break;
      default:
        if ((step & 32) != 0) static_cast<void>(sender.shutdown(Deadline::min()));
    }
    const MessengerStatistics counts = sender.statistics();
    require(counts.chunks_replaced <= 1);
    if (counts.chunks_replaced != 0) receiver.free_replaced();
    require(counts.chunks <= receiver.chunks());
    require(counts.chunks_consumed <= counts.chunks_filled);
    // No grant is larger than its request. The first chunk may have been replaced.
    require(counts.chunks <= options.max_chunks + 1);
  }
}

}  // namespace
}  // namespace cariama::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::FuzzInput input(data, size);
  if ((input.take<uint8_t>() & 1) != 0) {
    cariama::internal::receive_requests(input);
  } else {
    cariama::internal::send_calls(input);
  }
  return 0;
}
