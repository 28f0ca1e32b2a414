#include "dsfabric/internal/fabric_core.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <tuple>

#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"

namespace cariama::internal {
namespace {

constexpr size_t kPollBatch = 32;
// While messages are kept back nobody is woken by the credits that they wait for: a plain WRITE.
constexpr std::chrono::microseconds kDeferredPause{200};
// First byte of a request to the broker.
constexpr char kOffer = 'O';
constexpr char kReady = 'R';

// What the calling thread runs at the moment.
thread_local FabricCore* running_core = nullptr;
thread_local uint32_t running_rank = 0;
// Which worker the calling thread is, of which fabric.
thread_local FabricCore* worker_core = nullptr;
thread_local uint32_t worker_index = kNoThread;

class Running {
 public:
  Running(FabricCore* core, uint32_t rank) : core_(running_core), rank_(running_rank) {
    running_core = core;
    running_rank = rank;
  }
  ~Running() {
    running_core = core_;
    running_rank = rank_;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  FabricCore* core_;
  uint32_t rank_;
};

// Sleeps until a completion of the armed queue.
class ChannelParking final : public Parking {
 public:
  ChannelParking(CompletionQueue& queue, CompletionChannel& channel)
      : queue_(queue), channel_(channel) {}
  void announce() override { armed_ = queue_.arm().ok(); }
  void sleep(Deadline deadline) override {
    if (!armed_) return;
    static_cast<void>(channel_.wait(
        deadline == kForever
            ? std::chrono::nanoseconds::max()
            : std::max(Deadline::duration::zero(), deadline - std::chrono::steady_clock::now())));
  }
  void retract() override {}

 private:
  CompletionQueue& queue_;
  CompletionChannel& channel_;
  bool armed_ = false;
};

// What tells one host from another: the boot, and the process name space (shm needs both to be shared).
std::string host_identity() {
  std::string identity;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), identity);
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) identity += "/" + std::to_string(space.st_ino);
  return identity;
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

// What every process tells every other at the start.
struct Introduction {
  ProgramFingerprint program;
  uint32_t threads = 0;
  uint32_t queue_pairs = 0;
  uint32_t pid = 0;
  std::string host;
  std::string host_identity;

  void save(std::string& out) const {
    save_value(out, program);
    save_value(out, std::array<uint32_t, 3>{threads, queue_pairs, pid});
    save_value(out, host);
    save_value(out, host_identity);
  }
  static Introduction load(std::string_view text) {
    auto in = std::as_bytes(std::span(text));
    Introduction introduction;
    introduction.program = load_value<ProgramFingerprint>(in);
    const auto numbers = load_value<std::array<uint32_t, 3>>(in);
    introduction.threads = numbers[0];
    introduction.queue_pairs = numbers[1];
    introduction.pid = numbers[2];
    introduction.host = load_value<std::string>(in);
    introduction.host_identity = load_value<std::string>(in);
    return introduction;
  }
};

// A call within the process.
struct LocalMessage : ArrivedMessage {
  explicit LocalMessage(size_t size) : storage(std::make_unique<uint64_t[]>((size + 7) / 8)) {
    bytes = reinterpret_cast<std::byte*>(storage.get());
    this->size = static_cast<uint32_t>(size);
  }
  std::unique_ptr<uint64_t[]> storage;
};

}  // namespace

absl::Status no_such_thread(uint32_t destination, uint32_t total) {
  return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                    "there is no thread " + std::to_string(destination) + ": the job has " +
                        std::to_string(total));
}

FabricCore* FabricCore::running() { return running_core; }
uint32_t FabricCore::running_source() { return running_rank; }

// ---- Set-up -------------------------------------------------------------------------------------

FabricCore::FabricCore(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap)
    : options_(options),
      bootstrap_(std::move(bootstrap)),
      rank_(static_cast<uint32_t>(bootstrap_->rank())),
      size_(static_cast<uint32_t>(bootstrap_->size())) {}

absl::StatusOr<std::unique_ptr<FabricCore>> FabricCore::create(
    const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
    const Fabric::BrokerMaker& broker_of) {
  if (options.queue_pairs == 0 || options.receive_units == 0 || options.send_depth == 0 ||
      options.receive_unit_bytes < 256) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a fabric needs a queue pair, a receive unit of 256 bytes and a send queue");
  }
  if (absl::Status built = FunctionTable::build(); !built.ok()) return built;
  const Deadline deadline = deadline_after(options.timeout);
  auto core = std::unique_ptr<FabricCore>(new FabricCore(options, std::move(bootstrap)));
  core->threads_ = options.threads.value_or(core->bootstrap_->threads().value_or(1));
  if (core->threads_ == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a process needs one thread at least");
  }
  for (uint32_t i = 0; i < core->threads_; ++i) {
    core->workers_.push_back(std::make_unique<Worker>());
  }
  if (absl::Status met = core->meet_others(deadline); !met.ok()) return met;
  FabricCore* const self = core.get();
  auto broker = broker_of(*core->bootstrap_, [self](int rank, std::string_view request) {
    return self->answer_offer(rank, request);
  });
  if (!broker.ok()) return broker.status();
  core->broker_ = *std::move(broker);
  core->start_threads();
  return core;
}

