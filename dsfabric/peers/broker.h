// The broker of a process: answers requests of other processes of the job, such as an offer of
// queue pairs, before queue pairs are connected. The job's secret authenticates the requests: a
// handler gets data only after both ends have proved that they know the secret.
#ifndef CARIAMA_DSFABRIC_PEERS_BROKER_H_
#define CARIAMA_DSFABRIC_PEERS_BROKER_H_

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
  // Answers a request of `rank`. Runs in a thread of the broker, one request at a time. If it
  // returns an error, the requester gets that code and text.
  using Handler = std::function<absl::StatusOr<std::string>(int rank, std::string_view request)>;

  // Requires: no thread is in request() any more.
  virtual ~Broker() = default;

  // Stops answering, and ends the requests of this process, which then fail. Blocks until a running
  // handler has returned. Thread-safe, except against itself; idempotent.
  virtual void stop() = 0;

  // Sends a request to the process of `rank`, and blocks until it is answered. Thread-safe. Errors:
  // DEADLINE_EXCEEDED (the process may have handled the request, or may still handle it),
  // UNAVAILABLE (the process has ended), PERMISSION_DENIED (it does not know the secret), or the
  // handler's error.
  [[nodiscard]] virtual absl::StatusOr<std::string> request(int rank, std::string_view request,
                                                            Deadline deadline) = 0;
};

// Makes the broker of a process. The handler answers the requests of peers.
using BrokerMaker =
    std::function<absl::StatusOr<std::unique_ptr<Broker>>(Bootstrap&, Broker::Handler)>;

// A broker over sockets. It listens on an abstract local socket for the processes of its host. It
// also listens on TCP at CARIAMA_LISTEN (an address, an interface, or a network) or, if that is
// unset, at bootstrap.listen_address(), if any. The addresses are exchanged through `bootstrap`
// (collective: every process calls this function). The protocol: handshake.h, then one request and
// its answer, of at most 1 MiB each (broker_wire.h), then the connection ends. `bootstrap` is used
// in this call only. Errors: those of Bootstrap; FAILED_PRECONDITION (a process of another host
// does not listen on TCP), NOT_FOUND and INVALID_ARGUMENT (CARIAMA_LISTEN).
[[nodiscard]] absl::StatusOr<std::unique_ptr<Broker>> make_socket_broker(Bootstrap& bootstrap,
                                                                         Broker::Handler handler,
                                                                         Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_BROKER_H_
