#include "riutils/internal/runtime.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "dsfabric/internal/unlimited_call.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/register_ringers.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"
#include "riutils/internal/fabric_channel.h"
#include "riutils/internal/sender_chunks.h"

namespace cariama::internal {
namespace {

// Interval at which the drain thread retries while calls are deferred. The receiver reports
// consumed chunks by a plain WRITE, which wakes no thread.
constexpr std::chrono::microseconds kPause{100};

std::unique_ptr<CallSourceRegistry> make_runtime(Fabric& fabric) {
  return std::make_unique<Runtime>(fabric);
}

CallResult report_broken_channel(Fabric& fabric, Rank rank, uint64_t serial, uint64_t consumed) {
  return unlimited_service_call(fabric, rank, [serial, consumed] {
    Runtime::of(*running_fabric()).channel_broken(running_source(), serial, consumed);
  });
}

}  // namespace

Runtime& Runtime::of(Fabric& fabric) {
  return static_cast<Runtime&>(call_source_registry(fabric, &make_runtime));
}

Runtime::Runtime(Fabric& fabric)
    : fabric_(fabric),
      has_barrier_(register_ringers()),
      chunk_budget_(fabric.options().channel_bytes,
                    "budget of " + fabric.label(fabric.rank()) + " for chunks of incoming channels",
                    "raise its FabricOptions::channel_bytes, or use fewer channels or smaller "
                    "chunks") {
  for (uint32_t i = 0; i < fabric.threads(); ++i) {
    incoming_.push_back(
        std::make_unique<IncomingCalls>(fabric, i, chunk_budget_, &report_broken_channel));
  }
}

Runtime::~Runtime() { disconnect(); }

// ---- Requests of peers --------------------------------------------------------------------------

PeerProperties Runtime::properties() {
  const Rank rank = running_fabric() == nullptr ? fabric_.rank() : running_source();
  const ProtectionDomain* const domain = rank == fabric_.rank() ? nullptr : fabric_.domain(rank);
  const RDMAMemory& rung = doorbells(fabric_);
  return {.doorbells = domain != nullptr
                           ? rung.locator(domain, fabric_.rank())
                           : RemoteMemoryLocator{reinterpret_cast<uint64_t>(rung.get_buffer()),
                                                 rung.size(),
                                                 {},
                                                 fabric_.rank(),
                                                 0},
          .fences_ringers = has_barrier_ ? uint64_t{1} : 0};
}

ChunkAnswer Runtime::grant(Rank rank, const ChunkRequest& request) {
  if (request.worker < incoming_.size()) return incoming_[request.worker]->grant(rank, request);
  ChunkAnswer answer;
  answer.code = static_cast<int32_t>(absl::StatusCode::kOutOfRange);
  return answer;
}

void Runtime::channel_broken(Rank rank, uint64_t serial, uint64_t consumed_bytes) {
  std::shared_ptr<FabricChannel> channel;
  for (auto& one : channels_to(rank)) {
    if (one->serial() == serial) channel = std::move(one);
  }
  const absl::Status why = malformed_data(fabric_.label(rank));
  // First: afterwards accepted_bytes() does not count deferred calls, which are lost.
  if (channel != nullptr) channel->sender().close(why);
  {
    const std::lock_guard lock(mutex_);
    const auto found = broken_.find(serial);
    // The peer may report anything: only a channel to it counts.
    if (channel == nullptr && (found == broken_.end() || found->second.rank != rank)) return;
    BrokenChannel& broken = broken_.try_emplace(serial, BrokenChannel{rank, {}, {}}).first->second;
    if (!broken.consumed.has_value()) broken.consumed = consumed_bytes;
  }
  // Also the calls of a channel that its messenger has shut down.
  fail_calls_of_channel(fabric_, rank, serial, why);
  tell_waiters(fabric_);
}

// ---- Outgoing channels --------------------------------------------------------------------------

absl::StatusOr<Transmitter*> Runtime::transmitter(Rank rank, ThreadIndex index, ChannelUser user) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = transmitters_.find({rank, index, user});
    if (found != transmitters_.end()) return found->second.get();
  }
  auto queue = fabric_.connection(rank, index);  // may wait
  if (!queue.ok()) return queue.status();
  auto made = Transmitter::create(**queue);
  if (!made.ok()) return made.status();
  const std::lock_guard lock(mutex_);
  auto& transmitter = transmitters_[{rank, index, user}];
  if (transmitter == nullptr) transmitter = std::make_unique<Transmitter>(*std::move(made));
  return transmitter.get();
}