absl::Status FabricCore::meet_others(Deadline deadline) {
  Introduction self{.program = FunctionTable::fingerprint(),
                    .threads = threads_,
                    .queue_pairs = options_.queue_pairs,
                    .pid = static_cast<uint32_t>(getpid()),
                    .host = host_name(),
                    .host_identity = host_identity()};
  std::string bytes;
  self.save(bytes);
  if (absl::Status put = bootstrap_->put("fabric", bytes); !put.ok()) return put;

  bool neighbours = false;
  bool strangers = false;
  std::vector<bool> near(size_);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    auto theirs = bootstrap_->get(static_cast<int>(rank), "fabric", deadline);
    if (!theirs.ok()) return theirs.status();
    Introduction other;
    try {
      other = Introduction::load(*theirs);
    } catch (const std::exception& error) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                        "rank " + std::to_string(rank) + " introduced itself in another way",
                        "start the same executable in every process");
    }
    peer->label = "rank " + std::to_string(rank) + " (on " + other.host + ", pid " +
                  std::to_string(other.pid) + ")";
    if (absl::Status same = FunctionTable::check(other.program, peer->label); !same.ok())
      return same;
    if (other.threads != threads_ || other.queue_pairs != options_.queue_pairs) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                        peer->label + " has " + std::to_string(other.threads) + " threads and " +
                            std::to_string(other.queue_pairs) +
                            " queue pairs per process, we have " + std::to_string(threads_) +
                            " and " + std::to_string(options_.queue_pairs),
                        "give every process the same options");
    }
    near[rank] = other.host_identity == self.host_identity;
    if (rank != rank_) (near[rank] ? neighbours : strangers) = true;
    peers_.push_back(std::move(peer));
  }

  Port* near_port = nullptr;
  Port* far_port = nullptr;
  const char* const forced = std::getenv("CARIAMA_TRANSPORT");
  if (options_.device != nullptr || (forced != nullptr && size_ > 1)) {
    std::shared_ptr<Device> device = options_.device;
    if (device == nullptr) {
      auto opened = open_device({});  // honours the variable
      if (!opened.ok()) return opened.status();
      device = *std::move(opened);
    }
    if (absl::Status added = add_port(std::move(device)); !added.ok()) return added;
    near_port = far_port = ports_.back().get();
  } else {
    for (const auto& [needed, transport, port] :
         {std::tuple(neighbours, Transport::kShm, &near_port),
          std::tuple(strangers, Transport::kVerbs, &far_port)}) {
      if (!needed) continue;
      auto opened = open_device({.transport = transport});
      if (!opened.ok()) return opened.status();
      if (absl::Status added = add_port(*std::move(opened)); !added.ok()) return added;
      *port = ports_.back().get();
    }
  }
  for (auto& peer : peers_) peer->port = near[peer->rank] ? near_port : far_port;

  std::vector<std::shared_ptr<ProtectionDomain>> domains;
  for (const auto& port : ports_) domains.push_back(port->domain);
  if (domains
          .empty()) {  // a job of one process has nobody to transfer to; its memory is registered all
    auto device = open_device({.transport = Transport::kShm});  // the same
    if (!device.ok()) return device.status();
    auto domain = (*device)->create_domain();
    if (!domain.ok()) return domain.status();
    domains.push_back(*std::move(domain));
  }
  auto allocator = RDMAAllocator::create(domains, kAnyNode, {.chunk_bytes = size_t{64} << 10});
  if (!allocator.ok()) return allocator.status();
  allocator_ = *std::move(allocator);
  auto memory = GeneralAllocator::create(allocator_, {});
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  return absl::OkStatus();
}

