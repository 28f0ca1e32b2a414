#include "dtutils/sim/sim_queue_pair.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "dtutils/error.h"
#include "dtutils/internal/shared_copy.h"
#include "dtutils/internal/validate.h"

namespace cariama::sim {
namespace {

// The address of a queue pair. Both ends belong to one process, so the fabric's identity and the
// number suffice.
struct AddressBlob {
  char magic[8];
  uint64_t fabric;
  uint32_t number;
  uint32_t reserved;
};
constexpr char kMagic[8] = {'C', 'A', 'R', 's', 'i', 'm', '0', '1'};

bool allows_local_write(Access access) {
  // Remote write and atomic access imply it (memory.h).
  return (static_cast<uint32_t>(access) &
          static_cast<uint32_t>(Access::kLocalWrite | Access::kRemoteWrite |
                                Access::kRemoteAtomic)) != 0;
}

absl::Status peer_gone(std::string_view what, std::string_view peer) {
  std::string text(what);
  text.append(" ").append(peer).append(": its queue pair was destroyed or its endpoint is dead");
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer, text,
                    "make new queue pairs when the peer is back");
}

}  // namespace

PostResult SimSharedReceiveQueue::post_receive(std::span<const ReceiveRequest> requests) {
  const std::unique_lock lock = fabric_->lock();
  PostResult result;
  for (const ReceiveRequest& request : requests) {
    result.error = internal::validate(request, options_.max_segments);
    if (result.ok() && receives_.size() >= options_.depth) result.error = PostError::kQueueFull;
    if (!result.ok()) break;
    receives_.push_back({request.id, {request.segments, request.segments + request.segment_count}});
    ++result.posted;
  }
  return result;
}

SimQueuePair::SimQueuePair(std::shared_ptr<Fabric> fabric, Endpoint* endpoint,
                           std::shared_ptr<ProtectionDomain> domain,
                           const QueuePairOptions& options)
    : fabric_(std::move(fabric)),
      endpoint_(endpoint),
      domain_owner_(std::move(domain)),
      send_completions_(std::static_pointer_cast<SimCompletionQueue>(options.send_completions)),
      receive_completions_(
          std::static_pointer_cast<SimCompletionQueue>(options.receive_completions)),
      shared_receives_(std::static_pointer_cast<SimSharedReceiveQueue>(options.shared_receives)) {
  const DeviceLimits& device = fabric_->options().limits;
  limits_.send_depth = std::min(options.send_depth, device.max_send_depth);
  limits_.receive_depth =
      shared_receives_ != nullptr ? 0 : std::min(options.receive_depth, device.max_receive_depth);
  limits_.max_send_segments = std::min(options.max_send_segments, device.max_segments);
  limits_.max_receive_segments = std::min(options.max_receive_segments, device.max_segments);
  limits_.max_inline = std::min(options.max_inline, device.max_inline);
  limits_.max_outstanding_reads = device.max_outstanding_reads;
  limits_.mtu = device.mtu;
  limits_.max_message = device.max_message;
  domain_ = domain_owner_.get();
  const std::unique_lock lock = fabric_->lock();
  number_ = fabric_->add_queue_pair(this);
}

SimQueuePair::~SimQueuePair() {
  const std::unique_lock lock = fabric_->lock();
  fabric_->remove_queue_pair(number_);
  send_completions_->drop(number_);
  receive_completions_->drop(number_);
}

// --- set-up -------------------------------------------------------------------------------------

std::string SimQueuePair::address() const {
  AddressBlob blob{};
  std::memcpy(blob.magic, kMagic, sizeof(kMagic));
  blob.fabric = fabric_->identity();
  blob.number = number_;
  return std::string(reinterpret_cast<const char*>(&blob), sizeof(blob));
}

