#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/peers/connect_wire.h"
#include "dsfabric/peers/peer_table.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

using Request = ConnectRequest::Kind;

// The answers to a question.
constexpr std::string_view kCounts = "counts";
constexpr std::string_view kEnded = "ended";
// The answer to "ready".
constexpr std::string_view kConfirmed = "R";

// How long a process whose offer was refused waits for the peer's offer before it repeats its own.
// Doubles with each refusal. An offer creates queue pairs. A process that has answered asks after
// the same times whether the attempt still counts.
constexpr std::chrono::milliseconds kFirstRefusalPause{20};
constexpr std::chrono::milliseconds kLongestRefusalPause{1000};

// Returns an offer, or the answer to the offer with this number.
std::string offer_of(uint64_t attempt, const std::vector<Ports::OwnedConnection>& connections) {
  ConnectRequest request{.kind = Request::kOffer, .attempt = attempt};
  for (const auto& connection : connections) request.connections.push_back(connection->offer());
  return encode(request);
}

// The time in which a process has to answer a request: until `deadline`, or until its
// FabricOptions::lease has ended. A process that does not answer within its lease is stopped.
class AnswerTime {
 public:
  AnswerTime(Deadline deadline, std::chrono::milliseconds lease)
      : lease_(lease),
        end_of_lease_(lease.count() == 0 ? kForever : deadline_after(lease)),
        end_(std::min(deadline, end_of_lease_)) {}
  [[nodiscard]] Deadline end() const { return end_; }
  // Returns the error of a request that failed because of `why`.
  [[nodiscard]] absl::Status error(absl::Status why, const std::string& label) const {
    const bool ended = absl::IsDeadlineExceeded(why) && end_ == end_of_lease_ &&
                       std::chrono::steady_clock::now() >= end_of_lease_;
    return ended ? lease_ended(label, lease_) : std::move(why);
  }

 private:
  const std::chrono::milliseconds lease_;
  const Deadline end_of_lease_;
  const Deadline end_;
};

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
    : job_(job), ports_(ports), listener_(listener), peers_(job.size()) {}

absl::Status PeerTable::start_answering(const BrokerMaker& broker_of) {
  const std::lock_guard creating(creating_broker_);
  auto broker = broker_of(job_.bootstrap(), [this](int rank, std::string_view request) {
    // A peer that is connected may send a call, and the call may need the broker.
    { const std::lock_guard created(creating_broker_); }
    return answer_request(rank, request);
  });
  if (!broker.ok()) return broker.status();
  broker_ = *std::move(broker);
  return absl::OkStatus();
}

void PeerTable::stop_answering() {
  if (broker_ != nullptr) broker_->stop();
  // See wait_connected(). A thread whose record this loop does not see, sees the closed fabric.
  peers_.for_each([](uint32_t, Peer& peer) { peer.changed.ring(); });
}

void PeerTable::disconnect() {
  broker_.reset();
  peers_.for_each([](uint32_t, Peer& peer) {
    peer.connections.clear();
    peer.abandoned.clear();
  });
}

absl::Status PeerTable::status(uint32_t rank) const {
  if (rank >= peers_.size()) return no_such_rank(rank, job_.size());
  const Peer* const peer = peers_.find(rank);
  if (peer == nullptr || peer->state() != PeerState::kFailed) return absl::OkStatus();
  const std::lock_guard lock(peer->mutex);
  return peer->failure;
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

absl::Status PeerTable::connect_queue_pairs(Connections& connections, const ConnectRequest& offer,
                                            const std::string& label) {
  if (offer.kind != Request::kOffer || offer.connections.size() != connections.size()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      label + " does not offer the same number of queue pairs");
  }
  try {
    for (size_t i = 0; i < connections.size(); ++i) {
      absl::Status connected =
          connections[i]->connect(offer.connections[i], label, job_.options().ack_timeout);
      if (!connected.ok()) return connected;
    }
  } catch (const std::exception& error) {
    return exception_error(error, "connecting to " + label,
                           make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                                      "connecting to " + label + " failed: " + error.what()));
  }
  return absl::OkStatus();
}

