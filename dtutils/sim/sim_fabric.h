// A simulated cluster inside one process: any number of endpoints, each a Device that keeps the
// whole transport contract (device.h), connected by a fabric with latency, bandwidth and
// message-rate parameters, in virtual time.
//
//   SimFabric fabric({.seed = 7, .latency = 900ns, .gigabytes_per_second = 25});
//   std::shared_ptr<Device> a = fabric.create_endpoint();
//   std::shared_ptr<Device> b = fabric.create_endpoint();
//   ... connect queue pairs, post, poll as on any device ...
//   fabric.now();  // virtual time
//
// Deterministic: the same program with the same seed makes the same run, event by event; compare
// trace_hash(). Another seed orders what happens at the same instant differently, and draws other
// jitter, so that a loop over seeds explores deliveries that a real fabric would show once a month.
//
// Virtual time moves only when somebody drives it: polling an EMPTY completion queue executes the
// next event of the fabric, CompletionChannel::wait() executes events until one is for the channel
// or the (virtual) timeout has passed, and step(), run_until(), run_until_idle() below. The
// program's own computing takes no virtual time, unless it says so: set_horizon(). A loop that
// watches memory for arrival must poll, too.
//
// The model of a transfer. An endpoint has one port. A message leaves when the port is free, in
// turns of the seed's choice among the endpoint's queue pairs that have something to send, and
// keeps it for max(message_gap, size / bandwidth); the local buffer is read at that moment. Its
// first byte is at the target `latency` (+ jitter) later; the target's port takes in size /
// bandwidth, one message at a time, at most one per message_gap. Then the operation is executed,
// and an acknowledgement (or the data of a READ, by the same rules of ports) comes back after
// `ack_latency` (+ jitter). Uncontended:
//
//   WRITE, SEND complete after   size/bandwidth + latency + ack_latency
//   READ completes after         latency + ack_latency + size/bandwidth
//   atomics complete after       latency + ack_latency
//
// A request that reaches nobody (dead, partitioned away, destroyed, in the error state) is sent
// again after ConnectOptions::ack_timeout, retry_count times; then it fails with kRetryExceeded,
// after (retry_count + 1) * ack_timeout in all. The fabric itself loses nothing.
//
// Threads: everything is safe to call by any threads (one mutex), but only a program whose calls
// are made by one thread at a time in a fixed order replays.
//
// Cost: nothing is allocated by depth, queues grow on use. An idle endpoint with two queue pairs, a
// completion queue and a region takes 1.7 KB, each operation in flight 0.3 KB with 8 bytes of data.
// A WRITE is five events of about 0.6 us of real time each.
#ifndef CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_
#define CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ratio>
#include <span>

#include "dtutils/device.h"
#include "dtutils/export.h"

namespace cariama {

namespace sim {
class Fabric;
}  // namespace sim

// Virtual time since the fabric was made. Picoseconds, since 8 bytes take 320 of them at 25 GB/s;
// nanoseconds convert by themselves.
using SimTime = std::chrono::duration<int64_t, std::pico>;

struct SimOptions {
  uint64_t seed = 1;
  SimTime latency = std::chrono::nanoseconds(1000);      // one way, of the first byte
  SimTime ack_latency = std::chrono::nanoseconds(1000);  // of acknowledgements and responses
  SimTime jitter{0};  // each of these is longer by 0..jitter; queue pairs stay in order
  double gigabytes_per_second = 12.5;  // bytes per ns, of a port in each direction; 0: no limit
  SimTime message_gap{0};              // between messages of a port: 5 ns are 200 million a second
  // WRITEs land in pieces, at several moments within `torn_spread` of their arrival, and successive
  // WRITEs mix: write_order() is kNone. Otherwise it is kWrites.
  bool torn_writes = false;
  SimTime torn_spread = std::chrono::nanoseconds(2000);
  // Real time that a channel's wait() sleeps when nothing at all is scheduled, before it lets its
  // virtual timeout pass. For programs in which another thread posts or wakes: 0 decides at once.
  std::chrono::milliseconds idle_grace{0};
  // What each endpoint says of itself.
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

// What the whole fabric did so far.
struct SimStatistics {
  uint64_t events = 0;              // executed
  uint64_t messages = 0;            // requests that left a port, repetitions included
  uint64_t bytes = 0;               // their payload, and that of READ responses
  uint64_t retransmissions = 0;     // messages that were repetitions
  uint64_t lost = 0;                // requests and responses that reached nobody
  uint64_t receiver_not_ready = 0;  // requests that found no receive posted
  // Completions that came when their queue was full. They are kept all the same; on a card they
  // would have broken the queue pair, so a program that is to run there keeps this at 0.
  uint64_t completion_overruns = 0;
};

// What one endpoint's port did so far.
struct SimEndpointStatistics {
  uint64_t messages_sent = 0;  // requests and READ responses
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_received = 0;
};

class CARIAMA_DTUTILS_EXPORT SimFabric {
 public:
  explicit SimFabric(const SimOptions& options = {});
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // A new endpoint. Endpoints are numbered 0, 1, 2, ... in the order of creation; the functions
  // below take these numbers. The device keeps the fabric alive.
  [[nodiscard]] std::shared_ptr<Device> create_endpoint();
  [[nodiscard]] uint32_t endpoint_count() const;

  [[nodiscard]] SimTime now() const;

  // Executes the next event, if there is one. False: nothing is scheduled.
  bool step();

  // Executes everything up to and including `deadline`, and moves the clock there.
  void run_until(SimTime deadline);

  // Executes events until none is left (true) or the next one is later than `limit` (false: a
  // sender that repeats without end to a receiver that is never ready keeps a fabric busy for
  // ever).
  [[nodiscard]] bool run_until_idle(SimTime limit = std::chrono::hours(1));

  // From now on polling executes no event that is later than `horizon`, and a channel's wait() ends
  // there: for programs whose computing takes virtual time, too, and which move the clock and the
  // horizon on as they compute. SimTime::max(), as at the beginning: no such limit.
  void set_horizon(SimTime horizon);

  // The endpoint's process is dead: from now on it neither sends nor answers. What it sent before
  // still arrives. Posting on it has no effect any more, and nothing completes there.
  void kill(uint32_t endpoint);

  // Cuts the fabric: messages between `endpoints` and all others get lost, those in flight too,
  // until heal(). Several calls make several islands.
  void partition(std::span<const uint32_t> endpoints);
  void heal();

  // A hash over all events executed so far (time, kind, ends, order; not contents or addresses).
  // Equal for equal runs.
  [[nodiscard]] uint64_t trace_hash() const;

  [[nodiscard]] SimStatistics statistics() const;
  [[nodiscard]] SimEndpointStatistics endpoint_statistics(uint32_t endpoint) const;

 private:
  std::shared_ptr<sim::Fabric> fabric_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SIM_SIM_FABRIC_H_
