// How calls lie in the receiver's memory: a ring of chunks that the sender fills by one-sided
// writes (Seriema §4.4.1). The layout that both ends share; who does what when is in
// channel_sender.h and internal/channel_receiver.h.
//
//   ChunkHeader | call | call | batch word, call, call, call | call | ... | end marker
//
// A call is CallHeader (8 bytes) | NotifyTarget, perhaps | closure, padded to 8 (call_encoding.h).
//
// Publication. The header word of a call is its publication: the sender first writes everything
// behind it, then a word of zeros where the next header will be, and at last the header. The
// receiver stops at a word of zeros. So no chunk is ever cleared, any payload can travel, and the
// one thing assumed of a transport is that the header becomes visible after what was written before
// it. Several calls may be published together by the header of the first.
//
// A batch of an aggregator begins with a word of its own, which says how long the batch is and is
// its publication. While it grows the sender writes headers as plain data, the first like the
// others; the receiver has one length to hold against the chunk, and knows without looking at
// memory that all of the batch is there.
//
// A chunk into which the next call does not fit ends with an end marker, an own header that is
// published by itself. It carries how many newly obtained chunks are to be inserted behind this one
// (the paper's special bit): so the receiver's ring becomes what the sender's is, without any
// message.
#ifndef CARIAMA_RIUTILS_CHUNK_RING_H_
#define CARIAMA_RIUTILS_CHUNK_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dsfabric/call_encoding.h"
#include "dtutils/memory.h"
#include "dtutils/sleep_protocol.h"

namespace cariama {

// At the start of each chunk. Offsets count bytes of calls since the channel began.
struct ChunkHeader {
  // Written by the sender: on publish(), and when the chunk is filled.
  struct alignas(64) Producer {
    uint64_t first = 0;   // offset of the first call in this chunk
    uint64_t last = 0;    // offset behind the last one
    uint64_t filled = 0;  // 1: its end marker was written
  };
  // Written by the receiver, locally.
  struct alignas(64) Consumer {
    uint64_t consumed =
        0;  // offset behind the last call that was run, as of the end of the last round
    uint64_t chunks = 0;  // chunks consumed when this one was, 0 before: what a sender pulls
  };
  Producer producer;
  Consumer consumer;
};
static_assert(sizeof(ChunkHeader) == 128 && std::is_trivially_copyable_v<ChunkHeader>);

// The last header of a chunk.
struct EndMarker {
  static constexpr uint32_t kFunction = UINT32_MAX;  // no function has this id
  static constexpr uint8_t kShutdown = 1;            // the channel ends here

  [[nodiscard]] static constexpr CallHeader make(uint32_t inserted, uint8_t flags) {
    return {kFunction, inserted | uint32_t{flags} << 24};
  }
};

// The word in front of a batch.
struct BatchWord {
  static constexpr uint32_t kFunction = UINT32_MAX - 1;  // no function has this id

  // So many bytes of calls follow.
  [[nodiscard]] static constexpr CallHeader make(size_t bytes) {
    return CallHeader::make({kFunction}, bytes, 0);
  }
};

// A channel's words in the sender's registered memory.
struct ChannelControl {
  // Pushed by the receiver: chunks that it has consumed.
  alignas(64) std::atomic<uint64_t> consumed_chunks{0};
  // Arrival::kPolled: how the receiver goes to sleep.
  WakeState wake;

  // Pushed instead of a count: the receiver found something malformed, and reads no more.
  static constexpr uint64_t kBroken = UINT64_MAX;
};
static_assert(sizeof(ChannelControl) == 128);

// Where senders that map the receiver's memory see that it sleeps; one per destination thread,
// alone on its line.
struct alignas(64) SleepingWord {
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kAsleep = 1;
  static constexpr uint32_t kDead = 2;  // written by ourselves, about a process that has died
  std::atomic<uint32_t> state{kAwake};
};
static_assert(sizeof(SleepingWord) == 64);

inline constexpr uint64_t kMinChunkBytes = 1024;
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 27;
inline constexpr uint32_t kMaxChunks = 256;  // of one channel
// What a chunk of `chunk_bytes` holds: calls of this many bytes in all. (A word is the end
// marker's.)
[[nodiscard]] constexpr uint64_t chunk_capacity(uint64_t chunk_bytes) {
  return chunk_bytes - sizeof(ChunkHeader) - sizeof(CallHeader);
}
// A header can say the length of any call and any batch.
static_assert(chunk_capacity(kMaxChunkBytes) <= uint64_t{CallHeader::kMaxWords} * 8);

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_CHUNK_RING_H_
