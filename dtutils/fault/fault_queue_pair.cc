#include "dtutils/fault/fault_queue_pair.h"

#include <algorithm>
#include <new>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/validate.h"

namespace cariama::fault {
namespace {

// Returns the part of `segments` that contains the bytes [offset, offset + bytes).
std::vector<Segment> slice(const std::vector<Segment>& segments, uint64_t offset, uint64_t bytes) {
  std::vector<Segment> part;
  for (const Segment& segment : segments) {
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t taken = std::min(bytes, segment.length - offset);
    if (taken == 0) break;
    part.push_back({static_cast<std::byte*>(segment.address) + offset, static_cast<uint32_t>(taken),
                    segment.key});
    bytes -= taken;
    offset = 0;
  }
  return part;
}

}  // namespace

FaultQueuePair::FaultQueuePair(std::shared_ptr<Core> core, std::shared_ptr<ProtectionDomain> domain,
                               std::shared_ptr<Poison> poison, std::unique_ptr<QueuePair> inner,
                               const QueuePairOptions& options)
    : core_(std::move(core)),
      domain_owner_(std::move(domain)),
      poison_(std::move(poison)),
      send_completions_(std::static_pointer_cast<FaultCompletionQueue>(options.send_completions)),
      receive_completions_(
          std::static_pointer_cast<FaultCompletionQueue>(options.receive_completions)),
      shared_receives_(std::static_pointer_cast<FaultSharedReceiveQueue>(options.shared_receives)),
      inner_(std::move(inner)),
      dice_(core_->make_dice()),
      receives_(*core_) {
  take_limits();
  domain_ = domain_owner_.get();
  number_ = inner_->number();
  core_->add(this);
}

FaultQueuePair::~FaultQueuePair() {
  const std::unique_lock lock = core_->lock();
  receive_completions_->pull();  // reports the receives that were taken from a shared receive queue
  core_->remove(this);
  send_completions_->drop(number_);
  receive_completions_->drop(number_);
}

// Takes over the limits of the inner queue pair, reduced to those of this device: the inner queue
// pair may have got more than requested.
void FaultQueuePair::take_limits() {
  const DeviceLimits& device = core_->limits();
  limits_ = inner_->limits();
  limits_.send_depth = std::min(limits_.send_depth, device.max_send_depth);
  limits_.receive_depth = std::min(limits_.receive_depth, device.max_receive_depth);
  limits_.max_send_segments = std::min(limits_.max_send_segments, device.max_segments);
  limits_.max_receive_segments = std::min(limits_.max_receive_segments, device.max_segments);
  limits_.max_inline = std::min(limits_.max_inline, device.max_inline);
}

absl::Status FaultQueuePair::connect(std::string_view peer_address, const ConnectOptions& options) {
  {
    const std::unique_lock lock = core_->lock();
    suspended_ = true;
  }
  const absl::Status status = inner_->connect(peer_address, options);
  const std::unique_lock lock = core_->lock();
  suspended_ = false;
  if (!status.ok()) return status;
  take_limits();
  peer_ = options.peer;
  core_->note_receiver_retry_count(options.receiver_retry_count);
  return status;
}

absl::Status FaultQueuePair::repair() {
  {
    const std::unique_lock lock = core_->lock();
    suspended_ = true;
    if (lost()) {
      inner_->fail();
      gone_ = true;
      suspended_ = false;
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                        "repairing the connection to " + peer_ + ": the peer is lost (injected)",
                        "FaultControl::restore_peer()");
    }
    complete_unposted_as_flushed();
  }
  const absl::Status status = inner_->repair();
  const std::unique_lock lock = core_->lock();
  suspended_ = false;
  gone_ = !status.ok();
  send_completions_->pull();
  receive_completions_->pull();
  for (const uint64_t id : receives_.take_delayed()) {
    complete_receive(id, CompletionStatus::kFlushed);
  }
  retire();
  // The contract requires these completions to be in the queues when repair() returns, so end their
  // delay.
  send_completions_->release_all();
  receive_completions_->release_all();
  if (status.ok()) {
    broken_ = false;
    slots_.reset();
  }
  return status;
}

void FaultQueuePair::fail() {
  const std::unique_lock lock = core_->lock();
  inner_->fail();
  core_->wake_thread();
}

