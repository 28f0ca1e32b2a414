// The encoding of the requests by which two processes agree on a connection (peer_state.h), sent
// through their brokers.
#ifndef CARIAMA_DSFABRIC_PEERS_CONNECT_WIRE_H_
#define CARIAMA_DSFABRIC_PEERS_CONNECT_WIRE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/peers/connection.h"

namespace cariama::internal {

// kind u8 | attempt u64, and for an offer: the number of queue pairs u32, and for each its address
// and properties. The answer to an accepted offer is an offer, too.
struct ConnectRequest {
  enum class Kind : char {
    kOffer = 'O',
    kReady = 'R',     // the sender has connected its queue pairs to those of the answer
    kQuestion = 'Q',  // whether the attempt still counts
  };
  Kind kind = Kind::kReady;
  uint64_t attempt = 0;
  std::vector<ConnectionOffer> connections{};  // of an offer: at least one
};
[[nodiscard]] std::string encode(const ConnectRequest& request);
// Accepts only what encode() returns. The addresses of queue pairs are checked by
// Connection::connect(). `peer` is the label of the sender. Error: INVALID_ARGUMENT, whose text
// names the sender and says what is malformed.
[[nodiscard]] absl::StatusOr<ConnectRequest> decode_connect_request(std::string_view bytes,
                                                                    const std::string& peer);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_CONNECT_WIRE_H_
