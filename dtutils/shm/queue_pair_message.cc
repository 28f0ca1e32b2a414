// Messages, deferred operations (those that wait for a posted receive), and the failure of
// operations.
#include <algorithm>
#include <new>
#include <utility>

#include "dtutils/doorbell.h"
#include "dtutils/internal/validate.h"
#include "dtutils/shm/copy.h"
#include "dtutils/shm/queue_pair.h"

namespace cariama::shm {
namespace {

// Wakes the thread that a message names. Returns false if the receiver is to get an event instead.
// Requires: the message is visible.
[[nodiscard]] bool wakes_receiver(const WorkRequest& request) {
  const bool sends = request.opcode == Opcode::kSend || request.opcode == Opcode::kSendImmediate;
  return sends && (request.flags & kWakesReceiver) != 0 &&
         reinterpret_cast<ReceiverDoorbells*>(request.operand)->wake();
}

}  // namespace

PostResult ShmQueuePair::post_slow(std::span<const WorkRequest> requests, uint32_t first) {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<uint32_t>(requests.size());
  if (!connected_) return {first, PostError::kNotConnected};
  for (uint32_t i = first; i < count; ++i) {
    const WorkRequest& request = requests[i];
    const PostError error = internal::validate(request, limits_, true).error;
    if (error != PostError::kNone) return {i, error};
    if (has_waiting_.load(std::memory_order_relaxed)) progress_locked();

    const bool failed = status().failed();
    if (!failed && waiting_.size() >= limits_.send_depth) return {i, PostError::kQueueFull};
    const bool signaled = (request.flags & kSignaled) != 0;
    if ((signaled || failed) && !reserve(true)) return {i, PostError::kQueueFull};
    if (failed) {
      complete_as_flushed(request);
      continue;
    }
    std::optional<OperationResult> result;
    if (waiting_.empty()) result = attempt(request);
    if (result.has_value()) {
      finish(request, *result);
      continue;
    }
    try {
      wait_for_receiver(request);
    } catch (const std::bad_alloc&) {  // not posted: its completion is not due
      if (signaled) account_->references.fetch_sub(1);
      throw;
    }
    if (waiting_.size() == 1) progress_locked();  // sets the deadline
  }
  return {count};
}

// Executes one operation. Returns an empty optional if the other end is not ready for it.
std::optional<OperationResult> ShmQueuePair::attempt(const WorkRequest& request) {
  switch (status().state()) {
    case LinkState::kReady:
      break;
    case LinkState::kWaiting:
      return std::nullopt;
    default:
      return OperationResult{CompletionStatus::kFlushed};
  }
  const bool one_sided = request.opcode == Opcode::kWrite || request.opcode == Opcode::kRead ||
                         internal::is_atomic(request.opcode);
  return one_sided ? execute_one_sided(request) : send_message(request);
}

std::optional<OperationResult> ShmQueuePair::send_message(const WorkRequest& request) {
  // While in_peer is set, the peer does not reuse the memory accessed here. The peer changes this
  // queue pair's status first and reads in_peer afterwards; this thread sets in_peer first and
  // reads the status afterwards (seq_cst), so at least one sees the other.
  header_->in_peer.store(1);
  std::optional<OperationResult> result;
  if (status().state() != LinkState::kReady) {
    if (status().failed()) result = OperationResult{CompletionStatus::kFlushed};
  } else {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      const Segment& segment = request.segments[i];
      bytes += segment.length;
      if ((request.flags & kInline) == 0 && segment.length != 0 && !check_local(segment, false)) {
        result = OperationResult{CompletionStatus::kLocalProtection};
      }
    }
    if (!result.has_value()) {
      const std::optional<uint32_t> slot = remote_.receives.claim(remote_.claimant);
      if (slot.has_value()) result = deliver(request, bytes, *slot);
    }
  }
  header_->in_peer.store(0, std::memory_order_release);
  return result;
}

// Delivers a message into the receive in `slot`, which is claimed. The receive is completed in
// every case.
OperationResult ShmQueuePair::deliver(const WorkRequest& request, uint64_t bytes, uint32_t slot) {
  ReceiveSlot* receive = remote_.receives.slot(slot);
  OperationResult result;
  CompletionStatus receiver = CompletionStatus::kSuccess;
  // An exception would leave the receive claimed for ever.
  const auto execute = [&](const auto& step) -> OperationResult {
    try {
      return step();
    } catch (const std::bad_alloc&) {  // to map the peer's memory
      return {CompletionStatus::kLocalOperation};
    }
  };
  if (request.opcode == Opcode::kWriteImmediate) {
    result = execute([&] { return execute_one_sided(request); });
    if (!result.ok()) receiver = CompletionStatus::kFlushed;
  } else if (read_once(receive->invalid) != 0) {
    receiver = CompletionStatus::kLocalProtection;
    result.status = CompletionStatus::kRemoteOperation;
  } else if (bytes > read_once(receive->capacity)) {
    receiver = CompletionStatus::kLocalLength;
    result.status = CompletionStatus::kRemoteInvalid;
  } else {
    result = execute([&] { return copy_message(request, receive); });
    if (!result.ok()) receiver = CompletionStatus::kLocalProtection;
  }
  publish_receive(slot, receiver, request, bytes);
  return result;
}

