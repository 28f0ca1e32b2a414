// The peers of a process: connections on first use, their failure, and the spread of a failure to
// all processes of the job.
//
//   peer_connect.cc  connecting: offers, answers, confirmations
//   peer_failure.cc  failing: the store's reports, death notices, the exit of this process
//
// Memory: a record of 0.3 KB for each process that this process has used or considers failed, and
// the terms of PerPeer; its connections (connection.h).
#ifndef CARIAMA_DSFABRIC_PEERS_PEER_TABLE_H_
#define CARIAMA_DSFABRIC_PEERS_PEER_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/internal/per_peer.h"
#include "dsfabric/peers/broker.h"
#include "dsfabric/peers/connect_wire.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/peer_state.h"
#include "dsfabric/peers/ports.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Return the error for a destination that does not exist. `total`: threads of the job; `size`: its
// processes.
[[nodiscard]] absl::Status no_such_thread(uint32_t destination, uint32_t total);
[[nodiscard]] absl::Status no_such_rank(uint32_t rank, uint32_t size);

// The interface by which the peer table uses the parts above it. Called without a lock.
class PeerListener {
 public:
  // Called for each peer that is considered failed, again after std::bad_alloc. The listener ends
  // all operations that wait for the peer. Must not block.
  virtual void peer_failed(uint32_t rank, const absl::Status& failure) = 0;
  // Sends a call to the connected process `to` that calls PeerTable::receive_death_notice(). Must
  // not block. If the call cannot be sent, `to` has failed too.
  virtual void send_death_notice(uint32_t dead, uint32_t to) = 0;

 protected:
  ~PeerListener() = default;
};

// Thread-safe. Only the functions that say so block. Lock order: the mutex of a peer comes before
// those of ports, allocators and connections, which are taken while queue pairs are created. No
// thread holds the mutexes of two peers.
class PeerTable {
 public:
  // `job`, `ports` and `listener` must outlive this object.
  PeerTable(const FabricJob& job, Ports& ports, PeerListener& listener);
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  // Creates the broker, which answers the offers of peers from now on.
  [[nodiscard]] absl::Status start_answering(const BrokerMaker& broker_of);
  // Blocks until the handler of a request has returned. Ends the connection attempts of threads of
  // this process, which may use the table until disconnect(). Requires: the fabric is closed.
  void stop_answering();
  // Destroys the broker and all queue pairs. Requires: no thread uses the table or the ports any
  // more.
  void disconnect();

  // Returns the connection that worker `index` uses to `rank`, and makes it if necessary. Blocks
  // while it connects. Errors: UNAVAILABLE, INVALID_ARGUMENT (no such rank, or this process).
  [[nodiscard]] absl::StatusOr<Connection*> connection(uint32_t rank, uint32_t index) {
    if (rank < peers_.size()) [[likely]] {
      const Peer* const peer = peers_.find(rank);
      if (peer != nullptr && peer->state() == PeerState::kConnected) [[likely]] {
        return peer->connections[job_.queue_pair_of(index)].get();
      }
    }
    return connect(rank, index);
  }
  // Returns the first connection to `rank`, or nullptr if it is not connected.
  [[nodiscard]] Connection* connected(uint32_t rank) const {
    const Peer* const peer = peers_.find(rank);
    const bool connected = peer != nullptr && peer->state() == PeerState::kConnected;
    return connected ? peer->connections.front().get() : nullptr;
  }
  // Calls `function(rank, connection)` for the first connection to each connected process.
  template <typename Function>
  void for_each_connected(Function&& function) const {
    peers_.for_each([&](uint32_t rank, const Peer& peer) {
      if (peer.state() == PeerState::kConnected) function(rank, *peer.connections.front());
    });
  }
  [[nodiscard]] bool is_failed(uint32_t rank) const {
    const Peer* const peer = peers_.find(rank);
    return peer != nullptr && peer->state() == PeerState::kFailed;
  }
  // Returns the number of processes of which this object has a record.
  [[nodiscard]] uint32_t records() const { return peers_.count(); }
  // Returns OK, or the reason why `rank` is considered failed. OUT_OF_RANGE: no such rank.
  [[nodiscard]] absl::Status status(uint32_t rank) const;

  // Records that `rank` is considered failed from now on, because of `reason`. Ignored if the
  // fabric is closed. Does not return if FabricOptions::on_failure is kAbort: prints the reason and
  // exits. After std::bad_alloc the peer is considered failed if it has a record, and
  // handle_failures() does the rest.
  void fail(uint32_t rank, const absl::Status& reason);
  // Handles the ends of processes that the store has reported, and continues what fail() could not
  // do for want of memory. Called at each heartbeat. Does nothing while another call of it runs.
  void handle_failures();
  // Handles a notice of process `from` that process `dead` has failed.
  void receive_death_notice(uint32_t dead, uint32_t from);

