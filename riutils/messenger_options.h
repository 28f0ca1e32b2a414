// Options and statistics of one-sided channels (Seriema §4.4): every tunable constant, with its
// memory cost and its reason.
#ifndef CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_
#define CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "riutils/export.h"

namespace cariama {

// The arrival mode of a channel: the way in which calls reach the receiver. kAuto chooses the mode
// for each pair of processes by the capabilities of their transport.
enum class Arrival : uint8_t {
  kAuto,
  kMapped,  // the sender maps the receiver's chunk (same host) and builds calls in it, uncopied
  // The following modes build calls in registered memory and send them by RDMA WRITE.
  kTrailing,  // one WRITE for each publication; the receiver polls its memory for the word at the
              // WRITE's end. Requires a transport that orders the bytes within a WRITE
              // (orders_bytes(): cards for which ibv_query_qp_data_in_order(3) says so)
  kPolled,  // two WRITEs for each publication; the receiver polls its memory. Requires a transport
            // that orders successive WRITEs (orders_writes())
  kEvent,   // an event (immediate data) follows each publication. It takes a receive completion
            // and a credit of the receiver. Works on every transport
};
// Returns "auto", "mapped", "trailing", "polled" or "event".
[[nodiscard]] CARIAMA_RIUTILS_EXPORT std::string_view arrival_name(Arrival arrival);

// The way in which a sender gets the number of chunks that the receiver has consumed.
enum class Consumption : uint8_t {
  // The receiver writes the count into the sender's memory, once per chunk. On a transport that
  // does not order successive WRITEs the sender uses kPull instead.
  kPush,
  kPull,  // the sender READs the count when it needs a chunk
};

// Options of one channel. Sizes are in bytes.
//
// Memory: a messenger that was never used has about 1 KiB, and no registered memory. Its first call
// allocates one chunk of first_chunk_bytes at the receiver. When that chunk is full, or a call does
// not fit into it, chunks_per_request chunks of chunk_bytes replace it. Each time a chunk is full
// and no other chunk is free, their number doubles, up to max_chunks. If the receiver has memory
// for fewer chunks, the channel works with fewer. If the arrival mode is not kMapped, the sender
// also has two chunk images of chunk_bytes each (kPolled: 2 * chunk_bytes), and more while
// transfers are in flight. A thread that sends to N threads therefore costs their processes at
// least N * first_chunk_bytes in all, until channels that are not used return their chunks
// (RDMAMessenger::return_chunks(), return_after).
struct MessengerOptions {
  static constexpr uint64_t kMinChunkBytes = 1024;
  static constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 27;
  static constexpr uint32_t kMaxChunks = 256;

  // The size of a channel's first chunk, which chunks of chunk_bytes replace when it is full. A
  // multiple of 64 from kMinChunkBytes to kMaxChunkBytes. Smaller: channels that are used for few
  // calls cost less memory, and other channels need the larger chunks, which take one more service
  // call, earlier. If the first call is longer than max_call_bytes(first_chunk_bytes), or if the
  // value is chunk_bytes or more, the channel begins with chunks_per_request chunks of chunk_bytes.
  uint64_t first_chunk_bytes = 4096;
  // The number of chunks that replace the first one: the paper's c, from 1 to max_chunks. With 1, a
  // channel obtains a second chunk of chunk_bytes when its only one is full.
  uint32_t chunks_per_request = 1;
  uint32_t max_chunks = 16;  // the paper's c_max, from 1 to kMaxChunks
  // A multiple of 64 from kMinChunkBytes to kMaxChunkBytes. Limits the length of a call:
  // max_call_bytes(). With the default, two chunks in each direction take a part of a core's L2
  // cache only.
  uint64_t chunk_bytes = 32u << 10;
  // RDMAAggregator: a batch is published when it has grown to this, or when the chunk has no room
  // for the next call. 0: each call is published by itself.
  uint32_t flush_bytes = 4096;
  // Limit of the bytes of calls deferred at the sender (RetryAsync, ovfl), per channel. 0: no call
  // is deferred.
  uint64_t deferred_bytes = 16u << 20;
  // RDMAAggregator (trad): the sending thread's next call or flush(), or process_calls() of the
  // aggregator (also BasicGlobal::process_calls_all(), RoutedAggregator::process_calls()) publishes
  // a batch older than this. Fabric::process_calls() and Fabric::wait() do not. 0: batches do not
  // age. Otherwise every batched call reads the clock (about 20 ns).
  std::chrono::nanoseconds flush_age{0};
  Arrival arrival = Arrival::kAuto;
  Consumption consumption = Consumption::kPush;
  // Limit for the time that a call or setup() waits for chunks of the receiver's process, and for
  // transfers of its own process (if these take longer, the channel fails). The connection that the
  // first call or setup() makes has its own limit, FabricOptions::timeout. Not a limit for a call
  // with Retry to a slow receiver: that call waits, and runs incoming calls, until there is room or
  // the receiver's process dies. 0 or more.
  std::chrono::milliseconds timeout{30'000};

  // Objects with channels to many threads (messenger_global.h, routed_aggregator.h) return the
  // chunks of channels that were not used for this long, when they find no incoming call to run.
  // The next call of such a channel obtains chunks again. 0: they never do. Not negative.
  std::chrono::milliseconds return_after{10'000};

  // Returns the paper's values: c = 2, c_max = 16, chunks of 16 MiB from the first one on.
  [[nodiscard]] static MessengerOptions paper() {
    MessengerOptions options;
    options.chunks_per_request = 2;
    options.first_chunk_bytes = options.chunk_bytes = 16u << 20;
    return options;
  }
};

// Returns the options of the preset `name`: "default" or "paper". Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::StatusOr<MessengerOptions> messenger_preset(
    std::string_view name);

// Returns the length of the longest call that fits into a chunk: closure, arguments and copied
// buffer, with the call's header. It is the same for every arrival mode.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT uint64_t max_call_bytes(uint64_t chunk_bytes);

// Returns OK if all values are within their ranges, else INVALID_ARGUMENT; the message names the
// value and its range.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::Status check_options(const MessengerOptions& options);

// Counters of one channel since its creation.
struct MessengerStatistics {
  // Publications. With kMapped the fast path does not count calls that it publishes one by one.
  uint64_t publications = 0;
  uint64_t chunks = 0;         // chunks obtained from the receiver's process
  uint64_t chunk_bytes = 0;    // bytes of the chunks that the channel has now
  uint64_t requests = 0;       // service calls that obtained chunks, at most 16 chunks each
  uint64_t chunks_filled = 0;  // chunks the sender ended: full, return_chunks(), shutdown()
  // Ended chunks that the sender knows to be consumed. Includes the chunks of a ring that
  // return_chunks() has returned.
  uint64_t chunks_consumed = 0;
  uint64_t chunks_replaced = 0;            // small first chunks, by larger ones
  uint64_t chunks_returned = 0;            // chunks returned by return_chunks()
  uint64_t pulls = 0;                      // READs of the consumed count
  uint64_t wakes = 0;                      // wake-ups of a sleeping receiver
  uint64_t events = 0;                     // Arrival::kEvent: events that announce a publication
  uint64_t refused = 0;                    // calls that got RESOURCE_EXHAUSTED
  uint64_t deferred = 0;                   // calls that were deferred
  uint64_t deferred_bytes_high_water = 0;  // most bytes of calls that were deferred at one time
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_
