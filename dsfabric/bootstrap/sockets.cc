#include "dsfabric/bootstrap/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/local_socket.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/socket_errors.h"

namespace cariama::internal {
namespace {

// A host that disappears without closing its connections is detected within about this time.
constexpr int kKeepAliveIdleSeconds = 5;
constexpr int kKeepAliveIntervalSeconds = 2;
constexpr int kKeepAliveProbes = 4;
constexpr unsigned kUnacknowledgedMilliseconds = 15'000;

constexpr int kBacklog = 1024;

void set_tcp_options(int socket, int family) {
  if (family != AF_INET && family != AF_INET6) return;
  const int on = 1;
  // If these options cannot be set, failures are detected later; nothing else changes.
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveIdleSeconds,
             sizeof kKeepAliveIdleSeconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveIntervalSeconds,
             sizeof kKeepAliveIntervalSeconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveProbes, sizeof kKeepAliveProbes);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMilliseconds,
             sizeof kUnacknowledgedMilliseconds);
}

absl::Status bad_address(std::string_view text) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    absl::StrCat("'", std::string(text.substr(0, 120)), "' is not an address"),
                    "write 10.0.0.1:4711 or [fe80::1]:4711");
}

absl::Status gone(const std::string& peer_name) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    peer_name + " closed the connection: it has ended, or has left the job",
                    peer_remedy(PeerRemedy::kDisconnected));
}

// Blocks until `events` are ready.
absl::Status wait_for(int socket, short events, const std::string& peer_name, Deadline deadline) {
  while (true) {
    pollfd entry{socket, events, 0};
    const int timeout = poll_timeout(deadline);
    const int ready = poll(&entry, 1, timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return make_errno_error(errno, ErrorScope::kProcess, "waiting for " + peer_name);
    }
    if (timeout == 0) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        peer_name + " did not answer in time", peer_remedy(PeerRemedy::kSilent));
    }
  }
}

bool same_host_part(const uint8_t* a, const uint8_t* b, unsigned bits) {
  const unsigned whole = bits / 8;
  if (std::memcmp(a, b, whole) != 0) return false;
  const unsigned rest = bits % 8;
  return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

const uint8_t* address_bytes(const sockaddr* address) {
  return address->sa_family == AF_INET
             ? reinterpret_cast<const uint8_t*>(
                   &reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
             : reinterpret_cast<const uint8_t*>(
                   &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

socklen_t length_of(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace

absl::StatusOr<SocketAddress> SocketAddress::parse(std::string_view text) {
  if (!text.empty() && text[0] == '@') {
    if (text.size() < 2 || text.size() > 101) return bad_address(text);
    return local(text.substr(1));
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 80) return bad_address(text);
  std::string_view host = text.substr(0, colon);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) || port > 65535) {
    return bad_address(text);
  }
  const bool v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (v6) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = v6 ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return bad_address(text);
  }
  SocketAddress address = from(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

SocketAddress SocketAddress::local(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The leading zero byte selects the abstract name space, so no file remains after the process has
  // ended.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return from(reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

SocketAddress SocketAddress::from(const sockaddr* address, socklen_t length) {
  SocketAddress copy;
  copy.length_ = std::min<socklen_t>(length, sizeof copy.storage_);
  std::memcpy(&copy.storage_, address, copy.length_);
  return copy;
}

std::string SocketAddress::text() const {
  if (family() == AF_UNIX) {
    const auto* const unix_address = reinterpret_cast<const sockaddr_un*>(&storage_);
    const size_t before = offsetof(sockaddr_un, sun_path) + 1;
    return "@" + std::string(unix_address->sun_path + 1, length_ > before ? length_ - before : 0);
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(get(), length_, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return family() == AF_INET6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool SocketAddress::stays_on_host() const {
  if (family() == AF_UNIX) return true;
  const uint8_t* const bytes = address_bytes(get());
  if (family() == AF_INET) return bytes[0] == 127;
  return IN6_IS_ADDR_LOOPBACK(reinterpret_cast<const in6_addr*>(bytes));
}

absl::StatusOr<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    const bool unreachable = error == EAI_AGAIN || error == EAI_FAIL || error == EAI_SYSTEM;
    return make_error(
        unreachable ? absl::StatusCode::kUnavailable : absl::StatusCode::kNotFound,
        ErrorScope::kProcess,
        absl::StrCat("the host '", host, "' has no address here (", gai_strerror(error), ")"),
        "write its address in numbers, or add the name to /etc/hosts");
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.push_back(SocketAddress::from(one->ai_addr, one->ai_addrlen));
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<SocketAddress> own_address(const std::string& named) {
  const size_t slash = named.find('/');
  const std::string host = named.substr(0, slash);
  uint8_t wanted[sizeof(in6_addr)];
  int family = AF_UNSPEC;  // AF_UNSPEC: `host` is the name of an interface
  if (inet_pton(AF_INET, host.c_str(), wanted) == 1) family = AF_INET;
  if (inet_pton(AF_INET6, host.c_str(), wanted) == 1) family = AF_INET6;
  unsigned bits = family == AF_INET ? 32 : 128;
  if (slash != std::string::npos) {
    unsigned network = 0;
    if (family == AF_UNSPEC || !absl::SimpleAtoi(named.substr(slash + 1), &network) ||
        network > bits) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                        "'" + named + "' names no address, interface or network",
                        "write 10.77.0.1, eth0 or 10.77.0.0/24");
    }
    bits = network;
  }
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "listing this host's addresses");
  }
  const ifaddrs* best = nullptr;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int its = one->ifa_addr->sa_family;
    if (its != AF_INET && its != AF_INET6) continue;
    const bool fits =
        family == AF_UNSPEC
            ? host == one->ifa_name
            : its == family && same_host_part(address_bytes(one->ifa_addr), wanted, bits);
    if (fits && (best == nullptr || (its == AF_INET && best->ifa_addr->sa_family == AF_INET6))) {
      best = one;
    }
  }
  absl::StatusOr<SocketAddress> address =
      best != nullptr
          ? absl::StatusOr<SocketAddress>(
                SocketAddress::from(best->ifa_addr, length_of(best->ifa_addr->sa_family)))
          : make_error(absl::StatusCode::kNotFound, ErrorScope::kProcess,
                       "this host has no address for '" + named + "'",
                       "name an address, an interface or a network that it has (see ip address)");
  freeifaddrs(all);
  return address;
}

absl::StatusOr<FileDescriptor> listen_on(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return make_errno_error(errno, ErrorScope::kProcess, "socket", "raise ulimit -n");
  }
  if (address.family() != AF_UNIX) {
    const int on = 1;  // allows the port of a job that has just ended
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (bind(socket.get(), address.get(), address.length()) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    const std::string what = "listening on " + address.text();
    if (errno == EADDRINUSE) {
      return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                        what + ": the address is in use", "choose another port");
    }
    if (errno == EADDRNOTAVAIL) {
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                        what + ": it is not an address of this host",
                        "name an address that this host has (see ip address)");
    }
    return make_errno_error(errno, ErrorScope::kProcess, what);
  }
  return socket;
}

SocketAddress bound_address(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length);
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
}

