#include "dsfabric/internal/fabric_core.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <utility>

#include "dsfabric/internal/crash_report.h"
#include "dsfabric/internal/handshake.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/internal/shared_diagnostics.h"
#include "dtutils/registration/pinner.h"

namespace cariama::internal {
namespace {

// While calls are deferred the service thread must poll: credits arrive by plain WRITEs, which do
// not wake it.
constexpr std::chrono::microseconds kDeferredPause{200};
// How long a service thread pauses before it re-checks whether workers still receive in its place.
// It is the longest time that a message waits for the service thread after the workers have stopped
// polling without a notice. A shorter pause costs more system calls while the workers are busy.
// Each re-check that finds the workers still receiving doubles the pause, up to the second
// constant. The kernel adds its timer slack, 50 us.
constexpr std::chrono::microseconds kStandAside{100};
constexpr std::chrono::microseconds kStandAsideMost{400};

// Identifies a host for shm: the boot id, and the name spaces of PIDs and of the network, in which
// the names of local sockets are. shm needs all of them to be equal.
std::string host_identity() {
  std::string identity;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), identity);
  for (const char* const path : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat space {};
    if (stat(path, &space) == 0) identity += "/" + std::to_string(space.st_ino);
  }
  return identity;
}

absl::Status no_common_device(const std::string& label, const std::string& why) {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                    "there is no device that reaches " + label +
                        ", which is on another host or in another name space: " + why,
                    "give both hosts an RDMA device (soft-RoCE runs on any Ethernet; cariama-info "
                    "shows the devices), or start all processes on one host");
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

// Returns a name for the job that its processes agree on. Other users can read it in
// /proc/net/unix, so it must not reveal the secret.
std::string diagnostics_job(const JobSecret& secret) {
  std::string name;
  for (const uint8_t byte : keyed_hash(bytes_of(secret), "diagnostics")) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

// The fabrics of this process, for fork().
struct LiveFabrics {
  std::mutex mutex;
  std::vector<FabricCore*> cores;
};

LiveFabrics& live_fabrics() {
  static auto* const all = new LiveFabrics;  // never destroyed: a fabric may outlive static objects
  return *all;
}

// The set-up data that every process publishes for all others.
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

}  // namespace

// Sleeps until the port has a completion: of a receive, or of a transfer whose completion is
// awaited.
class FabricCore::PortParking final : public Parking {
 public:
  explicit PortParking(Port& port) : port_(port) {}
  void announce() override {
    armed_ = port_.receives->arm().ok();
    const std::lock_guard lock(port_.mutex);
    for (Connection* connection : port_.connections) {
      if (connection->awaited()) connection->arm();
    }
  }
  void sleep(Deadline deadline) override {
    if (!armed_) return;
    static_cast<void>(port_.channel->wait(
        deadline == kForever
            ? std::chrono::nanoseconds::max()
            : std::max(Deadline::duration::zero(), deadline - std::chrono::steady_clock::now())));
  }
  void retract() override {}

 private:
  Port& port_;
  bool armed_ = false;
};

absl::Status no_such_thread(uint32_t destination, uint32_t total) {
  return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                    "there is no thread " + std::to_string(destination) + ": the job has " +
                        std::to_string(total));
}

FabricCore::FabricCore(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap)
    : options_(options),
      bootstrap_(std::move(bootstrap)),
      rank_(static_cast<uint32_t>(bootstrap_->rank())),
      size_(static_cast<uint32_t>(bootstrap_->size())) {}

absl::StatusOr<std::unique_ptr<FabricCore>> FabricCore::create(
    const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap) {
  if (options.queue_pairs == 0 || options.receive_units == 0 || options.send_depth < 2 ||
      options.receive_unit_bytes < 256 || options.receive_unit_bytes % 8 != 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a fabric needs queue_pairs, receive_units, a send_depth of 2 at least, and "
                      "receive_unit_bytes of 256 at least, a multiple of 8");
  }
  if (absl::Status built = FunctionTable::build(); !built.ok()) return built;
  if (bootstrap->size() > 1) share_diagnostics(diagnostics_job(bootstrap->secret()));
  auto core = std::unique_ptr<FabricCore>(new FabricCore(options, std::move(bootstrap)));
  watch_forks(core.get());
  core->threads_ = options.threads.value_or(core->bootstrap_->threads().value_or(1));
  if (core->threads_ == 0 || core->threads_ >= kNoThread / core->size_) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      std::to_string(core->threads_) +
                          " threads per process: it must be one at least, and 2^32 in the job at "
                          "most");
  }
  for (uint32_t i = 0; i < core->threads_; ++i) {
    core->workers_.push_back(std::make_unique<Worker>());
  }
  if (absl::Status met = core->meet_others(deadline_after(options.timeout)); !met.ok()) return met;
  return core;
}

