// What senders ask the receiver's process for, by service calls.
#ifndef CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_
#define CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_

#include <array>
#include <cstdint>
#include <type_traits>

#include "dtutils/memory.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// The answer to "who are you": once per pair of processes.
struct MeetReply {
  RemoteMemoryLocator
      sleeping;               // SleepingWords of all workers; length 0: it has no memory for them
  RemoteMemoryLocator wakes;  // its wake_words()
  uint64_t has_barrier = 0;   // its sleepers order their senders' stores
};
static_assert(std::is_trivially_copyable_v<MeetReply>);

// More chunks for a channel, or, with `first`, a new channel with its first chunks.
struct ChunkRequest {
  static constexpr uint32_t kMost = 16;  // so that the answer fits a receive unit

  uint32_t serial = 0;  // of the channel, in the sender's process
  uint32_t source_thread = 0;
  uint32_t worker = 0;  // index of the receiver
  uint32_t count = 0;
  uint64_t chunk_bytes = 0;
  RemoteMemoryLocator control;  // the sender's ChannelControl
  Arrival arrival = Arrival::kAuto;
  Consumption consumption = Consumption::kPush;
  uint8_t first = 0;
};
static_assert(std::is_trivially_copyable_v<ChunkRequest>);

struct ChunkReply {
  int32_t code = 0;     // an absl::StatusCode
  uint32_t number = 0;  // of the channel, for events
  std::array<char, 120> why{};
  std::array<RemoteMemoryLocator, ChunkRequest::kMost> chunks{};
};
static_assert(std::is_trivially_copyable_v<ChunkReply>);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_