absl::Status SimQueuePair::connect(std::string_view peer_address, const ConnectOptions& options) {
  const auto refuse = [&options](std::string_view why, std::string_view remedy) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kLink,
                      "connecting to " + options.peer + ": " + std::string(why), remedy);
  };
  AddressBlob blob;
  if (peer_address.size() != sizeof(blob)) {
    return refuse("this is not the address of a simulated queue pair",
                  "bring the bytes of the peer's address() unchanged");
  }
  std::memcpy(&blob, peer_address.data(), sizeof(blob));
  if (std::memcmp(blob.magic, kMagic, sizeof(kMagic)) != 0 || blob.number == 0) {
    return refuse("this is not the address of a simulated queue pair",
                  "connect endpoints of the same transport");
  }
  if (blob.fabric != fabric_->identity()) {
    return refuse("the peer is of another simulated fabric",
                  "make both endpoints with the same SimFabric");
  }
  if (options.retry_count > 6 || options.receiver_retry_count > 7) {
    return refuse("a retry count is out of range",
                  "retry_count is 0 to 6, receiver_retry_count 0 to 7");
  }
  if (options.ack_timeout.count() <= 0 || options.receiver_retry_delay.count() < 0) {
    return refuse("a timeout is out of range", "give positive times");
  }

  const std::unique_lock lock = fabric_->lock();
  if (peer_number_ != 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kLink,
                      "connecting to " + options.peer + ": the queue pair is connected already",
                      "use repair() after an error, or a new queue pair for another peer");
  }
  const SimQueuePair* peer = fabric_->queue_pair(blob.number);
  if (peer == nullptr || !peer->endpoint_->alive) return peer_gone("connecting to", options.peer);
  limits_.max_outstanding_reads =
      std::min(limits_.max_outstanding_reads, peer->limits_.max_outstanding_reads);
  peer_number_ = blob.number;
  peer_ = options.peer;
  connect_options_ = options;
  start_connection();
  return absl::OkStatus();
}

void SimQueuePair::start_connection() {
  connected_at_ = fabric_->stamp();
  state_ = QueuePairState::kConnected;
  slots_.reset();
  base_ = first_ = next_ = slots_.posted();
  outstanding_reads_ = retries_ = receiver_retries_ = 0;
  receiver_wait_ = retry_timer_ = false;
  expected_ = 0;
  atomic_results_.clear();
}

absl::Status SimQueuePair::repair() {
  const std::unique_lock lock = fabric_->lock();
  if (peer_number_ == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kLink,
                      "repairing a queue pair that was never connected", "connect() it first");
  }
  if (state_ == QueuePairState::kConnected) enter_error();
  const SimQueuePair* peer = fabric_->queue_pair(peer_number_);
  if (peer == nullptr || !peer->endpoint_->alive) {
    state_ = QueuePairState::kUnconnected;
    return peer_gone("repairing the connection to", peer_);
  }
  start_connection();
  return absl::OkStatus();
}

void SimQueuePair::fail() {
  const std::unique_lock lock = fabric_->lock();
  enter_error();
}

QueuePairState SimQueuePair::state() const {
  const std::unique_lock lock = fabric_->lock();
  return state_;
}

ArrivalOrder SimQueuePair::write_order() const { return fabric_->options().write_order; }

// Moves to the error state and completes everything outstanding with kFlushed. retire() also calls
// it, after it has reported the error.
void SimQueuePair::enter_error() {
  if (state_ == QueuePairState::kError) return;
  state_ = QueuePairState::kError;
  fabric_->note_arrival(*endpoint_);  // a failure for want of answers has no message
  while (!operations_.empty()) {
    complete(operations_.front(), first_, CompletionStatus::kFlushed);
    operations_.pop_front();
    ++first_;
  }
  next_ = first_;
  while (!receives_.empty()) {
    complete_receive(receives_.pop_front().id, CompletionStatus::kFlushed, nullptr);
  }
}

// --- initiator ----------------------------------------------------------------------------------

