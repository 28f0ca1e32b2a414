// Passes the deadline of an operation to the connection that the operation may have to make, and to
// the call that it sends. Connecting to a process takes at most FabricOptions::timeout, and a call
// with Retry waits for room at the receiver. An operation with an earlier deadline must not wait
// longer for a process that is stopped.
#ifndef CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_
#define CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_

#include <algorithm>

#include "dtutils/wait.h"

namespace cariama::internal {

// While an object of this class lives, a connection attempt of its thread fails with
// DEADLINE_EXCEEDED if the peer has not accepted the attempt by `deadline`. An attempt that the
// peer has accepted continues, because beginning again would cost both processes new queue pairs.
// A call of the thread that waits for room fails with DEADLINE_EXCEEDED at `deadline`.
// Use a scope for the start of an operation, never for a wait, which may
// run calls.
class ScopedConnectDeadline {
 public:
  explicit ScopedConnectDeadline(Deadline deadline) : before_(current) {
    current = std::min(current, deadline);
  }
  // While a scope with this argument lives, the deadlines of the enclosing scopes do not apply.
  struct Lift {};
  explicit ScopedConnectDeadline(Lift) : before_(current) { current = kForever; }
  ~ScopedConnectDeadline() { current = before_; }
  ScopedConnectDeadline(const ScopedConnectDeadline&) = delete;
  ScopedConnectDeadline& operator=(const ScopedConnectDeadline&) = delete;

  // Returns the earliest of `deadline` and the deadlines of this thread's scopes.
  [[nodiscard]] static Deadline earlier_of(Deadline deadline) {
    return std::min(deadline, current);
  }

 private:
  static inline thread_local Deadline current = kForever;
  const Deadline before_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_
