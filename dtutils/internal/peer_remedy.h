// The remedies in errors about a process that has ended or does not answer. All layers take their
// wording from here, so a test can require that each such error ends with a remedy.
#ifndef CARIAMA_DTUTILS_INTERNAL_PEER_REMEDY_H_
#define CARIAMA_DTUTILS_INTERNAL_PEER_REMEDY_H_

#include <cstdint>
#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

// What the reporting process knows of the other one.
enum class PeerRemedy : uint8_t {
  kEnded,         // it has ended
  kLeft,          // it has ended, and has not called finalize() before
  kDisconnected,  // the connection has ended, by either end
  kUnreachable,   // it does not acknowledge transfers: it has ended, or the network is down
  kNotListening,  // it accepts no connection at its address
  kSilent,        // it has not answered by a deadline
  kLease,         // its lease has ended
  kLock,          // it has ended, and holds a lock
  kLast = kLock
};

// Returns what the user can do, without a full stop.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view peer_remedy(PeerRemedy known);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_PEER_REMEDY_H_