absl::Status FabricCore::add_port(std::shared_ptr<Device> device) {
  auto port = std::make_unique<Port>();
  port->device = std::move(device);
  auto domain = port->device->create_domain();
  if (!domain.ok()) return domain.status();
  port->domain = *std::move(domain);
  auto channel = port->domain->create_channel();
  if (!channel.ok()) return channel.status();
  port->channel = *std::move(channel);
  const uint64_t wanted = uint64_t{size_} * options_.queue_pairs * options_.receive_units;
  auto receives =
      port->domain->create_completion_queue({.depth = static_cast<uint32_t>(std::min<uint64_t>(
                                                 wanted, port->device->limits().max_completions)),
                                             .channel = port->channel});
  if (!receives.ok()) return receives.status();
  port->receives = *std::move(receives);
  ports_.push_back(std::move(port));
  return absl::OkStatus();
}

void FabricCore::start_threads() {
  if (options_.service_threads != 0) {
    for (auto& port : ports_) {
      port->service = std::thread([this, &port = *port] { serve(port); });
    }
  }
  for (uint32_t i = 0; i < options_.helper_threads; ++i) {
    helpers_.emplace_back([this] { help(false); });
  }
}

void FabricCore::stop_threads() {
  stopping_.store(true, std::memory_order_release);
  for (auto& port : ports_) {
    port->channel->wake();
    if (port->service.joinable()) port->service.join();
  }
  helpers_wake_.wake();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  const std::lock_guard lock(process_consumer_mutex_);
  if (process_consumer_.joinable()) process_consumer_.join();
}

FabricCore::~FabricCore() {
  finalized_.store(true, std::memory_order_release);
  leaving_.store(true, std::memory_order_release);
  broker_.reset();
  stop_threads();
  for (auto& peer : peers_) {
    const absl::Status closed =
        make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                   "the fabric was closed before " + peer->label + " answered");
    for (auto& call : pending_.take_all(peer->rank)) call->complete(closed, {});
  }
  for (auto& worker : workers_) {
    if (!worker->inbox.try_consume()) continue;
    while (InboxNode* node = worker->inbox.pop()) {
      auto* const message = static_cast<ArrivedMessage*>(node);
      if (message->connection == nullptr) delete static_cast<LocalMessage*>(message);
    }
  }
  // Queue pairs before what they use.
  for (auto& peer : peers_) peer->connections.clear();
}

// ---- Connecting ---------------------------------------------------------------------------------

absl::StatusOr<std::vector<std::unique_ptr<Connection>>> FabricCore::make_connections(
    const Peer& peer) {
  std::vector<std::unique_ptr<Connection>> connections;
  for (uint32_t i = 0; i < options_.queue_pairs; ++i) {
    auto connection = Connection::create(peer.rank, *peer.port->domain, peer.port->receives,
                                         allocator_, *memory_, options_.receive_units,
                                         options_.receive_unit_bytes, options_.send_depth);
    if (!connection.ok()) return connection.status();
    connections.push_back(*std::move(connection));
  }
  return connections;
}

std::string FabricCore::offer_of(const std::vector<std::unique_ptr<Connection>>& connections) {
  std::string bytes(1, kOffer);
  save_value(bytes, static_cast<uint32_t>(connections.size()));
  for (const auto& connection : connections) {
    const ConnectionOffer offer = connection->offer();
    save_value(bytes, offer.address);
    save_value(bytes, offer.credit);
    save_value(bytes, std::array<uint32_t, 2>{offer.receive_units, offer.receive_unit_bytes});
  }
  return bytes;
}

absl::Status FabricCore::accept_offer(std::vector<std::unique_ptr<Connection>>& connections,
                                      std::string_view offer, const Peer& peer) {
  try {
    auto in = std::as_bytes(std::span(offer)).subspan(1);
    if (load_value<uint32_t>(in) != connections.size()) {
      throw MalformedArguments("another number of queue pairs");
    }
    for (auto& connection : connections) {
      ConnectionOffer theirs;
      theirs.address = load_value<std::string>(in);
      theirs.credit = load_value<RemoteMemoryLocator>(in);
      const auto units = load_value<std::array<uint32_t, 2>>(in);
      theirs.receive_units = units[0];
      theirs.receive_unit_bytes = units[1];
      if (absl::Status status = connection->connect(theirs, peer.label); !status.ok())
        return status;
    }
  } catch (const std::exception& error) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      peer.label + " made a malformed offer to connect: " + error.what());
  }
  return absl::OkStatus();
}

void FabricCore::adopt(Peer& peer, std::vector<std::unique_ptr<Connection>> connections) {
  peer.connections = std::move(connections);
  const std::lock_guard lock(peer.port->mutex);
  for (const auto& connection : peer.connections) {
    peer.port->connections.push_back(connection.get());
  }
}

