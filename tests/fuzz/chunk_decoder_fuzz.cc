// Feeds a ChannelReceiver with the contents that an untrusted sender may write into its chunks.
//
// The input fills two chunks, or the only chunk of a ring. For event-driven channels it also gives
// the numbers of announced words, step by step. For any input these conditions must hold: no call
// is read beyond its chunk, only functions of the table are run, chunks are only taken if they were
// granted, and a broken channel is not read any more. ASan and UBSan check memory accesses.
//
// Longest input: 2048 bytes.
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsfabric/function_table.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/channel_receiver.h"
#include "tests/fuzz/fuzz_calls.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::internal {
namespace {

constexpr uint64_t kChunkBytes = 1024;

struct alignas(64) ChunkMemory {
  std::byte bytes[kChunkBytes];
};

uint64_t ran = 0;

// The functions that calls can name: a plain function, and one with a buffer.
const std::vector<FunctionId>& functions() {
  static const std::vector<FunctionId> all = [] {
    require(FunctionTable::build().ok());
    const auto plain = [] { ++ran; };
    const auto with_buffer = [](void* buffer, uint64_t size) {
      uint8_t sum = 0;
      for (uint64_t i = 0; i < size; ++i) sum += static_cast<uint8_t*>(buffer)[i];
      ran += 1 + (sum & 1);
    };
    return std::vector<FunctionId>{
        decltype(make_call(plain))::id(),
        decltype(make_buffer_call(with_buffer, std::span<const std::byte>()))::id()};
  }();
  return all;
}

class Backend final : public ReceiverBackend {
 public:
  Backend(uint32_t spare, Arrival arrival) {
    for (uint32_t i = 0; i < spare; ++i) {
      spare_.push_back(std::make_unique<ChunkMemory>());
      ChannelReceiver::prepare(spare_.back()->bytes, arrival);
    }
  }
  Taken take_chunks(uint32_t count, std::vector<std::span<std::byte>>& chunks) override {
    require(!broken_);
    if (count > spare_.size() - given_) return Taken::kMissing;
    for (uint32_t i = 0; i < count; ++i) chunks.emplace_back(spare_[given_++]->bytes);
    return Taken::kTaken;
  }
  // The chunk is freed: the sanitizer reports a later access.
  void replaced(std::span<std::byte> chunk) override {
    require(!broken_ && owned_ != nullptr && chunk.data() == owned_->bytes);
    owned_.reset();
  }
  // The memory of the only chunk of the ring.
  void own(std::unique_ptr<ChunkMemory> chunk) { owned_ = std::move(chunk); }
  [[nodiscard]] bool push(uint64_t consumed) override {
    require(broken_ == (consumed == ChannelControl::kBroken));
    require(broken_ || consumed == pushed_ + 1);
    pushed_ = consumed;
    return true;
  }
  void finished(const NotifyTarget*, const IncomingCall&, const std::string&) override {
    require(!broken_);
  }
  void broken(std::string_view) override {
    require(!broken_);
    broken_ = true;
  }
  [[nodiscard]] bool is_broken() const { return broken_; }

 private:
  std::vector<std::unique_ptr<ChunkMemory>> spare_;
  std::unique_ptr<ChunkMemory> owned_;
  size_t given_ = 0;
  uint64_t pushed_ = 0;
  bool broken_ = false;
};

// Puts the trailing words in place that the publications of the chunk name, so that the receiver
// gets beyond them.
void add_trailing_words(ChunkMemory& chunk) {
  uint64_t at = sizeof(ChunkHeader);
  while (at + sizeof(CallHeader) < kChunkBytes) {
    CallHeader header;
    std::memcpy(&header, chunk.bytes + at, sizeof header);
    const uint64_t word = word_of(header);
    if (word == 0) return;
    at += sizeof header + (header.function == EndMarker::kFunction ? 0 : header.bytes());
    if (at + sizeof word > kChunkBytes) return;
    const uint64_t trailing = TrailingWord::of(word);
    std::memcpy(chunk.bytes + at, &trailing, sizeof trailing);
    at += sizeof trailing;
  }
}

}  // namespace
}  // namespace cariama::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;            // NOLINT
  using namespace cariama::internal;  // NOLINT
  const std::vector<FunctionId>& known = functions();
  FuzzInput input(data, size);
  const auto choices = input.take<uint8_t>();
  static constexpr Arrival kArrivals[] = {Arrival::kMapped, Arrival::kEvent, Arrival::kTrailing,
                                          Arrival::kTrailing};
  const Arrival arrival = kArrivals[(choices & 1) | (choices >> 4 & 2)];
  Backend backend((choices >> 1) & 3, arrival);
  // Each chunk is separate heap memory, so that the sanitizer reports any access beyond it.
  auto first = std::make_unique<ChunkMemory>();
  auto second = std::make_unique<ChunkMemory>();
  for (ChunkMemory* chunk : {first.get(), second.get()}) {
    std::memset(chunk->bytes, 0, kChunkBytes);
    const std::string_view bytes = input.take_bytes(kChunkBytes - sizeof(ChunkHeader));
    std::memcpy(chunk->bytes + sizeof(ChunkHeader), bytes.data(), bytes.size());
    call_only(known, chunk->bytes);
    if (arrival == Arrival::kTrailing && (choices & 64) != 0) add_trailing_words(*chunk);
  }
  std::vector<std::span<std::byte>> ring = {first->bytes, second->bytes};
  if ((choices & 128) != 0) {
    ring.pop_back();
    backend.own(std::move(first));
  }
  ChannelReceiver receiver(backend, arrival,
                           (choices & 8) != 0 ? Consumption::kPull : Consumption::kPush, 0, ring);
  // The chunks may form an endless ring, so the number of steps is limited here.
  for (int step = 0; step < 64 && !receiver.ended(); ++step) {
    if (arrival == Arrival::kEvent) receiver.announced(input.take<uint8_t>());
    const size_t most = 1 + input.take<uint8_t>() % 16;
    require(receiver.run(most) <= most);
  }
  require(!backend.is_broken() || (receiver.ended() && receiver.run(100) == 0));
  return 0;
}
