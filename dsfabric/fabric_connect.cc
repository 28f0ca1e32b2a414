#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/launch_variables.h"
#include "dsfabric/internal/control_traffic.h"
#include "dsfabric/internal/fabric_core.h"
#include "dsfabric/send_call.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// The first byte of a request to the broker.
constexpr char kOffer = 'O';
constexpr char kReady = 'R';

// How long a process that exits because of another one's failure waits for the store's report of
// that end. A process that writes a core file ends later than that.
constexpr std::chrono::milliseconds kReportPatience{300};
constexpr std::chrono::milliseconds kReportPause{2};

// The error of operations to a process that has ended, as its launcher reports.
absl::Status end_of(const std::string& label, const std::string& how) {
  const bool without_error = how == "has ended" || how == "has ended or left the job";
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    label + " " + how + (without_error ? " without finalize()" : ""),
                    without_error ? "call Fabric::finalize() in every process before it ends" : "");
}

}  // namespace

absl::StatusOr<FabricCore::Connections> FabricCore::make_connections(const Peer& peer) {
  auto anywhere = allocator(kAnyNode);
  if (!anywhere.ok()) return anywhere.status();
  Connections connections;
  for (uint32_t i = 0; i < options_.queue_pairs; ++i) {
    Port& port = *peer.port;
    auto connection =
        Connection::create(peer.rank, *port.domain, port.receives, port.channel, *anywhere,
                           *memory_, options_.receive_units, options_.receive_unit_bytes,
                           options_.send_depth, options_.service_threads == 0);
    if (!connection.ok()) return connection.status();
    connections.push_back(*std::move(connection));
  }
  return connections;
}

std::string FabricCore::offer_of(const Connections& connections) {
  std::string bytes(1, kOffer);
  save_value(bytes, static_cast<uint32_t>(connections.size()));
  for (const auto& connection : connections) {
    const ConnectionOffer offer = connection->offer();
    save_value(bytes, offer.address);
    save_value(bytes, offer.credit);
    save_value(bytes, offer.answers);
    save_value(bytes, std::array<uint32_t, 2>{offer.receive_units, offer.receive_unit_bytes});
  }
  return bytes;
}

absl::Status FabricCore::accept_offer(Connections& connections, std::string_view offer,
                                      const Peer& peer) {
  try {
    if (offer.empty() || offer[0] != kOffer) throw MalformedArguments("it is not an offer");
    auto in = std::as_bytes(std::span(offer)).subspan(1);
    if (load_value<uint32_t>(in) != connections.size()) {
      throw MalformedArguments("its number of queue pairs differs");
    }
    for (auto& connection : connections) {
      ConnectionOffer theirs;
      theirs.address = load_value<std::string>(in);
      theirs.credit = load_value<RemoteMemoryLocator>(in);
      theirs.answers = load_value<RemoteMemoryLocator>(in);
      const auto units = load_value<std::array<uint32_t, 2>>(in);
      theirs.receive_units = units[0];
      theirs.receive_unit_bytes = units[1];
      if (absl::Status status = connection->connect(theirs, peer.label, options_.ack_timeout);
          !status.ok())
        return status;
    }
  } catch (const std::exception& error) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      peer.label + " made a malformed offer to connect: " + error.what());
  }
  return absl::OkStatus();
}

// Requires: the caller holds peer.mutex.
void FabricCore::adopt(Peer& peer, Connections connections) {
  peer.connections = std::move(connections);
  const std::lock_guard lock(peer.port->mutex);
  for (const auto& connection : peer.connections) {
    peer.port->connections.push_back(connection.get());
  }
}

absl::Status FabricCore::wait_connected(Peer& peer, Deadline deadline) {
  WakeWordParking parking(peer.changed);
  const auto settled = [&] {
    return peer.state.load(std::memory_order_acquire) != PeerState::kConnecting;
  };
  if (wait_until(settled, deadline, &parking)) return peer_status(peer.rank);
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    peer.label + " did not finish connecting in time");
}