absl::Status FabricCore::connect(Peer& peer) {
  const Deadline deadline = deadline_after(options_.timeout);
  {
    std::unique_lock lock(peer.mutex);
    const auto settled = [&] { return peer.state != PeerState::kConnecting; };
    if (!peer.changed.wait_until(lock, deadline, settled)) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        peer.label + " did not finish connecting in time");
    }
    if (peer.state == PeerState::kConnected) return absl::OkStatus();
    if (peer.state == PeerState::kDead) return peer.failure;
    peer.state = PeerState::kConnecting;
  }
  const auto give_up = [&](absl::Status status) {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kConnecting) peer.state = PeerState::kUnconnected;
    peer.changed.notify_all();
    return status;
  };
  auto connections = make_connections(peer);
  if (!connections.ok()) return give_up(connections.status());
  auto answer = broker_->request(static_cast<int>(peer.rank), offer_of(*connections), deadline);
  if (!answer.ok()) return give_up(answer.status());
  if (answer->empty()) {  // our offers have crossed, and theirs counts
    std::unique_lock lock(peer.mutex);
    if (!peer.changed.wait_until(lock, deadline,
                                 [&] { return peer.state != PeerState::kConnecting; })) {
      peer.state = PeerState::kUnconnected;
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        peer.label + " did not finish connecting in time");
    }
    return peer.state == PeerState::kConnected ? absl::OkStatus() : peer.failure;
  }
  if (absl::Status accepted = accept_offer(*connections, *answer, peer); !accepted.ok()) {
    return give_up(accepted);
  }
  adopt(peer, *std::move(connections));
  // Only now may the other end send.
  auto ready = broker_->request(static_cast<int>(peer.rank), std::string(1, kReady), deadline);
  if (!ready.ok()) return give_up(ready.status());
  const std::lock_guard lock(peer.mutex);
  if (peer.state == PeerState::kConnecting) peer.state = PeerState::kConnected;
  peer.changed.notify_all();
  return peer.state == PeerState::kConnected ? absl::OkStatus() : peer.failure;
}

absl::StatusOr<std::string> FabricCore::answer_offer(int from, std::string_view request) {
  const auto rank = static_cast<uint32_t>(from);
  if (from < 0 || rank >= size_ || rank == rank_ || request.empty()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "a malformed request to connect");
  }
  Peer& peer = *peers_[rank];
  const std::lock_guard lock(peer.mutex);
  if (peer.state == PeerState::kDead) return peer.failure;
  if (request[0] == kReady) {
    if (peer.state == PeerState::kConnecting) peer.state = PeerState::kConnected;
    peer.changed.notify_all();
    return std::string(1, kReady);
  }
  // Both asked at once: the lower rank's offer counts.
  if (peer.state == PeerState::kConnected ||
      (peer.state == PeerState::kConnecting && rank_ < rank)) {
    return std::string();
  }
  auto connections = make_connections(peer);
  if (!connections.ok()) return connections.status();
  if (absl::Status accepted = accept_offer(*connections, request, peer); !accepted.ok()) {
    return accepted;
  }
  std::string answer = offer_of(*connections);
  adopt(peer, *std::move(connections));
  peer.state = PeerState::kConnecting;
  return answer;
}

absl::StatusOr<Connection*> FabricCore::connection(uint32_t rank, uint32_t index) {
  if (rank >= size_ || rank == rank_) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "there is no connection to rank " + std::to_string(rank) + " from rank " +
                          std::to_string(rank_) + " in a job of " + std::to_string(size_));
  }
  if (finalized_.load(std::memory_order_acquire)) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      "the fabric was finalized");
  }
  Peer& peer = *peers_[rank];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kConnected) [[unlikely]] {
    if (absl::Status connected = connect(peer); !connected.ok()) return connected;
  }
  return peer.connections[(index == kNoThread ? 0 : index) % peer.connections.size()].get();
}

const ProtectionDomain* FabricCore::domain(uint32_t rank) const {
  return rank < size_ && peers_[rank]->port != nullptr ? peers_[rank]->port->domain.get() : nullptr;
}

absl::Status FabricCore::peer_status(uint32_t rank) const {
  if (rank >= size_) return no_such_thread(rank, size_);
  Peer& peer = *peers_[rank];
  const std::lock_guard lock(peer.mutex);
  return peer.state == PeerState::kDead ? peer.failure : absl::OkStatus();
}

void FabricCore::fail_peer(Peer& peer, const absl::Status& reason) {
  if (leaving_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.state == PeerState::kDead) return;
    peer.failure = reason;
    peer.state = PeerState::kDead;
    peer.changed.notify_all();
  }
  if (options_.on_failure == FailurePolicy::kAbort) {
    std::fprintf(stderr, "cariama: rank %u ends, because %s is lost: %s\n", rank_,
                 peer.label.c_str(), std::string(reason.message()).c_str());
    std::fflush(nullptr);
    _exit(1);
  }
  for (auto& call : pending_.take_all(peer.rank)) call->complete(reason, {});
  for (uint32_t i = 0; i < threads_; ++i) wake(i);
}

