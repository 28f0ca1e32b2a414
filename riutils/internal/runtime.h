// The state of this layer for one fabric: the incoming and outgoing channels of this process, and
// the drain thread that sends deferred calls.
#ifndef CARIAMA_RIUTILS_INTERNAL_RUNTIME_H_
#define CARIAMA_RIUTILS_INTERNAL_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/internal/question.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/transmitter.h"
#include "riutils/call_interface.h"
#include "riutils/export.h"
#include "riutils/internal/broadcast_routes.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/internal/incoming_calls.h"
#include "riutils/internal/node_map.h"
#include "riutils/internal/route_failures.h"
#include "riutils/internal/service_forms.h"

namespace cariama::internal {

class FabricChannel;

// The thread that sends on an outgoing channel of a worker.
enum class ChannelUser : uint8_t {
  kWorker,     // the worker's own thread
  kForwarder,  // the thread that currently runs the worker's calls
};

// Thread-safe.
class Runtime final : public CallSourceRegistry {
 public:
  [[nodiscard]] CARIAMA_RIUTILS_EXPORT static Runtime& of(Fabric& fabric);
  explicit Runtime(Fabric& fabric);
  ~Runtime() override;

  [[nodiscard]] Fabric& fabric() { return fabric_; }
  // Returns true if a receiver that goes to sleep can make this process execute a memory barrier
  // (membarrier(2)). If both ends can, senders on mapped channels need no barrier of their own.
  [[nodiscard]] bool has_barrier() const { return has_barrier_; }

  // The limit of the chunks of all incoming channels (FabricOptions::channel_bytes).
  [[nodiscard]] MemoryBudget& chunk_budget() { return chunk_budget_; }

  // ---- Requests of peers, executed in the service thread.
  [[nodiscard]] PeerProperties properties();
  [[nodiscard]] ChunkAnswer grant(Rank rank, const ChunkRequest& request);
  // Process `rank` has found malformed data in this process's channel `serial`, has run
  // `consumed_bytes` bytes of its calls, and runs no more: fails the channel, and ends its calls.
  void channel_broken(Rank rank, uint64_t serial, uint64_t consumed_bytes);

  // ---- Outgoing channels.
  // Returns the Transmitter by which channels of worker `index` send to process `rank`. Only `user`
  // may use it.
  [[nodiscard]] absl::StatusOr<Transmitter*> transmitter(Rank rank, ThreadIndex index,
                                                         ChannelUser user = ChannelUser::kWorker);
  // Returns the properties of process `rank`. On first use, requests them from that process by
  // `request`, and returns nullopt until the answer has come. May block for a connection, and then
  // runs incoming calls.
  [[nodiscard]] std::optional<absl::StatusOr<PeerProperties>> request_properties(
      Rank rank, std::unique_ptr<Question<PeerProperties>>& request);
  // Returns the answer to a question and destroys the question; nullopt until it is answered.
  template <typename Answer>
  [[nodiscard]] static std::optional<absl::StatusOr<Answer>> answer_to(
      std::unique_ptr<Question<Answer>>& question) {
    if (!question->answered()) return std::nullopt;
    auto answer = question->wait(Deadline::min());
    question.reset();
    return answer;
  }
  // Registers the channel of a new messenger.
  void add(const std::shared_ptr<FabricChannel>& channel);
  // Takes over the channel of a destroyed messenger and destroys it after RingSender::is_released
  // returns true.
  void retire(std::shared_ptr<FabricChannel> channel) noexcept;
  // Destroys the channels of retire() that are released by now.
  void forget_ended();
  void drain_later(FabricChannel* channel);
  // Returns OK, or the reason why no channel may be opened any more.
  [[nodiscard]] absl::Status status() const;
  // Starts the drain thread unless it runs: an opened channel may defer calls. Errors: those of
  // status(), RESOURCE_EXHAUSTED (threads).
  [[nodiscard]] absl::Status start_drain_thread();
  [[nodiscard]] const std::shared_ptr<BroadcastRoutes>& broadcast_routes() const {
    return broadcast_routes_;
  }

  // ---- Routed calls (routed_aggregator.h).
  // Returns the nodes of the job (NodeMap), which are computed on first use.
  [[nodiscard]] std::shared_ptr<const NodeMap> nodes(uint32_t processes_per_node);
  [[nodiscard]] const std::shared_ptr<RouteFailures>& route_failures() const {
    return route_failures_;
  }
  [[nodiscard]] const Forwarder& forwarder(ThreadIndex index) const {
    return incoming_[index]->forwarder();
  }