void PeerTable::abandon_attempt(Peer& peer) {
  for (auto& connection : peer.connections) {
    connection->abandon();
    peer.abandoned.push_back(std::move(connection));
  }
  peer.connections.clear();
}

void PeerTable::adopt(Peer& peer, Connections connections) {
  abandon_attempt(peer);  // an attempt of the peer that this process has answered, if any
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
  Peer& peer = this->peer(rank);
  if (absl::Status connected = connect(peer); !connected.ok()) return connected;
  return peer.connections[job_.queue_pair_of(index)].get();
}

absl::Status PeerTable::wait_connected(Peer& peer, Deadline deadline, Deadline pause) {
  DoorbellSleeper sleeper(peer.changed);
  const Lifecycle& lifecycle = job_.lifecycle();
  deadline = ScopedConnectDeadline::earlier_of(deadline);
  if (!wait_until([&] { return !is_connecting(peer.state()) || lifecycle.is_closed(); },
                  std::min(deadline, pause), &sleeper)) {
    return pause < deadline ? absl::OkStatus() : too_late(peer);
  }
  return is_connecting(peer.state()) ? lifecycle.closed_error() : status(peer.rank);
}

absl::Status PeerTable::too_late(const Peer& peer) const {
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    job_.label(peer.rank) + " did not finish connecting in time",
                    peer_remedy(PeerRemedy::kSilent));
}

// The scope of an offer that this process makes, until it has connected the peer or has ended.
class PeerTable::OfferScope {
 public:
  explicit OfferScope(Peer& peer) : peer_(peer) {}
  ~OfferScope() {
    const std::lock_guard lock(peer_.mutex);
    peer_.offering = false;
  }
  OfferScope(const OfferScope&) = delete;
  OfferScope& operator=(const OfferScope&) = delete;

 private:
  Peer& peer_;
};

absl::Status PeerTable::connect(Peer& peer) {
  const Deadline deadline = deadline_after(job_.options().timeout);
  std::chrono::milliseconds pause = kFirstRefusalPause;
  while (true) {
    PeerAction action;
    {
      const std::lock_guard lock(peer.mutex);
      action = peer.apply(PeerEvent::kConnect);
      if (action == PeerAction::kReportFailure) return peer.failure;
      if (action == PeerAction::kOffer) peer.offering = true;
    }
    if (action == PeerAction::kNone) return absl::OkStatus();
    if (action == PeerAction::kOffer) {
      const OfferScope scope(peer);
      const absl::StatusOr<bool> connected = offer(peer, deadline);
      if (!connected.ok()) return connected.status();
      if (*connected) return absl::OkStatus();
      absl::Status waited = await_peers_offer(peer, std::min(deadline, deadline_after(pause)));
      if (!waited.ok()) return waited;
      pause = std::min(2 * pause, kLongestRefusalPause);
      if (std::chrono::steady_clock::now() >= ScopedConnectDeadline::earlier_of(deadline)) {
        return too_late(peer);
      }
    } else {
      absl::Status waited = wait_connected(peer, deadline, deadline_after(pause));
      if (!waited.ok()) return waited;
      if (peer.state() != PeerState::kAnswered) continue;
      ask_for_attempt(peer, deadline);
      pause = std::min(2 * pause, kLongestRefusalPause);
    }
  }
}

void PeerTable::ask_for_attempt(Peer& peer, Deadline deadline) {
  uint64_t attempt = 0;
  {
    const std::lock_guard lock(peer.mutex);
    attempt = peer.answered;
  }
  // A peer that cannot be reached is asked again, until the deadline of connect().
  auto answer = broker_->request(
      static_cast<int>(peer.rank), encode({.kind = Request::kQuestion, .attempt = attempt}),
      AnswerTime(ScopedConnectDeadline::earlier_of(deadline), job_.options().lease).end());
  if (!answer.ok() || *answer != kEnded) return;
  const std::lock_guard lock(peer.mutex);
  // If an offer of this process is in flight, its result determines the next state.
  if (peer.state() != PeerState::kAnswered || peer.answered != attempt || peer.offering) return;
  abandon_attempt(peer);
  static_cast<void>(peer.apply(PeerEvent::kAttemptEnded));
}