// ---- Sending ------------------------------------------------------------------------------------

absl::Status FabricCore::send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                              WhenFull) {
  if (destination != kNoThread) {
    if (destination >= size_ * threads_) return no_such_thread(destination, size_ * threads_);
    rank = destination / threads_;
  } else if (rank >= size_) {
    return no_such_thread(rank, size_);
  }
  if (call.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this call is in a library that was loaded after the fabric "
                      "was created",
                      "load the library first");
  }
  const MessageHeader header{destination == kNoThread ? kNoThread : destination % threads_,
                             worker_core == this ? rank_ * threads_ + worker_index : kNoThread};
  if (rank == rank_) return send_local(destination, header, call);

  auto connected = connection(rank, worker_core == this ? worker_index : kNoThread);
  if (!connected.ok()) return connected.status();
  Connection& connection = **connected;
  if (call.total() > connection.max_call()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(call.total()) + " bytes to " + label(rank) +
                          " is longer than a receive unit takes (" +
                          std::to_string(connection.max_call()) + " bytes)",
                      "raise receive_unit_bytes, or pass the data by call_buffer");
  }
  Connection::Sent sent = connection.send(header, call);
  if (sent == Connection::Sent::kNoCredit) [[unlikely]] {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (running_core != nullptr) {
      // Inside a call: its receive unit is what another process may be waiting for.
      const size_t bytes = sizeof header + call.total();
      if (deferred_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes >
          options_.deferred_bytes) {
        deferred_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
        return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                          label(rank) + " is behind, and calls keep back " +
                              std::to_string(options_.deferred_bytes) + " bytes already",
                          "raise deferred_bytes, or send less from inside calls");
      }
      connection.defer(header, call);
      deferred_.fetch_add(1, std::memory_order_relaxed);
      peers_[rank]->port->channel->wake();
      sent = Connection::Sent::kPosted;
    } else {
      static_cast<void>(wait_until([&] {
        if (options_.service_threads == 0) progress();
        if (worker_core == this) process_calls(worker_index, kPollBatch);
        sent = connection.send(header, call);
        return sent != Connection::Sent::kNoCredit;
      }));
    }
  }
  if (sent == Connection::Sent::kFailed) {
    fail_peer(*peers_[rank], connection.status());
    return connection.status();
  }
  calls_sent_.fetch_add(1, std::memory_order_relaxed);
  sends_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status FabricCore::send_local(uint32_t destination, const MessageHeader& header,
                                    const OutgoingCall& call) {
  if (finalized_.load(std::memory_order_acquire)) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      "the fabric was finalized");
  }
  const size_t size = sizeof header + call.total();
  auto message = std::make_unique<LocalMessage>(size);
  const auto room = [&] {
    uint64_t held = deferred_bytes_.load(std::memory_order_relaxed);
    while (held + size <= options_.deferred_bytes || held == 0) {
      if (deferred_bytes_.compare_exchange_weak(held, held + size, std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  };
  if (!room()) {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (running_core != nullptr) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                        "calls within the process hold " + std::to_string(options_.deferred_bytes) +
                            " bytes already",
                        "raise deferred_bytes, or send less from inside calls");
    }
    static_cast<void>(wait_until([&] {
      if (worker_core == this) process_calls(worker_index, kPollBatch);
      return room();
    }));
  }
  std::memcpy(message->bytes, &header, sizeof header);
  call.write(message->bytes + sizeof header);
  calls_sent_.fetch_add(1, std::memory_order_relaxed);
  if (destination == kNoThread) {
    run(message.release());
  } else {
    deliver(message.release());
  }
  return absl::OkStatus();
}

