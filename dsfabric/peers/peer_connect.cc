#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/peers/peer_table.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// The first byte of a request to the broker.
constexpr char kOffer = 'O';
constexpr char kReady = 'R';

// How long a process whose offer was refused waits for the peer's offer before it repeats its own.
// Doubles with each refusal. An offer creates queue pairs.
constexpr std::chrono::milliseconds kFirstRefusalPause{20};
constexpr std::chrono::milliseconds kLongestRefusalPause{1000};

std::string offer_of(const std::vector<std::unique_ptr<Connection>>& connections) {
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

}  // namespace

absl::Status no_such_thread(uint32_t destination, uint32_t total) {
  return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                    "there is no thread " + std::to_string(destination) + ": the job has " +
                        std::to_string(total) + " threads, 0 to " + std::to_string(total - 1));
}

absl::Status no_such_rank(uint32_t rank, uint32_t size) {
  return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                    "there is no rank " + std::to_string(rank) + ": the job has " +
                        std::to_string(size) + " processes, 0 to " + std::to_string(size - 1));
}

PeerAction PeerTable::Peer::apply(PeerEvent event) {
  const PeerState before = current.load(std::memory_order_relaxed);
  const PeerStep step = peer_step(before, event);
  if (step.next != before) {
    // Sequentially consistent: see fail().
    current.store(step.next, std::memory_order_seq_cst);
    changed.ring();
  }
  return step.action;
}

PeerTable::PeerTable(const FabricJob& job, Ports& ports, PeerListener& listener)
    : job_(job), ports_(ports), listener_(listener) {
  for (uint32_t rank = 0; rank < job.size(); ++rank) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = rank;
  }
}

absl::Status PeerTable::start_answering(const BrokerMaker& broker_of) {
  auto broker = broker_of(job_.bootstrap(), [this](int rank, std::string_view request) {
    return answer_request(rank, request);
  });
  if (!broker.ok()) return broker.status();
  broker_ = *std::move(broker);
  return absl::OkStatus();
}

void PeerTable::stop_answering() {
  if (broker_ != nullptr) broker_->stop();
  for (auto& peer : peers_) peer->changed.ring();  // see wait_connected()
}

void PeerTable::disconnect() {
  broker_.reset();
  for (auto& peer : peers_) peer->connections.clear();
}

absl::Status PeerTable::status(uint32_t rank) const {
  if (rank >= peers_.size()) return no_such_rank(rank, job_.size());
  const Peer& peer = *peers_[rank];
  if (peer.state() != PeerState::kFailed) return absl::OkStatus();
  const std::lock_guard lock(peer.mutex);
  return peer.failure;
}

// ---- Queue pairs --------------------------------------------------------------------------------

absl::StatusOr<PeerTable::Connections> PeerTable::make_connections(uint32_t rank) {
  Connections connections;
  for (uint32_t i = 0; i < job_.options().queue_pairs; ++i) {
    auto connection = ports_.make_connection(rank);
    if (!connection.ok()) return connection.status();
    const auto stream = [&](uint32_t from, uint32_t to) {
      return (uint64_t{from} << 40) ^ (uint64_t{to} << 16) ^ i;
    };
    (*connection)->set_trace_streams(stream(job_.rank(), rank), stream(rank, job_.rank()));
    connections.push_back(*std::move(connection));
  }
  return connections;
}

absl::Status PeerTable::connect_queue_pairs(Connections& connections, std::string_view offer,
                                            const std::string& label) {
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
      absl::Status connected = connection->connect(theirs, label, job_.options().ack_timeout);
      if (!connected.ok()) return connected;
    }
  } catch (const std::exception& error) {
    return exception_error(
        error, "connecting to " + label,
        make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                   label + " made a malformed offer to connect: " + error.what()));
  }
  return absl::OkStatus();
}

void PeerTable::adopt(Peer& peer, Connections connections) {
  peer.connections = std::move(connections);
  for (const auto& connection : peer.connections) ports_.add(*connection);
}

// ---- The process that offers --------------------------------------------------------------------

