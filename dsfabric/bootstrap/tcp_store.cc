#include "dsfabric/bootstrap/tcp_store.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/peer_user.h"
#include "dtutils/error.h"
#include "dtutils/internal/local_socket.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/socket_errors.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::internal {
namespace {

// Time limit for a new connection to prove that it belongs to the job.
constexpr std::chrono::seconds kProofPatience{10};
// The time after which a new connection that has proved nothing may be dropped, if no descriptor is
// free. A process of the job proves itself immediately, and connects again if it is dropped.
constexpr std::chrono::milliseconds kSilence{500};
constexpr size_t kMoreUnauthenticated = 64;
constexpr std::chrono::milliseconds kFirstConnectPause{5};
constexpr std::chrono::milliseconds kLongestConnectPause{200};
constexpr std::string_view kMemoryKey = "dsfabric.store.memory";
constexpr std::string_view kMemoryText =
    "rank 0 lacks memory for a request to the store of the job";
constexpr const char* kNonceKey = "cariama/nonce";

}  // namespace

TcpStore::TcpStore(int size, const JobSecret& key, Admission admission)
    : size_(size),
      key_(key),
      admission_(admission),
      server_(rank_labels(size),
              [this](int rank, const absl::Status& why) { on_closed(rank, why); }),
      joined_(size),
      left_(size) {}

absl::StatusOr<std::unique_ptr<TcpStore>> TcpStore::start(const SocketAddress& address, int size,
                                                          const JobSecret& key,
                                                          Admission admission) {
  auto store = std::unique_ptr<TcpStore>(new TcpStore(size, key, admission));
  absl::StatusOr<FileDescriptor> listener = listen_on(address);
  if (!listener.ok()) return listener.status();
  store->listener_ = *std::move(listener);
  store->stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int pair[2];
  if (!store->stop_.valid() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "starting the store", "raise ulimit -n");
  }
  store->spare_ = spare_descriptor();
  store->own_socket_ = FileDescriptor(pair[0]);
  store->server_.connect(0, pair[1]);
  store->joined_[0] = true;
  absl::StatusOr<std::thread> thread = start_thread([raw = store.get()] { raw->serve(); });
  if (!thread.ok()) return thread.status();
  store->thread_ = *std::move(thread);
  return store;
}

TcpStore::~TcpStore() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof one));  // cannot fail: the counter is 0
  thread_.join();
}

absl::Status TcpStore::wait_until_left(Exchange::Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto all_left = [&] {
    return std::all_of(left_.begin() + 1, left_.end(), [](bool left) { return left; });
  };
  if (deadline == kForever) {  // wait_until() overflows with this deadline on some clocks
    changed_.wait(lock, all_left);
    return absl::OkStatus();
  }
  if (changed_.wait_until(lock, deadline, all_left)) return absl::OkStatus();
  std::string names;
  for (int rank = 1; rank < size_; ++rank) {
    if (!left_[rank]) absl::StrAppend(&names, names.empty() ? "rank " : ", ", rank);
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    names + " did not leave the job in time", "call finalize() in every process");
}

// Without memory for a step the connection that needs it ends, or the step is done again.
void TcpStore::serve() {
  bool stops = false;
  while (!stops) {
    if (!has_memory_for(kMemoryKey, kMemoryText, [&] { stops = !serve_once(); }))
      std::this_thread::sleep_for(kMemoryPause);
  }
}

bool TcpStore::serve_once() {
  std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  Exchange::Deadline next = kForever;
  for (const UnauthenticatedConnection& one : unauthenticated_) {
    const short events = one.outgoing.empty() ? POLLIN : POLLOUT;
    entries.push_back({one.socket.get(), events, 0});
    next = std::min(next, one.deadline);
  }
  if (server_.has_unreported()) next = std::min(next, deadline_after(kMemoryPause));
  const size_t others = entries.size();
  server_.append_polled(entries);
  if (poll_open(entries, poll_timeout(next)) < 0) return true;
  if (entries[0].revents != 0) return false;
  if (!spare_.valid()) spare_ = spare_descriptor();
  server_.serve(std::span(entries).subspan(others));
  size_t at = 2;
  for (UnauthenticatedConnection& one : unauthenticated_) {
    const bool is_ready = entries[at++].revents != 0;
    if (is_ready && !has_memory_for(kMemoryKey, kMemoryText, [&] { advance(one); }))
      one.socket.reset();
    if (std::chrono::steady_clock::now() >= one.deadline) one.socket.reset();
  }
  unauthenticated_.remove_if(
      [](const UnauthenticatedConnection& one) { return !one.socket.valid(); });
  if (entries[1].revents != 0) accept_all();
  return true;
}

// If a connection waits, and no descriptor is free, drops the oldest connection that has not proved
// that it belongs to the job.
void TcpStore::make_room() {
  if (!spare_.valid()) spare_ = spare_descriptor();
  if (spare_.valid() || unauthenticated_.empty()) return;
  pollfd waiting{listener_.get(), POLLIN, 0};
  if (poll(&waiting, 1, 0) <= 0) return;
  const Exchange::Deadline begun = unauthenticated_.front().deadline - kProofPatience;
  if (std::chrono::steady_clock::now() - begun < kSilence) return;
  unauthenticated_.pop_front();
  spare_ = spare_descriptor();
}

void TcpStore::accept_all() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    make_room();
    FileDescriptor socket = accept_from(listener_.get(), &spare_);
    if (!socket.valid()) return;
    if (admission_ == Admission::kOwnUser && !other_end_is_ours(socket.get())) continue;
    // Drop the oldest unauthenticated connection, so that idle connections without the secret
    // cannot use up the limit for peers.
    if (unauthenticated_.size() >= static_cast<size_t>(size_) + kMoreUnauthenticated)
      unauthenticated_.pop_front();
    unauthenticated_.push_back({.socket = std::move(socket),
                                .handshake = {HandshakeService::kStore, 0, size_, key_,
                                              [this](int rank) -> bool { return joined_[rank]; }},
                                .outgoing = {},
                                .deadline = deadline_after(kProofPatience)});
  }
}