absl::Status FabricCore::wake_remote(uint32_t rank, uint32_t index) {
  auto connected = connection(rank, index);
  if (!connected.ok()) return connected.status();
  // Without a credit the receiver has messages to come to: it is awake.
  if ((*connected)->wake(index) == Connection::Sent::kFailed) return (*connected)->status();
  wakes_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

// ---- Receiving ----------------------------------------------------------------------------------

size_t FabricCore::poll_port(Port& port) {
  if (port.polling.exchange(true, std::memory_order_acquire)) return 0;
  std::array<Completion, kPollBatch> batch;
  const size_t count = port.receives->poll(batch);
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = batch[i];
    auto* const unit = reinterpret_cast<ArrivedMessage*>(completion.id);
    Connection& connection = *unit->connection;
    if (completion.status != CompletionStatus::kSuccess) [[unlikely]] {
      Peer& peer = *peers_[connection.rank()];
      connection.queue().progress();
      const absl::Status known = connection.status();
      fail_peer(peer, known.ok() ? to_status(completion, peer.label) : known);
      continue;
    }
    static_cast<void>(connection.unit_of(completion));
    if (completion.kind == CompletionKind::kReceiveImmediate) {
      wake(completion.immediate);
      connection.finish(unit);
    } else {
      deliver(unit);
    }
  }
  port.polling.store(false, std::memory_order_release);
  return count;
}

void FabricCore::deliver(ArrivedMessage* message) {
  MessageHeader header;
  if (message->size < sizeof header + sizeof(CallHeader)) {
    reject(*message, "it is too short");
    return message->connection != nullptr ? message->connection->finish(message)
                                          : delete static_cast<LocalMessage*>(message);
  }
  std::memcpy(&header, message->bytes, sizeof header);
  if (header.destination == kNoThread) return run(message);
  if (header.destination >= threads_) {
    reject(*message, "it is for no thread of this process");
    return message->connection != nullptr ? message->connection->finish(message)
                                          : delete static_cast<LocalMessage*>(message);
  }
  Worker& worker = *workers_[header.destination];
  worker.inbox.push(message);
  if (worker.consumer.load(std::memory_order_acquire) != CallConsumer::kThread) {
    helpers_wake_.wake();
  }
}

void FabricCore::reject(const ArrivedMessage& message, std::string_view why) {
  // Said once in a while: a flood of them must not become a flood of lines.
  const uint64_t count = calls_rejected_.fetch_add(1, std::memory_order_relaxed) + 1;
  if ((count & (count - 1)) != 0) return;
  std::fprintf(
      stderr, "cariama: rank %u rejected a call from %s: %.*s (%lu so far)\n", rank_,
      message.connection != nullptr ? peers_[message.connection->rank()]->label.c_str() : "itself",
      static_cast<int>(why.size()), why.data(), static_cast<unsigned long>(count));
}

void FabricCore::run(ArrivedMessage* message) {
  const uint32_t from = message->connection != nullptr ? message->connection->rank() : rank_;
  MessageHeader header;
  std::memcpy(&header, message->bytes, sizeof header);
  auto parsed = parse_call({message->bytes + sizeof header, message->size - sizeof header});
  if (!parsed.ok()) {
    reject(*message, std::string(parsed.status().message()));
  } else {
    std::string result;
    IncomingCall call;
    call.closure = parsed->closure;
    call.source_thread = header.source;
    if ((parsed->header.flags() & kCallReturn) != 0) call.result = &result;
    const Running running(this, from);
    run_call(parsed->header, call);
    if (call.outcome == CallOutcome::kDone || call.outcome == CallOutcome::kThrew) {
      calls_run_.fetch_add(1, std::memory_order_relaxed);
    } else {
      reject(*message, call.outcome == CallOutcome::kUnknown ? "no function has its id"
                                                             : "its closure is malformed");
    }
    if (parsed->has_notify)
      answer(from, parsed->notify, call, result);
    else if (call.outcome == CallOutcome::kThrew)
      report_exception(from, call);
  }
  if (message->connection != nullptr) {
    message->connection->finish(message);
  } else {
    deferred_bytes_.fetch_sub(message->size, std::memory_order_relaxed);
    delete static_cast<LocalMessage*>(message);
  }
}

void FabricCore::report_exception(uint32_t from, const IncomingCall& call) {
  std::fprintf(stderr, "cariama: rank %u: a call from %s threw %s: %s\n", rank_,
               peers_[from]->label.c_str(), call.error_type.c_str(), call.error_text.c_str());
}

// Tells the caller how its call ended. To an answer that is too long for a message it says so instead.
void FabricCore::answer(uint32_t to, const NotifyTarget& target, const IncomingCall& call,
                        const std::string& result) {
  const uint64_t handle = target.handle;
  const auto send_answer = [&](CallOutcome outcome, const std::string& type,
                               const std::string& text, const std::string& bytes) {
    const auto complete = make_call(
        [handle, outcome](const std::string& type, const std::string& text,
                          const std::string& bytes) {
          FabricCore::running()->complete(handle, outcome, type, text, bytes);
        },
        type, text, bytes);
    return send(to, kNoThread, OutgoingCall::of(complete));
  };
  absl::Status sent = send_answer(call.outcome, call.error_type, call.error_text, result);
  if (absl::IsInvalidArgument(sent)) {
    sent = send_answer(CallOutcome::kThrew, "cariama::ResultTooLong",
                       "the result takes " + std::to_string(result.size()) +
                           " bytes, more than a receive unit: raise receive_unit_bytes",
                       "");
  }
  if (!sent.ok() && !leaving_.load(std::memory_order_acquire)) {
    std::fprintf(stderr, "cariama: rank %u could not answer %s: %s\n", rank_,
                 peers_[to]->label.c_str(), std::string(sent.message()).c_str());
  }
}

