// Requests and answers of the service calls that senders send to the receiver's process.
#ifndef CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_
#define CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "dtutils/memory.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// Properties of the receiver's process. Cached by the sender's process after the first answer.
struct PeerProperties {
  RemoteMemoryLocator doorbells;  // those of its threads that run calls (call_source.h)
  // 1: a sleeper makes its senders execute a memory barrier (register_ringers()).
  uint64_t fences_ringers = 0;
};
static_assert(std::is_trivially_copyable_v<PeerProperties>);

// Requests up to `count` more chunks of chunk_bytes for a channel. With `first`: creates the
// channel, whose ring is at first the granted chunks.
struct ChunkRequest {
  static constexpr uint32_t kMost = 16;  // limit of count: the answer has to fit a receive unit

  uint64_t serial = 0;  // identifies the channel within the sender's process, never reused
  // With `first`: the ended channel whose calls run before the calls of this channel, or 0.
  uint64_t follows = 0;
  uint32_t source_thread = 0;
  uint32_t worker = 0;  // index of the receiving worker
  uint32_t count = 0;
  uint64_t chunk_bytes = 0;
  RemoteMemoryLocator control;  // the sender's ChannelControl
  Arrival arrival = Arrival::kAuto;
  Consumption consumption = Consumption::kPush;
  uint8_t first = 0;
};
static_assert(std::is_trivially_copyable_v<ChunkRequest>);

struct ChunkAnswer {
  static constexpr uint32_t kNumbers = 1u << 15;  // an event has 15 bits for the channel's number

  int32_t code = 0;     // an absl::StatusCode
  uint32_t number = 0;  // identifies the channel in events; below kNumbers
  uint32_t count = 0;   // granted chunks: at least 1 if code is 0
  uint32_t reserved = 0;
  std::array<RemoteMemoryLocator, ChunkRequest::kMost> chunks{};

  // A refusal has no chunks: if code is not 0, their bytes are the reason, which ends at a 0 or at
  // the last byte.
  static constexpr size_t kMostOfReason = sizeof chunks;
  void set_reason(std::string_view text) {
    std::memcpy(&chunks, text.data(), std::min(text.size(), kMostOfReason));
  }
  [[nodiscard]] std::string reason() const {
    std::array<char, kMostOfReason> text;
    std::memcpy(text.data(), &chunks, text.size());
    return {text.data(), strnlen(text.data(), text.size())};
  }
};
static_assert(std::is_trivially_copyable_v<ChunkAnswer>);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_SERVICE_FORMS_H_