FileDescriptor accept_from(int listener, FileDescriptor* spare) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    FileDescriptor socket(accept4(listener, reinterpret_cast<sockaddr*>(&from), &length,
                                  SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // No free descriptors: the listener stays readable, so poll() would return immediately,
      // forever.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        // accept4() finds no descriptor also if no peer waits.
        pollfd waiting{listener, POLLIN, 0};
        if (poll(&waiting, 1, 0) <= 0) return socket;
        report_once("bootstrap.accept",
                    "a connection cannot be accepted: this process has no free descriptor",
                    "raise ulimit -n");
        if (spare != nullptr && spare->valid()) {
          spare->reset();
          continue;
        }
        poll(nullptr, 0, 10);
      }
      return socket;
    }
    if (from.ss_family == AF_UNIX && !is_of_own_user(socket.get())) continue;
    set_tcp_options(socket.get(), from.ss_family);
    return socket;
  }
  return {};
}

absl::StatusOr<FileDescriptor> connect_to(const SocketAddress& address,
                                          const std::string& peer_name, Deadline deadline) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return make_errno_error(errno, ErrorScope::kProcess, "socket", "raise ulimit -n");
  }
  set_tcp_options(socket.get(), address.family());
  int error = connect(socket.get(), address.get(), address.length()) == 0 ? 0 : errno;
  // connect() on a local socket with a full backlog fails with EAGAIN, and there is no event to
  // poll for: try again after a pause.
  while (error == EAGAIN || error == EINTR) {
    if (poll_timeout(deadline) == 0) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        peer_name + " did not accept the connection in time",
                        peer_remedy(PeerRemedy::kSilent));
    }
    poll(nullptr, 0, 1);
    error = connect(socket.get(), address.get(), address.length()) == 0 ? 0 : errno;
  }
  if (error == EINPROGRESS) {
    if (absl::Status ready = wait_for(socket.get(), POLLOUT, peer_name, deadline); !ready.ok()) {
      return ready;
    }
    socklen_t length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0) return socket;
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    absl::StrCat(peer_name, " does not answer at ", address.text(), " (",
                                 std::strerror(error), ")"),
                    peer_remedy(PeerRemedy::kNotListening));
}

absl::Status send_exactly(int socket, std::string_view bytes, const std::string& peer_name,
                          Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (is_temporary(errno)) {
      if (absl::Status ready = wait_for(socket, POLLOUT, peer_name, deadline); !ready.ok())
        return ready;
    } else if (errno != EINTR) {
      return gone(peer_name);
    }
  }
  return absl::OkStatus();
}

absl::Status receive_exactly(int socket, char* bytes, size_t count, const std::string& peer_name,
                             Deadline deadline) {
  while (count != 0) {
    const ssize_t came = recv(socket, bytes, count, MSG_DONTWAIT);
    if (came > 0) {
      bytes += came;
      count -= static_cast<size_t>(came);
    } else if (came < 0 && is_temporary(errno)) {
      if (absl::Status ready = wait_for(socket, POLLIN, peer_name, deadline); !ready.ok())
        return ready;
    } else if (came == 0 || errno != EINTR) {
      return gone(peer_name);
    }
  }
  return absl::OkStatus();
}

int poll_open(std::span<pollfd> entries, int timeout) {
  std::vector<pollfd> open;
  std::vector<pollfd*> origins;
  for (pollfd& entry : entries) {
    entry.revents = 0;
    if (entry.fd < 0) continue;
    open.push_back(entry);
    origins.push_back(&entry);
  }
  const int ready = poll(open.data(), open.size(), timeout);
  if (ready < 0 && errno != EINTR) poll(nullptr, 0, 10);
  for (size_t i = 0; i < open.size() && ready > 0; ++i) origins[i]->revents = open[i].revents;
  return ready;
}

int poll_timeout(Deadline deadline) {
  if (deadline == kForever) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

}  // namespace cariama::internal
