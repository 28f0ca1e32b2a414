#include "dtutils/exchange_connect.h"

namespace cariama {

absl::Status connect_over(Exchange& exchange, int rank, QueuePair& queue_pair,
                          Exchange::Deadline deadline, std::string_view name,
                          ConnectOptions options) {
  // The key contains the direction, since one rank may connect to several ranks under the same
  // name.
  const auto key = [&](std::string_view what, int from, int to) {
    return std::string(name) + "/" + std::string(what) + "/" + std::to_string(from) + ">" +
           std::to_string(to);
  };
  const int self = exchange.rank();
  if (absl::Status put = exchange.put(key("address", self, rank), queue_pair.address());
      !put.ok()) {
    return put;
  }
  absl::StatusOr<std::string> address = exchange.get(rank, key("address", rank, self), deadline);
  if (!address.ok()) return address.status();
  options.peer = exchange.label(rank);
  const absl::Status connected = queue_pair.connect(*address, options);
  // Reports success or failure to the other end, which otherwise would wait for its deadline.
  if (absl::Status put =
          exchange.put(key("connected", self, rank),
                       connected.ok() ? std::string() : std::string(connected.message()));
      !put.ok()) {
    return connected.ok() ? put : connected;
  }
  if (!connected.ok()) return connected;
  absl::StatusOr<std::string> theirs = exchange.get(rank, key("connected", rank, self), deadline);
  if (!theirs.ok()) return theirs.status();
  if (!theirs->empty()) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kLink,
                      exchange.label(rank) + " could not connect to this process: " + *theirs);
  }
  return absl::OkStatus();
}

}  // namespace cariama
