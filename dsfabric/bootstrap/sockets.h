// Stream sockets with deadlines, used before processes are connected by queue pairs.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_SOCKETS_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_SOCKETS_H_

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// An address for a stream socket: IPv4, IPv6, or a name in the abstract local name space.
class SocketAddress {
 public:
  // Accepts "@name", "10.0.0.1:4711" or "[fe80::1]:4711": numeric only, without name resolution.
  // Error: INVALID_ARGUMENT.
  [[nodiscard]] static absl::StatusOr<SocketAddress> parse(std::string_view text);
  // Requires: name has 1 to 100 bytes.
  [[nodiscard]] static SocketAddress local(std::string_view name);
  [[nodiscard]] static SocketAddress from(const sockaddr* address, socklen_t length);

  // Returns the form that parse() accepts.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] int family() const { return storage_.ss_family; }
  // Returns true if only this host can reach the address.
  [[nodiscard]] bool stays_on_host() const;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// Returns the addresses of a host name. May query a name server, under the resolver's own time
// limits. Errors: NOT_FOUND, UNAVAILABLE (no name server answers).
[[nodiscard]] absl::StatusOr<std::vector<SocketAddress>> resolve(const std::string& host,
                                                                 uint16_t port);

// Returns an address of this host. `named` is the address itself, an interface ("eth0"), or a
// network ("10.77.0.0/24"); a network can be the same for every host of a job. Prefers IPv4 to
// IPv6; port 0. Errors: INVALID_ARGUMENT, NOT_FOUND.
[[nodiscard]] absl::StatusOr<SocketAddress> own_address(const std::string& named);

// Returns a non-blocking listening socket. Errors: ALREADY_EXISTS (the address is in use),
// UNAVAILABLE (not an address of this host), and other system errors.
[[nodiscard]] absl::StatusOr<FileDescriptor> listen_on(const SocketAddress& address);
// Returns the address that a socket is bound to, with its port.
[[nodiscard]] SocketAddress bound_address(int socket);
// Maximum number of connections that a thread accepts in a row. The thread then does its other
// work, so that a flood of connections does not stop that work.
inline constexpr int kAcceptedAtOnce = 64;
// Accepts the next connection as a non-blocking socket. Closes local connections of other users.
// Returns an invalid descriptor if no connection is pending, or after it has closed kAcceptedAtOnce
// connections; poll() then reports the listener again. If the process has no free descriptors,
// sleeps 10 ms, so that a loop of poll() and this function does not spin. `spare` is a descriptor,
// or none, that the function closes in that case, to accept one connection in its place.
[[nodiscard]] FileDescriptor accept_from(int listener, FileDescriptor* spare = nullptr);

// Returns a connected non-blocking socket. Error texts call the server `peer_name`.
// Errors: UNAVAILABLE (no socket listens there), DEADLINE_EXCEEDED.
[[nodiscard]] absl::StatusOr<FileDescriptor> connect_to(const SocketAddress& address,
                                                        const std::string& peer_name,
                                                        Deadline deadline);

// Blocks until exactly these bytes are sent or received. Errors: DEADLINE_EXCEEDED, UNAVAILABLE
// (the other end closed).
[[nodiscard]] absl::Status send_exactly(int socket, std::string_view bytes,
                                        const std::string& peer_name, Deadline deadline);
[[nodiscard]] absl::Status receive_exactly(int socket, char* bytes, size_t count,
                                           const std::string& peer_name, Deadline deadline);

// Calls poll() without the entries whose descriptor is negative. poll() ignores such entries, but
// counts them against RLIMIT_NOFILE, the largest number of entries that it accepts. If poll() fails
// for lack of memory, sleeps 10 ms, so that a loop around this function does not spin.
int poll_open(std::span<pollfd> entries, int timeout);

// Milliseconds for poll() until `deadline`: rounded up, 0 when it has passed, -1 for kForever.
[[nodiscard]] int poll_timeout(Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_SOCKETS_H_
