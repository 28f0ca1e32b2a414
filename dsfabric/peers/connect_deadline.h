// The deadline of an operation, for the connection that it may need. Connecting to a process takes
// at most FabricOptions::timeout; an operation whose deadline is earlier must not wait longer for a
// process that is stopped.
#ifndef CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_
#define CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_

#include <algorithm>

#include "dtutils/wait.h"

namespace cariama::internal {

// Until its end, a connection attempt of this thread fails with DEADLINE_EXCEEDED if the peer has
// not accepted it by `deadline`. An attempt that the peer has accepted goes on: two processes
// cannot begin again after one of them has created its queue pairs. Put it around the start of an
// operation only, not around a wait, which may run calls.
class ScopedConnectDeadline {
 public:
  explicit ScopedConnectDeadline(Deadline deadline) : before_(current) {
    current = std::min(current, deadline);
  }
  // Until its end, the deadlines of the scopes around it do not count.
  struct Lift {};
  explicit ScopedConnectDeadline(Lift) : before_(current) { current = kForever; }
  ~ScopedConnectDeadline() { current = before_; }
  ScopedConnectDeadline(const ScopedConnectDeadline&) = delete;
  ScopedConnectDeadline& operator=(const ScopedConnectDeadline&) = delete;

  // Returns the earlier one of `deadline` and those of the scopes of this thread.
  [[nodiscard]] static Deadline earlier_of(Deadline deadline) {
    return std::min(deadline, current);
  }

 private:
  static inline thread_local Deadline current = kForever;
  const Deadline before_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_CONNECT_DEADLINE_H_