void FabricCore::complete(uint64_t handle, CallOutcome outcome, const std::string& type,
                          const std::string& text, const std::string& result) {
  const uint32_t from = running_rank;
  std::unique_ptr<PendingCall> call = pending_.take(handle, from);
  if (call == nullptr) return;  // its peer was given up before
  absl::Status status;
  switch (outcome) {
    case CallOutcome::kDone:
      break;
    case CallOutcome::kThrew:
      status = make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                          "the call threw " + type + " at " + label(from) + ": " + text);
      break;
    case CallOutcome::kMalformed:
    case CallOutcome::kUnknown:
      status = make_error(absl::StatusCode::kUnimplemented, ErrorScope::kOperation,
                          label(from) + " knows no such function");
      break;
  }
  call->complete(status, std::as_bytes(std::span(result)));
}

void FabricCore::look_after(Port& port, bool heartbeat) {
  std::vector<Connection*> connections;
  {
    const std::lock_guard lock(port.mutex);
    connections = port.connections;
  }
  for (Connection* connection : connections) {
    if (deferred_bytes_.load(std::memory_order_relaxed) != 0) {
      deferred_bytes_.fetch_sub(connection->flush(), std::memory_order_relaxed);
    }
    connection->return_credits(false);
    if (!heartbeat) continue;
    connection->queue().progress();
    Peer& peer = *peers_[connection->rank()];
    if (absl::Status status = connection->status(); !status.ok()) fail_peer(peer, status);
    // Somebody waits for an answer, and nothing is under way that could notice the peer's death.
    if (pending_.waits_for(peer.rank)) connection->probe();
  }
}

void FabricCore::serve(Port& port) {
  ChannelParking parking(*port.receives, *port.channel);
  while (!stopping_.load(std::memory_order_acquire)) {
    const bool deferred = deferred_bytes_.load(std::memory_order_relaxed) != 0;
    const Deadline deadline =
        deadline_after(deferred ? std::chrono::nanoseconds(kDeferredPause)
                                : std::chrono::nanoseconds(options_.heartbeat));
    const bool received = wait_until(
        [&] { return poll_port(port) != 0 || stopping_.load(std::memory_order_acquire); }, deadline,
        &parking);
    if (!received || deferred) look_after(port, !received && !deferred);
  }
}

// ---- Running calls ------------------------------------------------------------------------------

absl::Status FabricCore::take_worker(uint32_t index, CallConsumer consumer,
                                     ThreadContext* context) {
  if (index >= threads_) return no_such_thread(index, threads_);
  if (consumer == CallConsumer::kHelpers && options_.helper_threads == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "this fabric has no helper threads", "set helper_threads");
  }
  Worker& worker = *workers_[index];
  if (worker.taken.exchange(true)) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kOperation,
                      "another thread is worker " + std::to_string(index) + " of this process");
  }
  worker.context.store(context, std::memory_order_release);
  worker.consumer.store(consumer, std::memory_order_release);
  if (consumer == CallConsumer::kProcess) {
    const std::lock_guard lock(process_consumer_mutex_);
    if (!process_consumer_.joinable()) {
      process_consumer_ = std::thread([this] { help(true); });
    }
  }
  worker_core = this;
  worker_index = index;
  return absl::OkStatus();
}

void FabricCore::leave_worker(uint32_t index) {
  workers_[index]->context.store(nullptr, std::memory_order_release);
  workers_[index]->taken.store(false, std::memory_order_release);
  if (worker_core == this && worker_index == index) {
    worker_core = nullptr;
    worker_index = kNoThread;
  }
}

uint32_t FabricCore::this_worker() const { return worker_core == this ? worker_index : kNoThread; }

size_t FabricCore::process_calls(uint32_t index, size_t most) {
  Inbox& inbox = workers_[index]->inbox;
  // Held by a consumer, perhaps by us further up the stack: a call that lets calls in does not overtake
  // the one that it is.
  if (inbox.empty() || !inbox.try_consume()) return 0;
  size_t count = 0;
  while (count < most) {
    InboxNode* const node = inbox.pop();
    if (node == nullptr) break;
    run(static_cast<ArrivedMessage*>(node));
    ++count;
  }
  inbox.done();
  return count;
}

