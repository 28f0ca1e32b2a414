// The parts of a Fabric, and how they are put together. Each part owns its state, and its header
// states its purpose. The list begins with the lowest part; a part calls only parts that stand
// before it in the list:
//
//   FabricJob      bootstrap/  rank, names of the processes, options, phase (Lifecycle)
//   FabricMemory   peers/      registered memory
//   Ports          peers/      devices, polling, service threads, heartbeats, credits owed
//   PeerTable      peers/      connecting to peers; their failure and its spread
//   CallCounts     calls/      calls begun and ended, for termination detection
//   RejectedCalls  calls/      invalid messages
//   Workers        calls/      inboxes, sleeping and waking
//   CallSources    calls/      calls on the path of a layer above
//   CallSender     calls/      sending calls, transfers, events
//   Answers        calls/      answers; calls that wait for an answer
//   Pulls          calls/      buffers that a call READs before it runs
//   Dispatch       calls/      running calls, helper threads, waiting
//   Shutdown       fabric/     the rounds of finalize()
//   JobStatistics  fabric/     shows the counters of all parts
//   FabricCore     fabric/     composes them
//
// Three narrow interfaces lead upward, each implemented by FabricCore: PortListener (arrivals,
// failed connections, heartbeats), PeerListener (a peer has failed) and CallRunner (a sender that
// waits, or that calls its own process, runs calls).
//
// invocation/, memory/ and collectives/, which implement public headers, have only the Fabric. They
// get the parts that they use from calls/fabric_parts.h.
//
// The path of a call: send_call.h -> CallSender -> Connection ~> Ports -> Dispatch -> Answers ->
// CallSender -> Connection ~> Ports -> Dispatch -> Answers -> PendingCall.
//
// Lock order. A part holds no mutex while it calls another part or a listener, but for these.
// The mutex of a peer is held while its queue pairs are created; the mutexes of FabricMemory, of a
// port, and of connections are taken under it. The mutex of Pulls is held while Pulls polls
// connections. The mutexes of CallSources and Attachments are held while a layer creates its
// object, which may allocate memory.
#ifndef CARIAMA_DSFABRIC_FABRIC_FABRIC_CORE_H_
#define CARIAMA_DSFABRIC_FABRIC_FABRIC_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/awaited_transfers.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/call_sources.h"
#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/calls/dispatch.h"
#include "dsfabric/calls/pulls.h"
#include "dsfabric/calls/rejected_calls.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/fabric.h"
#include "dsfabric/fabric/job_statistics.h"
#include "dsfabric/fabric/shutdown.h"
#include "dsfabric/internal/attachments.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/peers/peer_table.h"
#include "dsfabric/peers/ports.h"
#include "dtutils/statistics.h"

namespace cariama::internal {

class FabricCore final : private PortListener, private PeerListener, private CallRunner {
 public:
  // Joins the job: exchanges set-up data with the other processes. Collective.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FabricCore>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
      SharedJobDirectory* directory);
  ~FabricCore();

  // Starts the threads and the broker. From now on peers can connect and call.
  [[nodiscard]] absl::Status start(Fabric* fabric, const BrokerMaker& broker_of);
  // See Fabric::finalize().
  [[nodiscard]] absl::Status finalize(Deadline deadline);

  [[nodiscard]] const FabricJob& job() const { return *job_; }
  [[nodiscard]] FabricMemory& memory() { return memory_; }
  [[nodiscard]] Ports& ports() { return ports_; }
  [[nodiscard]] PeerTable& peers() { return peers_; }
  [[nodiscard]] const PeerTable& peers() const { return peers_; }
  [[nodiscard]] const CallCounts& counts() const { return counts_; }
  [[nodiscard]] Workers& workers() { return workers_; }
  [[nodiscard]] CallSources& sources() { return sources_; }
  [[nodiscard]] CallSender& sender() { return sender_; }
  [[nodiscard]] Answers& answers() { return answers_; }
  [[nodiscard]] AwaitedTransfers& transfers() { return transfers_; }
  [[nodiscard]] Pulls& pulls() { return pulls_; }
  [[nodiscard]] Dispatch& dispatch() { return dispatch_; }
  [[nodiscard]] RejectedCalls& rejected() { return rejected_; }
  [[nodiscard]] Attachments& attachments() { return attachments_; }

  [[nodiscard]] FabricStatistics statistics() const;

 private:
  explicit FabricCore(std::unique_ptr<FabricJob> job);
  [[nodiscard]] CounterSet::Values counters();
  void stop_threads();

  // PortListener
  void connecting(uint32_t rank) override;
  void message_arrived(ArrivedMessage* message) override { dispatch_.deliver(message); }
  void event_arrived(uint32_t from, uint32_t immediate) override;
  void connection_failed(uint32_t rank, const absl::Status& reason) override {
    peers_.fail(rank, reason);
  }
  void batch_arrived() override { workers_.notify_waiters(); }
  void heartbeat() override;
  bool is_failed(uint32_t rank) const override { return peers_.is_failed(rank); }
  bool is_connected(uint32_t rank) const override { return peers_.connected(rank) != nullptr; }
  bool awaits_answer(uint32_t rank) const override { return answers_.awaits(rank); }
  // PeerListener
  void peer_failed(uint32_t rank, const absl::Status& failure) override;
  void send_death_notice(uint32_t dead, uint32_t to) override;
  // CallRunner
  void deliver(ArrivedMessage* message) override { dispatch_.deliver(message); }
  size_t process_own_calls(uint32_t index, size_t most) override {
    return dispatch_.process_own_calls(index, most);
  }
  size_t progress() override { return dispatch_.progress(); }

  const std::unique_ptr<FabricJob> job_;
  FabricMemory memory_;
  Ports ports_;
  PeerTable peers_;
  CallCounts counts_;
  RejectedCalls rejected_;
  Workers workers_;
  CallSender sender_;
  Answers answers_;
  Attachments attachments_;
  ControlTraffic* control_ = nullptr;  // an attachment; set before the first connection
  CallSources sources_;
  AwaitedTransfers transfers_;
  Pulls pulls_;
  Dispatch dispatch_;
  Shutdown shutdown_;
  std::unique_ptr<JobStatistics> statistics_;
  // Reads the parts that are declared before it, so the destructor resets it before it stops them.
  std::optional<CounterSet> counters_;
};

// Gives the layers of the library access to the parts of a fabric.
class FabricAccess {
 public:
  [[nodiscard]] static FabricCore& core_of(Fabric& fabric) { return *fabric.core_; }
  [[nodiscard]] static std::unique_ptr<Fabric> fabric_of(std::unique_ptr<FabricCore> core) {
    return std::unique_ptr<Fabric>(new Fabric(std::move(core)));
  }
};
[[nodiscard]] inline FabricCore& core_of(Fabric& fabric) { return FabricAccess::core_of(fabric); }

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_FABRIC_CORE_H_
