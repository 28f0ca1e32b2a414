// What a Fabric is made of: devices, peers, workers, service threads, and the way of a call through them.
#ifndef CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_
#define CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/call_options.h"
#include "dsfabric/fabric.h"
#include "dsfabric/internal/broker.h"
#include "dsfabric/internal/connection.h"
#include "dsfabric/internal/inbox.h"
#include "dsfabric/internal/pending_calls.h"

namespace cariama::internal {

[[nodiscard]] absl::Status no_such_thread(uint32_t destination, uint32_t total);

class FabricCore {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FabricCore>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
      const Fabric::BrokerMaker& broker_of);
  ~FabricCore();

  void set_fabric(Fabric* fabric) { fabric_ = fabric; }

  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return threads_; }
  [[nodiscard]] const std::string& label(uint32_t rank) const { return peers_[rank]->label; }
  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] Bootstrap& bootstrap() { return *bootstrap_; }
  [[nodiscard]] GeneralAllocator& memory() { return *memory_; }
  [[nodiscard]] const std::shared_ptr<RDMAAllocator>& allocator() const { return allocator_; }
  [[nodiscard]] PendingCalls& pending() { return pending_; }

  // Sends a call to worker `destination` (a global id), or with kNoThread to the service of `rank`. From
  // inside a call it never waits. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT (too long),
  // UNAVAILABLE (the peer is dead, or the fabric was finalized), RESOURCE_EXHAUSTED (deferred_bytes).
  [[nodiscard]] absl::Status send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                                  WhenFull when_full = WhenFull::kRetry);

  // The connection that worker `index` uses to `rank`, made if need be.
  [[nodiscard]] absl::StatusOr<Connection*> connection(uint32_t rank, uint32_t index);
  [[nodiscard]] const ProtectionDomain* domain(uint32_t rank) const;
  [[nodiscard]] absl::Status peer_status(uint32_t rank) const;

  [[nodiscard]] absl::Status take_worker(uint32_t index, CallConsumer consumer,
                                         ThreadContext* context);
  void leave_worker(uint32_t index);
  // The worker that the calling thread is, or kNoThread.
  [[nodiscard]] uint32_t this_worker() const;
  size_t process_calls(uint32_t index, size_t most);
  size_t progress();
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline);
  void wake(uint32_t index);
  // Wakes worker `index` of another process, which sleeps.
  [[nodiscard]] absl::Status wake_remote(uint32_t rank, uint32_t index);

  [[nodiscard]] absl::Status finalize(Deadline deadline);
  [[nodiscard]] FabricStatistics statistics() const;

  // The core whose call the calling thread is running, or nullptr; and the process that it came from.
  [[nodiscard]] static FabricCore* running();
  [[nodiscard]] static uint32_t running_source();
  [[nodiscard]] Fabric* fabric() const { return fabric_; }
  [[nodiscard]] ThreadContext* context_of(uint32_t index) const {
    return workers_[index]->context.load(std::memory_order_acquire);
  }

 private:
  // A device with what all connections through it share, and the thread that serves it.
  struct Port {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<CompletionQueue> receives;
    std::mutex mutex;                      // guards connections
    std::vector<Connection*> connections;  // all that exist, in any state
    std::atomic<bool> polling{false};      // one thread at a time, so that order holds
    std::thread service;
  };

  enum class PeerState : uint8_t { kUnconnected, kConnecting, kConnected, kDead };
  struct Peer {
    uint32_t rank = 0;
    std::string label;
    Port* port = nullptr;
    std::atomic<PeerState> state{PeerState::kUnconnected};
    std::mutex mutex;
    std::condition_variable changed;
    absl::Status failure;
    std::vector<std::unique_ptr<Connection>> connections;
  };

  struct Worker {
    Inbox inbox;
    std::atomic<CallConsumer> consumer{CallConsumer::kThread};
    std::atomic<ThreadContext*> context{nullptr};
    std::atomic<bool> taken{false};
  };

  FabricCore(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  [[nodiscard]] absl::Status meet_others(Deadline deadline);
  [[nodiscard]] absl::Status add_port(std::shared_ptr<Device> device);
  void start_threads();
  void stop_threads();

  // Connecting.
  [[nodiscard]] absl::StatusOr<std::vector<std::unique_ptr<Connection>>> make_connections(
      const Peer& peer);
  [[nodiscard]] std::string offer_of(const std::vector<std::unique_ptr<Connection>>& connections);
  [[nodiscard]] absl::Status accept_offer(std::vector<std::unique_ptr<Connection>>& connections,
                                          std::string_view offer, const Peer& peer);
  [[nodiscard]] absl::Status connect(Peer& peer);
  [[nodiscard]] absl::StatusOr<std::string> answer_offer(int rank, std::string_view offer);
  void adopt(Peer& peer, std::vector<std::unique_ptr<Connection>> connections);
  void fail_peer(Peer& peer, const absl::Status& reason);

  // Receiving.
  size_t poll_port(Port& port);
  void look_after(Port& port, bool heartbeat);
  void serve(Port& port);
  void help(bool process_consumer);
  void deliver(ArrivedMessage* message);
  void run(ArrivedMessage* message);
  void reject(const ArrivedMessage& message, std::string_view why);
  void answer(uint32_t to, const NotifyTarget& target, const IncomingCall& call,
              const std::string& result);
  void complete(uint64_t handle, CallOutcome outcome, const std::string& type,
                const std::string& text, const std::string& result);
  void report_exception(uint32_t from, const IncomingCall& call);
  [[nodiscard]] absl::Status send_local(uint32_t destination, const MessageHeader& header,
                                        const OutgoingCall& call);

  const FabricOptions options_;
  std::unique_ptr<Bootstrap> bootstrap_;
  uint32_t rank_;
  uint32_t size_;
  uint32_t threads_ = 1;
  Fabric* fabric_ = nullptr;

  std::vector<std::unique_ptr<Port>> ports_;
  std::shared_ptr<RDMAAllocator> allocator_;
  std::unique_ptr<GeneralAllocator> memory_;
  std::vector<std::unique_ptr<Peer>> peers_;  // our own, too: for its label
  std::vector<std::unique_ptr<Worker>> workers_;
  PendingCalls pending_;
  std::unique_ptr<Broker> broker_;

  std::atomic<bool> stopping_{false};   // threads end
  std::atomic<bool> finalized_{false};  // no call is accepted any more
  std::atomic<bool> leaving_{false};    // a peer that goes now is no failure
  std::atomic<uint64_t> deferred_bytes_{0};
  WakeWord helpers_wake_;
  std::vector<std::thread> helpers_;
  std::mutex process_consumer_mutex_;
  std::thread process_consumer_;

  std::atomic<uint64_t> calls_sent_{0};
  std::atomic<uint64_t> calls_run_{0};
  std::atomic<uint64_t> calls_rejected_{0};
  std::atomic<uint64_t> sends_{0};
  std::atomic<uint64_t> credit_waits_{0};
  std::atomic<uint64_t> deferred_{0};
  std::atomic<uint64_t> wakes_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_
