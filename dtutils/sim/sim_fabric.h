// A simulated cluster inside one process: any number of endpoints, each a Device that implements
// the whole transport contract (device.h), connected by a fabric with latency, bandwidth and
// message-rate parameters, in virtual time.
//
//   SimFabric fabric({.seed = 7, .latency = 900ns, .gigabytes_per_second = 25});
//   std::shared_ptr<Device> a = fabric.create_endpoint();
//   std::shared_ptr<Device> b = fabric.create_endpoint();
//   ... connect queue pairs, post, poll as on any device ...
//   fabric.now();  // virtual time
//
// Deterministic: the same program with the same seed produces the same run, event by event; compare
// trace_hash(). A different seed orders simultaneous events differently and draws different jitter,
// so that a loop over seeds explores orders of delivery that are rare on a real fabric.
//
// Virtual time advances only by calls of the program: polling an EMPTY completion queue executes
// the next event of the fabric; CompletionChannel::wait() executes events until one is for the
// channel or the (virtual) timeout has passed; step(), run_until() and run_until_idle() below
// execute events. The program's own computation takes no virtual time, unless it uses
// set_horizon(). A loop that watches memory for arrival must poll, too.
//
// The model of a transfer. An endpoint has one port. A message leaves when the port is free; the
// seed chooses among the endpoint's queue pairs that have something to send. The message occupies
// the port for max(message_gap, size / bandwidth); the local buffer is read when the message
// leaves. Its first byte arrives at the target `latency` (+ jitter) later. The target's port
// receives it for size / bandwidth, one message at a time, at most one per message_gap. Then the
// operation is executed, and an acknowledgement (or the data of a READ, by the same rules of ports)
// arrives back after `ack_latency` (+ jitter). Without contention:
//
//   WRITE, SEND complete after   size/bandwidth + latency + ack_latency
//   READ completes after         latency + ack_latency + size/bandwidth
//   atomics complete after       latency + ack_latency
//
// A request that reaches no live target (dead, partitioned away, destroyed, in the error state) is
// sent again after ConnectOptions::ack_timeout, retry_count times; then it fails with
// kRetryExceeded, in total after (retry_count + 1) * ack_timeout. The fabric itself loses no
// message.
//
// Threads: all functions are thread-safe (one mutex). A run is reproducible only if one thread at a
// time makes the calls, in a fixed order.
//
// Cost: no allocation is proportional to a queue's depth; queues grow on use. An idle endpoint with
// two queue pairs, a completion queue and a region takes 1.7 KB, each operation in flight 0.3 KB
// with 8 bytes of data. A WRITE is five events of about 0.6 us of real time each.
#ifndef CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_
#define CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ratio>
#include <span>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/export.h"

