// The engine of the simulated cluster: clock, event queue, ports, registered memory, and
// reachability of endpoints. sim_queue_pair.h defines how a queue pair processes a message.
//
// One mutex guards the state of a fabric, including that of its queue pairs and completion queues.
// The virtual functions of the contract, and methods of this folder that begin with lock(), lock
// it; all other functions require that it is locked.
#ifndef CARIAMA_DTUTILS_SIM_FABRIC_H_
#define CARIAMA_DTUTILS_SIM_FABRIC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dtutils/doorbell.h"
#include "dtutils/memory.h"
#include "dtutils/queue_pair.h"
#include "dtutils/random.h"
#include "dtutils/sim/sim_fabric.h"

namespace cariama::sim {

class SimQueuePair;

enum class PacketKind : uint8_t {
  kRequest,
  kPiece,             // a part of a torn WRITE, on its way to the target's memory
  kReadResponse,      // with data
  kAcknowledgement,   // success, or `status`
  kReceiverNotReady,  // the initiator must retry later
};

// A packet in transit. `source` and `target` are queue pairs, by their number within the fabric.
struct Packet {
  PacketKind kind = PacketKind::kRequest;
  Opcode opcode = Opcode::kWrite;
  uint8_t flags = 0;
  CompletionStatus status = CompletionStatus::kSuccess;
  uint32_t source = 0;
  uint32_t target = 0;
  uint32_t from = 0;  // endpoint of `source`, which may be destroyed when the packet arrives
  uint32_t immediate = 0;
  uint64_t psn = 0;   // sequence number of the operation within the initiator's connection
  uint64_t sent = 0;  // stamp(): distinguishes successive connections of one queue pair
  uint64_t bytes = 0;
  uint64_t remote_address = 0;
  RemoteKey remote_key;
  uint64_t operand = 0;  // of an atomic; in its acknowledgement the old value
  uint64_t swap = 0;
  uint64_t write_begin = 0;  // of a piece: the range of its WRITE
  uint64_t write_end = 0;
  // The size of the payload determines the time on the wire. The request of a READ has no payload.
  std::vector<std::byte> payload;
};

enum class TimerKind : uint8_t { kReceiverNotReady, kRetry };

// One endpoint: its port, and whether it is alive.
struct Endpoint {
  uint32_t id = 0;
  uint32_t island = 0;  // endpoints reach only endpoints of the same island
  bool alive = true;
  bool port_scheduled = false;
  SimTime transmit_free{0};
  SimTime receive_free{0};
  std::vector<uint32_t> ready;  // queue pairs that have something to send
  SimEndpointStatistics statistics;
  bool in_arrivals = false;  // see Fabric::take_arrivals()
};

class Fabric {
 public:
  explicit Fabric(const SimOptions& options);

  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  [[nodiscard]] const SimOptions& options() const { return options_; }
  [[nodiscard]] uint64_t identity() const { return identity_; }  // unique within the process

  // --- time ---
  [[nodiscard]] SimTime now() const { return now_; }
  [[nodiscard]] bool idle() const { return events_.empty(); }
  // Executes the next event unless it is later than `limit`. Returns false if there is no such
  // event.
  bool step(SimTime limit = SimTime::max());
  // Polling and waiting execute no event later than this.
  [[nodiscard]] SimTime horizon() const { return horizon_; }
  void set_horizon(SimTime horizon) { horizon_ = horizon; }
  // Advances the clock over a time without events.
  void advance_to(SimTime time) { now_ = time > now_ ? time : now_; }
  // Is rung when an event is scheduled, and when a channel has an event or is woken: for threads
  // that wait while nothing is scheduled.
  [[nodiscard]] Doorbell& activity() { return activity_; }
  // Returns a number larger than all returned before.
  uint64_t stamp() { return ++sequence_; }

  // --- endpoints ---
  Endpoint* add_endpoint();
  [[nodiscard]] Endpoint* endpoint(uint32_t id) { return endpoints_[id].get(); }
  [[nodiscard]] uint32_t endpoint_count() const { return static_cast<uint32_t>(endpoints_.size()); }
  // As SimFabric::take_arrivals().
  [[nodiscard]] std::vector<uint32_t> take_arrivals();
  // Adds the endpoint to the next result of take_arrivals().
  void note_arrival(Endpoint& endpoint);
  void set_island(uint32_t endpoint, uint32_t island) { endpoints_[endpoint]->island = island; }
  uint32_t new_island() { return ++islands_; }
  void heal();