void FabricCore::help(bool process_consumer) {
  const CallConsumer role = process_consumer ? CallConsumer::kProcess : CallConsumer::kHelpers;
  WakeWordParking parking(helpers_wake_);
  while (!stopping_.load(std::memory_order_acquire)) {
    static_cast<void>(wait_until(
        [&] {
          size_t count = 0;
          for (uint32_t i = 0; i < threads_; ++i) {
            if (workers_[i]->consumer.load(std::memory_order_acquire) == role) {
              count += process_calls(i, SIZE_MAX);
            }
          }
          return count != 0 || stopping_.load(std::memory_order_acquire);
        },
        kForever, &parking));
  }
}

size_t FabricCore::progress() {
  size_t count = 0;
  for (auto& port : ports_) {
    count += poll_port(*port);
    look_after(*port, false);
  }
  return count;
}

void FabricCore::wake(uint32_t index) {
  if (index < threads_) workers_[index]->inbox.arrivals().wake();
}

bool FabricCore::wait(const std::function<bool()>& condition, Deadline deadline) {
  const uint32_t index = this_worker();
  const auto look = [&] {
    if (options_.service_threads == 0) progress();
    if (index != kNoThread &&
        workers_[index]->consumer.load(std::memory_order_relaxed) == CallConsumer::kThread) {
      process_calls(index, kPollBatch);
    }
    return condition();
  };
  if (index == kNoThread || options_.service_threads == 0) return wait_until(look, deadline);
  WakeWordParking parking(workers_[index]->inbox.arrivals());
  return wait_until(look, deadline, &parking);
}

// ---- The end ------------------------------------------------------------------------------------

absl::Status FabricCore::finalize(Deadline deadline) {
  if (finalized_.load(std::memory_order_acquire)) return absl::OkStatus();
  // Everybody has come: no thread of the job issues a call on its own account any more.
  if (absl::Status came = bootstrap_->fence(deadline); !came.ok()) return came;
  // Calls may still cause calls. Rounds of counting, until two in a row agree that everything that was
  // sent has been run (Mattern's four-counter method: the second count began after the first ended).
  std::array<uint64_t, 2> before{1, 0};
  for (uint64_t round = 0;; ++round) {
    static_cast<void>(wait([] { return false; }, deadline_after(std::chrono::milliseconds(1))));
    const std::array<uint64_t, 2> mine{calls_sent_.load(),
                                       calls_run_.load() + calls_rejected_.load()};
    const std::string key = "finalize/" + std::to_string(round);
    if (absl::Status put = put_value(*bootstrap_, key, mine); !put.ok()) return put;
    std::array<uint64_t, 2> sum{};
    for (uint32_t rank = 0; rank < size_; ++rank) {
      auto theirs =
          get_value<std::array<uint64_t, 2>>(*bootstrap_, static_cast<int>(rank), key, deadline);
      if (!theirs.ok()) return theirs.status();
      sum[0] += (*theirs)[0];
      sum[1] += (*theirs)[1];
    }
    if (sum[0] == sum[1] && sum == before) break;
    before = sum;
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kProcess,
                        std::to_string(sum[0] - sum[1]) + " calls of the job were not run in time",
                        "let every thread process its calls until finalize()");
    }
  }
  finalized_.store(true, std::memory_order_release);
  leaving_.store(true, std::memory_order_release);
  if (absl::Status agreed = bootstrap_->fence(deadline); !agreed.ok()) return agreed;
  broker_.reset();
  stop_threads();
  for (auto& peer : peers_) peer->connections.clear();
  return bootstrap_->finalize(deadline);
}

FabricStatistics FabricCore::statistics() const {
  FabricStatistics sum;
  sum.calls_sent = calls_sent_.load(std::memory_order_relaxed);
  sum.calls_run = calls_run_.load(std::memory_order_relaxed);
  sum.calls_rejected = calls_rejected_.load(std::memory_order_relaxed);
  sum.sends = sends_.load(std::memory_order_relaxed);
  sum.credit_waits = credit_waits_.load(std::memory_order_relaxed);
  sum.deferred = deferred_.load(std::memory_order_relaxed);
  sum.wakes = wakes_.load(std::memory_order_relaxed);
  for (const auto& port : ports_) {
    const std::lock_guard lock(port->mutex);
    for (const Connection* connection : port->connections) {
      ++sum.connections;
      sum.writes += connection->writes();
    }
  }
  return sum;
}

}  // namespace cariama::internal
