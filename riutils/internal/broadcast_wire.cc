#include "riutils/internal/broadcast_wire.h"

#include <algorithm>
#include <string_view>

#include "dtutils/error.h"

namespace cariama::internal {

std::string encode_broadcast_answer(const absl::Status& status, size_t most_text) {
  if (status.ok()) return {};
  std::string bytes{static_cast<char>(status.code()), static_cast<char>(error_scope(status))};
  bytes += std::string_view(status.message().data(), std::min(status.message().size(), most_text));
  return bytes;
}

absl::Status decode_broadcast_answer(std::span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const int code = std::to_integer<int>(bytes[0]);
  const int scope = bytes.size() < 2 ? -1 : std::to_integer<int>(bytes[1]);
  if (code < static_cast<int>(absl::StatusCode::kCancelled) ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated) || scope < 0 ||
      scope > static_cast<int>(ErrorScope::kProcess)) {
    return make_error(absl::StatusCode::kDataLoss, ErrorScope::kPeer,
                      "a process answered a broadcast with a malformed status");
  }
  return make_error(
      static_cast<absl::StatusCode>(code), static_cast<ErrorScope>(scope),
      std::string_view(reinterpret_cast<const char*>(bytes.data()) + 2, bytes.size() - 2));
}

}  // namespace cariama::internal
