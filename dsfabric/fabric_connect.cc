#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>

#include "dsfabric/internal/control_traffic.h"
#include "dsfabric/internal/fabric_core.h"
#include "dsfabric/send_call.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// First byte of a request to the broker.
constexpr char kOffer = 'O';
constexpr char kReady = 'R';

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
    if (offer.empty() || offer[0] != kOffer) throw MalformedArguments("it is none");
    auto in = std::as_bytes(std::span(offer)).subspan(1);
    if (load_value<uint32_t>(in) != connections.size()) {
      throw MalformedArguments("another number of queue pairs");
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

// With the peer's mutex held.
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

// The asking end makes its queue pairs and offers them; the other connects to them and answers with
// its own; the asking end connects, and says so. Only then may the other end send.
absl::Status FabricCore::connect(Peer& peer) {
  const Deadline deadline = deadline_after(options_.timeout);
  while (true) {
    if (absl::Status waited = wait_connected(peer, deadline); !waited.ok()) return waited;
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kConnected) return absl::OkStatus();
    if (peer.state == PeerState::kDead) return peer.failure;
    if (peer.state == PeerState::kConnecting) continue;  // another thread was faster
    peer.state = PeerState::kConnecting;
    break;
  }
  // Unless the other end has connected to us meanwhile, somebody may try again.
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
  // Our offers have crossed, and theirs counts.
  if (answer->empty()) return wait_connected(peer, deadline);
  absl::Status accepted;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kDead) return peer.failure;
    accepted = accept_offer(*connections, *answer, peer);
    if (accepted.ok()) adopt(peer, *std::move(connections));
  }
  if (!accepted.ok()) {
    // It has queue pairs that expect ours: there is no way back.
    fail_peer(peer, accepted);
    return accepted;
  }
  auto ready = broker_->request(static_cast<int>(peer.rank), std::string(1, kReady), deadline);
  if (!ready.ok()) {
    // It has queue pairs that are connected to ours: there is no way back.
    fail_peer(peer, ready.status());
    return ready.status();
  }
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kConnecting) peer.state = PeerState::kConnected;
  }
  peer.changed.wake();
  tell_of_deaths(peer.rank);
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
                          peer.label + " is ready for a connection that nobody made");
      }
      peer.state = PeerState::kConnected;
    }
    peer.changed.wake();
    tell_of_deaths(rank);
    return std::string(1, kReady);
  }
  const std::lock_guard lock(peer.mutex);
  if (peer.state == PeerState::kDead) return peer.failure;
  // Both asked at once: the lower rank's offer counts. (It may have been settled already.)
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
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                        "the fabric was finalized");
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

void FabricCore::fail_peer(Peer& peer, const absl::Status& reason) {
  if (leaving_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kDead) return;
    // What a peer's death looks like from here may be anything; what it means is this.
    peer.failure = absl::IsUnavailable(reason)
                       ? reason
                       : make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                    "the connection to " + peer.label +
                                        " has failed: " + std::string(reason.message()));
    peer.state.store(PeerState::kDead, std::memory_order_seq_cst);
  }
  peer.changed.wake();
  if (options_.on_failure == FailurePolicy::kAbort) {
    std::fprintf(stderr, "cariama: rank %u ends, because %s is lost: %s\n", rank_,
                 peer.label.c_str(), std::string(peer.failure.message()).c_str());
    std::fflush(nullptr);
    _exit(1);
  }
  // A call that was added later finds the peer dead before it is sent.
  for (auto& call : pending_.take_all(peer.rank)) call->complete(peer.failure, {});
  for (const auto& connection : peer.connections) {
    deferred_bytes_.fetch_sub(connection->drop_deferred(), std::memory_order_relaxed);
  }
  if (CallBringer* const bringer = bringer_.load(std::memory_order_acquire); bringer != nullptr) {
    bringer->peer_died(peer.rank);
  }
  // After the state, both sequentially consistent: tell_of_deaths() looks the other way round, so
  // that who connects meanwhile hears of it from one of the two.
  for (const auto& other : peers_) {
    if (other->state.load(std::memory_order_seq_cst) == PeerState::kConnected) {
      tell_of_death(peer.rank, other->rank);
    }
  }
  news();
}

// ---- The news of a death ------------------------------------------------------------------------

// Who spoke with a dead process notices by itself. Everybody else has to hear of it, since what all
// do together goes on only when all leave out the same: so each tells those that it is connected
// to, once, also those that connect later.
void FabricCore::tell_of_deaths(uint32_t to) {
  for (const auto& peer : peers_) {
    if (peer->state.load(std::memory_order_seq_cst) == PeerState::kDead) {
      tell_of_death(peer->rank, to);
    }
  }
}

void FabricCore::tell_of_death(uint32_t dead, uint32_t to) {
  if (dead == to || leaving_.load(std::memory_order_acquire)) return;
  // May be in a service thread, so that it must not wait. If it fails, the other one is dead too.
  static_cast<void>(attachments_.get<ControlTraffic>(*fabric_).sending(to, [&] {
    return service_call<RetryAsync>(
               *fabric_, to,
               [dead] {
                 FabricCore& core = *running();
                 core.attachments_.get<ControlTraffic>(*core.fabric_).arrived(running_source());
                 core.hear_of_death(dead, running_source());
               },
               nullptr)
        .ok();
  }));
}

void FabricCore::hear_of_death(uint32_t dead, uint32_t from) {
  if (dead >= size_ || dead == rank_ || dead == from) return;
  Peer& peer = *peers_[dead];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kConnected) {
    return fail_peer(peer, make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                      peer.label + " is lost, says " + label(from)));
  }
  // We can see for ourselves: it may be that only the link between those two has failed.
  for (const auto& connection : peer.connections) connection->probe();
}

}  // namespace cariama::internal
