#include "riutils/internal/chunk_writer.h"

#include <cstring>
#include <utility>

#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama::internal {
namespace {

constexpr uint64_t kWord = sizeof(CallHeader);
// Maximum number of chunk images of one channel: the one being filled, and those with transfers in
// flight.
constexpr size_t kStagingUnits = 8;

class MappedWriter final : public ChunkWriter {
 public:
  MappedWriter(ChannelLink& link, const ChannelLink::Path& path, std::string peer)
      : link_(link), doorbell_(*path.doorbell), fence_(path.fence), peer_(std::move(peer)) {}

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
  absl::Status end(Transmitter*, CallHeader marker, std::byte* at, uint64_t) override {
    publish_word(at, word_of(marker));
    return notify();
  }
  // From now on a publication finds an armed doorbell, and takes the slow path.
  void peer_died() override {
    dead_.store(true, std::memory_order_relaxed);
    static_cast<void>(doorbell_.arm());
  }

 private:
  absl::Status notify() {
    if (fence_) Machine::full_fence();
    if (!doorbell_.is_armed()) [[likely]]
      return absl::OkStatus();
    if (dead_.load(std::memory_order_relaxed)) {
      absl::Status why = link_.status();
      return !why.ok() ? why
                       : make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                    peer_ + " has died", peer_remedy(PeerRemedy::kEnded));
    }
    wakes_ = wakes_ + 1;
    link_.ring();
    return absl::OkStatus();
  }

  ChannelLink& link_;
  Doorbell& doorbell_;
  std::atomic<bool> dead_{false};
  const bool fence_;
  const std::string peer_;
};

// The base of the writers that build calls in an image of the chunk.
class StagingWriter : public ChunkWriter {
 public:
  StagingWriter(ChannelLink& link, std::unique_ptr<CircularAllocator> staging)
      : link_(link), staging_(std::move(staging)) {}

  absl::StatusOr<bool> begin(Transmitter* transmitter, const ChannelLink::Chunk& chunk) override {
    RDMAMemory* unit = staging_->allocate();
    if (unit == nullptr) {
      // One signal_all() covers all transfers of the images in flight.
      if (!all_signaled_) {
        if (absl::Status posted = transmitter->signal_all(); !posted.ok()) return posted;
        all_signaled_ = true;  // not before: signal_all() may throw (no memory)
      }
      transmitter->queue().progress();
      if (absl::Status status = transmitter->queue().status(); !status.ok()) return status;
      unit = staging_->allocate();
      if (unit == nullptr) return false;
    }
    all_signaled_ = false;
    unit_ = unit;
    base_ = unit_->get_buffer();
    remote_ = chunk.remote;
    return true;
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
  bool all_signaled_ = false;  // since no unit was free
};

// The base of the writers whose receiver polls its memory.
class WakingWriter : public StagingWriter {
 public:
  WakingWriter(ChannelLink& link, const ChannelLink::Path& path,
               std::unique_ptr<CircularAllocator> staging)
      : StagingWriter(link, std::move(staging)),
        doorbell_(reinterpret_cast<ChannelControl*>(path.control->get_buffer())->doorbell) {}

 protected:
  // The count includes end markers: an end marker may be the last publication for a long time, and
  // the receiver must be woken for it.
  void notify(uint64_t produced) {
    if (!doorbell_.ring(produced)) [[likely]]
      return;
    wakes_ = wakes_ + 1;
    link_.ring();
  }

 private:
  RemoteDoorbell& doorbell_;
};

class TrailingWriter final : public WakingWriter {
 public:
  TrailingWriter(ChannelLink& link, const ChannelLink::Path& path,
                 std::unique_ptr<CircularAllocator> staging)
      : WakingWriter(link, path, std::move(staging)) {
    copy_front_ = kWord;
    tail_ = kWord;
  }

  absl::Status publish(Transmitter* transmitter, std::byte* first, std::byte* next,
                       uint64_t produced) override {
    absl::Status written = write_trailed(transmitter, first, next);
    if (written.ok()) notify(produced + kWord);
    return written;
  }
  // The batch word makes the calls one publication.
  absl::Status publish_copy(Transmitter* transmitter, const Backlog::Run& calls, std::byte* at,
                            uint64_t produced) override {
    store_word(at, word_of(BatchWord::make(calls.bytes)));
    std::memcpy(at + kWord, calls.memory->get_buffer() + calls.offset, calls.bytes);
    return publish(transmitter, at, at + kWord + calls.bytes, produced);
  }
  // The offset `produced` does not count the trailing word of an end marker, because the stream
  // continues in the next chunk.
  absl::Status end(Transmitter* transmitter, CallHeader marker, std::byte* at,
                   uint64_t produced) override {
    store_word(at, word_of(marker));
    absl::Status written = write_trailed(transmitter, at, at + kWord);
    if (written.ok()) notify(produced);
    return written;
  }
  // The next publication begins behind the trailing word.
  std::byte* resume(std::byte* next) override { return next + kWord; }
  bool resumes_in_place() const override { return false; }

 private:
  // Writes [first, next), and the trailing word behind it.
  absl::Status write_trailed(Transmitter* transmitter, std::byte* first, std::byte* next) {
    uint64_t word;
    std::memcpy(&word, first, sizeof word);
    store_word(next, TrailingWord::of(word));
    return write_image(transmitter, first, static_cast<uint64_t>(next - first) + kWord);
  }
};

class PolledWriter final : public WakingWriter {
 public:
  using WakingWriter::WakingWriter;

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
  auto staging = CircularAllocator::create(
      path.allocator,
      {.unit_bytes = path.arrival == Arrival::kPolled ? 2 * chunk_bytes : chunk_bytes,
       .initial_units = 2,
       .max_units = kStagingUnits,
       .growth = Growth::kLinear});
  if (!staging.ok()) return staging.status();
  if (path.arrival == Arrival::kEvent) {
    return std::make_unique<EventWriter>(link, *std::move(staging));
  }
  if (path.arrival == Arrival::kTrailing) {
    return std::make_unique<TrailingWriter>(link, path, *std::move(staging));
  }
  return std::make_unique<PolledWriter>(link, path, *std::move(staging));
}

}  // namespace cariama::internal