// Gathers from the request's segments and scatters into the receive's segments.
OperationResult ShmQueuePair::copy_message(const WorkRequest& request, ReceiveSlot* slot) {
  const SharedSegment* next = slot->segments();
  const SharedSegment* const end =
      next + std::min(read_once(slot->segment_count), remote_.receives.max_segments());
  SharedSegment to{};
  uint64_t to_done = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    uint64_t from_done = 0;
    while (from_done < request.segments[i].length) {
      while (to_done == to.length) {
        if (next == end) return {CompletionStatus::kRemoteOperation};
        to = {read_once(next->address), read_once(next->key), read_once(next->length), 0};
        to_done = 0;
        ++next;
      }
      const auto bytes = static_cast<uint32_t>(
          std::min(request.segments[i].length - from_done, to.length - to_done));
      std::byte* from = static_cast<std::byte*>(request.segments[i].address) + from_done;
      const uint64_t address = to.address + to_done;
      // Remote access is not required: by posting the receive the owner permitted writing to it.
      const std::optional<RemoteRegion> region = link_->find(to.key);
      if (!region.has_value() || !region->contains(address, bytes) || !region->receivable()) {
        return {CompletionStatus::kRemoteOperation};
      }
      if (region->mapped) {
        copy_out(region->local(address), from, bytes);
      } else {
        const Segment piece{from, bytes, {}};
        WorkRequest write;
        write.segment_count = 1;
        write.segments = &piece;
        write.remote_address = address;
        const OperationResult result = attach_copy(write, bytes);
        if (result.status == CompletionStatus::kPeerDied) return result;
        if (!result.ok()) return {CompletionStatus::kRemoteOperation, result.vendor_error};
      }
      from_done += bytes;
      to_done += bytes;
    }
  }
  return {};
}

void ShmQueuePair::publish_receive(uint32_t slot, CompletionStatus status,
                                   const WorkRequest& request, uint64_t bytes) {
  ReceiveRingEntry& entry = remote_.ring[produced_ & remote_.ring_mask];
  entry.slot = slot;
  entry.immediate = request.immediate;
  entry.bytes = static_cast<uint32_t>(bytes);
  entry.status = static_cast<uint8_t>(status);
  entry.kind = static_cast<uint8_t>(request.opcode == Opcode::kWriteImmediate
                                        ? CompletionKind::kReceiveImmediate
                                        : CompletionKind::kReceive);
  entry.has_immediate = internal::has_immediate(request.opcode) ? 1 : 0;
  entry.sequence.store(++produced_, std::memory_order_release);
  const bool failed = status != CompletionStatus::kSuccess;
  remote_.completions->mark_ready(remote_.ready_bit);
  if (!failed && wakes_receiver(request)) return;
  remote_.completions->fire(remote_.channel, failed || (request.flags & kSolicited) != 0);
}

// Reports an executed operation. Requires: its completion was reserved if it is signaled.
void ShmQueuePair::finish(const WorkRequest& request, OperationResult result,
                          ShmCompletionQueue::Spare* spare) {
  const bool signaled = (request.flags & kSignaled) != 0;
  if (result.ok()) {
    if (signaled) complete(request, result, spare);
    return;
  }
  if (!signaled) static_cast<void>(reserve(false));
  if (result.status == CompletionStatus::kFlushed) {
    complete_as_flushed(request, spare);
    return;
  }
  send_failure_reported_ = true;
  break_connection();
  complete(request, result, spare);
}

void ShmQueuePair::fail_unlocked(const WorkRequest& request, OperationResult result) {
  std::lock_guard lock(mutex_);
  finish(request, result);
  progress_locked();
}

// Completes an operation that was not executed. If the peer is the cause, the first such completion
// reports it (kPeerDied or kRetryExceeded); all others report kFlushed. Requires: the completion
// was reserved.
void ShmQueuePair::complete_as_flushed(const WorkRequest& request,
                                       ShmCompletionQueue::Spare* spare) {
  OperationResult result{CompletionStatus::kFlushed};
  if (!send_failure_reported_) {
    const LinkState state = status().state();
    if (state == LinkState::kPeerDead) result.status = CompletionStatus::kPeerDied;
    if (state == LinkState::kPeerGone) result.status = CompletionStatus::kRetryExceeded;
    send_failure_reported_ = true;
  }
  complete(request, result, spare);
}

void ShmQueuePair::wait_for_receiver(const WorkRequest& request) {
  Waiting waiting;
  waiting.request = request;
  waiting.spare = ShmCompletionQueue::make_spare();
  waiting.segments.assign(request.segments, request.segments + request.segment_count);
  if ((request.flags & kInline) != 0) {
    for (const Segment& segment : waiting.segments) {
      const auto* data = static_cast<const std::byte*>(segment.address);
      waiting.inline_data.insert(waiting.inline_data.end(), data, data + segment.length);
    }
    waiting.segments = {
        {waiting.inline_data.data(), static_cast<uint32_t>(waiting.inline_data.size()), {}}};
    waiting.request.segment_count = 1;
  }
  waiting.request.segments = waiting.segments.data();  // a move does not change the address
  waiting_.push_back(std::move(waiting));
  if (waiting_.size() == 1) set_waiting(true);
}

