#include "riutils/internal/chunk_writer.h"

#include <cstring>
#include <utility>

#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr uint64_t kWord = sizeof(CallHeader);
// Maximum number of chunk images of one channel: the one being filled, and those with transfers in
// flight.
constexpr size_t kStagingUnits = 8;

// Orders a store before a later load, also for the processor. A locked instruction is cheaper than
// mfence.
void full_fence() {
  std::atomic<uint32_t> line{0};
  line.exchange(1, std::memory_order_seq_cst);
}

void store_producer(std::byte* chunk, const ChunkHeader::Producer& producer) {
  auto* const header = reinterpret_cast<ChunkHeader*>(chunk);
  const auto set = [](uint64_t& field, uint64_t value) {
    std::atomic_ref(field).store(value, std::memory_order_relaxed);
  };
  set(header->producer.first, producer.first);
  set(header->producer.last, producer.last);
  set(header->producer.filled, producer.filled);
}

class MappedWriter final : public ChunkWriter {
 public:
  MappedWriter(ChannelLink& link, const ChannelLink::Path& path, std::string peer)
      : link_(link), state_(path.sleeping->state), fence_(path.fence), peer_(std::move(peer)) {}

  absl::StatusOr<bool> begin(Transmitter*, const ChannelLink::Chunk& chunk) override {
    base_ = chunk.mapped;
    return true;
  }
  absl::Status publish(Transmitter*, std::byte*, std::byte*, uint64_t) override { return notify(); }
  absl::Status publish_copy(Transmitter*, const Backlog::Run& calls, std::byte* at,
                            uint64_t) override {
    const std::byte* const from = calls.memory->get_buffer() + calls.offset;
    store_word(at + calls.bytes, 0);
    std::memcpy(at + kWord, from + kWord, calls.bytes - kWord);
    uint64_t header;
    std::memcpy(&header, from, sizeof header);
    publish_word(at, header);
    return notify();
  }
  absl::Status write_header(Transmitter*, const ChunkHeader::Producer& producer) override {
    store_producer(base_, producer);
    return absl::OkStatus();
  }
  absl::Status end(Transmitter*, CallHeader marker, std::byte* at, uint64_t) override {
    publish_word(at, word_of(marker));
    return notify();
  }
  void peer_died() override { state_.store(SleepingWord::kDead, std::memory_order_relaxed); }

 private:
  // Wakes the receiver if it sleeps.
  absl::Status notify() {
    if (fence_) full_fence();
    const uint32_t seen = state_.load(std::memory_order_relaxed);
    if (seen == SleepingWord::kAwake) [[likely]]
      return absl::OkStatus();
    if (seen == SleepingWord::kDead) {
      absl::Status why = link_.status();
      return !why.ok() ? why
                       : make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                    peer_ + " has died");
    }
    if (state_.exchange(SleepingWord::kAwake, std::memory_order_acq_rel) == SleepingWord::kAsleep) {
      wakes_ = wakes_ + 1;
      link_.wake();
    }
    return absl::OkStatus();
  }

  ChannelLink& link_;
  std::atomic<uint32_t>& state_;
  const bool fence_;
  const std::string peer_;
};

// Common to the writers that build calls in an image of the chunk.
class StagingWriter : public ChunkWriter {
 public:
  StagingWriter(ChannelLink& link, std::unique_ptr<CircularAllocator> staging)
      : link_(link), staging_(std::move(staging)) {}

  absl::StatusOr<bool> begin(Transmitter* transmitter, const ChannelLink::Chunk& chunk) override {
    RDMAMemory* unit = staging_->allocate();
    if (unit == nullptr) {
      // One flush covers all transfers of the images in flight.
      if (!std::exchange(flushed_, true)) {
        if (absl::Status posted = transmitter->flush(); !posted.ok()) return posted;
      }
      transmitter->queue().progress();
      if (absl::Status status = transmitter->queue().status(); !status.ok()) return status;
      unit = staging_->allocate();
      if (unit == nullptr) return false;
    }
    flushed_ = false;
    unit_ = unit;
    base_ = unit_->get_buffer();
    remote_ = chunk.remote;
    return true;
  }
  absl::Status write_header(Transmitter* transmitter,
                            const ChunkHeader::Producer& producer) override {
    store_producer(unit_->get_buffer(), producer);
    return write(transmitter, *unit_, 0, 3 * sizeof(uint64_t), base_);
  }

 protected:
  // Writes bytes [offset, offset + bytes) of `memory` to the place of the remote chunk that
  // corresponds to `at`.
  absl::Status write(Transmitter* transmitter, RDMAMemory& memory, uint64_t offset, uint64_t bytes,
                     const std::byte* at) {
    return transmitter->write(memory, offset, bytes,
                              remote_.slice(static_cast<uint64_t>(at - base_), bytes));
  }
  // Writes the `bytes` bytes at `at` of the image to their place in the remote chunk.
  absl::Status write_image(Transmitter* transmitter, const std::byte* at, uint64_t bytes) {
    return write(transmitter, *unit_, static_cast<uint64_t>(at - unit_->get_buffer()), bytes, at);
  }