PostResult SimQueuePair::post_send(std::span<const WorkRequest> requests) {
  const std::unique_lock lock = fabric_->lock();
  PostResult result;
  for (const WorkRequest& request : requests) {
    if (state_ == QueuePairState::kUnconnected) {
      result.error = PostError::kNotConnected;
      break;
    }
    const internal::Validation valid =
        internal::validate(request, limits_, fabric_->options().limits.atomics);
    result.error = valid.error;
    if (result.ok() && slots_.full(limits_.send_depth)) result.error = PostError::kQueueFull;
    if (!result.ok()) break;

    Operation operation{.id = request.id,
                        .opcode = request.opcode,
                        .flags = request.flags,
                        .immediate = request.immediate,
                        .bytes = valid.bytes,
                        .remote_address = request.remote_address,
                        .remote_key = request.remote_key,
                        .operand = request.operand,
                        .swap = request.swap,
                        .segments = {},
                        .inline_data = {}};
    const std::span segments(request.segments, request.segment_count);
    if ((request.flags & kInline) != 0) {
      for (const Segment& segment : segments) {
        const auto* data = static_cast<const std::byte*>(segment.address);
        operation.inline_data.insert(operation.inline_data.end(), data, data + segment.length);
      }
    } else {
      operation.segments.assign(segments.begin(), segments.end());
    }
    const uint64_t number = slots_.take();
    if (state_ == QueuePairState::kError) {
      complete(operation, number, CompletionStatus::kFlushed);
      first_ = next_ = number + 1;
    } else {
      operations_.push_back(std::move(operation));
    }
    ++result.posted;
  }
  fabric_->make_ready(*this);
  return result;
}

bool SimQueuePair::wants_to_transmit() {
  if (state_ != QueuePairState::kConnected || receiver_wait_) return false;
  const uint64_t end = first_ + operations_.size();
  while (next_ < end && operation(next_).done) {
    // An operation that failed locally stays here until all earlier ones have completed; retire()
    // then reports it and ends the connection.
    if (operation(next_).status != CompletionStatus::kSuccess) return false;
    ++next_;
  }
  if (next_ == end) return false;
  const Operation& candidate = operation(next_);
  if ((candidate.flags & kFence) != 0 && outstanding_reads_ > 0) return false;
  return !candidate.fetches() || outstanding_reads_ < limits_.max_outstanding_reads;
}

// Returns the data to be sent, or an empty optional if a segment's key does not cover the segment.
std::optional<std::vector<std::byte>> SimQueuePair::gather(const Operation& operation) const {
  if ((operation.flags & kInline) != 0) return operation.inline_data;
  std::vector<std::byte> data;
  data.reserve(operation.bytes);
  for (const Segment& segment : operation.segments) {
    if (segment.length == 0) continue;
    const auto* begin = static_cast<const std::byte*>(segment.address);
    if (fabric_->find(segment.key, domain_, reinterpret_cast<uint64_t>(begin), segment.length) ==
        nullptr) {
      return std::nullopt;
    }
    data.insert(data.end(), begin, begin + segment.length);
  }
  return data;
}

// Copies the data into the segments. Returns false if a segment that receives data is not
// registered or not writable.
bool SimQueuePair::scatter(std::span<const Segment> segments, std::span<const std::byte> data) {
  for (const Segment& segment : segments) {
    const size_t bytes = std::min<size_t>(segment.length, data.size());
    if (bytes == 0) continue;
    const Fabric::Registration* found = fabric_->find(
        segment.key, domain_, reinterpret_cast<uint64_t>(segment.address), segment.length);
    if (found == nullptr || !allows_local_write(found->access)) return false;
    std::memcpy(segment.address, data.data(), bytes);
    data = data.subspan(bytes);
  }
  return true;
}

void SimQueuePair::transmit_next() {
  Operation& operation = this->operation(next_);
  auto packet = std::make_unique<Packet>();
  if (operation.fetches()) {
    // Check the destination of the result now, before the target executes the operation.
    for (const Segment& segment : operation.segments) {
      if (segment.length == 0) continue;
      const Fabric::Registration* found = fabric_->find(
          segment.key, domain_, reinterpret_cast<uint64_t>(segment.address), segment.length);
      if (found == nullptr || !allows_local_write(found->access)) {
        finish(operation, CompletionStatus::kLocalProtection);
        return;
      }
    }
    ++outstanding_reads_;
  } else {
    std::optional<std::vector<std::byte>> data = gather(operation);
    if (!data.has_value()) {
      finish(operation, CompletionStatus::kLocalProtection);
      return;
    }
    packet->payload = *std::move(data);
  }
  packet->opcode = operation.opcode;
  packet->flags = operation.flags;
  packet->source = number_;
  packet->target = peer_number_;
  packet->immediate = operation.immediate;
  packet->psn = next_ - base_;
  packet->bytes = operation.bytes;
  packet->remote_address = operation.remote_address;
  packet->remote_key = operation.remote_key;
  packet->operand = operation.operand;
  packet->swap = operation.swap;
  if (operation.sent_before) ++fabric_->statistics().retransmissions;
  operation.sent_before = true;
  operation.sent_at = fabric_->now();
  ++next_;
  fabric_->transmit(*endpoint_, std::move(packet));
}

