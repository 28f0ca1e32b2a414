#include "riutils/messenger_options.h"

#include <string>
#include <utility>

#include "dtutils/error.h"
#include "riutils/internal/chunk_ring.h"

namespace cariama {

std::string_view arrival_name(Arrival arrival) {
  switch (arrival) {
    case Arrival::kAuto:
      return "auto";
    case Arrival::kMapped:
      return "mapped";
    case Arrival::kTrailing:
      return "trailing";
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

// A call may be deferred before its arrival mode is known, so that room for a batch word and two
// trailing words is left beside it in every mode.
uint64_t max_call_bytes(uint64_t chunk_bytes) {
  return internal::chunk_capacity(chunk_bytes) - 3 * sizeof(CallHeader);
}

absl::Status check_options(const MessengerOptions& options) {
  const auto refuse = [&](const std::string& what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  for (const auto& [name, bytes] : {std::pair{"chunk_bytes", options.chunk_bytes},
                                    std::pair{"first_chunk_bytes", options.first_chunk_bytes}}) {
    if (bytes >= MessengerOptions::kMinChunkBytes && bytes <= MessengerOptions::kMaxChunkBytes &&
        bytes % 64 == 0) {
      continue;
    }
    return refuse(std::string(name) + " is " + std::to_string(bytes) + ": it has to be from " +
                  std::to_string(MessengerOptions::kMinChunkBytes) + " to " +
                  std::to_string(MessengerOptions::kMaxChunkBytes) + ", a multiple of 64");
  }
  if (options.max_chunks == 0 || options.max_chunks > MessengerOptions::kMaxChunks ||
      options.chunks_per_request == 0 || options.chunks_per_request > options.max_chunks) {
    return refuse("chunks_per_request is " + std::to_string(options.chunks_per_request) +
                  " and max_chunks " + std::to_string(options.max_chunks) +
                  ": they have to be from 1 to " + std::to_string(MessengerOptions::kMaxChunks) +
                  ", the first not above the second");
  }
  const auto negative = [&](const std::string& name, int64_t count, const std::string& unit) {
    return refuse(name + " is " + std::to_string(count) + unit + ": it has to be 0 or more");
  };
  if (options.flush_age.count() < 0) {
    return negative("flush_age", options.flush_age.count(), " ns");
  }
  if (options.timeout.count() < 0) return negative("timeout", options.timeout.count(), " ms");
  if (options.return_after.count() < 0) {
    return negative("return_after", options.return_after.count(), " ms");
  }
  return absl::OkStatus();
}

}  // namespace cariama
