#include "riutils/internal/broadcast_wire.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "dtutils/error.h"
#include "riutils/internal/broadcast_tree.h"

namespace cariama::internal {

bool is_possible(const BroadcastPart& part, uint64_t bytes, uint32_t rank, uint32_t parent,
                 uint32_t processes) {
  using Buffer = BroadcastPart::Buffer;
  if (part.root >= processes || part.buffer > Buffer::kPlaced) return false;
  if (part.buffer == Buffer::kNone && part.size != 0) return false;
  if (part.buffer == Buffer::kPull && part.source.length != part.size) return false;
  const BroadcastTree tree(part.root, processes);
  const uint64_t place = tree.place_of(rank);
  if (place == 0 || tree.rank_of(BroadcastTree::parent(place)) != parent) return false;
  const uint64_t targets = part.buffer == Buffer::kPlaced ? tree.subtree_size(place) : 0;
  return part.function_bytes <= bytes &&
         bytes - part.function_bytes == targets * sizeof(RemoteMemoryLocator);
}

std::vector<RemoteMemoryLocator> take_targets(const BroadcastPart& part, std::string& payload) {
  const size_t bytes = payload.size() - part.function_bytes;
  std::vector<RemoteMemoryLocator> targets(bytes / sizeof(RemoteMemoryLocator));
  if (bytes != 0) std::memcpy(targets.data(), payload.data() + part.function_bytes, bytes);
  payload.resize(part.function_bytes);
  return targets;
}

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