  // A forwarding channel of worker `index` has lost calls. The worker's thread reports that to the
  // senders. Never blocks.
  void forwarding_failed(ThreadIndex index) { incoming_[index]->forwarding_failed(); }

  [[nodiscard]] uint64_t next_serial() { return next_serial_.fetch_add(1); }
  // For simulations, in which a drain thread would act in real time: makes the runtime start no
  // drain thread. The caller calls drain_once() repeatedly instead, in one thread at a time.
  // Requires: no thread uses the runtime yet.
  void drain_by_hand() { by_hand_ = true; }
  // Does the work of the drain thread once: retries the deferred calls, and reports failed
  // processes to the channels. Returns immediately if the calling thread is already in this
  // function.
  CARIAMA_RIUTILS_EXPORT void drain_once();
  // For tests: the next channel gets this serial number.
  void begin_serials_at(uint64_t serial) { next_serial_.store(serial); }

  // ---- CallSourceRegistry
  [[nodiscard]] CallSource& source(ThreadIndex index) override { return *incoming_[index]; }
  void event(Rank rank, uint32_t value) override;
  void peer_died(Rank rank) override;
  [[nodiscard]] uint64_t begun(Rank rank) override;
  [[nodiscard]] uint64_t ended(Rank rank) override;
  void finalized() override;
  void stop() override;
  void disconnect() override;

 private:
  void drain_channels();
  bool retry();
  // Require that drain_mutex_ is locked.
  [[nodiscard]] absl::Status run_drain_thread();
  void wake_drain_thread();
  void tell_of_death(Rank rank);
  [[nodiscard]] Transmitter* drain_transmitter(Rank rank, ThreadIndex index);
  void forget_released();
  // Returns the channels to process `rank` that are not destroyed. While the caller has a reference
  // to a channel, forget_released() does not remove it.
  [[nodiscard]] std::vector<std::shared_ptr<FabricChannel>> channels_to(Rank rank);
  [[nodiscard]] uint64_t lost_bytes(Rank rank);

  Fabric& fabric_;
  bool has_barrier_ = false;
  std::atomic<uint64_t> next_serial_{1};
  const std::shared_ptr<BroadcastRoutes> broadcast_routes_ = std::make_shared<BroadcastRoutes>();
  const std::shared_ptr<RouteFailures> route_failures_ = std::make_shared<RouteFailures>();
  MemoryBudget chunk_budget_;
  std::vector<std::unique_ptr<IncomingCalls>> incoming_;

  std::mutex mutex_;
  using Key = std::tuple<uint32_t, uint32_t, ChannelUser>;  // rank, index
  std::map<Key, std::unique_ptr<Transmitter>> transmitters_;
  std::map<uint32_t, PeerProperties> properties_;
  std::map<uint32_t, std::shared_ptr<const NodeMap>> nodes_;  // by processes_per_node
  std::vector<std::weak_ptr<FabricChannel>> outgoing_;        // of messengers that live
  std::vector<std::shared_ptr<FabricChannel>> retired_;
  size_t unretired_ = 0;                       // channels of add() that retire() has not got
  std::map<uint32_t, uint64_t> begun_before_;  // rank → bytes accepted by destroyed channels
  struct BrokenChannel {
    Rank rank;
    std::optional<uint64_t> accepted;  // bytes, if the channel was destroyed
    std::optional<uint64_t> consumed;  // bytes, if the receiver has reported them
  };
  std::map<uint64_t, BrokenChannel> broken_;  // by serial number; stays until the end

  std::mutex drain_mutex_;  // guards waiting_, all_wait_, dead_ and the start of drain_thread_
  std::vector<std::weak_ptr<FabricChannel>> waiting_;
  bool all_wait_ = false;  // waiting_ lacks a channel, for which there was no memory
  std::vector<uint32_t> dead_;
  std::vector<uint32_t> to_tell_;  // taken from dead_; used by the drain thread only
  std::thread drain_thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_work_{false};
  Doorbell work_;
  bool by_hand_ = false;
  bool draining_ = false;  // a call of drain_once() runs
  std::vector<std::weak_ptr<FabricChannel>>
      to_retry_;  // channels to retry; used by the drain thread only
  std::map<TransmitQueue*, std::unique_ptr<Transmitter>>
      drain_transmitters_;  // used by the drain thread only
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_RUNTIME_H_