 private:
  using Connections = std::vector<Ports::OwnedConnection>;

  struct Peer {
    explicit Peer(uint32_t rank) : rank(rank) {}
    [[nodiscard]] PeerState state() const { return current.load(std::memory_order_acquire); }
    // Makes the transition for `event`, and wakes the threads that wait for a change of the state.
    // Only this function changes the state. Requires: the caller holds `mutex`, and carries out the
    // returned action.
    PeerAction apply(PeerEvent event);

    const uint32_t rank;
    mutable std::mutex mutex;
    Doorbell changed;      // rung when the state changes
    absl::Status failure;  // guarded by mutex; set once, in the transition to kFailed
    // fail() has found no memory to tell the listener and the other processes.
    std::atomic<bool> must_spread{false};
    std::string reported_end;  // guarded by mutex; the store's report, completes "LABEL ..."
    // Set in the transition to kConfirming or kAnswered. Constant in kConnected.
    Connections connections;
    // Connections of abandoned attempts. The ports and their completions refer to them until the
    // ports have stopped.
    Connections abandoned;
    uint64_t attempt = 0;   // guarded by mutex; number of the latest own offer
    bool offering = false;  // guarded by mutex; a thread makes an offer, or continues it
    uint64_t answered = 0;  // guarded by mutex; number of the peer's offer that was answered last
    std::atomic<PeerState> current{PeerState::kUnconnected};  // changed by apply()
  };

  class OfferScope;

  // Creates the record of the peer on first use.
  [[nodiscard]] Peer& peer(uint32_t rank) { return peers_.get(rank, rank); }

  // Connecting.
  [[nodiscard]] absl::StatusOr<Connection*> connect(uint32_t rank, uint32_t index);
  [[nodiscard]] absl::Status connect(Peer& peer);
  // Returns false if the peer has refused the offer.
  [[nodiscard]] absl::StatusOr<bool> offer(Peer& peer, Deadline deadline);
  [[nodiscard]] absl::Status await_peers_offer(Peer& peer, Deadline deadline);
  [[nodiscard]] absl::Status confirm(Peer& peer, Deadline deadline);
  // Waits until the state leaves the connecting states, at most until `pause` ends. Error: the
  // deadline, the failure of the peer, the end of the fabric.
  [[nodiscard]] absl::Status wait_connected(Peer& peer, Deadline deadline, Deadline pause);
  // Asks the peer whether its attempt that this process has answered still counts, and abandons the
  // attempt if not. Blocks until the peer answers.
  void ask_for_attempt(Peer& peer, Deadline deadline);
  [[nodiscard]] absl::Status too_late(const Peer& peer) const;
  [[nodiscard]] absl::StatusOr<std::string> answer_request(int rank, std::string_view bytes);
  [[nodiscard]] absl::StatusOr<std::string> answer_offer(Peer& peer, const ConnectRequest& offer);
  [[nodiscard]] absl::Status receive_ready(Peer& peer, uint64_t attempt);
  [[nodiscard]] absl::StatusOr<std::string> answer_question(Peer& peer, uint64_t attempt);
  [[nodiscard]] absl::StatusOr<Connections> make_connections(uint32_t rank);
  [[nodiscard]] absl::Status connect_queue_pairs(Connections& connections,
                                                 const ConnectRequest& offer,
                                                 const std::string& label);
  // Requires: the caller holds peer.mutex.
  void adopt(Peer& peer, Connections connections);
  void abandon_attempt(Peer& peer);

  // Failing.
  void handle_ended();
  // Ends the operations to the failed peer, and sends the death notices. May be repeated.
  void spread_failure(Peer& peer);
  [[noreturn]] void exit_because_of(const Peer& peer);
  // Returns the store's report of the peer's end, if it comes within a short time. Blocks.
  [[nodiscard]] std::optional<std::string> reported_end(const Peer& peer);
  // Sends a death notice for each failed process to the connected process `to`, which forwards it.
  void send_death_notices(uint32_t to);
  void send_death_notice(uint32_t dead, uint32_t to);

  const FabricJob& job_;
  Ports& ports_;
  PeerListener& listener_;
  PerPeer<Peer> peers_;  // a process without a record is unconnected
  std::atomic<bool> any_must_spread_{false};
  std::atomic<bool> handling_{false};   // a thread is inside handle_failures()
  std::vector<Exchange::Ended> ended_;  // of handle_failures(): reports not handled yet
  std::mutex creating_broker_;          // locked until broker_ is set: its thread may run before
  std::unique_ptr<Broker> broker_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_PEER_TABLE_H_
