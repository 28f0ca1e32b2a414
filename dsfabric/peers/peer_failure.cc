#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dsfabric/bootstrap/launch_variables.h"
#include "dsfabric/peers/peer_table.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama::internal {
namespace {

// The time that a process that exits because of a failed peer waits for the store's report of the
// peer's end. A peer that writes a core file ends later than that.
constexpr std::chrono::milliseconds kReportPatience{300};
constexpr std::chrono::milliseconds kReportPause{2};

// The error of operations to a process that has ended, as its launcher reports. A store (PMIx,
// environment) sees the end of a connection only: it knows neither signal nor exit code.
absl::Status end_of(const std::string& label, const std::string& how) {
  const bool unknown = how == "has ended or left the job";
  if (!unknown && how != "has ended") {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer, label + " " + how,
                      peer_remedy(PeerRemedy::kEnded));
  }
  std::string remedy(peer_remedy(PeerRemedy::kLeft));
  if (unknown) {
    remedy = std::string(peer_remedy(PeerRemedy::kEnded)) + "; if there is none, " + remedy;
  }
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    label + " " + how + " without finalize()", remedy);
}

}  // namespace

void PeerTable::fail(uint32_t rank, const absl::Status& reason) {
  if (job_.lifecycle().is_closed()) return;
  Peer& peer = this->peer(rank);
  // Callers get UNAVAILABLE for every error, because the peer cannot be reached any more.
  absl::Status failure =
      absl::IsUnavailable(reason) ? reason : error_or_code(absl::StatusCode::kUnavailable, [&] {
        return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                          "the connection to " + job_.label(rank) +
                              " has failed: " + std::string(reason.message()));
      });
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.apply(PeerEvent::kFailure) != PeerAction::kSpreadFailure) return;
    peer.failure = std::move(failure);
  }
  spread_failure(peer);
}

void PeerTable::spread_failure(Peer& peer) {
  const uint32_t rank = peer.rank;
  try {
    if (job_.options().lease.count() != 0) {
      static_cast<void>(job_.bootstrap().put(kGivenUpKey + std::to_string(rank), ""));
    }
    if (job_.options().on_failure == FailurePolicy::kAbort) exit_because_of(peer);
    for (const auto& connection : peer.connections) {
      ports_.drop_deferred(*connection);
      // The process may still live and continue. It must then not reach this process's memory,
      // which may have another use from now on.
      connection->cut();
    }
    listener_.peer_failed(rank, peer.failure);
    // This loop comes after the store of the peer's state; both are sequentially consistent.
    // send_death_notices() accesses them in the opposite order (it runs after its peer's state
    // became kConnected). So a process that connects meanwhile gets the notice from this loop or
    // from send_death_notices().
    // A record that this loop does not see counts as its initial state (per_peer.h).
    peers_.for_each([&](uint32_t to, const Peer& other) {
      if (other.current.load(std::memory_order_seq_cst) == PeerState::kConnected) {
        send_death_notice(rank, to);
      }
    });
  } catch (...) {  // no memory, or a coroutine; handle_failures() does all of it again
    peer.must_spread.store(true, std::memory_order_release);
    any_must_spread_.store(true, std::memory_order_release);
    throw;
  }
}

void PeerTable::exit_because_of(const Peer& peer) {
  // The launcher reports the process that failed first, not those that exit because of it.
  static_cast<void>(job_.bootstrap().put(kFailedPeerKey, std::to_string(peer.rank)));
  const std::optional<std::string> end = reported_end(peer);
  const absl::Status why = end ? end_of(job_.label(peer.rank), *end) : peer.failure;
  std::fprintf(stderr, "cariama: rank %u exits, because %s has failed: %s\n", job_.rank(),
               job_.label(peer.rank).c_str(), std::string(why.message()).c_str());
  std::fflush(nullptr);
  _exit(1);
}

// ---- The store's reports ------------------------------------------------------------------------

// A launcher knows the end of each of its processes, also of a process to which no other process is
// connected.
void PeerTable::handle_ended() {
  if (ended_.empty()) ended_ = job_.bootstrap().take_ended();
  // A report is removed when it has been handled: without memory the next heartbeat handles it.
  for (; !ended_.empty(); ended_.erase(ended_.begin())) {
    const Exchange::Ended& ended = ended_.front();
    const auto rank = static_cast<uint32_t>(ended.rank);
    if (rank >= job_.size() || rank == job_.rank()) continue;
    Peer& peer = this->peer(rank);
    const absl::Status how = error_or_code(absl::StatusCode::kUnavailable,
                                           [&] { return end_of(job_.label(rank), ended.how); });
    {
      const std::lock_guard lock(peer.mutex);
      peer.reported_end = ended.how;
    }
    fail(rank, how);
  }
}

void PeerTable::handle_failures() {
  if (handling_.exchange(true, std::memory_order_acquire)) return;
  const struct Done {
    ~Done() { handling.store(false, std::memory_order_release); }
    std::atomic<bool>& handling;
  } done{handling_};
  if (any_must_spread_.exchange(false, std::memory_order_acquire)) {
    peers_.for_each([&](uint32_t, Peer& peer) {
      if (!peer.must_spread.exchange(false, std::memory_order_acquire)) return;
      try {
        spread_failure(peer);
      } catch (const std::bad_alloc&) {  // is marked again; the others may find memory
      }
    });
  }
  handle_ended();
}

std::optional<std::string> PeerTable::reported_end(const Peer& peer) {
  const Deadline deadline = deadline_after(kReportPatience);
  do {
    {
      const std::lock_guard lock(peer.mutex);
      if (!peer.reported_end.empty()) return peer.reported_end;
    }
    for (Exchange::Ended& ended : job_.bootstrap().take_ended()) {
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
void PeerTable::send_death_notices(uint32_t to) {
  peers_.for_each([&](uint32_t dead, const Peer& peer) {
    if (peer.current.load(std::memory_order_seq_cst) == PeerState::kFailed) {
      send_death_notice(dead, to);
    }
  });
}

void PeerTable::send_death_notice(uint32_t dead, uint32_t to) {
  if (dead != to && !job_.lifecycle().is_closed()) listener_.send_death_notice(dead, to);
}

void PeerTable::receive_death_notice(uint32_t dead, uint32_t from) {
  if (dead >= job_.size() || dead == job_.rank() || dead == from) return;
  const Peer* const peer = peers_.find(dead);
  if (peer == nullptr || peer->state() != PeerState::kConnected) {
    return fail(dead,
                make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                           job_.label(dead) + " has failed, as reported by " + job_.label(from),
                           peer_remedy(PeerRemedy::kEnded)));
  }
  // This process checks for itself: perhaps only the link between `dead` and `from` has failed.
  for (const auto& connection : peer->connections) connection->probe();
}

}  // namespace cariama::internal
