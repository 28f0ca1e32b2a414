// What a Fabric is made of: devices, peers, workers, service threads, and the way of a call through
// them.
//
//   fabric_core.cc     set-up, the service threads, statistics
//   fabric_connect.cc  connections on first use, and their failure
//   fabric_send.cc     the way of a call out
//   fabric_run.cc      its way in, and the waiting for it
//   fabric_answer.cc   how the caller hears of its end
//   fabric_finalize.cc the end of the job
#ifndef CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_
#define CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/buffer_pull.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_source.h"
#include "dsfabric/fabric.h"
#include "dsfabric/internal/answer_slots.h"
#include "dsfabric/internal/attachments.h"
#include "dsfabric/internal/broker.h"
#include "dsfabric/internal/connection.h"
#include "dsfabric/internal/inbox.h"
#include "dsfabric/internal/pending_calls.h"
#include "dsfabric/internal/roll_call.h"

namespace cariama::internal {

// A call whose end completes `pending`: see send_call(). `flags` is kCallNotify or kCallReturn.
[[nodiscard]] absl::Status send_pending(Fabric& fabric, uint32_t rank, uint32_t destination,
                                        FunctionId id, size_t bytes, const void* call,
                                        void (*write)(const void* call, std::byte* at),
                                        WhenFull when_full, uint8_t flags,
                                        std::unique_ptr<PendingCall> pending);

// A buffer on its way to a function, both of a call of another process.
struct Pull {
  uint32_t rank = 0;
  RDMAMemory buffer;
  uint64_t size = 0;
  Synchronizer done;
  Connection* connection = nullptr;
  std::unique_ptr<PulledFunction> function;
  std::optional<NotifyTarget> notify;
};

[[nodiscard]] absl::Status no_such_thread(uint32_t destination, uint32_t total);

class FabricCore {
 public:
  // Meets the other processes. Collective.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FabricCore>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  ~FabricCore();