// The connecting process makes its queue pairs and offers them. The peer connects its own queue
// pairs to them and answers with its offer. The connecting process connects, and sends kReady. Only
// then may the peer send.
absl::Status FabricCore::connect(Peer& peer) {
  const Deadline deadline = deadline_after(options_.timeout);
  while (true) {
    if (absl::Status waited = wait_connected(peer, deadline); !waited.ok()) return waited;
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kConnected) return absl::OkStatus();
    if (peer.state == PeerState::kDead) return peer.failure;
    if (peer.state == PeerState::kConnecting) continue;  // another thread has started to connect
    peer.state = PeerState::kConnecting;
    break;
  }
  // Reverts to kUnconnected, so that another attempt is possible, unless the peer has connected to
  // this process meanwhile.
  const auto give_up = [&](absl::Status status) {
    if (absl::IsUnavailable(status)) {
      fail_peer(peer, status);
    } else {
      const std::lock_guard lock(peer.mutex);
      if (peer.state == PeerState::kConnecting && peer.connections.empty()) {
        peer.state = PeerState::kUnconnected;
      }
    }
    peer.changed.wake();
    return status;
  };
  auto connections = make_connections(peer);
  if (!connections.ok()) return give_up(connections.status());
  auto answer = broker_->request(static_cast<int>(peer.rank), offer_of(*connections), deadline);
  if (!answer.ok()) return give_up(answer.status());
  // An empty answer: both processes have sent offers, and the peer's offer is used.
  if (answer->empty()) return wait_connected(peer, deadline);
  absl::Status accepted;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kDead) return peer.failure;
    accepted = accept_offer(*connections, *answer, peer);
    if (accepted.ok()) adopt(peer, *std::move(connections));
  }
  if (!accepted.ok()) {
    // The peer has queue pairs that wait for these ones, so the attempt cannot be repeated.
    fail_peer(peer, accepted);
    return accepted;
  }
  auto ready = broker_->request(static_cast<int>(peer.rank), std::string(1, kReady), deadline);
  if (!ready.ok()) {
    // The peer has queue pairs that are connected to these ones, so the attempt cannot be repeated.
    fail_peer(peer, ready.status());
    return ready.status();
  }
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kConnecting) peer.state = PeerState::kConnected;
  }
  peer.changed.wake();
  send_death_notices(peer.rank);
  return peer_status(peer.rank);
}

absl::StatusOr<std::string> FabricCore::answer_offer(int from, std::string_view request) {
  const auto rank = static_cast<uint32_t>(from);
  if (from < 0 || rank >= size_ || rank == rank_ || request.empty()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "a malformed request to connect");
  }
  Peer& peer = *peers_[rank];
  if (request[0] == kReady) {
    {
      const std::lock_guard lock(peer.mutex);
      if (peer.state == PeerState::kDead) return peer.failure;
      if (peer.state != PeerState::kConnecting || peer.connections.empty()) {
        return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                          peer.label + " confirmed a connection that does not exist");
      }
      peer.state = PeerState::kConnected;
    }
    peer.changed.wake();
    send_death_notices(rank);
    return std::string(1, kReady);
  }
  const std::lock_guard lock(peer.mutex);
  if (peer.state == PeerState::kDead) return peer.failure;
  // Both processes have sent an offer: the lower rank's offer is used. (The connection may also
  // exist already.)
  if (!peer.connections.empty() || (peer.state == PeerState::kConnecting && rank_ < rank)) {
    return std::string();
  }
  auto connections = make_connections(peer);
  if (!connections.ok()) return connections.status();
  if (absl::Status accepted = accept_offer(*connections, request, peer); !accepted.ok()) {
    return accepted;
  }
  std::string answer = offer_of(*connections);
  adopt(peer, *std::move(connections));
  peer.state = PeerState::kConnecting;
  return answer;
}

absl::StatusOr<Connection*> FabricCore::connection(uint32_t rank, uint32_t index) {
  if (rank >= size_ || rank == rank_) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "there is no connection to rank " + std::to_string(rank) + " from rank " +
                          std::to_string(rank_) + " in a job of " + std::to_string(size_));
  }
  Peer& peer = *peers_[rank];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kConnected) [[unlikely]] {
    if (finalized_.load(std::memory_order_acquire)) {
      return closed_error();
    }
    if (absl::Status connected = connect(peer); !connected.ok()) return connected;
  }
  return peer.connections[(index == kNoThread ? 0 : index) % peer.connections.size()].get();
}

const ProtectionDomain* FabricCore::domain(uint32_t rank) const {
  return rank < size_ && peers_[rank]->port != nullptr ? peers_[rank]->port->domain.get() : nullptr;
}

absl::Status FabricCore::peer_status(uint32_t rank) const {
  if (rank >= size_) return no_such_thread(rank, size_);
  const Peer& peer = *peers_[rank];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kDead) return absl::OkStatus();
  const std::lock_guard lock(peer.mutex);
  return peer.failure;
}

