#include "dtutils/internal/peer_remedy.h"

namespace cariama::internal {

std::string_view peer_remedy(PeerRemedy known) {
  switch (known) {
    case PeerRemedy::kLeft:
      return "call Fabric::finalize() in every process before it ends";
    case PeerRemedy::kDisconnected:
      return "look at the output of both processes for the reason";
    case PeerRemedy::kUnreachable:
      return "check that its process runs and that the network between the hosts works; raise "
             "FabricOptions::ack_timeout for hosts that stall";
    case PeerRemedy::kNotListening:
      return "start its process if it does not run, and check that its host accepts connections "
             "from this one";
    case PeerRemedy::kSilent:
      return "wait again with a later deadline; if its process is stopped, continue it with "
             "kill -CONT";
    case PeerRemedy::kLease:
      return "if the process was only stopped or starved of processor time, use a longer "
             "FabricOptions::lease";
    case PeerRemedy::kLock:
      return "call take_over(), and repair the data that the lock protects";
    case PeerRemedy::kEnded:
      break;
  }
  return "look at its output for the reason";
}

}  // namespace cariama::internal