  // --- queue pairs; numbers start at 1 and are never reused ---
  uint32_t add_queue_pair(SimQueuePair* queue_pair);
  void remove_queue_pair(uint32_t number) { queue_pairs_[number] = nullptr; }
  // Returns nullptr if the queue pair was destroyed or never existed.
  [[nodiscard]] SimQueuePair* queue_pair(uint32_t number) {
    return number < queue_pairs_.size() ? queue_pairs_[number] : nullptr;
  }
  // Puts the queue pair into the round of its endpoint's port, if it has a message to send.
  void make_ready(SimQueuePair& queue_pair);

  // --- messages ---
  // Sends a request or a READ's response through the ports, as soon as the port of `from` is free.
  void transmit(Endpoint& from, std::unique_ptr<Packet> packet);
  // Delivers a packet to its target at `time`, without using ports.
  void deliver_at(SimTime time, std::unique_ptr<Packet> packet);
  [[nodiscard]] SimTime jitter();
  [[nodiscard]] uint64_t random_below(uint64_t bound) { return random_.next() % bound; }
  void set_timer(SimTime time, TimerKind kind, uint32_t queue_pair, uint64_t argument);

  // --- registered memory ---
  struct Registration {
    std::byte* address = nullptr;  // nullptr: free
    size_t length = 0;
    Access access = Access::kLocalWrite;
    const ProtectionDomain* domain = nullptr;
    uint64_t generation = 0;
  };
  // Returns the slot, and stores its generation; both are parts of the keys.
  uint32_t add_registration(const Registration& registration, uint64_t* generation);
  void remove_registration(uint32_t slot);
  [[nodiscard]] static LocalKey local_key(uint32_t slot, uint64_t generation) {
    return {uint64_t{slot} << 32 | generation << 1};
  }
  // Differs from every local key, so that the use of one in place of the other is detected.
  [[nodiscard]] static RemoteKey remote_key(uint32_t slot, uint64_t generation) {
    return {uint64_t{slot} << 32 | generation << 1 | 1};
  }
  // Returns the registration if `key` names a region of `domain` that contains the range, else
  // nullptr.
  [[nodiscard]] const Registration* find(LocalKey key, const ProtectionDomain* domain,
                                         uint64_t address, uint64_t bytes) const {
    return (key.value & 1) == 0 ? find(key.value, domain, address, bytes) : nullptr;
  }
  [[nodiscard]] const Registration* find(RemoteKey key, const ProtectionDomain* domain,
                                         uint64_t address, uint64_t bytes) const {
    return (key.value & 1) == 1 ? find(key.value, domain, address, bytes) : nullptr;
  }

  [[nodiscard]] uint64_t trace_hash() const { return trace_hash_; }
  SimStatistics& statistics() { return statistics_; }

 private:
  enum class EventKind : uint8_t { kPort, kArrival, kDelivery, kTimer };
  struct Event {
    SimTime time{0};
    uint64_t tie = 0;       // orders simultaneous events; depends on the seed
    uint64_t sequence = 0;  // the order within one flow
    EventKind kind = EventKind::kPort;
    TimerKind timer = TimerKind::kRetry;
    uint32_t id = 0;  // endpoint or queue pair
    uint64_t argument = 0;
    std::unique_ptr<Packet> packet;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      if (a.time != b.time) return a.time > b.time;
      if (a.tie != b.tie) return a.tie > b.tie;
      return a.sequence > b.sequence;
    }
  };

  void schedule(SimTime time, uint64_t flow, Event event);
  void schedule(SimTime time, EventKind kind, std::unique_ptr<Packet> packet);
  void execute(Event event);
  void run_port(Endpoint& endpoint);
  void schedule_port(Endpoint& endpoint);
  void arrive(std::unique_ptr<Packet> packet);
  void deliver(std::unique_ptr<Packet> packet);
  [[nodiscard]] SimTime time_on_wire(uint64_t bytes) const;
  [[nodiscard]] const Registration* find(uint64_t key, const ProtectionDomain* domain,
                                         uint64_t address, uint64_t bytes) const;

  mutable std::mutex mutex_;
  const SimOptions options_;
  const uint64_t identity_;
  SimTime now_{0};
  SimTime horizon_ = SimTime::max();
  uint64_t sequence_ = 0;
  uint64_t trace_hash_ = 0;
  uint32_t islands_ = 0;
  Random random_;
  std::vector<Event> events_;  // a heap; the next event is in front
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<uint32_t> arrivals_;  // the next result of take_arrivals()
  std::vector<SimQueuePair*> queue_pairs_;
  std::vector<Registration> registrations_;
  std::vector<uint32_t> free_registrations_;
  SimStatistics statistics_;
  Doorbell activity_;
};

}  // namespace cariama::sim

#endif  // CARIAMA_DTUTILS_SIM_FABRIC_H_
