// Layout of calls in the receiver's memory: a ring of chunks that the sender fills by one-sided
// writes (Seriema §4.4.1). Sender and receiver share this header. channel_sender.h describes the
// sender's steps, channel_receiver.h the receiver's.
//
//   ChunkHeader | call | call | batch word, call, call, call | call | ... | end marker
//
// A call is CallHeader (8 bytes) | optional NotifyTarget | closure, padded to 8 bytes
// (call_encoding.h).
//
// Publication. Writing the header word of a call publishes it. The sender first writes everything
// behind the header and a word of zeros at the place of the next header; it writes the header last.
// The receiver stops at a word of zeros. Therefore no chunk is cleared as a whole (except with
// Arrival::kTrailing, below), and any payload can travel. The only requirement on the transport is
// that the header becomes visible after everything that was written before it. The header of the
// first of several calls may publish them all.
//
// A batch of an aggregator begins with a batch word. It contains the batch's length, and writing it
// publishes the batch. While the batch grows, the sender writes all call headers as plain data. The
// receiver checks the batch's length against the chunk once; then all of the batch is known to be
// visible.
//
// A chunk into which the next call does not fit ends with an end marker: a header of its own,
// published separately. It contains the number of newly granted chunks that both ends insert into
// their rings behind this chunk (the paper's special bit). So the receiver's ring follows the
// sender's without any message: ChunkRing below. A ring may begin with one small chunk. The first
// further chunks replace it: the end marker that reports them says so.
//
// Trailing words (Arrival::kTrailing). A card orders the bytes within one WRITE, but not successive
// WRITEs. So each publication is one WRITE of
//
//   call, batch word with calls, or end marker | trailing word
//
// and its first word says where its trailing word is. Both words are zero until the WRITE arrives:
// the receiver clears a chunk once, before it grants the chunk, and clears each publication after
// it has run the publication. The first word is not zero when the first bytes of the WRITE have
// arrived, and the trailing word has its value when all of them have. No publication writes a byte
// of another one, so WRITEs may overtake each other; the receiver runs publications in the order of
// their places.
#ifndef CARIAMA_RIUTILS_INTERNAL_CHUNK_RING_H_
#define CARIAMA_RIUTILS_INTERNAL_CHUNK_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsfabric/call_encoding.h"
#include "dtutils/doorbell.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// The start of each chunk: the receiver's progress in the channel. Only the receiver writes it.
// (The paper's chunk header also has the sender's offsets; here the words of the calls contain all
// that the receiver needs.)
struct alignas(64) ChunkHeader {
  // Number of chunks of the channel that were consumed when this chunk was consumed; 0 before that.
  // Consumption::kPull: the sender READs this word.
  uint64_t chunks = 0;
};
static_assert(sizeof(ChunkHeader) == 64 && std::is_trivially_copyable_v<ChunkHeader>);

// The call header that marks the end of a chunk.
struct EndMarker {
  static constexpr uint32_t kFunction = UINT32_MAX;  // no function has this id
  // Values of the flags.
  static constexpr uint8_t kShutdown = 1;  // the channel ends here
  static constexpr uint8_t kReplaced = 2;  // the new chunks replace the ring's only chunk

  [[nodiscard]] static constexpr CallHeader make(uint32_t inserted, uint8_t flags) {
    return {kFunction, inserted | uint32_t{flags} << 24};
  }
};

// The word in front of a batch; it publishes the batch.
struct BatchWord {
  static constexpr uint32_t kFunction = UINT32_MAX - 1;  // no function has this id

  // Returns the word for a batch of `bytes` bytes of calls.
  [[nodiscard]] static constexpr CallHeader make(size_t bytes) {
    return CallHeader::make({kFunction}, bytes, 0);
  }
};

// The word that ends a publication with Arrival::kTrailing.
struct TrailingWord {
  // Returns the trailing word of a publication whose first word is `first`. Its last byte is not
  // zero, since no header has all flags set: so the word is complete when that byte is there.
  [[nodiscard]] static constexpr uint64_t of(uint64_t first) { return ~first; }
  [[nodiscard]] static constexpr bool is_complete(uint64_t word) { return word >> 56 != 0; }
};