void TcpStore::advance(UnauthenticatedConnection& one) {
  while (one.socket.valid()) {
    if (!one.outgoing.empty()) {
      const ssize_t count = send(one.socket.get(), one.outgoing.data(), one.outgoing.size(),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) {
        one.outgoing.erase(0, static_cast<size_t>(count));
        continue;
      }
      if (errno == EINTR) continue;
      if (is_temporary(errno)) return;
      // The process has closed the socket. If it has proved its rank, the server detects its end.
      one.outgoing.clear();
      if (one.handshake.state() != ServerHandshake::State::kAccepted) {
        one.socket.reset();
        return;
      }
    }
    if (one.handshake.state() == ServerHandshake::State::kRefused) {
      one.socket.reset();
      return;
    }
    if (one.handshake.state() == ServerHandshake::State::kAccepted) {
      const int rank = one.handshake.peer();
      if (joined_[rank]) {  // two processes have proved at the same time that they have this rank
        one.socket.reset();
        return;
      }
      // Only now: until its verdict has been sent, the store may drop the connection, and the
      // process then connects again.
      joined_[rank] = true;
      server_.connect(rank, one.socket.release());
      return;
    }
    char chunk[Hello::kBytes];
    const ssize_t count =
        recv(one.socket.get(), chunk, std::min(one.handshake.wanted(), sizeof chunk), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && is_temporary(errno)) return;
    if (count <= 0) {
      one.socket.reset();
      return;
    }
    one.handshake.take({chunk, static_cast<size_t>(count)}, one.outgoing);
  }
}

void TcpStore::on_closed(int rank, const absl::Status& why) {
  std::string how = "has ended or left the job";
  if (absl::IsResourceExhausted(why)) {
    how = "was disconnected: rank 0 has no memory for its messages";
  } else if (!why.ok()) {
    how = absl::StrCat("broke the exchange (", why.message(), ")");
  }
  server_.rank_ended(rank, std::move(how));
  const std::lock_guard lock(mutex_);
  left_[rank] = true;
  changed_.notify_all();
}

absl::StatusOr<FileDescriptor> connect_to_store(const std::vector<SocketAddress>& addresses,
                                                int rank, int size, const JobSecret& key,
                                                Exchange::Deadline deadline, Admission admission) {
  const std::string peer_name = "the store of rank 0";
  absl::Status last;
  for (std::chrono::milliseconds pause = kFirstConnectPause;;
       pause = std::min(2 * pause, kLongestConnectPause)) {
    for (const SocketAddress& address : addresses) {
      absl::StatusOr<FileDescriptor> socket = connect_to(address, peer_name, deadline);
      last = socket.ok() ? prove_to_server(socket->get(), HandshakeService::kStore, rank, size, 0,
                                           key, peer_name, deadline)
                         : socket.status();
      // Checked only now: a connection that the server has not accepted yet has no owner in the
      // table.
      if (last.ok() && admission == Admission::kOwnUser && !other_end_is_ours(socket->get())) {
        return make_error(
            absl::StatusCode::kPermissionDenied, ErrorScope::kPeer,
            "the process that listens at " + address.text() + " belongs to another user",
            "take another MASTER_PORT, or set CARIAMA_JOB_SECRET");
      }
      if (last.ok()) return socket;
      // UNAVAILABLE: rank 0 may not have started yet.
      if (last.code() != absl::StatusCode::kUnavailable) return last;
    }
    if (std::chrono::steady_clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    std::string(last.message()));
}

TcpBootstrap::TcpBootstrap(BootstrapKind kind, std::unique_ptr<TcpStore> store, int socket,
                           int rank, int size, std::string address)
    : StoreBootstrap(kind, socket, rank, size),
      store_(std::move(store)),
      address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<TcpBootstrap>> TcpBootstrap::join(
    BootstrapKind kind, std::unique_ptr<TcpStore> store, FileDescriptor socket, int rank, int size,
    const JobSecret& key, std::string address, Exchange::Deadline deadline) {
  absl::StatusOr<std::optional<uint32_t>> threads = threads_from_environment();
  if (!threads.ok()) return threads.status();
  auto joined = std::unique_ptr<TcpBootstrap>(
      new TcpBootstrap(kind, std::move(store), socket.release(), rank, size, std::move(address)));
  // A key may be used for several jobs. The nonce makes the derived secret unique to this job.
  if (rank == 0) {
    if (absl::Status put = joined->put(kNonceKey, bytes_of(random_secret())); !put.ok()) return put;
  }
  absl::StatusOr<std::string> nonce = joined->get(0, kNonceKey, deadline);
  if (!nonce.ok()) return nonce.status();
  joined->set_secret(keyed_hash(bytes_of(key), *nonce));
  joined->set_threads(*threads);
  return joined;
}

std::vector<Exchange::Ended> TcpBootstrap::take_ended() {
  std::vector<Ended> ended = StoreBootstrap::take_ended();
  if (rank() != 0 && store_is_gone() && !end_of_store_taken_.exchange(true)) {
    ended.push_back({0, "has ended, and with it the store of the job"});
  }
  return ended;
}

absl::Status TcpBootstrap::leave(Deadline deadline) {
  absl::Status left = store_ == nullptr ? absl::OkStatus() : store_->wait_until_left(deadline);
  store_.reset();
  if (at_end_) {
    if (absl::Status ended = at_end_(); left.ok()) left = ended;
  }
  return left;
}

}  // namespace cariama::internal
