#include "tasks/internal/peer_words.h"

#include <string>

#include "dtutils/error.h"

namespace cariama::tasks {

absl::Status malformed_words(int peer, std::string_view what) {
  return make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                    std::string(what) + " of rank " + std::to_string(peer) + " is malformed",
                    "run the same program in every process");
}

}  // namespace cariama::tasks