void SimQueuePair::finish(Operation& operation, CompletionStatus status) {
  operation.done = true;
  operation.status = status;
  retire();
}

// Completes the operations that are done, in the order of posting.
void SimQueuePair::retire() {
  while (!operations_.empty() && operations_.front().done) {
    const Operation operation = operations_.pop_front();
    const uint64_t number = first_++;
    next_ = std::max(next_, first_);
    if (operation.status != CompletionStatus::kSuccess) {
      complete(operation, number, operation.status);
      enter_error();
      return;
    }
    if ((operation.flags & kSignaled) != 0) complete(operation, number, operation.status);
  }
}

void SimQueuePair::complete(const Operation& operation, uint64_t number, CompletionStatus status) {
  slots_.completed();
  send_completions_->push({.id = operation.id,
                           .status = status,
                           .kind = internal::completion_kind(operation.opcode),
                           .queue_pair = number_},
                          number, false);
}

void SimQueuePair::receive_response(const Packet& response) {
  if (state_ != QueuePairState::kConnected || response.sent < connected_at_) return;
  const uint64_t number = base_ + response.psn;
  if (number < first_ || number >= next_ || operation(number).done) return;  // answered before
  Operation& operation = this->operation(number);

  if (response.kind == PacketKind::kReceiverNotReady) {
    const uint32_t limit = connect_options_.receiver_retry_count;
    if (limit != 7 && receiver_retries_++ == limit) {
      finish(operation, CompletionStatus::kReceiverNotReady);
      return;
    }
    rewind(number);
    receiver_wait_ = true;
    fabric_->set_timer(fabric_->now() + connect_options_.receiver_retry_delay,
                       TimerKind::kReceiverNotReady, number_, connected_at_);
    return;
  }

  retries_ = receiver_retries_ = 0;
  CompletionStatus status = response.status;
  if (operation.fetches()) {
    --outstanding_reads_;
    if (status == CompletionStatus::kSuccess) {
      const std::span<const std::byte> data = response.kind == PacketKind::kReadResponse
                                                  ? std::span<const std::byte>(response.payload)
                                                  : std::as_bytes(std::span(&response.operand, 1));
      if (!scatter(operation.segments, data)) status = CompletionStatus::kLocalProtection;
    }
  }
  finish(operation, status);
  fabric_->make_ready(*this);
}

// Schedules operation `number` and all later ones to be sent again.
void SimQueuePair::rewind(uint64_t number) {
  next_ = number;
  outstanding_reads_ = 0;
  for (uint64_t i = first_; i < number; ++i) {
    if (operation(i).fetches() && !operation(i).done) ++outstanding_reads_;
  }
}

void SimQueuePair::request_lost(const Packet& packet) {
  if (!endpoint_->alive || state_ != QueuePairState::kConnected || packet.sent < connected_at_) {
    return;
  }
  const uint64_t number = base_ + packet.psn;
  if (number < first_ || number >= next_) return;
  start_retry_timer(operation(number).sent_at + connect_options_.ack_timeout);
}

// Starts the retry timer unless it runs. One timer suffices: when it expires, all operations that
// are not done are sent again.
void SimQueuePair::start_retry_timer(SimTime time) {
  if (retry_timer_) return;
  retry_timer_ = true;
  fabric_->set_timer(std::max(time, fabric_->now()), TimerKind::kRetry, number_, connected_at_);
}

void SimQueuePair::timer(TimerKind kind, uint64_t argument) {
  if (state_ != QueuePairState::kConnected || argument != connected_at_ || !endpoint_->alive) {
    return;
  }
  if (kind == TimerKind::kReceiverNotReady) {
    receiver_wait_ = false;
  } else {
    retry_timer_ = false;
    retry();
  }
  fabric_->make_ready(*this);
}

void SimQueuePair::retry() {
  if (first_ == next_) return;  // all sent operations were answered meanwhile
  if (receiver_wait_) {
    start_retry_timer(fabric_->now() + connect_options_.ack_timeout);
    return;
  }
  if (retries_ == connect_options_.retry_count) {
    finish(operations_.front(), CompletionStatus::kRetryExceeded);
    return;
  }
  ++retries_;
  rewind(first_);
}