absl::StatusOr<Connection*> PeerTable::connect(uint32_t rank, uint32_t index) {
  if (rank >= job_.size() || rank == job_.rank()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "there is no connection to rank " + std::to_string(rank) + " from rank " +
                          std::to_string(job_.rank()) + " in a job of " +
                          std::to_string(job_.size()));
  }
  if (job_.lifecycle().is_closed()) return job_.lifecycle().closed_error();
  Peer& peer = *peers_[rank];
  if (absl::Status connected = connect(peer); !connected.ok()) return connected;
  return peer.connections[job_.queue_pair_of(index)].get();
}

absl::Status PeerTable::wait_connected(Peer& peer, Deadline deadline) {
  DoorbellSleeper sleeper(peer.changed);
  const Lifecycle& lifecycle = job_.lifecycle();
  if (!wait_until([&] { return !is_connecting(peer.state()) || lifecycle.is_closed(); },
                  ScopedConnectDeadline::earlier_of(deadline), &sleeper)) {
    return too_late(peer);
  }
  return is_connecting(peer.state()) ? lifecycle.closed_error() : status(peer.rank);
}

absl::Status PeerTable::too_late(const Peer& peer) const {
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    job_.label(peer.rank) + " did not finish connecting in time");
}

absl::Status PeerTable::connect(Peer& peer) {
  const Deadline deadline = deadline_after(job_.options().timeout);
  std::chrono::milliseconds pause = kFirstRefusalPause;
  while (true) {
    PeerAction action;
    {
      const std::lock_guard lock(peer.mutex);
      action = peer.apply(PeerEvent::kConnect);
      if (action == PeerAction::kReportFailure) return peer.failure;
    }
    if (action == PeerAction::kNone) return absl::OkStatus();
    if (action == PeerAction::kOffer) {
      const absl::StatusOr<bool> connected = offer(peer, deadline);
      if (!connected.ok()) return connected.status();
      if (*connected) return absl::OkStatus();
      absl::Status waited = await_peers_offer(peer, std::min(deadline, deadline_after(pause)));
      if (!waited.ok()) return waited;
      pause = std::min(2 * pause, kLongestRefusalPause);
      if (std::chrono::steady_clock::now() >= ScopedConnectDeadline::earlier_of(deadline)) {
        return too_late(peer);
      }
    } else if (absl::Status waited = wait_connected(peer, deadline); !waited.ok()) {
      return waited;
    }
  }
}

// The peer has refused the own offer, since it makes one itself. Usually that offer comes at once.
// It may also fail, so the own offer then ends, and may be repeated.
absl::Status PeerTable::await_peers_offer(Peer& peer, Deadline deadline) {
  DoorbellSleeper sleeper(peer.changed);
  const Lifecycle& lifecycle = job_.lifecycle();
  static_cast<void>(
      wait_until([&] { return peer.state() != PeerState::kOffering || lifecycle.is_closed(); },
                 ScopedConnectDeadline::earlier_of(deadline), &sleeper));
  {
    const std::lock_guard lock(peer.mutex);
    static_cast<void>(peer.apply(PeerEvent::kOfferFailed));
  }
  return lifecycle.is_closed() ? lifecycle.closed_error() : absl::OkStatus();
}