void ShmQueuePair::set_waiting(bool waiting) {
  if (has_waiting_.exchange(waiting) == waiting) return;
  head_deadline_ = kForever;
  head_failure_ = CompletionStatus::kSuccess;
  // A sequentially consistent exchange: see reserve().
  expected_.exchange(waiting || !connected_
                         ? ~uint64_t{0}
                         : QueuePairStatus(serial_, generation_, LinkState::kReady).word());
  device_->count_waiting(waiting ? 1 : -1);
}

void ShmQueuePair::progress_locked() {
  while (!waiting_.empty()) {
    const WorkRequest& request = waiting_.front().request;
    ShmCompletionQueue::Spare* const spare = &waiting_.front().spare;
    const QueuePairStatus now = status();
    if (now.failed()) {
      if ((request.flags & kSignaled) == 0) static_cast<void>(reserve(false));
      complete_as_flushed(request, spare);
    } else if (std::optional<OperationResult> result = attempt(request)) {
      finish(request, *result, spare);
    } else {
      const CompletionStatus failure = now.state() == LinkState::kWaiting
                                           ? CompletionStatus::kRetryExceeded
                                           : CompletionStatus::kReceiverNotReady;
      if (failure != head_failure_) {
        head_failure_ = failure;
        if (failure == CompletionStatus::kRetryExceeded) {
          head_deadline_ = deadline_after(options_.ack_timeout * (options_.retry_count + 1));
        } else if (options_.receiver_retry_count == 7) {
          head_deadline_ = kForever;
        } else {
          head_deadline_ =
              deadline_after(options_.receiver_retry_delay * options_.receiver_retry_count);
        }
      }
      if (std::chrono::steady_clock::now() < head_deadline_) return;
      finish(request, {failure}, spare);
    }
    waiting_.pop_front();
    head_failure_ = CompletionStatus::kSuccess;
  }
  set_waiting(false);
}

void ShmQueuePair::progress() {
  if (!has_waiting_.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) progress_locked();
}

PostResult ShmQueuePair::post_receive(std::span<const ReceiveRequest> requests) {
  if (shared_receives_) return {0, PostError::kUnsupported};
  const PostResult result = receives_->post(requests, device_->regions(), domain_number_);
  // The queue pair has failed, so poll() must flush these receives. A thread that breaks the queue
  // pair after this check announces them itself.
  if (result.posted != 0 && status().failed()) announce_receives();
  return result;
}

size_t ShmQueuePair::drain_receives(std::span<Completion> completions) {
  size_t count = 0;
  const auto put = [&](uint64_t id, CompletionStatus status) {
    Completion& completion = completions[count++];
    completion = Completion{};
    completion.id = id;
    completion.status = status;
    completion.kind = CompletionKind::kReceive;
    completion.queue_pair = number_;
    return &completion;
  };
  while (count < completions.size()) {
    const ReceiveRingEntry& entry = ring_[consumed_ & ring_mask_];
    if (entry.sequence.load(std::memory_order_acquire) != consumed_ + 1) break;
    ++consumed_;
    const auto request = receives_->finish(read_once(entry.slot), index_ + 1);
    if (!request.has_value()) continue;  // the slot was not taken by this peer
    const bool message = read_once(entry.kind) == static_cast<uint8_t>(CompletionKind::kReceive);
    const uint32_t bytes = read_once(entry.bytes);
    auto status = static_cast<CompletionStatus>(
        std::min(read_once(entry.status), static_cast<uint8_t>(CompletionStatus::kUnknown)));
    // The receiver of the completion reads `bytes` bytes, so the number must not exceed the
    // capacity.
    if (status == CompletionStatus::kSuccess &&
        bytes > (message ? request->capacity : kMaxMessage)) {
      status = CompletionStatus::kLocalLength;
    }
    Completion* completion = put(request->id, status);
    completion->kind = message ? CompletionKind::kReceive : CompletionKind::kReceiveImmediate;
    completion->has_immediate = read_once(entry.has_immediate) != 0;
    completion->immediate = read_once(entry.immediate);
    completion->bytes = bytes;
    if (completion->status != CompletionStatus::kSuccess) receive_failure_reported_ = true;
  }
  if (shared_receives_ || !status().failed()) return count;
  while (count < completions.size()) {
    const std::optional<uint64_t> id = receives_->take_back();
    if (!id.has_value()) break;
    CompletionStatus reason = CompletionStatus::kFlushed;
    if (!receive_failure_reported_ && status().state() == LinkState::kPeerDead) {
      reason = CompletionStatus::kPeerDied;
    }
    receive_failure_reported_ = true;
    put(*id, reason);
  }
  return count;
}

}  // namespace cariama::shm
