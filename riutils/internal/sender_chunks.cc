#include "riutils/internal/sender_chunks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// The place in the channel's control memory to which a READ of a count goes.
constexpr uint64_t kScratch = sizeof(ChannelControl);

}  // namespace

SenderChunks::SenderChunks(const MessengerOptions& options)
    : options_(options),
      limit_(options.max_chunks),
      first_bytes_(std::min(options.first_chunk_bytes, options.chunk_bytes)) {}

void SenderChunks::want(uint64_t bytes) {
  uint32_t count = options_.chunks_per_request;
  if (granted() == 0) {
    if (bytes > max_call_bytes(first_bytes_)) first_bytes_ = options_.chunk_bytes;
    if (first_bytes_ < options_.chunk_bytes) count = 1;
  } else if (is_small()) {
    ++count;  // the small chunk, and those that replace it
  } else {
    count = std::min<uint32_t>(2 * granted(), limit_);
  }
  wanted_ = std::max(wanted_, count);
}

SenderChunks::Request SenderChunks::next_request() const {
  return {.count = std::max(wanted_, granted() + 1) - granted(),
          .bytes = none() ? first_bytes_ : options_.chunk_bytes};
}

void SenderChunks::reserve(uint32_t count) {
  unreported_.reserve(unreported_.size() + count);
  ring_.reserve(unreported_.size() + count);
}

bool SenderChunks::take(std::vector<Chunk> grant) {
  if (none()) {
    ring_.begin(std::move(grant));
    return true;
  }
  unreported_.insert(unreported_.end(), grant.begin(), grant.end());
  return false;
}

void SenderChunks::limit_until(std::chrono::steady_clock::time_point until) {
  limit_ = lasting();
  limited_until_ = until;
}

bool SenderChunks::may_grow() {
  if (limit_ < options_.max_chunks && std::chrono::steady_clock::now() >= limited_until_) {
    limit_ = options_.max_chunks;
  }
  return lasting() < limit_;
}

CallHeader SenderChunks::end_marker(uint8_t flags) const {
  return EndMarker::make(static_cast<uint32_t>(unreported_.size()),
                         are_replacements(flags) ? EndMarker::kReplaced : flags);
}

void SenderChunks::end_chunk(uint8_t flags) {
  if (are_replacements(flags)) {
    ring_.replace_chunk(unreported_);
    --wanted_;
  } else {
    ring_.end_chunk(unreported_);
  }
  unreported_.clear();
  open_ = false;
}

absl::Status malformed_data(const std::string& peer) {
  return make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                    peer +
                        " found malformed data in the channel and has stopped reading it; calls "
                        "whose end was not reported may have run",
                    "the output of that process says what is malformed; look in this process for "
                    "stores outside of their objects, and use a new messenger");
}

absl::Status ConsumedCount::begin_read(Transmitter& transmitter, const ChannelLink::Path& path,
                                       const ChannelLink::Chunk& chunk) {
  read_.reset();
  absl::Status begun =
      transmitter.read(*path.control, kScratch, sizeof(uint64_t),
                       chunk.remote.slice(offsetof(ChunkHeader, chunks), sizeof(uint64_t)), &read_);
  if (!begun.ok()) return begun;
  reading_ = true;  // not before: read() may throw (no memory)
  ++pulls_;
  return absl::OkStatus();
}

absl::StatusOr<bool> ConsumedCount::update(Transmitter* transmitter, const ChannelLink::Path& path,
                                           const ChunkRing<ChannelLink::Chunk>& ring, size_t next,
                                           const std::string& peer) {
  uint64_t consumed = control_of(path).consumed_chunks.load(std::memory_order_acquire);
  if (consumed == ChannelControl::kBroken) [[unlikely]] {
    return malformed_data(peer);
  }
  // Ignore a count that is not possible: the peer wrote it.
  const auto take = [&] {
    const bool is_newer = consumed > value_ && consumed <= ring.ended();
    if (is_newer) value_ = consumed;
    return is_newer;
  };
  if (path.consumption != Consumption::kPull) {
    static_cast<void>(take());
    return true;
  }
  if (std::byte* const mapped = ring.behind(next).mapped; mapped != nullptr) {
    ++pulls_;
    auto* const header = reinterpret_cast<ChunkHeader*>(mapped);
    consumed = std::atomic_ref(header->chunks).load(std::memory_order_acquire);
    static_cast<void>(take());
    return true;
  }
  bool found = false;
  do {
    if (!reading_) {
      const size_t last = ring.size() - 1;
      read_ahead_ = std::min(ahead_, last - std::min(next, last));
      absl::Status begun = begin_read(*transmitter, path, ring.behind(next + read_ahead_));
      if (!begun.ok()) return begun;
    }
    transmitter->queue().progress();
    if (!read_.done()) return false;
    reading_ = false;
    if (absl::Status ended = read_.status(); !ended.ok()) return ended;
    std::memcpy(&consumed, path.control->get_buffer() + kScratch, sizeof consumed);
    found = take();
    ahead_ = found ? 2 * read_ahead_ + 1 : 0;
  } while (!found && read_ahead_ != 0);
  return true;
}

void ConsumedCount::wait(Transmitter& transmitter) {
  if (reading_) static_cast<void>(transmitter.wait(read_, kForever));
}

}  // namespace cariama::internal