absl::StatusOr<bool> PeerTable::offer(Peer& peer, Deadline deadline) {
  // A process that does not answer within its lease is stopped.
  const std::chrono::milliseconds lease = job_.options().lease;
  const Deadline end_of_lease = lease.count() == 0 ? deadline : deadline_after(lease);
  // The attempt lasts as long as the lease, also if the operation has an earlier deadline.
  // Otherwise a stopped process would never be considered failed if all operations had earlier
  // deadlines.
  std::optional<ScopedConnectDeadline> whole_lease;
  if (lease.count() != 0) whole_lease.emplace(ScopedConnectDeadline::Lift());
  const auto give_up = [&](absl::Status why) {
    if (lease.count() != 0 && absl::IsDeadlineExceeded(why) && end_of_lease <= deadline) {
      why = lease_ended(job_.label(peer.rank), lease);
    }
    if (absl::IsUnavailable(why)) {
      fail(peer.rank, why);
    } else {
      const std::lock_guard lock(peer.mutex);
      static_cast<void>(peer.apply(PeerEvent::kOfferFailed));
    }
    return why;
  };
  const TraceScope trace("dsfabric", "connect", "rank", peer.rank);
  auto connections = make_connections(peer.rank);
  if (!connections.ok()) return give_up(connections.status());
  auto answer = broker_->request(static_cast<int>(peer.rank), offer_of(*connections),
                                 std::min(deadline, end_of_lease));
  if (!answer.ok()) return give_up(answer.status());
  // Refused: the peer has offered, too, and its offer counts.
  if (answer->empty()) return false;
  absl::Status accepted;
  {
    const std::lock_guard lock(peer.mutex);
    const PeerAction action = peer.apply(PeerEvent::kAnswer);
    if (action == PeerAction::kReportFailure) return peer.failure;
    accepted = action == PeerAction::kConnectQueuePairs
                   ? connect_queue_pairs(*connections, *answer, job_.label(peer.rank))
                   : make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                                job_.label(peer.rank) + " answered an offer that does not count");
    if (accepted.ok()) {
      adopt(peer, *std::move(connections));
      static_cast<void>(peer.apply(PeerEvent::kAnswerAccepted));
    }
  }
  if (accepted.ok()) {
    absl::Status confirmed = confirm(peer, deadline);
    if (!confirmed.ok()) return confirmed;
    return true;
  }
  // The peer has created queue pairs that wait for the queue pairs of this attempt, so the attempt
  // cannot be repeated.
  fail(peer.rank, accepted);
  return accepted;
}

absl::Status PeerTable::confirm(Peer& peer, Deadline deadline) {
  auto ready = broker_->request(static_cast<int>(peer.rank), std::string(1, kReady), deadline);
  if (!ready.ok()) {
    // The peer has queue pairs that are connected to those of this attempt, so the attempt cannot
    // be repeated.
    fail(peer.rank, ready.status());
    return ready.status();
  }
  PeerAction action;
  {
    const std::lock_guard lock(peer.mutex);
    action = peer.apply(PeerEvent::kConfirmed);
  }
  if (action == PeerAction::kSendDeathNotices) send_death_notices(peer.rank);
  return status(peer.rank);
}

// ---- The process that answers -------------------------------------------------------------------

absl::StatusOr<std::string> PeerTable::answer_request(int from, std::string_view request) {
  const auto rank = static_cast<uint32_t>(from);
  if (from < 0 || rank >= job_.size() || rank == job_.rank() || request.empty()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "a malformed request to connect");
  }
  Peer& peer = *peers_[rank];
  if (request[0] != kReady) return answer_offer(peer, request);
  if (absl::Status received = receive_ready(peer); !received.ok()) return received;
  return std::string(1, kReady);
}

absl::Status PeerTable::receive_ready(Peer& peer) {
  {
    const std::lock_guard lock(peer.mutex);
    const PeerAction action = peer.apply(PeerEvent::kReady);
    if (action == PeerAction::kReportFailure) return peer.failure;
    if (action == PeerAction::kReject) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                        job_.label(peer.rank) + " confirmed a connection that does not exist");
    }
  }
  send_death_notices(peer.rank);
  return absl::OkStatus();
}

absl::StatusOr<std::string> PeerTable::answer_offer(Peer& peer, std::string_view offer) {
  const std::lock_guard lock(peer.mutex);
  const PeerAction action = peer.apply(peer.rank < job_.rank() ? PeerEvent::kOfferFromLower
                                                               : PeerEvent::kOfferFromHigher);
  if (action == PeerAction::kReportFailure) return peer.failure;
  if (action == PeerAction::kRefuseOffer) return std::string();
  const TraceScope trace("dsfabric", "accept connection", "rank", peer.rank);
  auto connections = make_connections(peer.rank);
  if (!connections.ok()) return connections.status();
  absl::Status accepted = connect_queue_pairs(*connections, offer, job_.label(peer.rank));
  if (!accepted.ok()) return accepted;
  std::string answer = offer_of(*connections);
  adopt(peer, *std::move(connections));
  static_cast<void>(peer.apply(PeerEvent::kOfferAccepted));
  return answer;
}

}  // namespace cariama::internal