  // From here on others connect and call.
  [[nodiscard]] absl::Status start(Fabric* fabric, const Fabric::BrokerMaker& broker_of);

  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return threads_; }
  [[nodiscard]] const std::string& label(uint32_t rank) const { return peers_[rank]->label; }
  [[nodiscard]] const std::string& host(uint32_t rank) const { return peers_[rank]->host; }
  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] Bootstrap& bootstrap() { return *bootstrap_; }
  [[nodiscard]] GeneralAllocator& memory() { return *memory_; }
  // What those sleep on who run calls: see wake_words() in call_source.h.
  [[nodiscard]] const RDMAMemory& wake_words() const { return wake_words_; }
  [[nodiscard]] const std::vector<std::shared_ptr<ProtectionDomain>>& domains() const {
    return domains_;
  }
  // Memory of a NUMA node, or of any with kAnyNode; made on first use.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<RDMAAllocator>> allocator(int numa_node);
  [[nodiscard]] PendingCalls& pending() { return pending_; }
  // Has `call` completed by the answer of `rank`, which may come into a slot: the handle.
  [[nodiscard]] uint64_t expect_result(uint32_t rank, std::unique_ptr<PendingCall> call) {
    return pending_.add(rank, std::move(call), answers_from(rank));
  }
  [[nodiscard]] Fabric* fabric() const { return fabric_; }
  [[nodiscard]] Attachments& attachments() { return attachments_; }
  // The device through which `rank` is reached; nullptr for our own.
  [[nodiscard]] const Device* device(uint32_t rank) const {
    return peers_[rank]->port == nullptr ? nullptr : peers_[rank]->port->device.get();
  }
  // For the detection of termination: calls to `rank` that were begun here, and calls from it (or
  // failed ones to it) that are over; send-based, and those of the bringer. Grow only.
  [[nodiscard]] uint64_t calls_begun(uint32_t rank) const {
    CallBringer* const bringer = bringer_.load(std::memory_order_acquire);
    return peers_[rank]->begun.load(std::memory_order_seq_cst) +
           (bringer == nullptr ? 0 : bringer->begun(rank));
  }
  [[nodiscard]] uint64_t calls_over(uint32_t rank) const {
    CallBringer* const bringer = bringer_.load(std::memory_order_acquire);
    return peers_[rank]->over.load(std::memory_order_seq_cst) +
           (bringer == nullptr ? 0 : bringer->over(rank));
  }

  // Sends a call to worker `destination` (a global id), or with kNoThread to the service of `rank`.
  // From inside a call it never waits. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT (too
  // long), UNAVAILABLE (the peer is dead, or the fabric was finalized), RESOURCE_EXHAUSTED (kFail;
  // or deferred_bytes).
  [[nodiscard]] absl::Status send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                                  WhenFull when_full = WhenFull::kRetry);

  // The connection that worker `index` uses to `rank`, made if need be.
  [[nodiscard]] absl::StatusOr<Connection*> connection(uint32_t rank, uint32_t index);
  [[nodiscard]] absl::StatusOr<Connection*> connection_of_this_thread(uint32_t rank) {
    return connection(rank, this_worker());
  }
  [[nodiscard]] const ProtectionDomain* domain(uint32_t rank) const;
  [[nodiscard]] absl::Status peer_status(uint32_t rank) const;
  // Posts a transfer by `post` (Connection::write or read), waiting while the send queue is full.
  template <typename Post>
  [[nodiscard]] absl::Status transfer(Connection& connection, Post&& post);
  [[nodiscard]] absl::Status transfer_failed(Connection& connection);
  // Waits until `done` is counted down by a transfer to `rank`, or that process is lost; polls.
  // Runs no calls: for use inside of them.
  [[nodiscard]] absl::Status await_transfer(Connection& connection, Synchronizer& done);

  [[nodiscard]] absl::Status take_worker(uint32_t index, CallConsumer consumer,
                                         ThreadContext* context);
  void leave_worker(uint32_t index);
  // The worker that the calling thread is, or kNoThread.
  [[nodiscard]] uint32_t this_worker() const;
  [[nodiscard]] uint32_t this_thread_id() const {
    const uint32_t index = this_worker();
    return index == kNoThread ? kNoThread : rank_ * threads_ + index;
  }
  [[nodiscard]] ThreadContext* context_of(uint32_t index) const {
    return workers_[index]->context.load(std::memory_order_acquire);
  }
  // Whether the calling thread is inside of a call to the thread of that global id.
  [[nodiscard]] bool is_running_calls_of(uint32_t thread) const;
  // Runs calls to worker `index`, unless somebody does.
  size_t process_calls(uint32_t index, size_t most);
  // The same for the worker that waits, if it runs its calls itself.
  size_t process_own_calls(uint32_t index, size_t most) {
    return workers_[index]->consumer.load(std::memory_order_relaxed) == CallConsumer::kThread
               ? process_calls(index, most)
               : 0;
  }
  size_t progress();
  // Lets calls in that have arrived, for whichever thread. Never waits. How many.
  size_t receive();
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline);
  // The same for a condition that plain WRITEs make true: does not sleep.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition, Deadline deadline);
  // Has a coroutine go on where calls to worker `index` run; in the calling thread with kNoThread.
  void resume(uint32_t index, std::coroutine_handle<> coroutine);
  // The same once `done` has no operation left; of the calling thread.
  void resume_after(Synchronizer& done, std::coroutine_handle<> coroutine);
  // Makes worker `index`, or who runs its calls, look again.
  void wake(uint32_t index);
  // Makes every waiting thread look again: something happened that may be what it waits for.
  void news();

  // Sends an event on the connection of worker `index`: that worker's number, or kBringerEvent and
  // 31 bits. False: there is no credit now.
  static constexpr uint32_t kBringerEvent = uint32_t{1} << 31;
  [[nodiscard]] absl::StatusOr<bool> post_event(uint32_t rank, uint32_t index, uint32_t immediate);
  [[nodiscard]] CallBringer& bringer(std::unique_ptr<CallBringer> (*make)(Fabric& fabric));

  // Tells who called how it ended; reports what no caller waits for.
  void answer(uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
              const std::string& result);
  void reject(uint32_t from, std::string_view why);

  // Begins to fetch `source` of process `rank`. Waits at most for the transport.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Pull>> begin_pull(uint32_t rank,
                                                                 const RemoteMemoryLocator& source);
  // Has it run when it is there, and its call answered.
  void end_pull_later(std::unique_ptr<Pull> pull);

  [[nodiscard]] absl::Status finalize(Deadline deadline);
  [[nodiscard]] bool finalized() const { return finalized_.load(std::memory_order_acquire); }
  [[nodiscard]] FabricStatistics statistics() const;

  // The core whose call the calling thread is running, or nullptr; and where it came from.
  [[nodiscard]] static FabricCore* running();
  [[nodiscard]] static uint32_t running_source();
  static void set_running(FabricCore* core, uint32_t rank);

 private:
  // A device with what all connections through it share, and the thread that serves it.
  struct Port {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<CompletionQueue> receives;
    std::mutex mutex;                      // guards connections
    std::vector<Connection*> connections;  // all that exist, in any state; only grows
    std::atomic<bool> polling{false};      // one thread at a time, so that order holds
    std::atomic<bool> received{false};     // by another thread, since the service thread looked
    WakeWord resumption;                   // of the service thread that stands aside
    std::atomic<Deadline> next_heartbeat{Deadline::min()};
    std::atomic<bool> owes_credits{false};  // a send queue had no room to tell of finished units
    std::thread service;
  };
  class PortParking;
  class Resting;
  class HelperParking;

  enum class PeerState : uint8_t { kUnconnected, kConnecting, kConnected, kDead };
  struct Peer {
    uint32_t rank = 0;
    std::string label;
    std::string host;
    Port* port = nullptr;
    std::atomic<PeerState> state{PeerState::kUnconnected};  // changed under mutex
    mutable std::mutex mutex;
    WakeWord changed;  // of the state
    absl::Status failure;
    // Set once, before kConnected.
    std::vector<std::unique_ptr<Connection>> connections;
    // For the end: calls to it that were begun, and calls from it (or failed ones to it) that are
    // over.
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> over{0};
  };

  struct Worker {
    Inbox inbox;
    std::atomic<CallConsumer> consumer{CallConsumer::kThread};
    std::atomic<ThreadContext*> context{nullptr};
    std::atomic<bool> taken{false};
    std::atomic<CallSource*> source{nullptr};  // once there is a bringer
  };

  FabricCore(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  [[nodiscard]] absl::Status meet_others(Deadline deadline);
  [[nodiscard]] absl::Status place_wake_words();
  [[nodiscard]] absl::Status open_ports(const std::vector<bool>& near);
  [[nodiscard]] absl::StatusOr<Port*> add_port(std::shared_ptr<Device> device);
  void start_threads();
  void stop_threads();
  void serve(Port& port);
  // What is due at `now`, of the steady clock.
  void look_after(Port& port, Deadline now);
  // Whether look_after() has something to do before the next heartbeat.
  [[nodiscard]] bool has_kept_back(const Port& port) const {
    return deferred_bytes_.load(std::memory_order_relaxed) != 0 ||
           port.owes_credits.load(std::memory_order_relaxed);
  }

  // Connecting.
  using Connections = std::vector<std::unique_ptr<Connection>>;
  [[nodiscard]] absl::StatusOr<Connections> make_connections(const Peer& peer);
  [[nodiscard]] std::string offer_of(const Connections& connections);
  [[nodiscard]] absl::Status accept_offer(Connections& connections, std::string_view offer,
                                          const Peer& peer);
  [[nodiscard]] absl::Status connect(Peer& peer);
  [[nodiscard]] absl::Status wait_connected(Peer& peer, Deadline deadline);
  [[nodiscard]] absl::StatusOr<std::string> answer_offer(int rank, std::string_view offer);
  void adopt(Peer& peer, Connections connections);
  void fail_peer(Peer& peer, const absl::Status& reason);
  // Tells a process that we are connected to whom we hold for dead; from there it goes round.
  void tell_of_deaths(uint32_t to);
  void tell_of_death(uint32_t dead, uint32_t to);
  void hear_of_death(uint32_t dead, uint32_t from);

  // Sending.
  [[nodiscard]] absl::Status send_remote(Peer& peer, const MessageHeader& header,
                                         const OutgoingCall& call, WhenFull when_full);
  [[nodiscard]] absl::Status send_local(const MessageHeader& header, const OutgoingCall& call,
                                        WhenFull when_full);
  // Counts bytes against deferred_bytes. False: there is no room.
  [[nodiscard]] bool reserve(std::atomic<uint64_t>& used, uint64_t bytes);

  // Receiving.
  size_t poll_port(Port& port);
  void stop_receiving();
  void help(CallConsumer role);
  void deliver(ArrivedMessage* message);
  void run(ArrivedMessage* message);
  void end(ArrivedMessage* message);
  // Its receive unit may take the next message.
  void finish(ArrivedMessage* unit);

  void complete(uint64_t handle, CallOutcome outcome, const std::string& type,
                const std::string& text, std::span<const std::byte> result);
  // Results that come into slots (answer_slots.h).
  [[nodiscard]] AnswerSlots* answers_from(uint32_t rank);
  [[nodiscard]] bool answer_in_slot(uint32_t to, uint64_t handle, const std::string& result);
  // Completes calls whose results have come; with `attendant` those of that thread only.
  size_t take_answers(Attendant attendant);
  // The calling thread will do so from now on; no more.
  void attend_answers();
  void unattend_answers();
  template <typename Function>
  void for_answers(Function&& function);
  void report_exception(uint32_t from, const IncomingCall& call);
  void resume_finished();
  // Runs what pulls have brought. How many.
  size_t run_pulls();
  void pull_until_stopped();

  // The end.
  [[nodiscard]] Presence presence() const;
  [[nodiscard]] absl::Status agree_on_the_end(Deadline deadline);
  [[nodiscard]] absl::StatusOr<RollCall> call_roll_of_job(const std::string& key,
                                                          const Presence& mine, Deadline deadline);
  [[nodiscard]] absl::Status go_on_without(const std::vector<uint32_t>& ranks);
  [[nodiscard]] absl::Status somebody_is_missing(const std::string& key);

  const FabricOptions options_;
  std::unique_ptr<Bootstrap> bootstrap_;
  const uint32_t rank_;
  const uint32_t size_;
  uint32_t threads_ = 1;
  Fabric* fabric_ = nullptr;

  std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  std::mutex allocators_mutex_;
  std::vector<std::shared_ptr<RDMAAllocator>> allocators_;  // at most one of each node
  std::unique_ptr<GeneralAllocator> memory_;
  RDMAMemory wake_words_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Peer>> peers_;  // our own, too
  std::vector<std::unique_ptr<Worker>> workers_;
  PendingCalls pending_;
  Attachments attachments_;
  std::mutex bringer_mutex_;
  std::unique_ptr<CallBringer> bringer_owned_;
  std::atomic<CallBringer*> bringer_{nullptr};
  std::unique_ptr<Broker> broker_;
  // Where finalize() is, should it be called again after its deadline.
  uint64_t end_round_ = 0;
  std::vector<uint32_t> end_lost_;  // whom we held for dead in the last round
  RollCall end_result_;             // of the last round

  std::atomic<bool> stopping_{false};        // threads end
  std::atomic<bool> finalizing_{false};      // finalize() was called
  std::atomic<bool> finalized_{false};       // no call is accepted any more
  std::atomic<bool> leaving_{false};         // a peer that goes now is no failure
  std::atomic<uint64_t> deferred_bytes_{0};  // kept back for other processes
  std::atomic<uint64_t> held_bytes_{0};      // arrived, in memory of their own
  std::atomic<uint32_t> resting_{0};         // threads in wait() that sleep or are about to
  WakeWord bystanders_;                      // those of them that are no workers
  WakeWord* helpers_wake_ = nullptr;         // the last of wake_words_
  struct AwaitedSynchronizer {
    Synchronizer* done;
    uint32_t worker;
    std::coroutine_handle<> coroutine;
  };
  std::atomic<size_t> awaited_count_{0};
  std::mutex awaited_mutex_;
  std::vector<AwaitedSynchronizer> awaited_;
  std::vector<std::thread> helpers_;
  std::mutex pulls_mutex_;
  std::vector<std::unique_ptr<Pull>> pulls_;
  std::atomic<size_t> pull_count_{0};
  std::atomic<bool> running_pulls_{false};
  WakeWord pulls_wake_;
  std::thread puller_;  // made for the first pull
  std::mutex process_consumer_mutex_;
  std::thread process_consumer_;

  std::atomic<uint64_t> calls_sent_{0};
  std::atomic<uint64_t> calls_run_{0};
  std::atomic<uint64_t> calls_rejected_{0};
  std::atomic<uint64_t> sends_{0};
  std::atomic<uint64_t> credit_waits_{0};
  std::atomic<uint64_t> deferred_{0};
  std::atomic<uint64_t> wakes_{0};
  std::atomic<uint64_t> rounds_{0};
};

template <typename Post>
absl::Status FabricCore::transfer(Connection& connection, Post&& post) {
  Connection::Sent sent = Connection::Sent::kNoCredit;
  Peer& peer = *peers_[connection.rank()];
  static_cast<void>(wait_until([&] {
    sent = post(connection);
    if (sent == Connection::Sent::kNoCredit) connection.poll_sends();
    return sent != Connection::Sent::kNoCredit ||
           peer.state.load(std::memory_order_acquire) == PeerState::kDead;
  }));
  if (sent == Connection::Sent::kPosted) return absl::OkStatus();
  return transfer_failed(connection);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_FABRIC_CORE_H_
