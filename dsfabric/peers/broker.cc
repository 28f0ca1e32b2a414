#include "dsfabric/peers/broker.h"

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <list>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/peers/broker_wire.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dtutils/error.h"
#include "dtutils/internal/boot_id.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/local_socket.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/socket_errors.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::internal {
namespace {

constexpr std::string_view kAddressKey = "cariama/broker";
// Time limit of a connection for the handshake and the request, and again for taking the answer.
constexpr std::chrono::seconds kClientPatience{10};
constexpr std::string_view kMemoryKey = "dsfabric.broker.memory";
constexpr std::string_view kMemoryText =
    "this process lacks memory to answer another one that connects to it";
// Maximum number of connections served at the same time: a few per process, and some more. When the
// limit is reached, the oldest connection that has not passed the handshake is dropped. So idle
// connections without the secret cannot use up the limit for peers.
constexpr size_t kMoreIncoming = 64;
constexpr size_t kIncomingPerProcess = 4;

// Identifies the network name space of a host: processes with the same identity can reach each
// other's abstract local sockets.
std::string network_identity() {
  std::string identity = boot_id();
  struct stat space {};
  if (stat("/proc/self/ns/net", &space) == 0) absl::StrAppend(&identity, "/", space.st_ino);
  return identity;
}

class SocketBroker final : public Broker {
 public:
  SocketBroker(Bootstrap& bootstrap, Handler handler)
      : rank_(bootstrap.rank()),
        size_(bootstrap.size()),
        secret_(bootstrap.secret()),
        max_incoming_(kMoreIncoming + kIncomingPerProcess * static_cast<size_t>(size_)),
        handler_(std::move(handler)) {}

  ~SocketBroker() override { stop(); }

  void stop() override {
    {
      const std::lock_guard lock(requests_mutex_);
      stopped_ = true;
      // The threads that wait on these sockets find them closed by the peer.
      for (const int socket : requests_) static_cast<void>(shutdown(socket, SHUT_RDWR));
    }
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    static_cast<void>(!write(stop_.get(), &one, sizeof one));  // cannot fail: the counter is 0
    thread_.join();
    // Requests of processes that still run fail now instead of at their deadlines.
    incoming_.clear();
    listeners_.clear();
  }

  absl::Status start(Bootstrap& bootstrap, Deadline deadline) {
    stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!stop_.valid()) {
      return make_errno_error(errno, ErrorScope::kProcess, "eventfd", "raise ulimit -n");
    }
    spare_ = spare_descriptor();
    BrokerAddress own;
    if (absl::Status listening = listen(bootstrap, own); !listening.ok()) return listening;
    if (absl::Status put = bootstrap.put(kAddressKey, encode(own)); !put.ok()) return put;
    const absl::StatusOr<std::vector<std::string>> texts = bootstrap.get_all(kAddressKey, deadline);
    if (!texts.ok()) return texts.status();
    for (int rank = 0; rank < size_; ++rank) {
      labels_.push_back(bootstrap.label(rank));
      absl::StatusOr<BrokerAddress> theirs =
          decode_broker_address((*texts)[static_cast<size_t>(rank)]);
      if (!theirs.ok()) return theirs.status();
      const bool near = theirs->network == own.network;
      if (!near && !theirs->remote) {
        return make_error(
            absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
            labels_[rank] + " is on another host, and listens on local addresses only",
            "set CARIAMA_LISTEN for every process to an address, an interface or the network that "
            "the hosts share (10.77.0.0/24)");
      }
      addresses_.push_back(near ? theirs->local : *theirs->remote);
    }
    absl::StatusOr<std::thread> thread = start_thread([this] { serve(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> request(int rank, std::string_view request,
                                      Deadline deadline) override {
    if (rank < 0 || rank >= size_) {
      return make_error(
          absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
          absl::StrCat("a request to rank ", rank, ": there are ranks 0 to ", size_ - 1));
    }
    if (request.size() > BrokerFrame::kMaxBytes) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        absl::StrCat("a request of ", request.size(), " bytes: at most ",
                                     BrokerFrame::kMaxBytes, " fit"));
    }
    const std::string& peer_name = labels_[rank];
    // A process that is stopped does not answer the handshake.
    const Deadline accepted_by = ScopedConnectDeadline::earlier_of(deadline);
    absl::StatusOr<FileDescriptor> socket = connect_to(addresses_[rank], peer_name, accepted_by);
    if (!socket.ok()) return socket.status();
    const RequestScope scope(*this, socket->get());
    if (scope.is_stopped()) {
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                        "the fabric of this process was closed");
    }
    if (absl::Status proved = prove_to_server(socket->get(), HandshakeService::kBroker, rank_,
                                              size_, rank, secret_, peer_name, accepted_by);
        !proved.ok()) {
      return proved;
    }
    if (absl::Status sent = send_exactly(
            socket->get(), encode(BrokerFrame{.code = 0, .bytes = std::string(request)}), peer_name,
            deadline);
        !sent.ok()) {
      return sent;
    }
    BrokerFrameDecoder answer;
    while (!answer.whole()) {
      char chunk[16384];
      const size_t count = std::min(answer.wanted(), sizeof chunk);
      if (absl::Status came = receive_exactly(socket->get(), chunk, count, peer_name, deadline);
          !came.ok()) {
        return came;
      }
      if (absl::Status taken = answer.take({chunk, count}); !taken.ok()) return taken;
    }
    if (answer.frame().code == 0) return std::move(answer.frame().bytes);
    return make_error(static_cast<absl::StatusCode>(answer.frame().code), ErrorScope::kPeer,
                      answer.frame().bytes);
  }

