#include "riutils/internal/fabric_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"
#include "riutils/internal/grant_checks.h"

namespace cariama::internal {
namespace {

// An event contains the channel's number and the number of words that have arrived.
constexpr uint64_t kMostWords = (1u << 16) - 1;
constexpr uint32_t kNumberShift = 16;

// Time after which the mapping of granted chunks is tried again. Each attempt asks the receiver's
// process for the descriptor.
constexpr std::chrono::milliseconds kMapPause{10};

// Returns the result of `post`, or false if it finds no memory: the drain thread tries again. An
// exception would leave the caller in doubt whether its calls are published.
template <typename Post>
[[nodiscard]] bool unless_out_of_memory(Post&& post) {
  try {
    return post();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

FabricChannel::FabricChannel(Runtime& runtime, ThreadIndex index, ThreadId destination,
                             const MessengerOptions& options, ChannelUser user, uint64_t follows)
    : runtime_(runtime),
      fabric_(runtime.fabric()),
      destination_(destination),
      rank_(fabric_.rank_of(destination)),
      worker_(fabric_.index_of(destination)),
      index_(index),
      user_(user),
      serial_(runtime.next_serial()),
      follows_(follows),
      options_(options),
      sender_(*this, options,
              destination < fabric_.total_threads()
                  ? "thread " + std::to_string(destination) + " of " + fabric_.label(rank_)
                  : "thread " + std::to_string(destination)) {}

FabricChannel::~FabricChannel() {
  if (control_.get_buffer() != nullptr) fabric_.memory().free_or_keep(std::move(control_));
}

// ---- Buffers ------------------------------------------------------------------------------------

absl::Status FabricChannel::write_ahead(RDMAMemory& source, uint64_t offset, uint64_t bytes,
                                        const RemoteMemoryLocator& target, bool complete) {
  // Mapped calls are stored, not posted, and trailing arrival is used where a later WRITE may
  // overtake an earlier one: in both modes nothing orders the call after the data. So wait for the
  // write's completion.
  const bool overtakes = arrival_ == Arrival::kMapped || arrival_ == Arrival::kTrailing;
  return internal::write_ahead(fabric_, rank_, source, offset, bytes, target,
                               complete || overtakes);
}

// ---- The path -----------------------------------------------------------------------------------

std::byte* FabricChannel::map(const RemoteMemoryLocator& remote) {
  if (rank_ == fabric_.rank()) return reinterpret_cast<std::byte*>(remote.address);
  auto queue = fabric_.connection(rank_, index_);
  return queue.ok() ? (*queue)->queue_pair().direct_access(remote) : nullptr;
}

std::optional<absl::StatusOr<ChannelLink::Path>> FabricChannel::open() {
  absl::Status there = check_destination(fabric_, rank_, destination_);
  if (!there.ok()) return there;
  if (absl::Status started = runtime_.start_drain_thread(); !started.ok()) return started;
  const auto peer = runtime_.request_properties(rank_, properties_request_);
  if (!peer.has_value()) return std::nullopt;
  if (!peer->ok()) return peer->status();
  return path_to(**peer);
}

absl::StatusOr<ChannelLink::Path> FabricChannel::path_to(const PeerProperties& peer) {
  Path path;
  const bool local = rank_ == fabric_.rank();
  ArrivalOrder order = ArrivalOrder::kNone;
  if (!local) {
    auto transmitter = runtime_.transmitter(rank_, index_, user_);
    if (!transmitter.ok()) return transmitter.status();
    path.transmitter = *transmitter;
    order = path.transmitter->queue().queue_pair().write_order();
  }
  path.consumption = local || orders_writes(order) ? options_.consumption : Consumption::kPull;
  doorbells_ = peer.doorbells.length == 0 ? nullptr : map(peer.doorbells);
  const auto has = [&](Arrival arrival) {
    return arrival == Arrival::kMapped     ? doorbells_ != nullptr
           : arrival == Arrival::kTrailing ? !local && orders_bytes(order)
           : arrival == Arrival::kPolled   ? !local && orders_writes(order)
                                           : !local;
  };
  path.arrival = options_.arrival;
  if (path.arrival == Arrival::kAuto) {
    for (const Arrival arrival :
         {Arrival::kMapped, Arrival::kTrailing, Arrival::kPolled, Arrival::kEvent}) {
      path.arrival = arrival;
      if (has(arrival)) break;
    }
  }
  if (!has(path.arrival)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "calls to " + fabric_.label(rank_) + " cannot arrive " +
                          std::string(arrival_name(path.arrival)),
                      "leave Arrival::kAuto");
  }
  if (path.arrival == Arrival::kMapped) {
    path.doorbell = &call_doorbell(doorbells_, worker_);
    path.fence = !runtime_.has_barrier() || peer.fences_ringers == 0;
  } else {
    auto allocator = worker_memory(fabric_, index_);
    if (!allocator.ok()) return allocator.status();
    path.allocator = *std::move(allocator);
  }
  if (control_.get_buffer() == nullptr) {
    auto control = fabric_.memory().allocate(sizeof(ChannelControl) + 2 * 64);
    if (!control.ok()) return control.status();
    control_ = *std::move(control);
    std::memset(control_.get_buffer(), 0, control_.size());
    const ProtectionDomain* const domain = fabric_.domain(rank_);
    control_name_ = domain != nullptr && !local
                        ? control_.locator(domain, fabric_.rank())
                        : RemoteMemoryLocator{reinterpret_cast<uint64_t>(control_.get_buffer()),
                                              control_.size(),
                                              {},
                                              fabric_.rank(),
                                              0};
  }
  path.control = &control_;
  arrival_ = path.arrival;
  consumption_ = path.consumption;
  return path;
}

std::optional<absl::StatusOr<std::vector<ChannelLink::Chunk>>> FabricChannel::obtain(
    uint32_t count, uint64_t bytes) {
  if (!received_.has_value()) {
    if (asked_ == nullptr) {
      asked_count_ = std::min(count, ChunkRequest::kMost);
      asked_bytes_ = bytes;
    }
    std::optional<absl::StatusOr<ChunkAnswer>> answer = ask();
    if (!answer.has_value()) return std::nullopt;
    if (!answer->ok()) return answer->status();
    received_ = **answer;
  }
  // The receiver has these chunks: without memory or descriptors to record them, the answer stays
  // for the next call.
  if (!unmapped_.ok() && std::chrono::steady_clock::now() < map_again_) return std::nullopt;
  try {
    absl::Status usable = check_grant(*received_, asked_count_, asked_bytes_, fabric_.label(rank_));
    if (!usable.ok()) {
      received_.reset();
      return usable;
    }
    if (!granted_) number_ = received_->number;
    granted_ = true;
    auto chunks = recorded(*received_);
    if (absl::IsResourceExhausted(chunks.status())) {
      unmapped_ = chunks.status();
      map_again_ = std::chrono::steady_clock::now() + kMapPause;
      return std::nullopt;
    }
    unmapped_ = absl::OkStatus();
    received_.reset();
    return chunks;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

std::optional<absl::StatusOr<ChunkAnswer>> FabricChannel::ask() {
  const ChunkRequest request{.serial = serial_,
                             .follows = follows_,
                             .source_thread = fabric_.thread_of(fabric_.rank(), index_),
                             .worker = worker_,
                             .count = asked_count_,
                             .chunk_bytes = asked_bytes_,
                             .control = control_name_,
                             .arrival = arrival_,
                             .consumption = consumption_,
                             .first = static_cast<uint8_t>(granted_ ? 0 : 1)};
  if (rank_ == fabric_.rank()) return runtime_.grant(rank_, request);
  if (asked_ == nullptr) {
    asked_ = std::make_unique<Question<ChunkAnswer>>(fabric_, rank_, nullptr, [request] {
      return Runtime::of(*running_fabric()).grant(running_source(), request);
    });
  }
  return Runtime::answer_to(asked_);
}

absl::StatusOr<std::vector<ChannelLink::Chunk>> FabricChannel::recorded(const ChunkAnswer& answer) {
  std::vector<Chunk> chunks;
  for (uint32_t i = 0; i < answer.count; ++i) {
    Chunk chunk{answer.chunks[i], nullptr};
    if (arrival_ == Arrival::kMapped) {
      chunk.mapped = map(chunk.remote);
      if (chunk.mapped == nullptr) {
        if (absl::Status failed = fabric_.peer_status(rank_); !failed.ok()) return failed;
        // The peer's death is detected soon after its memory cannot be mapped.
        return make_error(
            absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
            "a chunk of " + fabric_.label(rank_) +
                " cannot be mapped: this process lacks descriptors or address space, "
                "or the other process has ended",
            "raise ulimit -n or ulimit -v; " + std::string(peer_remedy(PeerRemedy::kEnded)));
      }
    }
    chunks.push_back(chunk);
  }
  return chunks;
}

// ---- Events -------------------------------------------------------------------------------------

void FabricChannel::announce(uint64_t words) {
  unannounced_.fetch_add(words, std::memory_order_acq_rel);
  if (!unless_out_of_memory([&] { return post_announcements(); })) runtime_.drain_later(this);
}

// Posts events for all words in unannounced_. Thread-safe. The transfers that an event announces
// were posted before their words were counted in unannounced_. Returns false if credits are
// missing, or a post has failed while the peer lives: retry later.
bool FabricChannel::post_announcements() {
  const std::lock_guard lock(announcing_);
  while (const uint64_t words = unannounced_.load(std::memory_order_acquire)) {
    const uint64_t part = std::min(words, kMostWords);
    const auto posted = post_call_event(fabric_, rank_, index_,
                                        number_ << kNumberShift | static_cast<uint32_t>(part));
    if (!posted.ok()) return !status().ok();  // a failed peer needs no event
    if (!*posted) {
      trace_instant("riutils", "defer: no credit for an event", "words", words);
      return false;
    }
    unannounced_.fetch_sub(part, std::memory_order_acq_rel);
  }
  return true;
}

void FabricChannel::ring() {
  trace_instant("riutils", "wake", "thread", destination_);
  if (doorbells_ != nullptr) return ring_for_calls(doorbells_, fabric_.threads(), worker_);
  if (unless_out_of_memory([&] { return wake(); })) return;
  wake_wanted_.store(true, std::memory_order_release);
  runtime_.drain_later(this);
}

// Returns false if the wake-up is to be repeated.
bool FabricChannel::wake() {
  const auto woken = wake_worker(fabric_, rank_, worker_);
  return woken.ok() ? *woken : !status().ok();
}

bool FabricChannel::send_pending(const std::function<Transmitter*()>& transmitter_of) {
  bool all_sent = sender_.drain(transmitter_of);
  if (unannounced_.load(std::memory_order_acquire) != 0)
    all_sent = post_announcements() && all_sent;
  if (wake_wanted_.exchange(false, std::memory_order_acq_rel)) {
    if (!unless_out_of_memory([&] { return wake(); })) {
      wake_wanted_.store(true, std::memory_order_release);
      all_sent = false;
    }
  }
  if (all_sent && wake_worker_.exchange(false, std::memory_order_acq_rel)) {
    static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_));
  }
  return all_sent;
}

// ---- ChannelLink: status, waiting and memory ----------------------------------------------------

absl::Status FabricChannel::status() const { return fabric_.peer_status(rank_); }
bool FabricChannel::inside_call() const { return running_fabric() != nullptr; }
bool FabricChannel::wait(const std::function<bool()>& condition, Deadline deadline) {
  return wait_polling(fabric_, condition, deadline);
}
void FabricChannel::drain_later() { runtime_.drain_later(this); }
void FabricChannel::tell_waiters() { internal::tell_waiters(fabric_); }
void FabricChannel::carries(uint64_t awaited) { assign_to_channel(fabric_, awaited, serial_); }
void FabricChannel::lost(const absl::Status& why) {
  fail_calls_of_channel(fabric_, rank_, serial_, why);
}
void FabricChannel::failed() {
  // The processes that wait for the end of forwarded calls are told by the forwarder.
  if (user_ == ChannelUser::kForwarder) runtime_.forwarding_failed(index_);
}
absl::StatusOr<RDMAMemory> FabricChannel::allocate(size_t bytes) {
  return fabric_.memory().allocate(bytes);
}
void FabricChannel::free(RDMAMemory&& memory) { fabric_.memory().free_or_keep(std::move(memory)); }

}  // namespace cariama::internal