ArrivalOrder FaultQueuePair::write_order() const {
  const ArrivalOrder order = inner_->write_order();
  if (core_->options().torn_write <= 0) return order;
  // Pieces of a WRITE arrive in any order, but all of them before the next WRITE.
  return orders_writes(order) ? ArrivalOrder::kWrites : ArrivalOrder::kNone;
}

bool FaultQueuePair::busy() const {
  return !operations_.empty() || receives_.busy() || !lost_receives_.empty();
}

void FaultQueuePair::progress() {
  if (suspended_) return;
  watch_lost_peer();
  // Operations that retire() completes may make room or order for the next ones, so forward twice.
  forward_sends();
  retire();
  forward_sends();
  // After the sends, so that an error is reported before the receives that it flushes.
  forward_receives();
}

// The requests are accepted: an exception would make the caller post them again. Without memory the
// next tick forwards them.
template <typename Forward>
void FaultQueuePair::forward_accepted(const Forward& forward) {
  try {
    forward();
  } catch (const std::bad_alloc&) {
  }
  core_->wake_thread();
}

// --- sends --------------------------------------------------------------------------------------

PostResult FaultQueuePair::post_send(std::span<const WorkRequest> requests) {
  const std::unique_lock lock = core_->lock();
  if (core_->take_denied()) throw std::bad_alloc();
  PostResult result;
  for (const WorkRequest& request : requests) {
    if (gone_ || inner_->state() == QueuePairState::kUnconnected) {
      result.error = PostError::kNotConnected;
      break;
    }
    const internal::Validation valid =
        internal::validate(request, limits_, core_->limits().atomics);
    result.error = valid.error;
    if (result.ok() && slots_.full(limits_.send_depth)) result.error = PostError::kQueueFull;
    if (!result.ok()) break;
    operations_.push_back(make_operation(request, valid.bytes));
    slots_.take();
    ++result.posted;
  }
  forward_accepted([this] { forward_sends(); });
  return result;
}

FaultQueuePair::Operation FaultQueuePair::make_operation(const WorkRequest& request,
                                                         uint64_t bytes) {
  const FaultOptions& options = core_->options();
  Operation operation;
  operation.request = request;
  operation.segments.assign(request.segments, request.segments + request.segment_count);
  if ((request.flags & kInline) != 0) {
    for (const Segment& segment : operation.segments) {
      const auto* data = static_cast<const std::byte*>(segment.address);
      operation.inline_data.insert(operation.inline_data.end(), data, data + segment.length);
    }
    operation.segments.clear();
  }

  operation.pieces = cut(request, bytes);
  uint64_t release = 0;
  if (core_->strikes(Fault::kLateOperation, options.late_operation, dice_)) {
    release = core_->random_release(dice_);
    core_->count(Fault::kLateOperation);
  }
  for (Piece& piece : operation.pieces) {
    piece.release = release;
    if (operation.pieces.size() > 1) {
      release = std::max(release, core_->ticks()) + 1 +
                dice_.below(std::max<uint32_t>(1, options.longest_hold / 8));
    }
  }

  const bool nth = options.fail_nth != 0 && slots_.posted() + 1 == options.fail_nth &&
                   core_->enabled(Fault::kFailedOperation);
  if (core_->strikes(Fault::kFailedOperation, options.failed_operation, dice_) || nth) {
    operation.fail_with = options.fail_status;
  }
  operation.fail_with = core_->take_fail_next().value_or(operation.fail_with);
  return operation;
}

// Cuts an operation into one piece, or up to 4 pieces for a torn WRITE. Cuts are at multiples of 8
// of the remote address, since an aligned word is never torn (ArrivalOrder::kWrites guarantees
// this). The last part is posted first: this is the worst case for a receiver that polls the last
// byte. It also makes a WRITE that exceeds the memory at either end fail before any byte of it has
// landed, as on a card. The remaining pieces follow in any order.
std::vector<FaultQueuePair::Piece> FaultQueuePair::cut(const WorkRequest& request, uint64_t bytes) {
  std::vector<uint64_t> cuts{0, bytes};
  if (request.opcode == Opcode::kWrite && bytes > 8 &&
      core_->strikes(Fault::kTornWrite, core_->options().torn_write, dice_)) {
    for (int i = 0; i < 3; ++i) {
      const uint64_t place = request.remote_address + 1 + dice_.below(bytes - 1);
      const uint64_t aligned = (place + 7) / 8 * 8 - request.remote_address;
      if (aligned < bytes) cuts.push_back(aligned);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  }
  std::vector<Piece> pieces;
  if (bytes == 0) return {Piece{}};
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    pieces.push_back({.offset = cuts[i], .bytes = cuts[i + 1] - cuts[i]});
  }
  if (pieces.size() > 1) {
    std::swap(pieces.front(), pieces.back());
    dice_.shuffle(std::span(pieces).subspan(1));
    core_->count(Fault::kTornWrite);
  }
  return pieces;
}