 private:
  struct Incoming {
    Incoming(FileDescriptor from, const SocketBroker& broker)
        : socket(std::move(from)),
          handshake(HandshakeService::kBroker, broker.rank_, broker.size_, broker.secret_),
          deadline(deadline_after(kClientPatience)) {}

    FileDescriptor socket;  // invalid: the connection has ended
    ServerHandshake handshake;
    BrokerFrameDecoder request;
    std::string outgoing;
    bool answered = false;
    Deadline deadline;
  };

  absl::Status listen(Bootstrap& bootstrap, BrokerAddress& own) {
    own.network = network_identity();
    own.local = SocketAddress::local("cariama-" + absl::BytesToHexString(absl::string_view(
                                                      bytes_of(random_secret()).data(), 16)));
    absl::StatusOr<FileDescriptor> local = listen_on(own.local);
    if (!local.ok()) return local.status();
    listeners_.push_back(*std::move(local));

    const char* const named = std::getenv("CARIAMA_LISTEN");
    const bool told = named != nullptr && *named != '\0';
    std::string address = told ? named : bootstrap.listen_address();
    if (address.empty()) return absl::OkStatus();
    absl::StatusOr<SocketAddress> ours = own_address(address);
    if (!ours.ok()) {
      return make_error(ours.status().code(), ErrorScope::kProcess,
                        absl::StrCat(told ? "CARIAMA_LISTEN: " : "", ours.status().message()));
    }
    absl::StatusOr<FileDescriptor> remote = listen_on(*ours);
    if (!remote.ok()) return remote.status();
    own.remote = bound_address(remote->get());
    listeners_.push_back(*std::move(remote));
    return absl::OkStatus();
  }

  // Without memory for a step the connection that needs it ends, or the step is done again, and the
  // other connections continue.
  void serve() {
    bool stops = false;
    while (!stops) {
      if (!has_memory([&] { stops = !serve_once(); })) std::this_thread::sleep_for(kMemoryPause);
    }
  }

  // As internal::has_memory_for().
  template <typename Step>
  static bool has_memory(const Step& step) {
    return has_memory_for(kMemoryKey, kMemoryText, step);
  }