// --- target -------------------------------------------------------------------------------------

SimTime SimQueuePair::delivery_time(const Packet& request, SimTime end) {
  end = std::max(end, last_delivery_);
  if (const SimTime spread = fabric_->options().torn_spread; spread.count() > 0) {
    if (request.opcode == Opcode::kWrite) {
      landed_ = orders_writes(fabric_->options().write_order) ? std::max(landed_, end) + spread
                                                              : std::max(landed_, end + spread);
    } else {
      // All operations but WRITEs see earlier WRITEs completely.
      end = std::max(end, landed_ + SimTime(1));
    }
  }
  last_delivery_ = end;
  return end;
}

bool SimQueuePair::receive_request(Packet& request) {
  if (state_ != QueuePairState::kConnected || request.source != peer_number_ ||
      request.sent < connected_at_) {
    return false;
  }
  const SimQueuePair* source = fabric_->queue_pair(request.source);
  // Sent before the initiator's last connect or repair.
  if (source != nullptr && request.sent < source->connected_at_) return true;
  // An earlier request is missing; both will be sent again.
  if (request.psn > expected_) return true;
  const bool repeated = request.psn < expected_;

  CompletionStatus status = CompletionStatus::kSuccess;
  const auto check = [&](Access wanted) {
    const Fabric::Registration* found =
        fabric_->find(request.remote_key, domain_, request.remote_address, request.bytes);
    const bool allowed =
        request.bytes == 0 || (found != nullptr && has_access(found->access, wanted));
    if (!allowed) status = CompletionStatus::kRemoteAccess;
    return allowed;
  };
  SimTime landed{0};
  uint64_t old_value = 0;
  switch (request.opcode) {
    case Opcode::kWrite:
      if (!repeated && check(Access::kRemoteWrite)) execute_write(request, &landed);
      break;
    case Opcode::kWriteImmediate:
    case Opcode::kSend:
    case Opcode::kSendImmediate: {
      if (repeated) break;
      if (receive_queue().empty()) {
        ++fabric_->statistics().receiver_not_ready;
        respond(request, PacketKind::kReceiverNotReady, CompletionStatus::kSuccess);
        return true;
      }
      if (request.opcode != Opcode::kWriteImmediate) {
        status = receive_message(request);
      } else if (check(Access::kRemoteWrite)) {
        internal::store_shared(reinterpret_cast<std::byte*>(request.remote_address),
                               request.payload.data(), request.payload.size());
        complete_receive(receive_queue().pop_front().id, CompletionStatus::kSuccess, &request);
      }
      break;
    }
    case Opcode::kRead:
      if (check(Access::kRemoteRead)) {
        if (!repeated) ++expected_;
        respond_with_data(request);
        return true;
      }
      break;
    case Opcode::kFetchAdd:
    case Opcode::kCompareSwap:
      if (repeated) {
        for (const AtomicResult& result : atomic_results_) {
          if (result.psn == request.psn) old_value = result.old_value;
        }
      } else if (request.remote_address % sizeof(uint64_t) != 0) {
        status = CompletionStatus::kRemoteInvalid;
      } else if (check(Access::kRemoteAtomic)) {
        old_value = execute_atomic(request);
      }
      break;
  }
  if (!repeated) ++expected_;
  respond(request, PacketKind::kAcknowledgement, status, old_value, landed);
  if (status != CompletionStatus::kSuccess) enter_error();
  return true;
}

void SimQueuePair::execute_write(const Packet& request, SimTime* landed) {
  if (fabric_->options().torn_spread.count() > 0) {
    land_in_pieces(request, landed);
  } else {
    internal::store_shared(reinterpret_cast<std::byte*>(request.remote_address),
                           request.payload.data(), request.payload.size());
  }
}