// Waits for the offer of a peer that has refused this process's offer because the peer makes one
// itself. The peer's offer usually arrives at once. If the peer's offer fails, this process's offer
// ends, and may be repeated.
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
  const AnswerTime time(deadline, job_.options().lease);
  // The attempt lasts as long as the lease, also if the operation has an earlier deadline.
  // Otherwise a stopped process would never be considered failed if all operations had earlier
  // deadlines.
  std::optional<ScopedConnectDeadline> whole_lease;
  if (job_.options().lease.count() != 0) whole_lease.emplace(ScopedConnectDeadline::Lift());
  const auto give_up = [&](absl::Status why) {
    why = time.error(std::move(why), job_.label(peer.rank));
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
  uint64_t attempt = 0;
  {
    const std::lock_guard lock(peer.mutex);
    attempt = ++peer.attempt;
  }
  auto answer =
      broker_->request(static_cast<int>(peer.rank), offer_of(attempt, *connections), time.end());
  if (!answer.ok()) {
    const absl::Status& refusal = answer.status();
    // Only the peer's answer has this scope.
    const bool lacks =
        absl::IsResourceExhausted(refusal) && error_scope(refusal) == ErrorScope::kPeer;
    return give_up(lacks ? make_error(refusal.code(), ErrorScope::kPeer,
                                      job_.label(peer.rank) + " cannot connect to this process: " +
                                          std::string(refusal.message()))
                         : refusal);
  }
  // Refused: the peer has offered, too, and its offer counts.
  if (answer->empty()) return false;
  const absl::StatusOr<ConnectRequest> theirs =
      decode_connect_request(*answer, job_.label(peer.rank));
  const auto check_counts = [&] {
    const PeerAction action = peer.apply(PeerEvent::kAnswer);
    if (action == PeerAction::kReportFailure) return peer.failure;
    if (action == PeerAction::kConnectQueuePairs) return absl::OkStatus();
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      job_.label(peer.rank) + " answered an offer that does not count");
  };
  absl::Status accepted;
  {
    const std::lock_guard lock(peer.mutex);
    accepted = check_counts();
  }
  if (accepted.ok()) accepted = theirs.status();
  // Not under the mutex: the peer may be stopped, and a service thread locks the mutex to record
  // that. A service thread that waits gives the other processes no sign of life.
  if (accepted.ok()) {
    accepted = connect_queue_pairs(*connections, *theirs, job_.label(peer.rank));
  }
  {
    const std::lock_guard lock(peer.mutex);
    if (absl::Status counts = check_counts(); !counts.ok()) accepted = counts;
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
  // The peer was stopped after it had answered, or one of the two lacks descriptors or memory. The
  // peer abandons the attempt at the next offer.
  if (absl::IsDeadlineExceeded(accepted) || absl::IsResourceExhausted(accepted)) {
    return give_up(accepted);
  }
  fail(peer.rank, accepted);
  return accepted;
}

