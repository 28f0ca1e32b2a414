// What one-sided channels cost and how they behave (Seriema §4.4). Every constant that trades
// something.
#ifndef CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_
#define CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "riutils/export.h"

namespace cariama {

// How calls arrive. Chosen per pair from what its transport can do, unless an option forces it.
enum class Arrival : uint8_t {
  kAuto,
  kMapped,  // the receiver's chunk is mapped here (same host): calls are built in it, uncopied
  kPolled,  // the transport orders WRITEs: built in registered memory, written, polled for
  kEvent,   // it does not: every publication is followed by an event (immediate data)
};
// "auto", "mapped", "polled", "event".
[[nodiscard]] CARIAMA_RIUTILS_EXPORT std::string_view arrival_name(Arrival arrival);

// How a sender learns which chunks were consumed.
enum class Consumption : uint8_t {
  kPush,  // the receiver writes it into the sender's memory, once per chunk
  kPull,  // the sender READs it when it needs a chunk
};

// Of one channel. Sizes in bytes.
//
// Memory: a channel that was never used takes none. From its first call it takes chunks_per_request
// * chunk_bytes of the receiver, and doubles that, when the receiver is behind, up to max_chunks *
// chunk_bytes; where calls are not mapped the sender has two images of 2 * chunk_bytes besides,
// more while transfers are under way. So a process that talks to P * T threads costs its peers
// P * T * chunks_per_request * chunk_bytes in all.
struct MessengerOptions {
  uint32_t chunks_per_request = 2;   // the paper's c
  uint32_t max_chunks = 16;          // the paper's c_max
  uint64_t chunk_bytes = 32u << 10;  // two in each direction fit a core's L2 with room to spare
  uint32_t flush_bytes = 4096;  // RDMAAggregator: a batch is published when it has grown to this
  // What is kept of calls that do not fit now (RetryAsync, ovfl), per channel.
  uint64_t exceeding_bytes = 16u << 20;
  // RDMAAggregator, trad: a batch older than this is published by its thread's next call,
  // process_calls() or flush. 0: never; otherwise every call reads the clock (some 20 ns).
  std::chrono::nanoseconds flush_age{0};
  Arrival arrival = Arrival::kAuto;
  Consumption consumption = Consumption::kPush;
  // The longest that set-up and growth wait for the receiver's process.
  std::chrono::milliseconds timeout{30'000};

  // The paper's values: c = 2, c_max = 16, chunks of eight 2 MiB superpages.
  [[nodiscard]] static MessengerOptions paper() {
    MessengerOptions options;
    options.chunk_bytes = 16u << 20;
    return options;
  }
};

// "default" or "paper". Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::StatusOr<MessengerOptions> messenger_preset(
    std::string_view name);

// What a channel has done so far. Counts.
struct MessengerStatistics {
  uint64_t publications = 0;     // batches, and all where calls are not mapped (else: one each)
  uint64_t chunks = 0;           // obtained
  uint64_t requests = 0;         // service calls that obtained them
  uint64_t chunks_filled = 0;    // closed because the next call did not fit
  uint64_t chunks_consumed = 0;  // as far as the sender knows
  uint64_t pulls = 0;            // READs of the consumed count
  uint64_t wakes = 0;            // of a sleeping receiver
  uint64_t events = 0;           // Arrival::kEvent: publications announced
  uint64_t refused = 0;          // calls that got RESOURCE_EXHAUSTED
  uint64_t exceeding = 0;        // calls that were kept to be sent later
  uint64_t exceeding_bytes_high_water = 0;
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_OPTIONS_H_