std::optional<absl::StatusOr<PeerProperties>> Runtime::request_properties(
    Rank rank, std::unique_ptr<Question<PeerProperties>>& request) {
  if (rank == fabric_.rank()) return properties();
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = properties_.find(rank); found != properties_.end()) return found->second;
  }
  if (request == nullptr) {
    request = std::make_unique<Question<PeerProperties>>(
        fabric_, rank, nullptr, [] { return Runtime::of(*running_fabric()).properties(); });
  }
  std::optional<absl::StatusOr<PeerProperties>> answer = answer_to(request);
  if (!answer.has_value() || !answer->ok()) return answer;
  PeerProperties& peer = **answer;
  if (peer.doorbells.length < (fabric_.threads() + 1) * kDoorbellStride) peer.doorbells = {};
  const std::lock_guard lock(mutex_);
  properties_[rank] = peer;
  return peer;
}

void Runtime::add(const std::shared_ptr<FabricChannel>& channel) {
  const std::lock_guard lock(mutex_);
  retired_.reserve(retired_.size() + unretired_ + 1);  // retire() needs no memory
  outgoing_.push_back(channel);
  ++unretired_;
  forget_released();
}

void Runtime::retire(std::shared_ptr<FabricChannel> channel) noexcept {
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(channel));
  --unretired_;
  try {
    forget_released();
  } catch (const std::bad_alloc&) {  // a later call forgets them
  }
}

void Runtime::forget_ended() {
  const std::lock_guard lock(mutex_);
  forget_released();
}

void Runtime::forget_released() {
  std::erase_if(retired_, [&](const std::shared_ptr<FabricChannel>& channel) {
    if (channel.use_count() > 1 || !channel->sender().is_released()) return false;
    const uint64_t accepted = channel->sender().accepted_bytes();
    if (channel->sender().may_have_lost_calls()) {  // the receiver's report may arrive later
      broken_.try_emplace(channel->serial(), BrokenChannel{channel->rank(), {}, {}})
          .first->second.accepted = accepted;
    }
    begun_before_[channel->rank()] += accepted;
    return true;
  });
  std::erase_if(outgoing_, [](const auto& channel) { return channel.expired(); });
}

// ---- Routed calls -------------------------------------------------------------------------------

std::shared_ptr<const NodeMap> Runtime::nodes(uint32_t processes_per_node) {
  const std::lock_guard lock(mutex_);
  auto& nodes = nodes_[processes_per_node];
  if (nodes == nullptr) nodes = std::make_shared<const NodeMap>(fabric_, processes_per_node);
  return nodes;
}

// ---- The drain thread ---------------------------------------------------------------------------

void Runtime::drain_later(FabricChannel* channel) {
  const std::lock_guard lock(drain_mutex_);
  if (stopping_.load(std::memory_order_relaxed)) return;
  try {
    waiting_.push_back(channel->weak_from_this());
  } catch (const std::bad_alloc&) {
    all_wait_ = true;
  }
  wake_drain_thread();
}

absl::Status Runtime::start_drain_thread() {
  if (absl::Status open = status(); !open.ok()) return open;
  const std::lock_guard lock(drain_mutex_);
  return run_drain_thread();
}

