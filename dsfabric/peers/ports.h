// The ports of a fabric. A port is a device, the objects that all connections through the device
// share, and a service thread. A port receives messages, sends deferred messages and credits that
// are due, and detects failed connections.
//
// Two kinds of threads poll a port, one at a time: its service thread, and every thread that waits
// or polls for calls while it is awake (receive()). While the latter poll, the service thread
// pauses.
//
// Memory: the receive units of all connections together have the limit that receive_units.h states.
// The completion queue of a port has room for P * queue_pairs * receive_units completions in a job
// of P processes. A card uses 64 bytes for each; shm and sim use memory as completions need it.
#ifndef CARIAMA_DSFABRIC_PEERS_PORTS_H_
#define CARIAMA_DSFABRIC_PEERS_PORTS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/fabric_statistics.h"
#include "dsfabric/peers/byte_budget.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/peers/receive_units.h"
#include "dtutils/completion.h"
#include "dtutils/device.h"
#include "dtutils/statistics.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Returns the error of operations to a process whose FabricOptions::lease has ended.
[[nodiscard]] absl::Status lease_ended(const std::string& label, std::chrono::milliseconds lease);

// The interface by which the ports use the parts above them. The ports call the functions without a
// mutex, in a thread that must not block: a service thread, or a thread that waits or polls for
// calls. While arrivals of a port are reported, receive() skips the port, in another thread and in
// a function of the listener.
class PortListener {
 public:
  // Called before a connection to `rank` is created: allocates what the arrivals of calls from that
  // process need without fail. Throws std::bad_alloc; then no connection is created.
  virtual void connecting(uint32_t rank) = 0;
  // The listener owns the message until it calls Ports::finish().
  virtual void message_arrived(ArrivedMessage* message) = 0;
  // An event arrived as immediate data: see Connection::wake().
  virtual void event_arrived(uint32_t from, uint32_t immediate) = 0;
  // May be called several times for one failure. After std::bad_alloc the listener does the rest in
  // heartbeat().
  virtual void connection_failed(uint32_t rank, const absl::Status& reason) = 0;
  // Called after a batch of the arrivals above.
  virtual void batch_arrived() = 0;
  // Called at each heartbeat of a port, before its connections are examined.
  virtual void heartbeat() = 0;
  [[nodiscard]] virtual bool is_failed(uint32_t rank) const = 0;
  // Returns true if the queue pairs to `rank` are connected at both ends.
  [[nodiscard]] virtual bool is_connected(uint32_t rank) const = 0;
  // Returns true if a call waits for an answer from `rank`, so that a failure must be detected.
  [[nodiscard]] virtual bool awaits_answer(uint32_t rank) const = 0;

 protected:
  ~PortListener() = default;
};

// Thread-safe, except for open(), start() and stop().
class Ports {
 public:
  // `job`, `memory` and `listener` must outlive this object.
  Ports(const FabricJob& job, FabricMemory& memory, PortListener& listener);
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Opens the devices through which this process reaches the others.
  [[nodiscard]] absl::Status open();
  // The doorbells by which peers of this host wake threads of this process (call_doorbells.h). They
  // must outlive the connections. Called once, before the first connection is made.
  void set_doorbells(const RDMAMemory& doorbells) { doorbells_ = &doorbells; }
  // Returns the domains of all devices, one at least, also in a job of one process.
  [[nodiscard]] const std::vector<std::shared_ptr<ProtectionDomain>>& domains() const {
    return domains_;
  }
  // Starts the service threads, if FabricOptions::service_threads asks for them. Error:
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status start();
  // Ends the service threads. Requires: Lifecycle::stop() was called.
  void stop();

  // Return the device and the domain through which `rank` is reached; nullptr for this process, and
  // if there is no such rank.
  [[nodiscard]] const Device* device(uint32_t rank) const {
    const Port* const port = port_of(rank);
    return port == nullptr ? nullptr : port->device.get();
  }
  [[nodiscard]] const ProtectionDomain* domain(uint32_t rank) const {
    const Port* const port = port_of(rank);
    return port == nullptr ? nullptr : port->domain.get();
  }

  struct DestroyConnection {
    Ports* ports = nullptr;
    void operator()(Connection* connection) const { ports->destroy(connection); }
  };
  using OwnedConnection = std::unique_ptr<Connection, DestroyConnection>;

  // Creates a connection to `rank`. The caller connects its queue pair. Requires: the connection is
  // destroyed before this object.
  [[nodiscard]] absl::StatusOr<OwnedConnection> make_connection(uint32_t rank);
  // Starts to serve the connection. Requires: the connection lives until stop() has been called.
  void add(Connection& connection);