  ChannelLink& link_;

 private:
  std::unique_ptr<CircularAllocator> staging_;
  RDMAMemory* unit_ = nullptr;  // the image of this chunk
  RemoteMemoryLocator remote_;
  bool flushed_ = false;  // since no unit was free
};

class PolledWriter final : public StagingWriter {
 public:
  PolledWriter(ChannelLink& link, const ChannelLink::Path& path,
               std::unique_ptr<CircularAllocator> staging)
      : StagingWriter(link, std::move(staging)),
        wake_(reinterpret_cast<ChannelControl*>(path.control.get_buffer())->wake) {}

  absl::Status publish(Transmitter* transmitter, std::byte* first, std::byte* next,
                       uint64_t produced) override {
    // Everything behind the publishing word, including the word of zeros at `next`.
    const auto bytes = static_cast<uint64_t>(next - first);
    absl::Status written = write_image(transmitter, first + kWord, bytes);
    if (written.ok()) written = write_image(transmitter, first, kWord);
    if (!written.ok()) return written;
    notify(produced);
    return absl::OkStatus();
  }
  absl::Status publish_copy(Transmitter* transmitter, const Backlog::Run& calls, std::byte* at,
                            uint64_t produced) override {
    std::byte* const next = at + calls.bytes;
    store_word(next, 0);
    absl::Status written = write_image(transmitter, next, kWord);
    if (written.ok() && calls.bytes > kWord) {
      written =
          write(transmitter, *calls.memory, calls.offset + kWord, calls.bytes - kWord, at + kWord);
    }
    if (written.ok()) written = write(transmitter, *calls.memory, calls.offset, kWord, at);
    if (!written.ok()) return written;
    notify(produced);
    return absl::OkStatus();
  }
  absl::Status end(Transmitter* transmitter, CallHeader marker, std::byte* at,
                   uint64_t produced) override {
    store_word(at, word_of(marker));
    if (absl::Status written = write_image(transmitter, at, kWord); !written.ok()) return written;
    notify(produced);
    return absl::OkStatus();
  }
  // The transfer may still have to read the word of zeros at `next`. So that word stays zero in the
  // image: the next call is built behind it, and base_ advances by one word, so that the call still
  // goes to the word's place in the chunk.
  std::byte* resume(std::byte* next) override {
    base_ += kWord;
    return next + kWord;
  }
  bool resumes_in_place() const override { return false; }

 private:
  // sleep_protocol.h: the sender stores the published count, then loads the receiver's state. The
  // count includes end markers: an end marker may be the last publication for a long time, and the
  // receiver must be woken for it.
  void notify(uint64_t produced) {
    wake_.published.exchange(produced, std::memory_order_seq_cst);
    if (wake_.asleep.load(std::memory_order_seq_cst) == 0) [[likely]]
      return;
    wake_.asleep.store(0, std::memory_order_relaxed);
    wakes_ = wakes_ + 1;
    link_.wake();
  }

  WakeState& wake_;
};

class EventWriter final : public StagingWriter {
 public:
  using StagingWriter::StagingWriter;

  absl::Status publish(Transmitter* transmitter, std::byte* first, std::byte* next,
                       uint64_t) override {
    const auto bytes = static_cast<uint64_t>(next - first);
    return announce(write_image(transmitter, first, bytes), bytes);
  }
  absl::Status publish_copy(Transmitter* transmitter, const Backlog::Run& calls, std::byte* at,
                            uint64_t) override {
    return announce(write(transmitter, *calls.memory, calls.offset, calls.bytes, at), calls.bytes);
  }
  absl::Status end(Transmitter* transmitter, CallHeader marker, std::byte* at, uint64_t) override {
    store_word(at, word_of(marker));
    return announce(write_image(transmitter, at, kWord), kWord);
  }

 private:
  absl::Status announce(absl::Status written, uint64_t bytes) {
    if (!written.ok()) return written;
    events_ = events_ + 1;
    link_.announce(bytes / kWord);
    return written;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkWriter>> ChunkWriter::create(ChannelLink& link,
                                                                 const ChannelLink::Path& path,
                                                                 uint64_t chunk_bytes,
                                                                 const std::string& peer) {
  if (path.arrival == Arrival::kMapped) return std::make_unique<MappedWriter>(link, path, peer);
  // Arrival::kPolled: each publication of 8 bytes or more leaves 8 bytes of zeros in the image.
  auto staging = CircularAllocator::create(path.allocator, {.unit_bytes = 2 * chunk_bytes,
                                                            .initial_units = 2,
                                                            .max_units = kStagingUnits,
                                                            .growth = Growth::kLinear});
  if (!staging.ok()) return staging.status();
  if (path.arrival == Arrival::kEvent) {
    return std::make_unique<EventWriter>(link, *std::move(staging));
  }
  return std::make_unique<PolledWriter>(link, path, *std::move(staging));
}

}  // namespace cariama::internal