uint64_t SimQueuePair::execute_atomic(const Packet& request) {
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(request.remote_address));
  uint64_t old_value = request.operand;
  if (request.opcode == Opcode::kFetchAdd) {
    old_value = word.fetch_add(request.operand, std::memory_order_acq_rel);
  } else {
    // On failure, compare_exchange_strong stores the current value to old_value, which the
    // operation reports.
    word.compare_exchange_strong(old_value, request.swap, std::memory_order_acq_rel);
  }
  if (atomic_results_.size() >= std::max<uint32_t>(1, limits_.max_outstanding_reads)) {
    atomic_results_.erase(atomic_results_.begin());
  }
  atomic_results_.push_back({request.psn, old_value});
  return old_value;
}

internal::GrowingRing<Receive>& SimQueuePair::receive_queue() {
  // clang-tidy reports a null pointer for the first alternative.
  return shared_receives_ != nullptr ? shared_receives_->receives_ : receives_;  // NOLINT
}

// Delivers a SEND. Requires: a receive is posted. Returns the status for the sender's
// acknowledgement.
CompletionStatus SimQueuePair::receive_message(const Packet& request) {
  const Receive receive = receive_queue().pop_front();
  uint64_t room = 0;
  for (const Segment& segment : receive.segments) room += segment.length;
  if (room < request.payload.size()) {
    complete_receive(receive.id, CompletionStatus::kLocalLength, nullptr);
    return CompletionStatus::kRemoteInvalid;
  }
  if (!scatter(receive.segments, request.payload)) {
    complete_receive(receive.id, CompletionStatus::kLocalProtection, nullptr);
    return CompletionStatus::kRemoteOperation;
  }
  complete_receive(receive.id, CompletionStatus::kSuccess, &request);
  return CompletionStatus::kSuccess;
}

// `request`: the received request; nullptr for failures.
void SimQueuePair::complete_receive(uint64_t id, CompletionStatus status, const Packet* request) {
  Completion completion{
      .id = id, .status = status, .kind = CompletionKind::kReceive, .queue_pair = number_};
  bool solicited = false;
  if (request != nullptr) {
    if (request->opcode == Opcode::kWriteImmediate) {
      completion.kind = CompletionKind::kReceiveImmediate;
    }
    completion.has_immediate = internal::has_immediate(request->opcode);
    completion.immediate = completion.has_immediate ? request->immediate : 0;
    completion.bytes = static_cast<uint32_t>(request->bytes);
    solicited = (request->flags & kSolicited) != 0;
  }
  receive_completions_->push(completion, SimCompletionQueue::kReceived, solicited);
}

void SimQueuePair::respond(const Packet& request, PacketKind kind, CompletionStatus status,
                           uint64_t old_value, SimTime not_before) {
  auto response = std::make_unique<Packet>();
  response->kind = kind;
  response->opcode = request.opcode;
  response->status = status;
  response->source = number_;
  response->target = request.source;
  response->from = endpoint_->id;
  response->psn = request.psn;
  response->operand = old_value;
  fabric_->deliver_at(
      std::max(fabric_->now(), not_before) + fabric_->options().ack_latency + fabric_->jitter(),
      std::move(response));
}

void SimQueuePair::respond_with_data(const Packet& request) {
  auto response = std::make_unique<Packet>();
  response->kind = PacketKind::kReadResponse;
  response->opcode = request.opcode;
  response->source = number_;
  response->target = request.source;
  response->psn = request.psn;
  response->bytes = request.bytes;
  response->payload.resize(request.bytes);
  internal::load_shared(response->payload.data(),
                        reinterpret_cast<std::byte*>(request.remote_address), request.bytes);
  fabric_->transmit(*endpoint_, std::move(response));
}

PostResult SimQueuePair::post_receive(std::span<const ReceiveRequest> requests) {
  const std::unique_lock lock = fabric_->lock();
  PostResult result;
  for (const ReceiveRequest& request : requests) {
    result.error = shared_receives_ != nullptr
                       ? PostError::kUnsupported
                       : internal::validate(request, limits_.max_receive_segments);
    if (result.ok() && receives_.size() >= limits_.receive_depth) {
      result.error = PostError::kQueueFull;
    }
    if (!result.ok()) break;
    if (state_ == QueuePairState::kError) {
      complete_receive(request.id, CompletionStatus::kFlushed, nullptr);
    } else {
      receives_.push_back(
          {request.id, {request.segments, request.segments + request.segment_count}});
    }
    ++result.posted;
  }
  return result;
}

}  // namespace cariama::sim