absl::Status FabricCore::start(Fabric* fabric, const Fabric::BrokerMaker& broker_of) {
  fabric_ = fabric;
  start_threads();
  auto broker = broker_of(*bootstrap_, [this](int rank, std::string_view request) {
    return answer_offer(rank, request);
  });
  if (!broker.ok()) return broker.status();
  broker_ = *std::move(broker);
  if (size_ > 1) report_crashes(label(rank_));
  return bootstrap_->watch_ends(true);
}

absl::Status FabricCore::meet_others(Deadline deadline) {
  const Introduction self{.program = FunctionTable::fingerprint(),
                          .threads = threads_,
                          .queue_pairs = options_.queue_pairs,
                          .pid = static_cast<uint32_t>(getpid()),
                          .host = host_name(),
                          .host_identity = host_identity()};
  std::string bytes;
  self.save(bytes);
  if (absl::Status put = bootstrap_->put("fabric", bytes); !put.ok()) return put;

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
      return make_error(
          absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
          "rank " + std::to_string(rank) + " published set-up data that cannot be decoded",
          "start the same executable in every process");
    }
    peer->label = "rank " + std::to_string(rank) + " (on " + other.host + ", pid " +
                  std::to_string(other.pid) + ")";
    peer->host = other.host;
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
    peers_.push_back(std::move(peer));
  }
  if (absl::Status opened = open_ports(near); !opened.ok()) return opened;

  auto anywhere = allocator(kAnyNode);
  if (!anywhere.ok()) return anywhere.status();
  auto memory = GeneralAllocator::create(*anywhere, {});
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  return place_wake_words();
}

absl::Status FabricCore::place_wake_words() {
  auto words = memory_->allocate((workers_.size() + 1) * kWakeWordStride);
  if (!words.ok()) return words.status();
  wake_words_ = *words;
  std::memset(wake_words_.get_buffer(), 0, wake_words_.size());
  const auto word = [&](size_t i) {
    return reinterpret_cast<WakeWord*>(wake_words_.get_buffer() + i * kWakeWordStride);
  };
  for (size_t i = 0; i < workers_.size(); ++i) workers_[i]->inbox.place_arrivals(*word(i));
  helpers_wake_ = word(workers_.size());
  return absl::OkStatus();
}

