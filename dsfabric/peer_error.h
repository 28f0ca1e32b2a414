// The error of an operation that cannot continue because a process of the job is dead.
#ifndef CARIAMA_DSFABRIC_PEER_ERROR_H_
#define CARIAMA_DSFABRIC_PEER_ERROR_H_

#include <string_view>

#include "absl/status/status.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/ids.h"

namespace cariama {

// Returns UNAVAILABLE (kPeer) with the text of fabric.peer_status(rank) after that of the
// operation:
//
//   barrier 3: rank 1 was killed by signal 9: look at its output for the reason
//
// If only other processes have noticed the death by now, the cause is "is dead". Thread-safe.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status dead_peer_error(const Fabric& fabric, Rank rank,
                                                                   std::string_view operation);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_PEER_ERROR_H_