absl::Status PeerTable::confirm(Peer& peer, Deadline deadline) {
  const TraceScope trace("dsfabric", "confirm connection", "rank", peer.rank);
  uint64_t attempt = 0;
  {
    const std::lock_guard lock(peer.mutex);
    attempt = peer.attempt;
  }
  const AnswerTime time(deadline, job_.options().lease);
  auto ready = broker_->request(static_cast<int>(peer.rank),
                                encode({.kind = Request::kReady, .attempt = attempt}), time.end());
  if (!ready.ok()) {
    // The peer has queue pairs that are connected to those of this attempt, so the attempt cannot
    // be repeated.
    const absl::Status why = time.error(ready.status(), job_.label(peer.rank));
    fail(peer.rank, why);
    return why;
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

absl::StatusOr<std::string> PeerTable::answer_request(int from, std::string_view bytes) {
  const auto rank = static_cast<uint32_t>(from);
  if (from < 0 || rank >= job_.size() || rank == job_.rank()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "a request to connect from a rank that is not in this job, or from this one");
  }
  const absl::StatusOr<ConnectRequest> request = decode_connect_request(bytes, job_.label(rank));
  if (!request.ok()) return request.status();
  Peer& peer = this->peer(rank);
  switch (request->kind) {
    case Request::kOffer:
      return answer_offer(peer, *request);
    case Request::kQuestion:
      return answer_question(peer, request->attempt);
    case Request::kReady:
      break;
  }
  if (absl::Status received = receive_ready(peer, request->attempt); !received.ok()) {
    return received;
  }
  return std::string(kConfirmed);
}

// Returns that the attempt counts unless it is certain that no thread of this process continues it.
absl::StatusOr<std::string> PeerTable::answer_question(Peer& peer, uint64_t attempt) {
  const std::lock_guard lock(peer.mutex);
  const PeerState state = peer.state();
  if (state == PeerState::kFailed) return peer.failure;
  const bool continued =
      peer.offering || (state != PeerState::kUnconnected && state != PeerState::kAnswered);
  const bool ended = attempt != peer.attempt || !continued;
  return std::string(ended ? kEnded : kCounts);
}

absl::Status PeerTable::receive_ready(Peer& peer, uint64_t attempt) {
  trace_instant("dsfabric", "connection confirmed", "rank", peer.rank);
  {
    const std::lock_guard lock(peer.mutex);
    const bool counts = peer.state() != PeerState::kAnswered || attempt == peer.answered;
    const PeerAction action = counts ? peer.apply(PeerEvent::kReady) : PeerAction::kReject;
    if (action == PeerAction::kReportFailure) return peer.failure;
    if (action == PeerAction::kReject) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                        job_.label(peer.rank) + " confirmed a connection that does not exist");
    }
  }
  send_death_notices(peer.rank);
  return absl::OkStatus();
}

absl::StatusOr<std::string> PeerTable::answer_offer(Peer& peer, const ConnectRequest& offer) {
  const uint64_t attempt = offer.attempt;
  const auto counts = [&]() -> absl::StatusOr<bool> {
    PeerEvent event =
        peer.rank < job_.rank() ? PeerEvent::kOfferFromLower : PeerEvent::kOfferFromHigher;
    if (peer.state() == PeerState::kAnswered && attempt > peer.answered) {
      event = PeerEvent::kNewerOffer;
    }
    const PeerAction action = peer.apply(event);
    if (action == PeerAction::kReportFailure) return peer.failure;
    // A number that is not new: a newer offer has overtaken this one.
    return action != PeerAction::kRefuseOffer && attempt > peer.answered;
  };
  {
    const std::lock_guard lock(peer.mutex);
    const absl::StatusOr<bool> accepts = counts();
    if (!accepts.ok()) return accepts.status();
    if (!*accepts) return std::string();
  }
  const TraceScope trace("dsfabric", "accept connection", "rank", peer.rank);
  auto connections = make_connections(peer.rank);
  if (!connections.ok()) return connections.status();
  // Not under the mutex, as in offer().
  absl::Status accepted = connect_queue_pairs(*connections, offer, job_.label(peer.rank));
  if (!accepted.ok()) return accepted;
  const std::lock_guard lock(peer.mutex);
  const absl::StatusOr<bool> accepts = counts();
  if (!accepts.ok()) return accepts.status();
  if (!*accepts) return std::string();
  std::string answer = offer_of(attempt, *connections);
  adopt(peer, *std::move(connections));
  peer.answered = attempt;
  static_cast<void>(peer.apply(PeerEvent::kOfferAccepted));
  return answer;
}

}  // namespace cariama::internal