absl::Status Runtime::run_drain_thread() {
  if (by_hand_ || drain_thread_.joinable() || stopping_.load(std::memory_order_relaxed)) {
    return absl::OkStatus();
  }
  auto thread = start_thread([this] { drain_channels(); });
  if (!thread.ok()) return thread.status();
  drain_thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Runtime::wake_drain_thread() {
  has_work_.store(true, std::memory_order_release);
  // Cannot fail once a channel was opened, which has started the thread: start_drain_thread().
  if (absl::Status runs = run_drain_thread(); !runs.ok()) {
    report_once("drain thread", std::string(runs.message()), "");
  }
  work_.ring();
}

Transmitter* Runtime::drain_transmitter(Rank rank, ThreadIndex index) {
  // The connection of worker `index`, which other workers may share.
  auto queue = fabric_.connection(rank, index);
  if (!queue.ok()) return nullptr;
  auto& transmitter = drain_transmitters_[*queue];
  if (transmitter == nullptr) {
    auto made = Transmitter::create(**queue);
    if (!made.ok()) return nullptr;
    transmitter = std::make_unique<Transmitter>(*std::move(made));
  }
  return transmitter.get();
}

void Runtime::drain_channels() {
  name_trace_thread("drain thread");
  DoorbellSleeper sleeper(work_);
  const auto stopping = [&] { return stopping_.load(std::memory_order_acquire); };
  bool more = false;
  while (!stopping()) {
    // If some channels still have deferred calls, the drain thread retries them after kPause.
    // Otherwise it sleeps until it gets work.
    const Deadline deadline = more ? deadline_after(kPause) : kForever;
    static_cast<void>(
        wait_until([&] { return stopping() || has_work_.load(std::memory_order_acquire); },
                   deadline, &sleeper));
    // Without memory the channels are retried after kPause.
    if (!has_memory_for("riutils.drain.memory", "this process lacks memory to send deferred calls",
                        [&] { more = retry(); })) {
      more = true;
    }
  }
}

void Runtime::drain_once() {
  if (draining_ || stopping_.load(std::memory_order_acquire)) return;
  if (to_retry_.empty() && !has_work_.load(std::memory_order_acquire)) return;
  draining_ = true;
  const struct Done {
    ~Done() { draining = false; }
    bool& draining;
  } done{draining_};
  try {
    static_cast<void>(retry());
  } catch (const std::bad_alloc&) {  // retry() has reset the flag, and has work left
    has_work_.store(true, std::memory_order_release);
    throw;
  }
}

// Retries the channels that have deferred calls. Returns true if some still have deferred calls.
bool Runtime::retry() {
  bool all_wait = false;
  {
    const std::lock_guard lock(drain_mutex_);
    to_retry_.insert(to_retry_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    all_wait = std::exchange(all_wait_, false);
    if (to_tell_.empty()) to_tell_.swap(dead_);
    has_work_.store(false, std::memory_order_release);
  }
  if (all_wait) {
    try {
      const std::lock_guard lock(mutex_);
      to_retry_.insert(to_retry_.end(), outgoing_.begin(), outgoing_.end());
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(drain_mutex_);
      all_wait_ = true;
      throw;
    }
  }
  for (; !to_tell_.empty(); to_tell_.pop_back()) tell_of_death(to_tell_.back());
  // Without service threads the answers to requests for chunks arrive only while a thread polls.
  if (fabric_.options().service_threads == 0 && !to_retry_.empty()) {
    static_cast<void>(wait_polling(
        fabric_, [] { return true; }, Deadline::min()));
  }
  const size_t removed = std::erase_if(to_retry_, [&](const std::weak_ptr<FabricChannel>& weak) {
    const std::shared_ptr<FabricChannel> channel = weak.lock();
    return channel == nullptr || stopping_.load(std::memory_order_acquire) ||
           channel->send_pending(
               [&] { return drain_transmitter(channel->rank(), channel->index()); });
  });
  // Threads may wait for calls that have now been published.
  if (removed != 0) tell_waiters(fabric_);
  return !to_retry_.empty();
}

// ---- CallSourceRegistry -------------------------------------------------------------------------

void Runtime::event(Rank rank, uint32_t value) {
  // The channel's number contains the worker's index.
  const uint32_t number = value >> 16;
  const auto worker = static_cast<uint32_t>(number % incoming_.size());
  incoming_[worker]->announced(rank, number / static_cast<uint32_t>(incoming_.size()),
                               value & 0xffff);
  static_cast<void>(wake_worker(fabric_, fabric_.rank(), worker));
}

// The thread that detected the failure may be inside a channel and hold its mutex, so the drain
// thread notifies the channels.
void Runtime::peer_died(Rank rank) {
  const std::lock_guard lock(drain_mutex_);
  if (stopping_.load(std::memory_order_relaxed)) return;
  dead_.push_back(rank);
  wake_drain_thread();
}

void Runtime::tell_of_death(Rank rank) {
  std::vector<std::shared_ptr<FabricChannel>> channels;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : outgoing_) {
      auto channel = weak.lock();
      if (channel != nullptr && channel->rank() == rank) channels.push_back(std::move(channel));
    }
  }
  for (const auto& channel : channels) channel->sender().peer_died();
  for (const auto& incoming : incoming_) incoming->peer_died(rank);
}