absl::Status FabricCore::open_ports(const std::vector<bool>& near) {
  const char* const forced = std::getenv("CARIAMA_TRANSPORT");
  const bool one_for_all = options_.device != nullptr || (forced != nullptr && *forced != '\0');
  std::array<Port*, 2> ports{};  // to processes on other hosts, to processes of this host
  for (auto& peer : peers_) {
    if (peer->rank == rank_) continue;
    if (one_for_all && options_.device == nullptr && !near[peer->rank] &&
        std::string_view(forced) == "shm") {
      return no_common_device(peer->label, "CARIAMA_TRANSPORT is shm");
    }
    Port*& port = ports[one_for_all || near[peer->rank]];
    if (port == nullptr) {
      std::shared_ptr<Device> device = options_.device;
      if (device == nullptr) {
        DeviceOptions wanted;  // open_device() itself honours CARIAMA_TRANSPORT
        if (!one_for_all) wanted.transport = near[peer->rank] ? Transport::kShm : Transport::kVerbs;
        auto opened = open_device(wanted);
        if (!opened.ok()) {
          if (near[peer->rank]) return opened.status();
          return no_common_device(peer->label, std::string(opened.status().message()));
        }
        device = *std::move(opened);
      }
      auto added = add_port(std::move(device));
      if (!added.ok()) return added.status();
      port = *added;
    }
    peer->port = port;
  }
  for (const auto& port : ports_) domains_.push_back(port->domain);
  if (!domains_.empty()) return absl::OkStatus();
  // A job of one process transfers nothing. It opens a device all the same, so that its memory can
  // be registered.
  std::shared_ptr<Device> device = options_.device;
  if (device == nullptr) {
    auto opened = open_device({.transport = Transport::kShm});
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  auto domain = device->create_domain();
  if (!domain.ok()) return domain.status();
  domains_.push_back(*std::move(domain));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> FabricCore::lend_registered(
    size_t domain, std::span<const std::byte> buffer) {
  RegistrationCache* cache = nullptr;
  {
    const std::lock_guard lock(registration_caches_mutex_);
    registration_caches_.resize(domains_.size());
    if (registration_caches_[domain] == nullptr) {
      // Peers only read lent buffers, so read-only memory can be registered, too.
      auto pinner = std::make_shared<DomainPinner>(domains_[domain], Access::kRemoteRead);
      auto made = RegistrationCache::create(std::move(pinner), options_.registration());
      if (!made.ok()) return made.status();
      registration_caches_[domain] = *std::move(made);
    }
    cache = registration_caches_[domain].get();
  }
  return cache->lend(buffer.data(), buffer.size());
}

absl::StatusOr<FabricCore::Port*> FabricCore::add_port(std::shared_ptr<Device> device) {
  auto port = std::make_unique<Port>();
  port->device = std::move(device);
  auto domain = port->device->create_domain();
  if (!domain.ok()) return domain.status();
  port->domain = *std::move(domain);
  auto channel = port->domain->create_channel();
  if (!channel.ok()) return channel.status();
  port->channel = *std::move(channel);
  // Every receive unit of every connection may have a pending completion.
  const uint64_t wanted = uint64_t{size_} * options_.queue_pairs * options_.receive_units;
  if (wanted > port->device->limits().max_completions) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      std::to_string(size_) + " processes with " +
                          std::to_string(options_.queue_pairs) + " queue pairs and " +
                          std::to_string(options_.receive_units) + " receive units each need " +
                          std::to_string(wanted) + " completions, " + port->device->description() +
                          " has " + std::to_string(port->device->limits().max_completions),
                      "lower receive_units");
  }
  auto receives = port->domain->create_completion_queue(
      {.depth = static_cast<uint32_t>(wanted), .channel = port->channel});
  if (!receives.ok()) return receives.status();
  port->receives = *std::move(receives);
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> FabricCore::allocator(int numa_node) {
  const std::lock_guard lock(allocators_mutex_);
  for (const auto& one : allocators_) {
    if (one->numa_node() == numa_node) return one;
  }
  auto made = RDMAAllocator::create(domains_, numa_node, {.chunk_bytes = size_t{64} << 10});
  if (made.ok()) allocators_.push_back(*made);
  return made;
}

// ---- Threads ------------------------------------------------------------------------------------

void FabricCore::start_threads() {
  if (options_.service_threads != 0) {
    for (auto& port : ports_) {
      port->service = std::thread([this, &port = *port] { serve(port); });
    }
  }
  for (uint32_t i = 0; i < options_.helper_threads; ++i) {
    helpers_.emplace_back([this] { help(CallConsumer::kHelpers); });
  }
}

void FabricCore::stop_threads() {
  stopping_.store(true, std::memory_order_seq_cst);
  for (auto& port : ports_) {
    port->channel->wake();
    port->resumption.wake();
    if (port->service.joinable()) port->service.join();
  }
  if (helpers_wake_ != nullptr) helpers_wake_->wake();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  pulls_wake_.wake();
  if (puller_.joinable()) puller_.join();
  const std::lock_guard lock(process_consumer_mutex_);
  if (process_consumer_.joinable()) process_consumer_.join();
}

// While workers that wait or poll receive messages themselves (receive()), the service thread
// pauses. Its completion channel is not armed then, so no message pays for waking it. A worker that
// goes to sleep wakes it (stop_receiving()). The service thread also re-checks periodically: a
// worker whose wait has ended, or that runs a call that blocks, stops receiving without a notice.
void FabricCore::serve(Port& port) {
  PortParking parking(port);
  bool deferred = false;
  const auto something = [&] {
    return poll_port(port) != 0 || port.received.load(std::memory_order_relaxed) ||
           stopping_.load(std::memory_order_acquire) ||
           // Calls were deferred since the thread went to sleep: from now on it re-checks every
           // kDeferredPause.
           (!deferred && has_kept_back(port));
  };
  bool busy = true;
  std::chrono::microseconds aside_for = kStandAside;
  while (!stopping_.load(std::memory_order_acquire)) {
    deferred = has_kept_back(port);
    const Deadline deadline = deferred ? deadline_after(kDeferredPause)
                                       : port.next_heartbeat.load(std::memory_order_relaxed);
    if (busy) {
      busy = wait_until(something, deadline, &parking);
    } else {
      // A heartbeat does not indicate further messages: sleep again at once, without polling.
      parking.announce();
      busy = something();
      if (busy) {
        parking.retract();
      } else {
        parking.sleep(deadline);
        busy = something();
      }
    }
    rounds_.fetch_add(1, std::memory_order_relaxed);
    WakeWordParking aside(port.resumption);
    aside.announce();
    if (port.received.exchange(false, std::memory_order_relaxed) &&
        !stopping_.load(std::memory_order_seq_cst)) {
      aside.sleep(deadline_after(aside_for));
      aside_for = std::min(2 * aside_for, kStandAsideMost);
    } else {
      aside.retract();
      aside_for = kStandAside;
    }
    service_port(port, std::chrono::steady_clock::now());
  }
}

// The periodic work for a port's connections, which only service threads (or progress()) do: sends
// deferred calls and due credits; at each heartbeat also detects failures.
void FabricCore::service_port(Port& port, Deadline now) {
  const bool deferred = has_kept_back(port);
  Deadline next = port.next_heartbeat.load(std::memory_order_relaxed);
  const bool heartbeat = now >= next && port.next_heartbeat.compare_exchange_strong(
                                            next, deadline_after(options_.heartbeat));
  if (!deferred && !heartbeat) return;
  if (heartbeat) handle_ended();
  // Clear the flag before the connections are visited: credits that become due later set it again.
  port.owes_credits.store(false, std::memory_order_seq_cst);
  // Completes results in the slots of a thread that is inside a blocking call, in case another
  // thread waits for these results.
  if (heartbeat) static_cast<void>(take_answers(nullptr));
  std::vector<Connection*> connections;
  {
    const std::lock_guard lock(port.mutex);
    connections = port.connections;
  }
  for (Connection* connection : connections) {
    Peer& peer = *peers_[connection->rank()];
    const bool dead = peer.state.load(std::memory_order_acquire) == PeerState::kDead;
    if (deferred) {
      deferred_bytes_.fetch_sub(dead ? connection->drop_deferred() : connection->flush(),
                                std::memory_order_relaxed);
    }
    if (dead) continue;
    if (!connection->return_credits()) port.owes_credits.store(true, std::memory_order_seq_cst);
    if (!heartbeat) continue;
    connection->poll_sends();
    connection->repeat_credits();
    if (absl::Status status = connection->status(); !status.ok()) fail_peer(peer, status);
    // A pending call needs the peer. The probe makes sure that an operation is in flight, so that
    // the peer's death is detected.
    if (connection->unfinished() != 0 || pending_.waits_for(peer.rank)) connection->probe();
  }
}

// Makes fork() mark the fabric as closed in the child. The marks are all that is safe to change
// there: other threads may hold any lock of the fabric at the fork.
void FabricCore::watch_forks(FabricCore* core) {
  static const int prepared =
      pthread_atfork([] { live_fabrics().mutex.lock(); }, [] { live_fabrics().mutex.unlock(); },
                     [] {
                       for (FabricCore* one : live_fabrics().cores) {
                         one->inherited_.store(true);
                         one->finalized_.store(true);
                         one->leaving_.store(true);
                       }
                       live_fabrics().mutex.unlock();
                     });
  static_cast<void>(prepared);  // ENOMEM: a child is not recognised
  const std::lock_guard lock(live_fabrics().mutex);
  live_fabrics().cores.push_back(core);
}

FabricCore::~FabricCore() {
  {
    const std::lock_guard lock(live_fabrics().mutex);
    std::erase(live_fabrics().cores, this);
  }
  finalized_.store(true, std::memory_order_release);
  leaving_.store(true, std::memory_order_release);
  broker_.reset();
  if (CallSourceRegistry* const registry = call_source_registry_.load(std::memory_order_acquire);
      registry != nullptr) {
    registry->stop();
  }
  stop_threads();
  call_source_registry_.store(nullptr, std::memory_order_release);
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
      if (message->resume) message->resume.destroy();
      if (message->connection == nullptr) delete static_cast<OwnMessage*>(message);
    }
  }
  // Destroy the queue pairs before the memory and queues that they use.
  for (auto& peer : peers_) peer->connections.clear();
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
  sum.rounds = rounds_.load(std::memory_order_relaxed);
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
