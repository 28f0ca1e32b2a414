#include "riutils/internal/fabric_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// An event: the channel's number, and how many words have come.
constexpr uint64_t kMostWords = (1u << 16) - 1;
constexpr uint32_t kNumberShift = 16;

}  // namespace

FabricChannel::FabricChannel(Runtime& runtime, ThreadContext& thread, uint32_t destination,
                             const MessengerOptions& options)
    : runtime_(runtime),
      fabric_(runtime.fabric()),
      destination_(destination),
      rank_(destination / fabric_.threads()),
      worker_(destination % fabric_.threads()),
      index_(thread.index()),
      source_thread_(thread.global_id()),
      serial_(runtime.next_serial()),
      options_(options),
      sender_(*this, options,
              destination < fabric_.total_threads()
                  ? "thread " + std::to_string(destination) + " of " + fabric_.label(rank_)
                  : "thread " + std::to_string(destination)) {}

FabricChannel::~FabricChannel() {
  if (control_.get_buffer() != nullptr) static_cast<void>(fabric_.memory().free(control_));
}

// ---- Calls that want to hear of their end -------------------------------------------------------

NotifyTarget FabricChannel::expect(Synchronizer& done, std::unique_ptr<ResultReceiver> receiver) {
  NotifyTarget target;
  target.rank = fabric_.rank();
  target.handle = expect_answer(fabric_, rank_, done, std::move(receiver));
  return target;
}

bool FabricChannel::forget(const NotifyTarget& target) {
  return forget_answer(fabric_, rank_, target.handle);
}

absl::Status FabricChannel::write_ahead(RDMAMemory& source, uint64_t offset, uint64_t bytes,
                                        const RemoteMemoryLocator& target) {
  if (arrival_ != Arrival::kMapped || rank_ == fabric_.rank()) {
    return internal::write_ahead(fabric_, rank_, source, offset, bytes, target);
  }
  // Calls are stored, not posted: nothing but completion puts them behind the data.
  if (offset > source.size() || bytes > source.size() - offset) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "the range that is given to call_buffer leaves its memory",
                      "check offset and size");
  }
  if (absl::Status can_be = check_target(rank_, target, bytes); !can_be.ok()) return can_be;
  auto transmitter = runtime_.transmitter(rank_, index_);
  if (!transmitter.ok()) return transmitter.status();
  Synchronizer done;
  if (absl::Status posted = (*transmitter)->write(source, offset, bytes, target, &done);
      !posted.ok()) {
    return posted;
  }
  return (*transmitter)->wait(done, deadline_after(options_.timeout));
}

absl::StatusOr<RemoteMemoryLocator> FabricChannel::locate(const RDMAMemory& memory, uint64_t offset,
                                                          uint64_t bytes) {
  return locate_for(fabric_, rank_, memory, offset, bytes);
}

// ---- The way ------------------------------------------------------------------------------------

std::byte* FabricChannel::map(const RemoteMemoryLocator& remote) {
  if (rank_ == fabric_.rank()) return reinterpret_cast<std::byte*>(remote.address);
  auto queue = fabric_.connection(rank_, index_);
  return queue.ok() ? (*queue)->queue_pair().direct_access(remote) : nullptr;
}

absl::StatusOr<ChannelLink::Way> FabricChannel::open() {
  if (destination_ >= fabric_.total_threads()) {
    return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                      "there is no thread " + std::to_string(destination_) + ": the job has " +
                          std::to_string(fabric_.total_threads()));
  }
  if (absl::Status open = runtime_.status(); !open.ok()) return open;
  auto met = runtime_.meet_peer(rank_);
  if (!met.ok()) return met.status();
  Way way;
  const bool local = rank_ == fabric_.rank();
  ArrivalOrder order = ArrivalOrder::kNone;
  if (!local) {
    auto transmitter = runtime_.transmitter(rank_, index_);
    if (!transmitter.ok()) return transmitter.status();
    way.transmitter = *transmitter;
    order = way.transmitter->queue().queue_pair().write_order();
  }
  std::byte* const sleeping =
      met->sleeping.length == 0
          ? nullptr
          : map(met->sleeping.slice(worker_ * sizeof(SleepingWord), sizeof(SleepingWord)));
  const auto has = [&](Arrival arrival) {
    return arrival == Arrival::kMapped   ? sleeping != nullptr
           : arrival == Arrival::kPolled ? !local && orders_writes(order)
                                         : !local;
  };
  way.arrival = options_.arrival;
  if (way.arrival == Arrival::kAuto) {
    way.arrival = has(Arrival::kMapped)   ? Arrival::kMapped
                  : has(Arrival::kPolled) ? Arrival::kPolled
                                          : Arrival::kEvent;
  }
  if (!has(way.arrival)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "calls to " + fabric_.label(rank_) + " cannot arrive " +
                          std::string(arrival_name(way.arrival)),
                      "leave Arrival::kAuto");
  }
  if (way.arrival == Arrival::kMapped) {
    way.sleeping = reinterpret_cast<SleepingWord*>(sleeping);
    way.fence = !runtime_.has_barrier() || met->has_barrier == 0;
    if (!local && met->wakes.length != 0) wake_words_ = map(met->wakes);
  } else {
    auto allocator = worker_memory(fabric_, index_);
    if (!allocator.ok()) return allocator.status();
    way.allocator = *std::move(allocator);
  }
  if (control_.get_buffer() == nullptr) {
    auto control = fabric_.memory().allocate(sizeof(ChannelControl) + 2 * 64);
    if (!control.ok()) return control.status();
    control_ = *control;
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
  way.control = control_;
  arrival_ = way.arrival;
  return way;
}

