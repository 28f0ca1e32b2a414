// Stream sockets with deadlines, for what happens before processes are connected by queue pairs.
#ifndef CARIAMA_DSFABRIC_INTERNAL_SOCKETS_H_
#define CARIAMA_DSFABRIC_INTERNAL_SOCKETS_H_

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/file_descriptor.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Where a stream socket listens: IPv4, IPv6, or a name of the abstract local space.
class SocketAddress {
 public:
  // "@name", "10.0.0.1:4711" or "[fe80::1]:4711": numbers only, nothing is looked up. Error:
  // INVALID_ARGUMENT.
  [[nodiscard]] static absl::StatusOr<SocketAddress> parse(std::string_view text);
  // Precondition: name has 1 to 100 bytes.
  [[nodiscard]] static SocketAddress local(std::string_view name);
  [[nodiscard]] static SocketAddress from(const sockaddr* address, socklen_t length);

  // What parse() takes.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] int family() const { return storage_.ss_family; }
  // Whether only this host can reach it.
  [[nodiscard]] bool stays_on_host() const;
  void set_port(uint16_t port);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// The addresses of a host's name. May ask a name server, under its own time limits. Errors:
// NOT_FOUND, UNAVAILABLE (no name server answers).
[[nodiscard]] absl::StatusOr<std::vector<SocketAddress>> resolve(const std::string& host,
                                                                 uint16_t port);

// An address of this host as a user names it: the address itself, an interface ("eth0"), or a
// network ("10.77.0.0/24"), which suits every host of a job. IPv4 before IPv6; port 0. Errors:
// INVALID_ARGUMENT, NOT_FOUND.
[[nodiscard]] absl::StatusOr<SocketAddress> own_address(const std::string& named);

// A non-blocking listening socket. Errors: ALREADY_EXISTS (the address is in use), UNAVAILABLE (not
// an address of this host), and others that the system gives.
[[nodiscard]] absl::StatusOr<FileDescriptor> listen_on(const SocketAddress& address);
// The address that a socket is bound to, with its port.
[[nodiscard]] SocketAddress bound_address(int socket);
// The next connection, non-blocking as well; invalid if there is none at the moment. Without free
// descriptors it waits 10 ms, so that a loop around it and poll() does not spin.
[[nodiscard]] FileDescriptor accept_from(int listener);

// A connected non-blocking socket. `whom` is who should be there, for errors: UNAVAILABLE (nobody
// listens there), DEADLINE_EXCEEDED.
[[nodiscard]] absl::StatusOr<FileDescriptor> connect_to(const SocketAddress& address,
                                                        const std::string& whom, Deadline deadline);

// Sends or receives exactly these bytes. Errors: DEADLINE_EXCEEDED, UNAVAILABLE (the other end
// closed).
[[nodiscard]] absl::Status send_exactly(int socket, std::string_view bytes, const std::string& whom,
                                        Deadline deadline);
[[nodiscard]] absl::Status receive_exactly(int socket, char* bytes, size_t count,
                                           const std::string& whom, Deadline deadline);

// Milliseconds for poll() until `deadline`: rounded up, 0 when it has passed, -1 for kForever.
[[nodiscard]] int poll_timeout(Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_SOCKETS_H_
