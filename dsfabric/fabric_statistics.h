// The counters of a fabric (Fabric::statistics()).
#ifndef CARIAMA_DSFABRIC_FABRIC_STATISTICS_H_
#define CARIAMA_DSFABRIC_FABRIC_STATISTICS_H_

#include <cstdint>

namespace cariama {

// Counters of one process.
struct FabricStatistics {
  uint64_t calls_sent = 0;  // send-based calls, including calls to threads of this process
  uint64_t calls_run = 0;
  // Calls that arrived with an unknown function, malformed, or for no existing thread.
  uint64_t calls_rejected = 0;
  uint64_t sends = 0;         // messages of the send-based path, answers included
  uint64_t writes = 0;        // notifications and results sent by RDMA WRITE, credits included
  uint64_t credit_waits = 0;  // times that a sender found no credit
  uint64_t deferred = 0;      // messages that were deferred
  uint64_t connections = 0;
  // Bytes of the receive units of all connections (FabricOptions::reserved_units).
  uint64_t receive_bytes = 0;
  // Processes of which this process has a record: those that it has connected to or tried to, that
  // have offered a connection to it, and that it considers failed.
  uint64_t peer_records = 0;
  uint64_t wakes = 0;     // wake-ups of sleeping threads of other processes
  uint64_t receives = 0;  // polled receive completions: send-based messages, and events
  uint64_t rounds = 0;    // times that a service thread woke up or found work without sleeping
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FABRIC_STATISTICS_H_
