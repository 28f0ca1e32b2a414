#include "riutils/internal/grant_checks.h"

#include <string_view>

#include "dtutils/error.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

bool is_possible(const ChunkRequest& request, uint32_t rank, uint32_t threads,
                 std::optional<size_t> granted) {
  if (request.count == 0 || request.count > ChunkRequest::kMost ||
      request.chunk_bytes < MessengerOptions::kMinChunkBytes ||
      request.chunk_bytes > MessengerOptions::kMaxChunkBytes || request.chunk_bytes % 64 != 0 ||
      request.arrival == Arrival::kAuto || request.arrival > Arrival::kEvent ||
      request.consumption > Consumption::kPull || request.control.length < sizeof(ChannelControl) ||
      request.source_thread / threads != rank || granted.has_value() != (request.first == 0)) {
    return false;
  }
  return granted.value_or(0) + request.count <= MessengerOptions::kMaxChunks;
}

absl::Status check_grant(const ChunkAnswer& answer, uint32_t count, uint64_t chunk_bytes,
                         const std::string& receiver) {
  if (answer.code != 0) {
    return make_error(static_cast<absl::StatusCode>(answer.code), ErrorScope::kPeer,
                      receiver + " granted no chunks: " + answer.reason());
  }
  const auto malformed = [&](const std::string& what) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      receiver + " granted " + what);
  };
  if (answer.count == 0 || answer.count > count) {
    return malformed(std::to_string(answer.count) + " chunks; from 1 to " + std::to_string(count) +
                     " were requested");
  }
  if (answer.number >= ChunkAnswer::kNumbers) {
    return malformed("chunks of channel " + std::to_string(answer.number) +
                     ", which has no place in an event");
  }
  for (uint32_t i = 0; i < answer.count; ++i) {
    const RemoteMemoryLocator& chunk = answer.chunks[i];
    if (chunk.length == chunk_bytes && chunk.address % 64 == 0) continue;
    return malformed("a chunk of " + std::to_string(chunk.length) + " bytes; " +
                     std::to_string(chunk_bytes) + " bytes at a multiple of 64 were requested");
  }
  return absl::OkStatus();
}

}  // namespace cariama::internal