absl::StatusOr<std::vector<ChannelLink::Chunk>> FabricChannel::obtain(uint32_t count) {
  std::vector<Chunk> chunks;
  while (count != 0) {
    const ChunkRequest request{.serial = serial_,
                               .source_thread = source_thread_,
                               .worker = worker_,
                               .count = std::min(count, ChunkRequest::kMost),
                               .chunk_bytes = options_.chunk_bytes,
                               .control = control_name_,
                               .arrival = arrival_,
                               .consumption = options_.consumption,
                               .first = static_cast<uint8_t>(granted_ ? 0 : 1)};
    ChunkReply reply;
    if (rank_ == fabric_.rank()) {
      reply = runtime_.grant(rank_, request);
    } else {
      Synchronizer done;
      absl::Status asked = send_call<CallOptions<>>(
          fabric_, kNoThread, make_call([request] {
            return Runtime::of(*running_fabric()).grant(running_source(), request);
          }),
          &done, std::make_unique<ResultInto<ChunkReply>>(reply), rank_);
      if (!asked.ok()) return asked;
      static_cast<void>(fabric_.wait([&] { return done.done(); }));
      if (!done.status().ok()) return done.status();
    }
    if (reply.code != 0) {
      return make_error(
          static_cast<absl::StatusCode>(reply.code), ErrorScope::kPeer,
          fabric_.label(rank_) + " gives no chunks: " +
              std::string(reply.why.data(), strnlen(reply.why.data(), reply.why.size())));
    }
    if (!granted_) number_ = reply.number;
    granted_ = true;
    for (uint32_t i = 0; i < request.count; ++i) {
      Chunk chunk{reply.chunks[i], nullptr};
      if (arrival_ == Arrival::kMapped) {
        chunk.mapped = map(chunk.remote);
        if (chunk.mapped == nullptr) {
          return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                            "a chunk of " + fabric_.label(rank_) + " cannot be mapped");
        }
      }
      chunks.push_back(chunk);
    }
    count -= request.count;
  }
  return chunks;
}

// ---- Events -------------------------------------------------------------------------------------

void FabricChannel::announce(uint64_t words) {
  unannounced_.fetch_add(words, std::memory_order_acq_rel);
  if (!post_announcements()) runtime_.drain_later(this);
}

// Whoever calls it posts what is there; transfers that it announces were posted before it was
// counted.
bool FabricChannel::post_announcements() {
  const std::lock_guard lock(announcing_);
  while (const uint64_t words = unannounced_.load(std::memory_order_acquire)) {
    const uint64_t part = std::min(words, kMostWords);
    const auto posted = post_call_event(fabric_, rank_, index_,
                                        number_ << kNumberShift | static_cast<uint32_t>(part));
    if (!posted.ok()) return true;  // status() says so
    if (!*posted) return false;
    unannounced_.fetch_sub(part, std::memory_order_acq_rel);
  }
  return true;
}

void FabricChannel::wake() {
  if (wake_words_ != nullptr) {
    return wake_mapped_worker(wake_words_, fabric_.threads(), worker_);
  }
  const auto woken = wake_worker(fabric_, rank_, worker_);
  if (!woken.ok() || *woken) return;
  wake_wanted_.store(true, std::memory_order_release);
  runtime_.drain_later(this);
}

bool FabricChannel::settle(const std::function<Transmitter*()>& transmitter_of) {
  bool settled = sender_.drain(transmitter_of);
  if (unannounced_.load(std::memory_order_acquire) != 0) settled = post_announcements() && settled;
  if (wake_wanted_.exchange(false, std::memory_order_acq_rel)) {
    const auto woken = wake_worker(fabric_, rank_, worker_);
    if (woken.ok() && !*woken) {
      wake_wanted_.store(true, std::memory_order_release);
      settled = false;
    }
  }
  return settled;
}

// ---- The rest of ChannelLink --------------------------------------------------------------------

absl::Status FabricChannel::status() const { return fabric_.peer_status(rank_); }
bool FabricChannel::inside_call() const { return running_fabric() != nullptr; }
bool FabricChannel::wait(const std::function<bool()>& condition, Deadline deadline) {
  return wait_polling(fabric_, condition, deadline);
}
void FabricChannel::drain_later() { runtime_.drain_later(this); }
absl::StatusOr<RDMAMemory> FabricChannel::allocate(size_t bytes) {
  return fabric_.memory().allocate(bytes);
}
void FabricChannel::free(const RDMAMemory& memory) {
  static_cast<void>(fabric_.memory().free(memory));
}

}  // namespace cariama::internal
