#include "dsfabric/peers/ports.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/first_exception.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// While calls are deferred the service thread must poll: credits arrive by plain WRITEs, which do
// not wake it.
constexpr std::chrono::microseconds kDeferredPause{200};
// The time that a service thread pauses before it re-checks whether workers still receive in its
// place. This is also the longest time that a message waits for the service thread after the
// workers have stopped polling without a notice. A shorter pause costs more system calls while the
// workers are busy. Each re-check that finds the workers still receiving doubles the pause, up to
// the second constant. The kernel adds its timer slack, 50 us.
constexpr std::chrono::microseconds kStandAside{100};
constexpr std::chrono::microseconds kStandAsideMost{400};

constexpr std::string_view kPortMemoryKey = "dsfabric.service.memory";
constexpr std::string_view kPortMemoryText =
    "this process lacks memory for the messages of another one";

// Immediate data is the index of a worker otherwise, or has CallSender::kCallSourceEvent, bit 31.
static_assert(Connection::kReturnsUnit >= FabricOptions::kMaxPerProcess &&
              Connection::kReturnsUnit >> 31 == 0);

// Returns the time of the steady clock, some milliseconds late, at a tenth of the cost. Checks for
// a due heartbeat are far more frequent than heartbeats.
Deadline coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Deadline(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

absl::Status no_common_device(const std::string& label, const std::string& why) {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                    "there is no device that reaches " + label +
                        ", which is on another host or in another name space: " + why,
                    "give both hosts an RDMA device (soft-RoCE runs on any Ethernet; cariama-info "
                    "shows the devices), or start all processes on one host, in containers with "
                    "one --network and one --pid");
}

}  // namespace

absl::Status lease_ended(const std::string& label, std::chrono::milliseconds lease) {
  return make_error(
      absl::StatusCode::kUnavailable, ErrorScope::kPeer,
      label + " has given no sign of life for " + std::to_string(lease.count()) + " ms, its lease",
      peer_remedy(PeerRemedy::kLease));
}

// Sleeps until the port has a completion: of a receive, or of a transfer whose completion is
// awaited.
class Ports::PortSleeper final : public Sleeper {
 public:
  explicit PortSleeper(Port& port) : port_(port) {}
  void arm() override {
    armed_ = port_.receives->arm().ok();
    const std::lock_guard lock(port_.mutex);
    for (Connection* connection : port_.connections) {
      if (connection->awaited()) connection->arm();
    }
  }
  [[nodiscard]] bool recheck() override {
    if (!armed_) return true;
    if (!skipped_) return false;
    // If the thread that polls ends its poll after arm(), it wakes the channel.
    static_cast<void>(port_.skipped.arm());
    return !port_.polling.load(std::memory_order_seq_cst);
  }
  void wait(Deadline deadline) override {
    const TraceScope trace("dsfabric", "sleep");
    static_cast<void>(port_.channel->wait(
        deadline == kForever
            ? std::chrono::nanoseconds::max()
            : std::max(Deadline::duration::zero(), deadline - std::chrono::steady_clock::now())));
  }
  // Called after each poll of the port: `skipped` if another thread was polling.
  void note_poll(bool skipped) { skipped_ = skipped; }

 private:
  Port& port_;
  bool armed_ = false;
  bool skipped_ = false;
};

Ports::Ports(const FabricJob& job, FabricMemory& memory, PortListener& listener)
    : job_(job),
      memory_(memory),
      listener_(listener),
      unit_budget_(job.options().shared_unit_bytes / job.options().receive_unit_bytes),
      deferred_(job.options().deferred_bytes) {}