  // Receives messages that have arrived, in place of the service threads, which pause meanwhile.
  // Never blocks. Returns the number of completions.
  size_t receive();
  // Receives messages of processes of this host once, for a thread that a sender has woken instead
  // of the service thread. The service thread does not pause for it, and receives the messages that
  // the calling thread could not.
  void receive_once();
  // Called before a thread that called receive() sleeps: from now on the service threads receive.
  void stop_receiving();
  // Does the work of the service threads once. Never blocks. Returns the number of completions.
  size_t progress();

  // Ends the use of a receive unit: the unit can take the next message. `returned`: see
  // Connection::finish().
  void finish(ArrivedMessage* unit, bool returned = false) noexcept;
  // Defers a message until the connection has credit. Returns false if the process has deferred
  // deferred_bytes already; a call that is_unlimited is never refused.
  [[nodiscard]] bool defer(Connection& connection, const MessageHeader& header,
                           const OutgoingCall& call);
  // Drops the deferred messages to a failed peer.
  void drop_deferred(Connection& connection) { deferred_.release(connection.drop_deferred()); }

  void add_to(FabricStatistics& sum) const;

 private:
  static constexpr size_t kReceiveBatch = 32;
  // A device, the objects shared by all connections through it, and the device's service thread.
  struct Port {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<CompletionQueue> receives;
    mutable std::mutex mutex;              // guards the two vectors
    std::vector<Connection*> connections;  // all connections in any state; only grows
    // Connections that are destroyed when the current poll ends, or one of the next.
    std::vector<std::unique_ptr<Connection>> unused;
    std::atomic<bool> any_unused{false};
    // True while a thread polls. Only one thread polls at a time, so that messages stay in order.
    std::atomic<bool> polling{false};
    // Written by the polling thread. A local array would be initialized at each poll.
    std::array<Completion, kReceiveBatch> batch;
    // Armed by the service thread before it sleeps although another thread was polling. That thread
    // then wakes the channel: it may have polled before the completion arrived.
    Doorbell skipped;
    // True if a worker has polled since the service thread last cleared the flag.
    std::atomic<bool> received{false};
    Doorbell resumption;  // rung to end the pause of the service thread
    std::atomic<Deadline> next_heartbeat{Deadline::min()};
    // True if credits are due and a send queue had no room for them.
    std::atomic<bool> owes_credits{false};
    Counter receive_completions;  // written by the polling thread
    std::thread service;
  };
  class PortSleeper;

  // Returns nullptr for this process, and if there is no such rank.
  [[nodiscard]] Port* port_of(uint32_t rank) const {
    if (rank >= job_.size() || rank == job_.rank()) return nullptr;
    return by_place_[job_.same_host(rank)];
  }
  // Requires: `rank` is another process of the job.
  [[nodiscard]] Port& port_to(uint32_t rank) const { return *by_place_[job_.same_host(rank)]; }
  [[nodiscard]] absl::StatusOr<Port*> add_port(std::shared_ptr<Device> device);
  // Reports a batch of completions to the listener. Returns their number, or nullopt if another
  // thread is polling.
  std::optional<size_t> poll(Port& port);
  // Reports one completion to the listener.
  void report(Port& port, const Completion& completion);
  void end_polling(Port& port);
  // Destroys the connection as soon as no thread polls its port: a thread that does may just have
  // taken one of its completions, and may be the calling thread, in a function of the listener.
  void destroy(Connection* connection);
  // Requires: FabricOptions::lease is set. Called at each heartbeat.
  void check_lease(Connection& connection);
  void serve(Port& port);
  std::chrono::microseconds stand_aside(Port& port, std::chrono::microseconds time);
  // Does the periodic work that is due at `now`, of the steady clock. If a part of it finds no
  // memory (std::bad_alloc), does the others, and that part in the next call.
  void service(Port& port, Deadline now);
  // Its work for one connection.
  void service(Port& port, Connection& connection, Deadline now, bool deferred, bool heartbeat);
  // Returns true if service() has work before the next heartbeat.
  [[nodiscard]] bool has_unsent(const Port& port) const {
    return deferred_.in_use() || port.owes_credits.load(std::memory_order_relaxed);
  }

  const FabricJob& job_;
  FabricMemory& memory_;
  PortListener& listener_;
  const RDMAMemory* doorbells_ = nullptr;
  UnitBudget unit_budget_;  // of all connections; before ports_, which own some of them
  std::vector<std::unique_ptr<Port>> ports_;
  // The ports to processes on other hosts, and to processes of this host; nullptr: none.
  std::array<Port*, 2> by_place_{};
  std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  ByteBudget deferred_;              // of messages to other processes
  std::atomic<uint64_t> rounds_{0};  // of service threads
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_PORTS_H_