void FaultQueuePair::forward_sends() {
  if (suspended_) return;
  next_ = std::max(next_, first_);
  while (next_ < end()) {
    Operation& operation = this->operation(next_);
    if (broken_ && operation.status == CompletionStatus::kSuccess) {
      operation.status = CompletionStatus::kFlushed;
    }
    // For example because one of its pieces failed.
    if (operation.status != CompletionStatus::kSuccess) {
      ++next_;
      continue;
    }
    // On a failed queue pair no operation is delayed: the inner queue pair flushes it.
    const bool connected = inner_->state() == QueuePairState::kConnected;
    if (connected && lost()) return;
    if (connected && operation.fail_with != CompletionStatus::kSuccess) {
      if (next_ != first_) return;  // the operations before it must succeed
      if (operation.pieces.front().release > core_->ticks()) return;
      const PostResult result = post_poison();
      if (result.error == PostError::kQueueFull) return;
      if (result.ok()) {
        core_->count(Fault::kFailedOperation);
        operation.poisoned = true;
        operation.pieces_posted = operation.pieces.size();
        operation.pieces_outstanding = 1;
        ++next_;
        continue;
      }
    }
    while (!operation.posted()) {
      const Piece& piece = operation.pieces[operation.pieces_posted];
      if (connected && piece.release > core_->ticks()) return;
      const PostResult result = post_piece(operation, piece);
      if (result.error == PostError::kQueueFull) return;
      if (!result.ok()) {
        // The operation was accepted by post_send() before, so the refusal is reported by its
        // completion.
        inner_->fail();
        operation.status = result.error == PostError::kNotConnected
                               ? CompletionStatus::kFlushed
                               : CompletionStatus::kLocalOperation;
        operation.vendor_error = result.system_error;
        break;
      }
      ++operation.pieces_posted;
      ++operation.pieces_outstanding;
    }
    ++next_;
  }
}

PostResult FaultQueuePair::post_piece(const Operation& operation, const Piece& piece) {
  WorkRequest request = operation.request;
  const bool first = operation.pieces_posted == 0;
  request.id = next_;
  request.flags |= kSignaled;
  if (!first) request.flags &= static_cast<uint8_t>(~kFence);
  request.flags &= static_cast<uint8_t>(~kWakesReceiver);  // see direct_access()
  std::vector<Segment> segments;
  if ((request.flags & kInline) != 0) {
    // Inline data is only read. The cast is needed because Segment also describes the targets of
    // READs.
    auto* data = const_cast<std::byte*>(operation.inline_data.data());
    if (piece.bytes > 0) {
      segments.push_back({data + piece.offset, static_cast<uint32_t>(piece.bytes), {}});
    }
  } else if (operation.pieces.size() == 1) {
    segments = operation.segments;
  } else {
    segments = slice(operation.segments, piece.offset, piece.bytes);
  }
  request.segments = segments.data();
  request.segment_count = static_cast<uint16_t>(segments.size());
  request.remote_address += piece.offset;
  return inner_->post_send(request);
}

// Posts a WRITE with a remote key that is never registered: the target refuses it, and both ends
// fail, as for a genuine failure of an operation.
PostResult FaultQueuePair::post_poison() {
  const Segment segment{poison_->memory, 1, poison_->region->local_key()};
  return inner_->post_send({.id = next_,
                            .opcode = Opcode::kWrite,
                            .flags = kSignaled,
                            .segment_count = 1,
                            .segments = &segment,
                            .remote_address = 0,
                            .remote_key = {~uint64_t{0}}});
}