absl::Status Ports::open() {
  const std::shared_ptr<Device>& wanted_device = job_.options().device;
  const char* const forced = std::getenv("CARIAMA_TRANSPORT");
  const bool one_for_all = wanted_device != nullptr || (forced != nullptr && *forced != '\0');
  std::array<Port*, 2> ports{};  // to processes on other hosts, to processes of this host
  for (uint32_t rank = 0; rank < job_.size(); ++rank) {
    if (rank == job_.rank()) continue;
    const bool near = job_.same_host(rank);
    if (one_for_all && wanted_device == nullptr && !near && std::string_view(forced) == "shm") {
      return no_common_device(job_.label(rank), "CARIAMA_TRANSPORT is shm");
    }
    Port*& port = ports[one_for_all || near];
    if (port == nullptr) {
      std::shared_ptr<Device> device = wanted_device;
      if (device == nullptr) {
        DeviceOptions wanted;  // open_device() itself reads CARIAMA_TRANSPORT
        if (!one_for_all) wanted.transport = near ? Transport::kShm : Transport::kVerbs;
        auto opened = open_device(wanted);
        if (!opened.ok()) {
          if (near) return opened.status();
          return no_common_device(job_.label(rank), std::string(opened.status().message()));
        }
        device = *std::move(opened);
      }
      auto added = add_port(std::move(device));
      if (!added.ok()) return added.status();
      port = *added;
    }
    by_place_[near] = port;
  }
  for (const auto& port : ports_) domains_.push_back(port->domain);
  if (!domains_.empty()) return absl::OkStatus();
  // A job of one process transfers nothing, but it opens a device, so that its memory can be
  // registered.
  std::shared_ptr<Device> device = wanted_device;
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

absl::StatusOr<Ports::Port*> Ports::add_port(std::shared_ptr<Device> device) {
  auto port = std::make_unique<Port>();
  port->device = std::move(device);
  auto domain = port->device->create_domain();
  if (!domain.ok()) return domain.status();
  port->domain = *std::move(domain);
  auto channel = port->domain->create_channel();
  if (!channel.ok()) return channel.status();
  port->channel = *std::move(channel);
  // Every receive unit of every connection may have a pending completion.
  const FabricOptions& options = job_.options();
  const uint64_t wanted = uint64_t{job_.size()} * options.queue_pairs * options.receive_units;
  if (wanted > port->device->limits().max_completions) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      std::to_string(job_.size()) + " processes with " +
                          std::to_string(options.queue_pairs) + " queue pairs and " +
                          std::to_string(options.receive_units) + " receive units each need " +
                          std::to_string(wanted) + " completions, " + port->device->description() +
                          " has " + std::to_string(port->device->limits().max_completions),
                      "lower FabricOptions::queue_pairs or receive_units");
  }
  auto receives = port->domain->create_completion_queue(
      {.depth = static_cast<uint32_t>(wanted), .channel = port->channel});
  if (!receives.ok()) return receives.status();
  port->receives = *std::move(receives);
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

void Ports::destroy(Connection* connection) {
  auto owned = std::unique_ptr<Connection>(connection);
  // A child has no thread of its parent that would end a poll.
  if (job_.lifecycle().is_inherited()) return;
  connection->abandon();  // its completions say nothing about the peer from now on
  Port& port = port_to(connection->rank());
  {
    const std::lock_guard lock(port.mutex);
    port.unused.push_back(std::move(owned));
  }
  port.any_unused.store(true, std::memory_order_seq_cst);
  if (!port.polling.exchange(true, std::memory_order_seq_cst)) end_polling(port);
}

absl::StatusOr<Ports::OwnedConnection> Ports::make_connection(uint32_t rank) {
  listener_.connecting(rank);
  auto anywhere = memory_.allocator(kAnyNode);
  if (!anywhere.ok()) return anywhere.status();
  const Port& port = port_to(rank);
  const FabricOptions& options = job_.options();
  auto made = Connection::create(
      rank, *port.domain, port.receives, port.channel, *std::move(anywhere), memory_.general(),
      unit_budget_,
      {.bytes = options.receive_unit_bytes,
       .reserved = std::min(options.reserved_units, options.receive_units),
       .most = options.receive_units},
      options.send_depth, options.service_threads == 0, memory_.user_memory(port.domain.get()));
  if (!made.ok()) return made.status();
  if (doorbells_ != nullptr) (*made)->set_doorbells(*doorbells_);
  return OwnedConnection(made->release(), DestroyConnection{this});
}

