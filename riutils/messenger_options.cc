#include "riutils/messenger_options.h"

#include <string>

#include "dtutils/error.h"
#include "riutils/chunk_ring.h"

namespace cariama {

std::string_view arrival_name(Arrival arrival) {
  switch (arrival) {
    case Arrival::kAuto:
      return "auto";
    case Arrival::kMapped:
      return "mapped";
    case Arrival::kPolled:
      return "polled";
    case Arrival::kEvent:
      return "event";
  }
  return "unknown";
}

absl::StatusOr<MessengerOptions> messenger_preset(std::string_view name) {
  if (name == "default") return MessengerOptions{};
  if (name == "paper") return MessengerOptions::paper();
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "there is no messenger preset \"" + std::string(name) + "\"",
                    "use default or paper");
}

absl::Status check_options(const MessengerOptions& options) {
  const auto refuse = [&](const std::string& what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % 64 != 0) {
    return refuse("chunk_bytes is " + std::to_string(options.chunk_bytes) + ": it has to be from " +
                  std::to_string(kMinChunkBytes) + " to " + std::to_string(kMaxChunkBytes) +
                  ", a multiple of 64");
  }
  if (options.max_chunks == 0 || options.max_chunks > kMaxChunks ||
      options.chunks_per_request == 0 || options.chunks_per_request > options.max_chunks) {
    return refuse("chunks_per_request is " + std::to_string(options.chunks_per_request) +
                  " and max_chunks " + std::to_string(options.max_chunks) +
                  ": they have to be from 1 to " + std::to_string(kMaxChunks) +
                  ", the first not above the second");
  }
  return absl::OkStatus();
}

}  // namespace cariama
