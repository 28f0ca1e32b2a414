// The chunks of a channel at its sending end: which there are, how many more are wanted, and how
// many the receiver has consumed. RingSender (ring_sender.h) requests chunks and fills them.
#ifndef CARIAMA_RIUTILS_INTERNAL_SENDER_CHUNKS_H_
#define CARIAMA_RIUTILS_INTERNAL_SENDER_CHUNKS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// Thread-compatible. `options` must outlive it.
class SenderChunks {
 public:
  using Chunk = ChannelLink::Chunk;
  struct Request {
    uint32_t count = 0;  // chunks
    uint64_t bytes = 0;  // of each
  };

  explicit SenderChunks(const MessengerOptions& options);

  // The chunks of which both ends know. is_open(): the current one is being filled.
  [[nodiscard]] const ChunkRing<Chunk>& ring() const { return ring_; }
  [[nodiscard]] bool is_open() const { return open_; }
  void open() { open_ = true; }
  // True before the first grant.
  [[nodiscard]] bool none() const { return ring_.size() == 0; }

  // Returns the number of chunks that were granted, without those that were replaced.
  [[nodiscard]] uint32_t granted() const {
    return static_cast<uint32_t>(ring_.size() + unreported_.size());
  }
  // Returns true if chunks were granted that the next end marker will report.
  [[nodiscard]] bool has_unreported() const { return !unreported_.empty(); }
  // Returns true if the ring is the small first chunk, which the next granted chunks replace.
  [[nodiscard]] bool is_small() const {
    return !none() && ring_.current().bytes() < options_.chunk_bytes;
  }
  // Returns true if no granted chunk, even an empty one, is long enough for a call of `bytes`
  // bytes.
  [[nodiscard]] bool lacks(uint64_t bytes) const {
    return granted() == 0 ||
           (is_small() && unreported_.empty() && bytes > max_call_bytes(ring_.current().bytes()));
  }

  // ---- Requests.
  // Raises the number of wanted chunks: without chunks, to the number of the first chunks; with the
  // small first chunk, to chunks_per_request + 1; else to twice the present number, at most the
  // limit. Never lowers it. `bytes`: length of the call that needs room, or 0.
  void want(uint64_t bytes);
  // Lowers the number of wanted chunks to the present number.
  void want_no_more() { wanted_ = granted(); }
  [[nodiscard]] uint32_t wanted() const { return wanted_; }
  // Returns true if as many chunks were granted as are wanted.
  [[nodiscard]] bool has_wanted() const { return granted() >= wanted_; }
  // Returns true if more chunks are wanted, and fewer than chunks_per_request were granted.
  [[nodiscard]] bool lacks_first() const {
    return !has_wanted() && lasting() < options_.chunks_per_request;
  }
  // Returns the next request: for the missing chunks, at least one.
  [[nodiscard]] Request next_request() const;
  // Allocates memory for a grant of `count` chunks: take() and end_chunk() then allocate none.
  void reserve(uint32_t count);
  // Takes a grant. Returns true if it was the first one.
  bool take(std::vector<Chunk> grant);
  // The receiver has no memory for more chunks now: may_grow() returns false until `until`.
  void limit_until(std::chrono::steady_clock::time_point until);
  // Returns true if further chunks may be requested.
  [[nodiscard]] bool may_grow();

  // Returns the end marker of the open chunk, which reports the unreported chunks: they are
  // inserted behind it, or replace it if it is small. `flags`: of the marker.
  [[nodiscard]] CallHeader end_marker(uint8_t flags) const;
  // Ends the open chunk, whose end marker of these flags was published.
  void end_chunk(uint8_t flags);

 private:
  // Returns true if the unreported chunks replace the open one.
  [[nodiscard]] bool are_replacements(uint8_t flags) const {
    return !unreported_.empty() && flags == 0 && is_small();
  }
  // Returns granted() without the small first chunk.
  [[nodiscard]] uint32_t lasting() const { return granted() - (is_small() ? 1 : 0); }

  const MessengerOptions& options_;
  ChunkRing<Chunk> ring_;
  std::vector<Chunk> unreported_;
  bool open_ = false;
  // Maximum of lasting(): max_chunks, or less until limited_until_.
  uint32_t limit_;
  std::chrono::steady_clock::time_point limited_until_{};
  uint32_t wanted_ = 0;   // granted() to be reached by requests
  uint64_t first_bytes_;  // of each of the first chunks, when they are requested
};

// Returns the error of calls in a channel that `peer` has stopped reading.
[[nodiscard]] absl::Status malformed_data(const std::string& peer);

// The number of ended chunks that the receiver is known to have consumed. Thread-compatible.
class ConsumedCount {
 public:
  [[nodiscard]] uint64_t value() const { return value_; }
  // Sets the value from the receiver's count. With Consumption::kPull the header of each chunk
  // contains the count at the time when the receiver consumed that chunk, and is READ if it is not
  // mapped. Returns false while a READ is in flight. `next`: the place of the chunk to be opened
  // next behind the current one. `peer` names the receiver.
  // The header of the next chunk tells only that this chunk was consumed. So the READ goes to a
  // chunk that was ended later: twice as far after each READ that has found a consumed chunk, and
  // again to the next chunk after one that has not. The number of READs for a ring that the
  // receiver has consumed grows with the logarithm of its chunks.
  // Errors: INTERNAL (the receiver found malformed data), those of the transfer.
  [[nodiscard]] absl::StatusOr<bool> update(Transmitter* transmitter, const ChannelLink::Path& path,
                                            const ChunkRing<ChannelLink::Chunk>& ring, size_t next,
                                            const std::string& peer);
  // Returns true while a READ is in flight.
  [[nodiscard]] bool is_reading() const { return reading_ && !read_.done(); }
  // Blocks until no READ is in flight.
  void wait(Transmitter& transmitter);
  // Returns the number of times that the count was read from a chunk's header (kPull).
  [[nodiscard]] uint64_t pulls() const { return pulls_; }

 private:
  // Begins the READ of the header of `chunk`.
  [[nodiscard]] absl::Status begin_read(Transmitter& transmitter, const ChannelLink::Path& path,
                                        const ChannelLink::Chunk& chunk);

  uint64_t value_ = 0;
  Synchronizer read_{0};
  bool reading_ = false;
  size_t ahead_ = 0;       // places behind the next chunk, of the next READ
  size_t read_ahead_ = 0;  // of the READ in flight
  uint64_t pulls_ = 0;
};

// Returns the channel's control words, in memory of this process.
[[nodiscard]] inline ChannelControl& control_of(const ChannelLink::Path& path) {
  return *reinterpret_cast<ChannelControl*>(path.control->get_buffer());
}

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_SENDER_CHUNKS_H_
