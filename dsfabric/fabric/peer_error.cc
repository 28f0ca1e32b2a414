#include "dsfabric/peer_error.h"

#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama {

absl::Status dead_peer_error(const Fabric& fabric, Rank rank, std::string_view operation) {
  const std::string what = std::string(operation) + ": ";
  if (const absl::Status known = fabric.peer_status(rank); !known.ok()) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      what + std::string(known.message()));
  }
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    what + fabric.label(rank) + " is dead",
                    internal::peer_remedy(internal::PeerRemedy::kEnded));
}

}  // namespace cariama