void Ports::add(Connection& connection) {
  Port& port = port_to(connection.rank());
  const std::lock_guard lock(port.mutex);
  port.connections.push_back(&connection);
}

// ---- Service threads ----------------------------------------------------------------------------

absl::Status Ports::start() {
  if (job_.options().service_threads == 0) return absl::OkStatus();
  for (auto& port : ports_) {
    auto thread = start_thread([this, &port = *port] { serve(port); });
    if (!thread.ok()) return thread.status();
    port->service = *std::move(thread);
  }
  return absl::OkStatus();
}

void Ports::stop() {
  for (auto& port : ports_) {
    port->channel->wake();
    port->resumption.ring();
    if (port->service.joinable()) port->service.join();
  }
}

// While workers that wait or poll receive messages themselves (receive()), the service thread
// pauses. Its completion channel is not armed then, so that no message has the cost of waking it. A
// worker that goes to sleep wakes it (stop_receiving()). The service thread also re-checks
// periodically: a worker whose wait has ended, or that runs a call that blocks, stops receiving
// without a notice.
void Ports::serve(Port& port) {
  name_trace_thread("service thread");
  PortSleeper sleeper(port);
  bool deferred = false;
  const auto something = [&] {
    const std::optional<size_t> polled = poll(port);
    sleeper.note_poll(!polled.has_value());
    return polled.value_or(0) != 0 || port.received.load(std::memory_order_relaxed) ||
           job_.lifecycle().is_stopping() ||
           // Calls were deferred since the thread went to sleep: from now on it re-checks every
           // kDeferredPause.
           (!deferred && has_unsent(port));
  };
  bool busy = true;
  std::chrono::microseconds aside_for = kStandAside;
  const auto round = [&] {
    deferred = has_unsent(port);
    const Deadline deadline = deferred ? deadline_after(kDeferredPause)
                                       : port.next_heartbeat.load(std::memory_order_relaxed);
    // A heartbeat does not indicate further messages: sleep again immediately, without polling.
    busy =
        busy ? wait_until(something, deadline, &sleeper) : sleep_once(something, deadline, sleeper);
    rounds_.fetch_add(1, std::memory_order_relaxed);
    aside_for = stand_aside(port, aside_for);
    service(port, std::chrono::steady_clock::now());
  };
  while (!job_.lifecycle().is_stopping()) {
    if (!has_memory_for(kPortMemoryKey, kPortMemoryText, round)) {
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

// Pauses for `time` if workers have received since the last pause, and returns the time of the next
// pause.
std::chrono::microseconds Ports::stand_aside(Port& port, std::chrono::microseconds time) {
  if (port.received.load(std::memory_order_relaxed)) {
    const uint32_t expected = port.resumption.arm();
    if (port.received.exchange(false, std::memory_order_relaxed) &&
        !job_.lifecycle().is_stopping()) {
      port.resumption.wait(expected, deadline_after(time));
      return std::min(2 * time, kStandAsideMost);
    }
  }
  return kStandAside;
}

// The periodic work for a port's connections, which only service threads (or progress()) do: sends
// deferred calls and due credits; at each heartbeat also detects failures.
void Ports::service(Port& port, Deadline now) {
  const bool deferred = has_unsent(port);
  Deadline next = port.next_heartbeat.load(std::memory_order_relaxed);
  const bool heartbeat = now >= next && port.next_heartbeat.compare_exchange_strong(
                                            next, deadline_after(job_.options().heartbeat));
  if (!deferred && !heartbeat) return;
  // Clear the flag before the connections are visited: credits that become due later set it again.
  port.owes_credits.store(false, std::memory_order_seq_cst);
  FirstException exceptions;
  const auto do_part = [&](const auto& part) {
    if (!exceptions.run(part)) port.owes_credits.store(true, std::memory_order_seq_cst);
  };
  if (heartbeat) do_part([&] { listener_.heartbeat(); });
  for (size_t i = 0;; ++i) {
    Connection* connection = nullptr;
    {
      const std::lock_guard lock(port.mutex);
      if (i < port.connections.size()) connection = port.connections[i];
    }
    if (connection == nullptr) break;
    do_part([&] { service(port, *connection, now, deferred, heartbeat); });
  }
  exceptions.rethrow();
}

void Ports::service(Port& port, Connection& connection, Deadline now, bool deferred,
                    bool heartbeat) {
  if (connection.is_abandoned()) return;
  const bool failed = listener_.is_failed(connection.rank());
  if (deferred) {
    deferred_.release(failed ? connection.drop_deferred() : connection.send_deferred());
  }
  if (failed) return;
  if (!connection.return_credits()) port.owes_credits.store(true, std::memory_order_seq_cst);
  if (!heartbeat) return;
  connection.poll_sends();
  connection.repeat_credits();
  if (listener_.is_connected(connection.rank())) {
    connection.return_idle_units(now, job_.options().return_units_after);
  }
  if (absl::Status status = connection.status(); !status.ok()) {
    listener_.connection_failed(connection.rank(), status);
  }
  if (job_.options().lease.count() != 0) check_lease(connection);
  // A pending call needs the peer. The probe makes sure that an operation is in flight, so that
  // the peer's death is detected.
  if (connection.unfinished() != 0 || listener_.awaits_answer(connection.rank())) {
    connection.probe();
  }
}

// Counts heartbeats instead of time, because a stopped process has no heartbeats.
void Ports::check_lease(Connection& connection) {
  const uint32_t rank = connection.rank();
  const uint64_t silent = connection.exchange_signs(listener_.is_connected(rank));
  const FabricOptions& options = job_.options();
  if (silent * options.heartbeat < options.lease) return;
  listener_.connection_failed(rank, error_or_code(absl::StatusCode::kUnavailable, [&] {
                                return lease_ended(job_.label(rank), options.lease);
                              }));
}

// ---- Arrival ------------------------------------------------------------------------------------

std::optional<size_t> Ports::poll(Port& port) {
  if (port.polling.load(std::memory_order_relaxed) ||
      port.polling.exchange(true, std::memory_order_acquire)) {
    return std::nullopt;
  }
  const std::span<Completion> batch = port.batch;
  size_t count = 0;
  try {
    count = port.receives->poll(batch);
  } catch (...) {  // no memory in the transport: otherwise no thread would poll the port again
    end_polling(port);
    throw;
  }
  if (count == 0) {
    end_polling(port);
    return 0;
  }
  const TraceScope trace("dsfabric", "receive", "messages", count);
  // An exception of the listener (no memory) ends neither the batch nor all polling of the port.
  FirstException exceptions;
  for (size_t i = 0; i < count; ++i) exceptions.run([&] { report(port, batch[i]); });
  end_polling(port);
  exceptions.run([&] { listener_.batch_arrived(); });
  exceptions.rethrow();
  return count;
}

void Ports::report(Port& port, const Completion& completion) {
  auto* const unit = reinterpret_cast<ArrivedMessage*>(completion.id);
  Connection& connection = *unit->connection;
  if (completion.status != CompletionStatus::kSuccess) [[unlikely]] {
    port.receive_completions.add();
    connection.drop(unit);
    if (connection.is_abandoned()) return;
    // The completions of sends may state the cause. The failure is reported also without them: this
    // may be the last completion of a receive, and a connection that sends nothing has no other.
    static_cast<void>(
        has_memory_for(kPortMemoryKey, kPortMemoryText, [&] { connection.queue().progress(); }));
    const absl::Status known = connection.status();
    const auto explained = [&] {
      return connection_failure(completion, job_.label(connection.rank()));
    };
    listener_.connection_failed(
        connection.rank(),
        known.ok() ? error_or_code(absl::StatusCode::kUnavailable, explained) : known);
    return;
  }
  static_cast<void>(connection.unit_of(completion));
  if (completion.kind == CompletionKind::kReceiveImmediate &&
      completion.immediate == Connection::kReturnsUnit) [[unlikely]] {
    return finish(unit, true);
  }
  port.receive_completions.add();
  if (completion.kind == CompletionKind::kReceiveImmediate) {
    finish(unit);
    listener_.event_arrived(connection.rank(), completion.immediate);
  } else {
    listener_.message_arrived(unit);
  }
}

void Ports::end_polling(Port& port) {
  if (port.any_unused.load(std::memory_order_seq_cst)) [[unlikely]] {
    port.any_unused.store(false, std::memory_order_seq_cst);
    std::vector<std::unique_ptr<Connection>> unused;
    const std::lock_guard lock(port.mutex);
    unused.swap(port.unused);
  }
  port.polling.store(false, std::memory_order_release);
  // Doorbell::take() has the fence between the store and the load of the doorbell.
  if (port.skipped.take()) [[unlikely]]
    port.channel->wake();
}

// A thread that waits, or that polls for calls, receives messages itself while it is awake. So no
// message takes a detour through another thread. The service threads pause meanwhile: see serve().
size_t Ports::receive() {
  size_t count = 0;
  for (auto& port : ports_) {
    // Load before storing: while the service thread does not write the flag, its cache line stays
    // shared.
    if (!port->received.load(std::memory_order_relaxed)) {
      port->received.store(true, std::memory_order_relaxed);
    }
    count += poll(*port).value_or(0);
  }
  return count;
}

void Ports::receive_once() {
  Port* const port = by_place_[1];
  if (port == nullptr) return;
  // Another thread may have polled before the message arrived, and a full batch, or an exception,
  // may leave messages.
  struct Rest {
    ~Rest() {
      if (!all_received) port.channel->wake();
    }
    Port& port;
    bool all_received;
  } rest{*port, false};
  const std::optional<size_t> polled = poll(*port);
  rest.all_received = polled.has_value() && *polled < kReceiveBatch;
}

// Called before the thread sleeps: from now on the service threads receive.
void Ports::stop_receiving() {
  for (auto& port : ports_) {
    port->received.store(false, std::memory_order_relaxed);
    port->resumption.ring();
  }
}

size_t Ports::progress() {
  size_t count = 0;
  for (auto& port : ports_) {
    count += poll(*port).value_or(0);
    service(*port, coarse_now());
  }
  return count;
}

void Ports::finish(ArrivedMessage* unit, bool returned) noexcept {
  Connection& connection = *unit->connection;
  if (connection.finish(unit, returned)) [[likely]]
    return;
  Port& port = port_to(connection.rank());
  port.owes_credits.store(true, std::memory_order_seq_cst);
  port.channel->wake();
}

bool Ports::defer(Connection& connection, const MessageHeader& header, const OutgoingCall& call) {
  const uint64_t bytes = sizeof header + call.total();
  if (call.is_unlimited) {
    deferred_.add(bytes);
  } else if (!deferred_.reserve(bytes)) {
    return false;
  }
  try {
    connection.defer(header, call);
  } catch (...) {  // no memory: the call is not deferred
    deferred_.release(bytes);
    throw;
  }
  port_to(connection.rank()).channel->wake();
  return true;
}

void Ports::add_to(FabricStatistics& sum) const {
  sum.rounds += rounds_.load(std::memory_order_relaxed);
  for (const auto& port : ports_) sum.receives += port->receive_completions.value();
  for (const auto& port : ports_) {
    const std::lock_guard lock(port->mutex);
    for (const Connection* connection : port->connections) {
      if (connection->is_abandoned()) continue;
      ++sum.connections;
      sum.writes += connection->writes();
      sum.receive_bytes += connection->receive_bytes();
    }
  }
}

}  // namespace cariama::internal
