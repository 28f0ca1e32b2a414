// Requests between processes of a job before they are connected, off the data path: "connect to me,
// here are my queue pairs". Authenticated with the job's secret; both ends have proved that they
// know it before a handler sees a byte.
#ifndef CARIAMA_DSFABRIC_INTERNAL_BROKER_H_
#define CARIAMA_DSFABRIC_INTERNAL_BROKER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dtutils/wait.h"

namespace cariama::internal {

class Broker {
 public:
  // Answers a request of `rank`. Runs in a thread of the broker, one request at a time; a Status
  // that is not OK reaches the requester with its code and text.
  using Handler = std::function<absl::StatusOr<std::string>(int rank, std::string_view request)>;

  // Stops answering; waits for a handler that is running.
  virtual ~Broker() = default;

  // Sends a request to the process of `rank`, and waits for its answer. Thread-safe. Errors:
  // DEADLINE_EXCEEDED, UNAVAILABLE (it is gone), PERMISSION_DENIED (it does not know the secret),
  // or what its handler returned.
  [[nodiscard]] virtual absl::StatusOr<std::string> request(int rank, std::string_view request,
                                                            Deadline deadline) = 0;
};

// A broker over sockets: listens on an abstract local socket, which the processes of its host use,
// and on TCP where it is told to: at CARIAMA_LISTEN (an address, an interface, or a network), else
// at bootstrap.listen_address(). The addresses are exchanged through `bootstrap` (collective: every
// process calls it). The protocol: handshake.h, then one request and its answer, of 1 MiB at most
// (broker_wire.h), then the connection ends. `bootstrap` is used in this call only. Errors: those
// of Bootstrap; FAILED_PRECONDITION (a process of another host listens to none), NOT_FOUND and
// INVALID_ARGUMENT (CARIAMA_LISTEN).
[[nodiscard]] absl::StatusOr<std::unique_ptr<Broker>> make_socket_broker(Bootstrap& bootstrap,
                                                                         Broker::Handler handler,
                                                                         Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_BROKER_H_