// A channel's control words, in the sender's registered memory.
struct ChannelControl {
  // Number of chunks that the receiver has consumed. Written by the receiver.
  alignas(64) std::atomic<uint64_t> consumed_chunks{0};
  // Arrival::kPolled and kTrailing: rung by the sender.
  RemoteDoorbell doorbell;

  // Value of consumed_chunks after the receiver has found malformed data and has stopped reading.
  static constexpr uint64_t kBroken = UINT64_MAX;
};
static_assert(sizeof(ChannelControl) == 128);

// The ring of a channel's chunks. Each end has one; `Chunk` is the type by which that end describes
// a chunk. The members and their order follow from two records that both ends have: the first
// grant, and the end markers in the order of the stream. An end marker reports the chunks that were
// granted since the previous one, in the order of granting. So the two rings are equal at each end
// marker, however many grants a request took and whenever they came.
template <typename Chunk>
class ChunkRing {
 public:
  // Begins the ring with the chunks of the first grant. The first of them becomes the current one.
  void begin(std::vector<Chunk> first) { chunks_ = std::move(first); }
  // Allocates memory for `count` further members: the end marker that reports them allocates none.
  void reserve(size_t count) { chunks_.reserve(chunks_.size() + count); }
  // Applies the end marker of the current chunk: inserts the chunks that it reports behind the
  // current chunk, and makes the chunk behind it the current one. Requires: size() != 0.
  void end_chunk(std::span<const Chunk> reported) {
    chunks_.insert(chunks_.begin() + static_cast<ptrdiff_t>(current_) + 1, reported.begin(),
                   reported.end());
    current_ = (current_ + 1) % chunks_.size();
    ++ended_;
  }
  // Applies an end marker with EndMarker::kReplaced: the chunks that it reports become the ring.
  // Requires: size() == 1, and `reported` is not empty.
  void replace_chunk(std::span<const Chunk> reported) {
    chunks_.assign(reported.begin(), reported.end());
    replaced_ = ++ended_;
  }

  [[nodiscard]] size_t size() const { return chunks_.size(); }
  [[nodiscard]] const Chunk& current() const { return chunks_[current_]; }
  // Returns the chunk that is `distance` places behind the current one.
  [[nodiscard]] const Chunk& behind(size_t distance) const {
    return chunks_[(current_ + distance) % chunks_.size()];
  }
  // Returns the number of chunks that were ended so far.
  [[nodiscard]] uint64_t ended() const { return ended_; }
  // Returns the value of ended() after the last replace_chunk(), or 0. The chunks that were ended
  // before are not members any more.
  [[nodiscard]] uint64_t replaced() const { return replaced_; }
  // Returns the members in the order of the ring, beginning with any member.
  [[nodiscard]] const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  std::vector<Chunk> chunks_;
  size_t current_ = 0;
  uint64_t ended_ = 0;
  uint64_t replaced_ = 0;
};

// Returns the number of a channel in a trace: its sender's rank, and its number in the sender's
// process (ChunkRequest::serial).
[[nodiscard]] constexpr uint64_t trace_stream_of(uint32_t rank, uint64_t serial) {
  return uint64_t{rank} << 40 ^ serial;
}

// Returns the number of bytes of calls that fit into a chunk of `chunk_bytes`: without the chunk
// header and the word for the end marker.
[[nodiscard]] constexpr uint64_t chunk_capacity(uint64_t chunk_bytes) {
  return chunk_bytes - sizeof(ChunkHeader) - sizeof(CallHeader);
}
// The length field of a header can express the length of any call and any batch.
static_assert(chunk_capacity(MessengerOptions::kMaxChunkBytes) <=
              uint64_t{CallHeader::kMaxWords} * 8);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_CHUNK_RING_H_