namespace cariama {

namespace sim {
class Fabric;
}  // namespace sim

// Virtual time since the fabric was created. In picoseconds, since 8 bytes take 320 ps at 25 GB/s.
// Nanoseconds convert implicitly.
using SimTime = std::chrono::duration<int64_t, std::pico>;

struct SimOptions {
  uint64_t seed = 1;
  SimTime latency = std::chrono::nanoseconds(1000);      // one way, of the first byte
  SimTime ack_latency = std::chrono::nanoseconds(1000);  // of acknowledgements and responses
  SimTime jitter{0};  // added to each latency, random in 0..jitter; queue pairs stay in order
  double gigabytes_per_second = 12.5;  // bytes per ns, of a port in each direction; 0: no limit
  SimTime message_gap{0};  // between messages of a port: 5 ns gives 200 million a second
  // The value that write_order() returns. With torn_spread > 0 a WRITE becomes visible in pieces,
  // at several times within torn_spread of its arrival. The pieces of all WRITEs of a queue pair
  // then become visible in any order that write_order permits: a protocol that assumes more fails
  // with some seeds. Aligned 8-byte words are torn only with kWithinWrite and kWithinBlocks.
  ArrivalOrder write_order = ArrivalOrder::kWrites;
  SimTime torn_spread{0};
  // The longest real time that a channel sleeps in wait() while no event is scheduled, before its
  // virtual timeout passes. Set it for programs in which another thread posts or wakes. 0: none.
  std::chrono::milliseconds idle_grace{0};
  // The limits that each endpoint reports.
  DeviceLimits limits{.max_send_depth = 1 << 15,
                      .max_receive_depth = 1 << 15,
                      .max_completions = 1 << 22,
                      .max_segments = 16,
                      .max_inline = 256,
                      .max_outstanding_reads = 16,
                      .mtu = 4096,
                      .max_message = uint64_t{1} << 30,
                      .atomics = true};
};

// Counters of the whole fabric since its creation.
struct SimStatistics {
  uint64_t events = 0;              // executed events
  uint64_t messages = 0;            // requests that left a port, retransmissions included
  uint64_t bytes = 0;               // payload of these messages and of READ responses
  uint64_t retransmissions = 0;     // messages that were retransmissions
  uint64_t lost = 0;                // requests and responses that reached no live target
  uint64_t receiver_not_ready = 0;  // requests that found no receive posted
  // Completions that arrived when their queue was full. The fabric stores them nevertheless. A card
  // would move the queue pair to the error state, so a program that is to run on a card must keep
  // this counter at 0.
  uint64_t completion_overruns = 0;
};

// Counters of one endpoint's port since its creation.
struct SimEndpointStatistics {
  uint64_t messages_sent = 0;  // requests and READ responses
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;  // requests and responses whose last byte has arrived
  uint64_t bytes_received = 0;
};

class CARIAMA_DTUTILS_EXPORT SimFabric {
 public:
  explicit SimFabric(const SimOptions& options = {});
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // Creates an endpoint. Endpoints are numbered 0, 1, 2, ... in the order of creation; the
  // functions below take these numbers. The device keeps the fabric alive.
  [[nodiscard]] std::shared_ptr<Device> create_endpoint();
  [[nodiscard]] uint32_t endpoint_count() const;

  [[nodiscard]] SimTime now() const;

  // Executes the next event. Returns false if no event is scheduled.
  bool step();

  // Executes all events up to and including `deadline`, and sets the clock to `deadline`.
  void run_until(SimTime deadline);

  // Executes events until none is left (returns true) or the next one is later than `limit`
  // (returns false). The limit ends runs that never become idle, for example a sender that retries
  // without end because its receiver posts no receive.
  [[nodiscard]] bool run_until_idle(SimTime limit = std::chrono::hours(1));

  // Sets the time beyond which polling executes no event, and at which a channel's wait() ends. For
  // programs whose computation takes virtual time: they advance the clock and the horizon as they
  // compute. SimTime::max() is the initial value and means no limit.
  void set_horizon(SimTime horizon);

  // Simulates the death of the endpoint's process: from now on it neither sends nor answers.
  // Messages that it sent before still arrive. Posting on it has no effect any more, and no
  // operation completes there.
  void kill(uint32_t endpoint);

  // Partitions the fabric: messages between `endpoints` and all other endpoints are lost, including
  // those in flight, until heal(). Several calls create several partitions.
  void partition(std::span<const uint32_t> endpoints);
  void heal();

  // Returns a hash over all events executed so far (time, kind, endpoints, order; not contents or
  // addresses). Equal runs have equal hashes.
  [[nodiscard]] uint64_t trace_hash() const;

  [[nodiscard]] SimStatistics statistics() const;
  [[nodiscard]] SimEndpointStatistics endpoint_statistics(uint32_t endpoint) const;
  // Returns the endpoints at which messages (requests or responses) have arrived or queue pairs
  // have failed since the previous call, each once, in the order of the first of these events.
  [[nodiscard]] std::vector<uint32_t> take_arrivals();

 private:
  std::shared_ptr<sim::Fabric> fabric_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_