std::vector<std::shared_ptr<FabricChannel>> Runtime::channels_to(Rank rank) {
  std::vector<std::shared_ptr<FabricChannel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels = retired_;
    for (const auto& weak : outgoing_) {
      if (auto channel = weak.lock(); channel != nullptr) channels.push_back(std::move(channel));
    }
  }
  std::sort(channels.begin(), channels.end());
  channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  std::erase_if(channels, [&](const auto& channel) { return channel->rank() != rank; });
  return channels;
}

uint64_t Runtime::begun(Rank rank) {
  // First: while this function has a reference to a channel, its bytes are not in begun_before_.
  const std::vector<std::shared_ptr<FabricChannel>> channels = channels_to(rank);
  uint64_t sum = 0;
  {
    const std::lock_guard lock(mutex_);
    // Not operator[]: the caller asks for every process of the job.
    if (const auto at = begun_before_.find(rank); at != begun_before_.end()) sum = at->second;
  }
  for (const auto& channel : channels) sum += channel->sender().accepted_bytes();
  return sum;
}

// Returns the bytes of calls that channels to process `rank` have accepted, and that it will not
// run.
uint64_t Runtime::lost_bytes(Rank rank) {
  const std::vector<std::shared_ptr<FabricChannel>> channels = channels_to(rank);
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [serial, broken] : broken_) {
    if (broken.rank != rank || !broken.consumed.has_value()) continue;
    std::optional<uint64_t> accepted = broken.accepted;
    for (const auto& channel : channels) {
      if (channel->serial() == serial) accepted = channel->sender().accepted_bytes();
    }
    if (accepted.has_value() && *accepted > *broken.consumed) sum += *accepted - *broken.consumed;
  }
  return sum;
}

uint64_t Runtime::ended(Rank rank) {
  uint64_t sum = 0;
  for (const auto& incoming : incoming_) sum += incoming->consumed_bytes(rank);
  return sum + lost_bytes(rank);
}

absl::Status Runtime::status() const {
  if (!fabric_.finalized()) return absl::OkStatus();
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                    "the fabric was finalized");
}

void Runtime::finalized() {
  std::vector<std::shared_ptr<FabricChannel>> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : outgoing_) {
      if (auto channel = weak.lock(); channel != nullptr) leaving.push_back(std::move(channel));
    }
  }
  // Without close(), a mapped channel would continue to store calls that no thread polls for.
  for (const auto& channel : leaving) channel->sender().close(status());
}

void Runtime::stop() {
  {
    const std::lock_guard lock(drain_mutex_);
    stopping_.store(true, std::memory_order_release);
  }
  work_.ring();
  if (drain_thread_.joinable()) drain_thread_.join();
}

void Runtime::disconnect() {
  stop();
  drain_transmitters_.clear();
  for (const auto& incoming : incoming_) incoming->disconnect();
  std::vector<std::shared_ptr<FabricChannel>> retired;
  {
    const std::lock_guard lock(mutex_);
    retired.swap(retired_);
  }
  retired.clear();
  transmitters_.clear();
}

}  // namespace cariama::internal