  // Serves what is ready. Returns false after stop().
  bool serve_once() {
    std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}};
    const bool room = incoming_.size() < max_incoming_ || find_unauthenticated() != incoming_.end();
    for (const FileDescriptor& listener : listeners_) {
      entries.push_back({room ? listener.get() : -1, POLLIN, 0});
    }
    Deadline next = kForever;
    for (const Incoming& one : incoming_) {
      const short events = one.outgoing.empty() ? POLLIN : POLLOUT;
      entries.push_back({one.socket.get(), events, 0});
      next = std::min(next, one.deadline);
    }
    if (poll_open(entries, poll_timeout(next)) < 0) return true;
    if (entries[0].revents != 0) return false;
    if (!spare_.valid()) spare_ = spare_descriptor();
    size_t at = 1 + listeners_.size();
    for (Incoming& one : incoming_) {
      const bool is_ready = entries[at++].revents != 0;
      if (is_ready && !has_memory([&] { advance(one); })) one.socket.reset();
      if (std::chrono::steady_clock::now() >= one.deadline) one.socket.reset();
    }
    incoming_.remove_if([](const Incoming& one) { return !one.socket.valid(); });
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (entries[1 + i].revents != 0) accept_all(listeners_[i].get());
    }
    return true;
  }

  std::list<Incoming>::iterator find_unauthenticated() {
    return std::find_if(incoming_.begin(), incoming_.end(), [](const Incoming& one) {
      return one.handshake.state() != ServerHandshake::State::kAccepted;
    });
  }

  void accept_all(int listener) {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      if (incoming_.size() >= max_incoming_) {
        const auto unauthenticated = find_unauthenticated();
        if (unauthenticated == incoming_.end()) return;
        incoming_.erase(unauthenticated);
      }
      FileDescriptor socket = accept_from(listener, &spare_);
      if (!socket.valid()) return;
      incoming_.emplace_back(std::move(socket), *this);
    }
  }

  // Reads and writes as far as possible without blocking, except in the handler.
  void advance(Incoming& one) {
    while (one.socket.valid()) {
      if (!one.outgoing.empty()) {
        const ssize_t count = send(one.socket.get(), one.outgoing.data(), one.outgoing.size(),
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) {
          one.outgoing.erase(0, static_cast<size_t>(count));
          continue;
        }
        if (errno == EINTR) continue;
        if (!is_temporary(errno)) one.socket.reset();
        return;
      }
      const bool greeting = one.handshake.wanted() != 0;
      if (one.answered || (!greeting && one.request.wanted() == 0) ||
          one.handshake.state() == ServerHandshake::State::kRefused) {
        one.socket.reset();
        return;
      }
      char chunk[16384];
      const size_t wanted = greeting ? one.handshake.wanted() : one.request.wanted();
      const ssize_t count =
          recv(one.socket.get(), chunk, std::min(wanted, sizeof chunk), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && is_temporary(errno)) return;
      if (count <= 0) {
        one.socket.reset();
        return;
      }
      const std::string_view bytes(chunk, static_cast<size_t>(count));
      if (greeting) {
        one.handshake.take(bytes, one.outgoing);
      } else if (!one.request.take(bytes).ok()) {
        one.socket.reset();
      } else if (one.request.whole()) {
        answer(one);
      }
    }
  }

  void answer(Incoming& one) {
    absl::StatusOr<std::string> answer = std::string();
    try {
      answer = handler_(one.handshake.peer(), one.request.frame().bytes);
    } catch (const std::bad_alloc& error) {
      report_missing_memory(kMemoryKey, kMemoryText);
      answer = exception_error(error, "answering a request to connect", {});
    }
    if (answer.ok() && answer->size() > BrokerFrame::kMaxBytes) {
      answer = make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                          "the answer is longer than the maximum of a broker message");
    }
    BrokerFrame frame;
    frame.code = static_cast<uint8_t>(answer.status().code());
    frame.bytes = answer.ok() ? *std::move(answer) : std::string(answer.status().message());
    if (frame.bytes.size() > BrokerFrame::kMaxBytes) frame.bytes.resize(BrokerFrame::kMaxBytes);
    one.outgoing = encode(frame);
    one.answered = true;
    one.deadline = deadline_after(kClientPatience);
  }

  // During its lifetime, stop() shuts the socket of a request down.
  class RequestScope {
   public:
    RequestScope(SocketBroker& broker, int socket) : broker_(broker), socket_(socket) {
      const std::lock_guard lock(broker_.requests_mutex_);
      stopped_ = broker_.stopped_;
      broker_.requests_.insert(socket_);
    }
    ~RequestScope() {
      const std::lock_guard lock(broker_.requests_mutex_);
      broker_.requests_.erase(socket_);
    }
    RequestScope(const RequestScope&) = delete;
    RequestScope& operator=(const RequestScope&) = delete;
    [[nodiscard]] bool is_stopped() const { return stopped_; }

   private:
    SocketBroker& broker_;
    const int socket_;
    bool stopped_ = false;
  };

  const int rank_;
  const int size_;
  const JobSecret secret_;
  const size_t max_incoming_;
  const Handler handler_;
  std::vector<std::string> labels_;
  std::vector<SocketAddress> addresses_;
  std::vector<FileDescriptor> listeners_;
  FileDescriptor stop_;
  // Without it, a process that has no free descriptor could not tell its peers so.
  FileDescriptor spare_;
  std::list<Incoming> incoming_;  // used by the thread only
  std::thread thread_;
  std::mutex requests_mutex_;
  std::set<int> requests_;  // the sockets of this process's requests
  bool stopped_ = false;    // guarded by requests_mutex_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Broker>> make_socket_broker(Bootstrap& bootstrap,
                                                           Broker::Handler handler,
                                                           Deadline deadline) {
  auto broker = std::make_unique<SocketBroker>(bootstrap, std::move(handler));
  if (absl::Status started = broker->start(bootstrap, deadline); !started.ok()) return started;
  return broker;
}

}  // namespace cariama::internal