void FabricCore::exit_because_of(const Peer& peer) {
  // The launcher reports the process that failed first, not those that exit because of it.
  static_cast<void>(bootstrap_->put(kFailedPeerKey, std::to_string(peer.rank)));
  const std::optional<std::string> end = reported_end(peer);
  const absl::Status why = end ? end_of(peer.label, *end) : peer.failure;
  std::fprintf(stderr, "cariama: rank %u exits, because %s has failed: %s\n", rank_,
               peer.label.c_str(), std::string(why.message()).c_str());
  std::fflush(nullptr);
  _exit(1);
}

void FabricCore::fail_peer(Peer& peer, const absl::Status& reason) {
  if (leaving_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kDead) return;
    // Whatever the error was, callers get UNAVAILABLE: the peer cannot be reached any more.
    peer.failure = absl::IsUnavailable(reason)
                       ? reason
                       : make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                    "the connection to " + peer.label +
                                        " has failed: " + std::string(reason.message()));
    peer.state.store(PeerState::kDead, std::memory_order_seq_cst);
  }
  peer.changed.wake();
  if (options_.on_failure == FailurePolicy::kAbort) exit_because_of(peer);
  // A call that is registered as pending after this point finds the peer failed before it is sent.
  for (auto& call : pending_.take_all(peer.rank)) call->complete(peer.failure, {});
  for (const auto& connection : peer.connections) {
    deferred_bytes_.fetch_sub(connection->drop_deferred(), std::memory_order_relaxed);
  }
  if (CallSourceRegistry* const registry = call_source_registry_.load(std::memory_order_acquire);
      registry != nullptr) {
    registry->peer_died(peer.rank);
  }
  // This loop comes after the store of peer.state; both are sequentially consistent.
  // send_death_notices() accesses them in the opposite order (it runs after its peer's state became
  // kConnected). So a process that connects meanwhile gets the notice from this loop or from
  // send_death_notices().
  for (const auto& other : peers_) {
    if (other->state.load(std::memory_order_seq_cst) == PeerState::kConnected) {
      send_death_notice(peer.rank, other->rank);
    }
  }
  notify_waiters();
}

// ---- The store's reports ------------------------------------------------------------------------

// A launcher knows the end of each of its processes, also of a process to which no other process is
// connected.
void FabricCore::handle_ended() {
  for (Exchange::Ended& ended : bootstrap_->take_ended()) {
    const auto rank = static_cast<uint32_t>(ended.rank);
    if (rank >= size_ || rank == rank_) continue;
    Peer& peer = *peers_[rank];
    {
      const std::lock_guard lock(peer.mutex);
      peer.end = ended.how;
    }
    fail_peer(peer, end_of(peer.label, ended.how));
  }
}

std::optional<std::string> FabricCore::reported_end(const Peer& peer) {
  const Deadline deadline = deadline_after(kReportPatience);
  do {
    {
      const std::lock_guard lock(peer.mutex);
      if (!peer.end.empty()) return peer.end;
    }
    for (Exchange::Ended& ended : bootstrap_->take_ended()) {
      if (static_cast<uint32_t>(ended.rank) == peer.rank) return std::move(ended.how);
    }
    std::this_thread::sleep_for(kReportPause);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

// ---- Death notices ------------------------------------------------------------------------------

// A process that communicates with a dead process detects the death itself. All other processes
// must be notified, because a collective operation continues only when all participants leave out
// the same processes. So each process sends one notice to each process that it is connected to,
// including processes that connect later.
void FabricCore::send_death_notices(uint32_t to) {
  for (const auto& peer : peers_) {
    if (peer->state.load(std::memory_order_seq_cst) == PeerState::kDead) {
      send_death_notice(peer->rank, to);
    }
  }
}

void FabricCore::send_death_notice(uint32_t dead, uint32_t to) {
  if (dead == to || leaving_.load(std::memory_order_acquire)) return;
  // May run in a service thread, so it must not block. If it cannot be sent, the receiver is dead
  // too.
  static_cast<void>(attachments_.get<ControlTraffic>(*fabric_).sending(to, [&] {
    return service_call<RetryAsync>(
               *fabric_, to,
               [dead] {
                 FabricCore& core = *running();
                 core.attachments_.get<ControlTraffic>(*core.fabric_).arrived(running_source());
                 core.receive_death_notice(dead, running_source());
               },
               nullptr)
        .ok();
  }));
}

void FabricCore::receive_death_notice(uint32_t dead, uint32_t from) {
  if (dead >= size_ || dead == rank_ || dead == from) return;
  Peer& peer = *peers_[dead];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kConnected) {
    return fail_peer(peer, make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                      peer.label + " has failed, as reported by " + label(from)));
  }
  // This process checks for itself: perhaps only the link between `dead` and `from` has failed.
  for (const auto& connection : peer.connections) connection->probe();
}

}  // namespace cariama::internal