void FaultQueuePair::inner_completed(const Completion& completion) {
  const bool silent = lost() && inner_->state() == QueuePairState::kConnected;
  if ((completion.id & FaultReceives::kTag) != 0) {
    FaultReceives& receives =
        shared_receives_ != nullptr ? shared_receives_->receives() : receives_;
    const std::optional<uint64_t> id = receives.take(completion.id);
    if (!id.has_value()) return;
    if (silent) {
      lost_receives_.push_back(*id);
      return;
    }
    Completion ours = completion;
    ours.id = *id;
    receive_completions_->push(ours, FaultCompletionQueue::kReceived);
    return;
  }
  if (completion.id < first_ || completion.id >= end()) return;
  Operation& operation = this->operation(completion.id);
  if (operation.pieces_outstanding > 0) --operation.pieces_outstanding;
  if (completion.status != CompletionStatus::kSuccess &&
      operation.status == CompletionStatus::kSuccess) {
    const bool as_injected =
        operation.poisoned && completion.status == CompletionStatus::kRemoteAccess;
    operation.status = as_injected ? operation.fail_with : completion.status;
    operation.vendor_error = completion.vendor_error;
  }
  retire();
}

// Reports the finished operations, in the order of posting.
void FaultQueuePair::retire() {
  if (lost() && inner_->state() == QueuePairState::kConnected) return;
  while (!operations_.empty() && operations_.front().done()) {
    const Operation operation = operations_.pop_front();
    const CompletionStatus status = broken_ ? CompletionStatus::kFlushed : operation.status;
    if (status != CompletionStatus::kSuccess || (operation.request.flags & kSignaled) != 0) {
      complete(operation, status);
    }
    ++first_;
    broken_ |= status != CompletionStatus::kSuccess;
  }
  next_ = std::max(next_, first_);
}

void FaultQueuePair::complete(const Operation& operation, CompletionStatus status) {
  slots_.completed();
  send_completions_->push({.id = operation.request.id,
                           .status = status,
                           .kind = internal::completion_kind(operation.request.opcode),
                           .queue_pair = number_,
                           .vendor_error = operation.vendor_error},
                          first_);
}

void FaultQueuePair::complete_unposted_as_flushed() {
  for (uint64_t i = std::max(next_, first_); i < end(); ++i) {
    if (operation(i).status == CompletionStatus::kSuccess) {
      operation(i).status = CompletionStatus::kFlushed;
    }
  }
  next_ = end();
}

// --- receives -----------------------------------------------------------------------------------

PostResult FaultQueuePair::post_receive(std::span<const ReceiveRequest> requests) {
  const std::unique_lock lock = core_->lock();
  if (shared_receives_ != nullptr) return {.error = PostError::kUnsupported};
  const bool may_delay = core_->patient_senders() && inner_->state() == QueuePairState::kConnected;
  const PostResult result =
      receives_.post(requests, limits_.receive_depth, limits_.max_receive_segments, may_delay);
  forward_accepted([this] { forward_receives(); });
  return result;
}

void FaultQueuePair::forward_receives() {
  if (suspended_) return;
  const bool failed = inner_->state() == QueuePairState::kError;
  const auto post = [this](const ReceiveRequest& request) { return inner_->post_receive(request); };
  for (const uint64_t id : receives_.forward(post, failed)) {
    complete_receive(id, CompletionStatus::kFlushed);
  }
  if (failed) {
    for (const uint64_t id : std::exchange(lost_receives_, {})) {
      complete_receive(id, CompletionStatus::kFlushed);
    }
  }
}

void FaultQueuePair::complete_receive(uint64_t id, CompletionStatus status) {
  receive_completions_->push(
      {.id = id, .status = status, .kind = CompletionKind::kReceive, .queue_pair = number_},
      FaultCompletionQueue::kReceived);
}

// --- lost peers ---------------------------------------------------------------------------------

bool FaultQueuePair::lost() {
  const FaultOptions& options = core_->options();
  const bool by_count = options.lose_peer_after != 0 && core_->enabled(Fault::kLostPeer) &&
                        slots_.posted() > options.lose_peer_after;
  if (!by_count && !core_->is_lost(peer_)) return false;
  if (!std::exchange(lost_counted_, true)) core_->count(Fault::kLostPeer);
  return true;
}

void FaultQueuePair::watch_lost_peer() {
  if (!lost()) {
    lost_counted_ = false;
    lost_at_ = 0;
    return;
  }
  if (operations_.empty() || inner_->state() != QueuePairState::kConnected) return;
  if (lost_at_ == 0) lost_at_ = core_->ticks();
  if (core_->ticks() - lost_at_ < core_->options().lost_peer_ticks) return;
  // Failing the inner queue pair returns its pending operations; then the first operation reports
  // kRetryExceeded.
  operations_.front().status = CompletionStatus::kRetryExceeded;
  next_ = std::max(next_, first_ + 1);
  inner_->fail();
  lost_at_ = 0;
}

}  // namespace cariama::fault
