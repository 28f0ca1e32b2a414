// The implementation of a Fabric: devices, peers, workers, service threads, and the path of a call
// through them.
//
//   fabric_core.cc      set-up, the service threads, statistics
//   fabric_connect.cc   connections on first use, and their failure
//   fabric_send.cc      sending a call
//   fabric_run.cc       receiving and running calls; waiting
//   fabric_answer.cc    reporting the end of a call to its caller
//   fabric_finalize.cc  the end of the job
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
#include "dsfabric/internal/participation.h"
#include "dsfabric/internal/pending_calls.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama::internal {

// Sends a call whose end completes `pending`: see send_call(). `flags` is kCallNotify or
// kCallReturn.
[[nodiscard]] absl::Status send_pending(Fabric& fabric, uint32_t rank, uint32_t destination,
                                        FunctionId id, size_t bytes, const void* call,
                                        void (*write)(const void* call, std::byte* at),
                                        WhenFull when_full, uint8_t flags,
                                        std::unique_ptr<PendingCall> pending);

// A READ of a buffer in progress, and the function to run on the buffer. Both belong to a call that
// another process sent.
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
  // Joins the job: exchanges set-up data with the other processes. Collective.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FabricCore>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  ~FabricCore();

  // Starts the threads and the broker. From now on peers can connect and call.
  [[nodiscard]] absl::Status start(Fabric* fabric, const Fabric::BrokerMaker& broker_of);

  // Returns true in a child of fork(): the fabric belongs to its parent.
  [[nodiscard]] bool is_inherited() const { return inherited_.load(std::memory_order_acquire); }

  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return threads_; }
  [[nodiscard]] const std::string& label(uint32_t rank) const { return peers_[rank]->label; }
  [[nodiscard]] const std::string& host(uint32_t rank) const { return peers_[rank]->host; }
  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] Bootstrap& bootstrap() { return *bootstrap_; }
  [[nodiscard]] GeneralAllocator& memory() { return *memory_; }
  // The words that threads that run calls sleep on: see wake_words() in call_source.h.
  [[nodiscard]] const RDMAMemory& wake_words() const { return wake_words_; }
  [[nodiscard]] const std::vector<std::shared_ptr<ProtectionDomain>>& domains() const {
    return domains_;
  }
  // Registers a user's buffer with domains()[domain] through the cache of that domain, which is
  // created on first use. Requires: options().registration is set.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> lend_registered(
      size_t domain, std::span<const std::byte> buffer);
  // The allocator of a NUMA node, or of any node with kAnyNode; created on first use.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<RDMAAllocator>> allocator(int numa_node);
  [[nodiscard]] PendingCalls& pending() { return pending_; }
  // Registers `call` as pending until `rank` answers, and returns its handle. The answer may come
  // into an answer slot.
  [[nodiscard]] uint64_t expect_result(uint32_t rank, std::unique_ptr<PendingCall> call) {
    return pending_.add(rank, std::move(call), answers_from(rank));
  }
  [[nodiscard]] Fabric* fabric() const { return fabric_; }
  [[nodiscard]] Attachments& attachments() { return attachments_; }
  // Returns the device through which `rank` is reached; nullptr for this process.
  [[nodiscard]] const Device* device(uint32_t rank) const {
    return peers_[rank]->port == nullptr ? nullptr : peers_[rank]->port->device.get();
  }
  // For termination detection: calls_begun() counts the calls to `rank` that were begun here.
  // calls_ended() counts the calls from `rank` that have ended here, and the calls to `rank` that
  // could not be sent. Both include the calls of the call source registry, and only grow.
  [[nodiscard]] uint64_t calls_begun(uint32_t rank) const {
    CallSourceRegistry* const registry = call_source_registry_.load(std::memory_order_acquire);
    return peers_[rank]->begun.load(std::memory_order_seq_cst) +
           (registry == nullptr ? 0 : registry->begun(rank));
  }
  [[nodiscard]] uint64_t calls_ended(uint32_t rank) const {
    CallSourceRegistry* const registry = call_source_registry_.load(std::memory_order_acquire);
    return peers_[rank]->ended.load(std::memory_order_seq_cst) +
           (registry == nullptr ? 0 : registry->ended(rank));
  }

  // Sends a call to worker `destination` (a global id), or, with kNoThread, to the service of
  // `rank`. Never blocks inside of a call. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT
  // (too long), UNAVAILABLE (the peer is dead, or the fabric was finalized), RESOURCE_EXHAUSTED
  // (kFail; or deferred_bytes is used up).
  [[nodiscard]] absl::Status send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                                  WhenFull when_full = WhenFull::kRetry);

  // Returns the connection that worker `index` uses to `rank`, and makes it if necessary.
  [[nodiscard]] absl::StatusOr<Connection*> connection(uint32_t rank, uint32_t index);
  [[nodiscard]] absl::StatusOr<Connection*> connection_of_this_thread(uint32_t rank) {
    return connection(rank, this_worker());
  }
  [[nodiscard]] const ProtectionDomain* domain(uint32_t rank) const;
  [[nodiscard]] absl::Status peer_status(uint32_t rank) const;
  // Posts a transfer by `post` (Connection::write or read). Blocks while the send queue is full.
  template <typename Post>
  [[nodiscard]] absl::Status transfer(Connection& connection, Post&& post);
  [[nodiscard]] absl::Status transfer_failed(Connection& connection);
  // Polls until a transfer to `rank` has counted `done` down, or the process is considered failed.
  // Runs no calls, so it may be used inside of calls.
  [[nodiscard]] absl::Status await_transfer(Connection& connection, Synchronizer& done);

  [[nodiscard]] absl::Status take_worker(uint32_t index, CallConsumer consumer,
                                         ThreadContext* context);
  void leave_worker(uint32_t index);
  // Returns the calling thread's worker index, or kNoThread.
  [[nodiscard]] uint32_t this_worker() const;
  [[nodiscard]] uint32_t this_thread_id() const {
    const uint32_t index = this_worker();
    return index == kNoThread ? kNoThread : rank_ * threads_ + index;
  }
  [[nodiscard]] ThreadContext* context_of(uint32_t index) const {
    return workers_[index]->context.load(std::memory_order_acquire);
  }
  // Returns true if the calling thread is inside of a call to the thread with that global id.
  [[nodiscard]] bool is_running_calls_of(uint32_t thread) const;
  // Runs calls to worker `index`, unless another thread is running them. Returns the number of
  // calls that ran.
  size_t process_calls(uint32_t index, size_t most);
  // As process_calls(), for a worker that waits. Runs nothing if helpers run the worker's calls.
  size_t process_own_calls(uint32_t index, size_t most) {
    return workers_[index]->consumer.load(std::memory_order_relaxed) == CallConsumer::kThread
               ? process_calls(index, most)
               : 0;
  }
  size_t progress();
  // Receives messages that have arrived, for any worker of the process. Never blocks. Returns the
  // number of completions.
  size_t receive();
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline);
  // As wait(), for a condition that plain WRITEs make true: polls and does not sleep.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition, Deadline deadline);
  // Resumes a coroutine in the thread that runs the calls of worker `index`; with kNoThread, in the
  // calling thread.
  void resume(uint32_t index, std::coroutine_handle<> coroutine);
  // Resumes a coroutine of the calling thread once `done` has no operation left.
  void resume_after(Synchronizer& done, std::coroutine_handle<> coroutine);
  // Makes the thread that runs the calls of worker `index` wake and re-check.
  void wake(uint32_t index);
  // Makes every waiting thread re-check its condition. Called after every event that may have
  // changed one.
  void notify_waiters();

  // Sends an event on the connection of worker `index`: that worker's index, or kCallSourceEvent |
  // 31 bits. Returns false if there is no credit now.
  static constexpr uint32_t kCallSourceEvent = uint32_t{1} << 31;
  [[nodiscard]] absl::StatusOr<bool> post_event(uint32_t rank, uint32_t index, uint32_t immediate);
  [[nodiscard]] CallSourceRegistry& call_source_registry(
      std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric));

  // Sends the outcome of a call to its caller. Prints exceptions for which no caller waits.
  void answer(uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
              const std::string& result);
  void reject(uint32_t from, std::string_view why);

  // Starts to READ `source` of process `rank`. Blocks only while it makes the connection or while
  // the send queue is full.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Pull>> begin_pull(uint32_t rank,
                                                                 const RemoteMemoryLocator& source);
  // Runs the pull's function when the buffer has arrived, then answers the call.
  void end_pull_later(std::unique_ptr<Pull> pull);

  [[nodiscard]] absl::Status finalize(Deadline deadline);
  // Returns the reason why no call is accepted, after finalize() or in a child of fork().
  [[nodiscard]] absl::Status closed_error() const;
  [[nodiscard]] bool finalized() const { return finalized_.load(std::memory_order_acquire); }
  [[nodiscard]] FabricStatistics statistics() const;

  // running() returns the core whose call the calling thread is running, or nullptr.
  // running_source() returns the rank that sent that call.
  [[nodiscard]] static FabricCore* running();
  [[nodiscard]] static uint32_t running_source();
  static void set_running(FabricCore* core, uint32_t rank);

 private:
  // Registers the fabric, so that fork() marks it as closed in the child.
  static void watch_forks(FabricCore* core);
  // A device, the objects shared by all connections through it, and the service thread of the
  // device.
  struct Port {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<CompletionQueue> receives;
    std::mutex mutex;                      // guards connections
    std::vector<Connection*> connections;  // all connections in any state; only grows
    // Set while a thread polls; one thread at a time, so that order holds.
    std::atomic<bool> polling{false};
    // A worker has polled since the service thread last cleared it.
    std::atomic<bool> received{false};
    WakeWord resumption;  // wakes the service thread while it pauses
    std::atomic<Deadline> next_heartbeat{Deadline::min()};
    // Credits are due, but a send queue had no room for them.
    std::atomic<bool> owes_credits{false};
    std::thread service;
  };
  class PortParking;
  class WaiterParking;
  class HelperParking;

  enum class PeerState : uint8_t { kUnconnected, kConnecting, kConnected, kDead };
  struct Peer {
    uint32_t rank = 0;
    std::string label;
    std::string host;
    Port* port = nullptr;
    std::atomic<PeerState> state{PeerState::kUnconnected};  // changed under mutex
    mutable std::mutex mutex;
    WakeWord changed;  // woken when `state` changes
    absl::Status failure;
    std::string end;  // the store's report of the process's end: completes "LABEL ..."
    // Set once, before the state becomes kConnected.
    std::vector<std::unique_ptr<Connection>> connections;
    // For finalize(): calls to this peer that were begun here; calls from this peer that have ended
    // here, and calls to it that could not be sent.
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> ended{0};
  };

  struct Worker {
    Inbox inbox;
    std::atomic<CallConsumer> consumer{CallConsumer::kThread};
    std::atomic<ThreadContext*> context{nullptr};
    std::atomic<bool> taken{false};
    std::atomic<CallSource*> source{nullptr};  // set once there is a registry
  };

  FabricCore(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  [[nodiscard]] absl::Status meet_others(Deadline deadline);
  [[nodiscard]] absl::Status place_wake_words();
  [[nodiscard]] absl::Status open_ports(const std::vector<bool>& near);
  [[nodiscard]] absl::StatusOr<Port*> add_port(std::shared_ptr<Device> device);
  void start_threads();
  void stop_threads();
  void serve(Port& port);
  // Does the periodic work that is due at `now`, of the steady clock.
  void service_port(Port& port, Deadline now);
  // Returns true if service_port() has work before the next heartbeat.
  [[nodiscard]] bool has_kept_back(const Port& port) const {
    return deferred_bytes_.load(std::memory_order_relaxed) != 0 ||
           port.owes_credits.load(std::memory_order_relaxed);
  }

  // ---- Connecting
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
  [[noreturn]] void exit_because_of(const Peer& peer);
  // Handles the ends of processes that the store has reported. At most one thread at a time.
  void handle_ended();
  // Returns the store's report of the peer's end, if it comes within a short time.
  [[nodiscard]] std::optional<std::string> reported_end(const Peer& peer);
  // Sends a death notice for each failed process to the connected process `to`, which forwards it.
  void send_death_notices(uint32_t to);
  void send_death_notice(uint32_t dead, uint32_t to);
  void receive_death_notice(uint32_t dead, uint32_t from);

  // ---- Sending
  [[nodiscard]] absl::Status send_remote(Peer& peer, const MessageHeader& header,
                                         const OutgoingCall& call, WhenFull when_full);
  [[nodiscard]] absl::Status send_local(const MessageHeader& header, const OutgoingCall& call,
                                        WhenFull when_full);
  // Adds `bytes` to `used`. Returns false, and adds nothing, if `used` is not 0 and the sum would
  // exceed deferred_bytes. The second form always adds the bytes of an answer.
  [[nodiscard]] bool reserve(std::atomic<uint64_t>& used, uint64_t bytes);
  [[nodiscard]] bool reserve(std::atomic<uint64_t>& used, const OutgoingCall& call);

  // ---- Receiving
  size_t poll_port(Port& port);
  void stop_receiving();
  void help(CallConsumer role);
  void deliver(ArrivedMessage* message);
  void run(ArrivedMessage* message);
  void end(ArrivedMessage* message);
  // Ends the use of a receive unit: the unit can take the next message.
  void finish(ArrivedMessage* unit);

  void complete(uint64_t handle, CallOutcome outcome, const std::string& type,
                const std::string& text, std::span<const std::byte> result);
  // Results that arrive in answer slots (answer_slots.h).
  [[nodiscard]] AnswerSlots* answers_from(uint32_t rank);
  [[nodiscard]] bool answer_in_slot(uint32_t to, uint64_t handle, const std::string& result);
  // Completes calls whose results have arrived in slots; with `poller`, only that thread's calls.
  // Returns the number of completed calls.
  size_t take_answers(PollerId poller);
  // The calling thread starts, or stops, polling the slots of its calls.
  void start_polling_answers();
  void stop_polling_answers();
  template <typename Function>
  void for_answers(Function&& function);
  void report_exception(uint32_t from, const IncomingCall& call);
  void resume_finished();
  // Runs the functions of pulls whose buffers have arrived. Returns the number of pulls that ended.
  size_t run_pulls();
  void pull_until_stopped();

  // ---- The end of the job
  [[nodiscard]] ParticipationReport participation_report() const;
  [[nodiscard]] absl::Status agree_on_the_end(Deadline deadline);
  [[nodiscard]] absl::StatusOr<ParticipationResult> run_participation_round(
      const std::string& key, const ParticipationReport& mine, Deadline deadline);
  [[nodiscard]] absl::Status continue_without(const std::vector<uint32_t>& ranks);
  [[nodiscard]] absl::Status report_missing_participants(const std::string& key);

  const FabricOptions options_;
  std::unique_ptr<Bootstrap> bootstrap_;
  const uint32_t rank_;
  const uint32_t size_;
  uint32_t threads_ = 1;
  Fabric* fabric_ = nullptr;

  std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  // By domain. Destroyed after pending_, whose calls lend registered buffers.
  std::mutex registration_caches_mutex_;
  std::vector<std::unique_ptr<RegistrationCache>> registration_caches_;
  std::mutex allocators_mutex_;
  std::vector<std::shared_ptr<RDMAAllocator>> allocators_;  // at most one per node
  std::unique_ptr<GeneralAllocator> memory_;
  RDMAMemory wake_words_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; includes this process
  std::vector<std::unique_ptr<Worker>> workers_;
  PendingCalls pending_;
  Attachments attachments_;
  std::mutex call_source_registry_mutex_;
  std::unique_ptr<CallSourceRegistry> owned_call_source_registry_;
  std::atomic<CallSourceRegistry*> call_source_registry_{nullptr};
  std::unique_ptr<Broker> broker_;
  // The state of finalize(). It is kept so that finalize() can be called again after its deadline.
  uint64_t end_round_ = 0;
  std::vector<uint32_t> end_lost_;  // processes considered failed in the last round
  ParticipationResult end_result_;  // result of the last round

  std::atomic<bool> inherited_{false};   // this process is a child of the fabric's process
  std::atomic<bool> stopping_{false};    // the threads of the fabric must end
  std::atomic<bool> finalizing_{false};  // finalize() was called
  std::atomic<bool> finalized_{false};   // no call is accepted any more
  // A peer that disconnects from now on is not considered failed.
  std::atomic<bool> leaving_{false};
  std::atomic<uint64_t> deferred_bytes_{0};    // of calls deferred for other processes
  std::atomic<uint64_t> held_bytes_{0};        // of arrived calls buffered in their own memory
  std::atomic<uint32_t> sleeping_threads_{0};  // threads in wait() that sleep or are about to
  WakeWord bystanders_;                        // wakes the threads among them that are not workers
  WakeWord* helpers_wake_ = nullptr;           // the last entry of wake_words_
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
  std::thread puller_;  // created for the first pull
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
