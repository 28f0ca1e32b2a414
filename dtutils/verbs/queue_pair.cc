#include "dtutils/verbs/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/random_word.h"
#include "dtutils/internal/validate.h"
#include "dtutils/verbs/limits.h"
#include "dtutils/verbs/receive_batch.h"
#include "dtutils/verbs/wire_segment.h"
#include "dtutils/verbs/work_id.h"

namespace cariama::verbs {
namespace {

// Flushing is local work of the device. The deadline only prevents an endless wait on a broken
// device.
constexpr std::chrono::seconds kDrainDeadline{10};
constexpr std::chrono::microseconds kDrainPause{50};

CompletionStatus status_of(const ibv_wc& work, bool soft_roce) {
  // For a request, soft-RoCE reports this status for an unknown local key. The other causes of this
  // status are rejected by validate(). (For a receive it also reports it when the buffer is too
  // small.)
  if (soft_roce && work.status == IBV_WC_LOC_QP_OP_ERR && !is_receive(work.wr_id)) {
    return CompletionStatus::kLocalProtection;
  }
  switch (work.status) {
    case IBV_WC_SUCCESS:
      return CompletionStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR:
      return CompletionStatus::kLocalLength;
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_MW_BIND_ERR:
      return CompletionStatus::kLocalOperation;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return CompletionStatus::kLocalProtection;
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::kFlushed;
    case IBV_WC_REM_ACCESS_ERR:
      return CompletionStatus::kRemoteAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return CompletionStatus::kRemoteInvalid;
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return CompletionStatus::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return CompletionStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return CompletionStatus::kReceiverNotReady;
    default:
      return CompletionStatus::kUnknown;
  }
}

ibv_wr_opcode opcode_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
      return IBV_WR_SEND;
    case Opcode::kSendImmediate:
      return IBV_WR_SEND_WITH_IMM;
    case Opcode::kWrite:
      return IBV_WR_RDMA_WRITE;
    case Opcode::kWriteImmediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kRead:
      return IBV_WR_RDMA_READ;
    case Opcode::kFetchAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Opcode::kCompareSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
  }
  return IBV_WR_SEND;
}

unsigned int flags_of(uint8_t flags) {
  unsigned int out = 0;
  if ((flags & kSignaled) != 0) out |= IBV_SEND_SIGNALED;
  if ((flags & kInline) != 0) out |= IBV_SEND_INLINE;
  if ((flags & kFence) != 0) out |= IBV_SEND_FENCE;
  if ((flags & kSolicited) != 0) out |= IBV_SEND_SOLICITED;
  return out;
}

// Fills all fields of `work` for `request` except `next`. Writes the request's segments to
// `segments`.
void fill(const WorkRequest& request, uint64_t id, ibv_sge* segments, ibv_send_wr& work) {
  work.wr_id = id;
  work.sg_list = segments;
  work.num_sge = translate({request.segments, request.segment_count}, segments);
  work.opcode = opcode_of(request.opcode);
  work.send_flags = flags_of(request.flags);
  work.imm_data = htonl(request.immediate);
  if (internal::is_atomic(request.opcode)) {
    work.wr.atomic = {.remote_addr = request.remote_address,
                      .compare_add = request.operand,
                      .swap = request.swap,
                      .rkey = device_key(request.remote_key.value)};
  } else {
    work.wr.rdma = {.remote_addr = request.remote_address,
                    .rkey = device_key(request.remote_key.value)};
  }
}

// Returns a random starting packet sequence number. An earlier connection between the same queue
// pair numbers is unlikely to have had it, so its late packets are not accepted by this connection.
uint32_t random_sequence() { return static_cast<uint32_t>(internal::random_word() & 0xffffff); }

absl::Status invalid(std::string_view what, std::string_view remedy) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, remedy);
}

}  // namespace

VerbsQueuePair::VerbsQueuePair(std::shared_ptr<const VerbsDomain> domain,
                               std::shared_ptr<VerbsCompletionQueue> send_completions,
                               std::shared_ptr<VerbsCompletionQueue> receive_completions,
                               std::shared_ptr<VerbsSharedReceiveQueue> shared_receives)
    : owner_(std::move(domain)),
      send_completions_(std::move(send_completions)),
      receive_completions_(std::move(receive_completions)),
      shared_receives_(std::move(shared_receives)) {
  domain_ = owner_.get();
}

absl::StatusOr<std::unique_ptr<VerbsQueuePair>> VerbsQueuePair::create(
    std::shared_ptr<const VerbsDomain> domain, const QueuePairOptions& options) {
  auto send = std::dynamic_pointer_cast<VerbsCompletionQueue>(options.send_completions);
  auto receive = std::dynamic_pointer_cast<VerbsCompletionQueue>(options.receive_completions);
  const Context* context = domain->context().get();
  if (send == nullptr || receive == nullptr || send->context() != context ||
      receive->context() != context) {
    return invalid("a queue pair needs two completion queues of its own device",
                   "create them from the same domain");
  }
  auto shared = std::dynamic_pointer_cast<VerbsSharedReceiveQueue>(options.shared_receives);
  if (options.shared_receives != nullptr &&
      (shared == nullptr || shared->domain() != domain.get())) {
    return invalid("the shared receive queue is of another domain", "create it from the same one");
  }
  if (options.send_depth == 0 || (shared == nullptr && options.receive_depth == 0)) {
    return invalid("a queue pair with a queue of depth 0", "ask for at least 1");
  }
  std::unique_ptr<VerbsQueuePair> queue_pair(new VerbsQueuePair(
      std::move(domain), std::move(send), std::move(receive), std::move(shared)));
  if (absl::Status status = queue_pair->create_handle(options); !status.ok()) return status;
  if (absl::Status status = queue_pair->initialize(); !status.ok()) return status;
  if (absl::Status status = queue_pair->reserve_completions(); !status.ok()) return status;
  return queue_pair;
}

absl::Status VerbsQueuePair::create_handle(const QueuePairOptions& options) {
  const Context& device = context();
  const bool shared = shared_receives_ != nullptr;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = send_completions_->handle();
  attributes.recv_cq = receive_completions_->handle();
  attributes.srq = shared ? shared_receives_->handle() : nullptr;
  attributes.qp_type = IBV_QPT_RC;
  uint32_t send_depth = std::min(options.send_depth, device.limits.max_send_depth);
  uint32_t send_segments = std::clamp(options.max_send_segments, 1U, device.limits.max_segments);
  uint32_t inline_bytes = std::min(options.max_inline, device.limits.max_inline);
  uint32_t receive_depth =
      shared ? 0 : std::min(options.receive_depth, device.limits.max_receive_depth);
  uint32_t receive_segments =
      shared ? 0 : std::clamp(options.max_receive_segments, 1U, device.limits.max_segments);
  for (;;) {
    attributes.cap = {.max_send_wr = send_depth + kMarkerSlots,
                      .max_recv_wr = receive_depth,
                      .max_send_sge = send_segments,
                      .max_recv_sge = receive_segments,
                      .max_inline_data = inline_bytes};
    handle_.reset(ibv_create_qp(owner_->handle(), &attributes));
    if (handle_ != nullptr) break;
    const int error = errno;
    // Each limit of a device holds by itself, but all together may exceed the device. Reduce first
    // the limit whose reduction costs the user least.
    const auto halve = [](uint32_t& value) { value = std::min(value, std::max(value / 2, 1U)); };
    const bool too_much = error == EINVAL || error == ENOMEM;
    if (too_much && inline_bytes > 0) {
      inline_bytes /= 2;
    } else if (too_much && std::max(send_segments, receive_segments) > 1) {
      halve(send_segments);
      halve(receive_segments);
    } else if (too_much && std::max(send_depth, receive_depth) > 1) {
      halve(send_depth);
      halve(receive_depth);
    } else {
      return make_errno_error(error, ErrorScope::kProcess,
                              "creating a queue pair on " + device.description,
                              "destroy unused ones; raise ulimit -l if memory ran out");
    }
  }
  // Not deeper than requested, although the device may have rounded up: users size their state per
  // operation by it.
  limits_.send_depth = std::min(send_depth, attributes.cap.max_send_wr - kMarkerSlots);
  limits_.receive_depth = shared ? 0 : std::min(receive_depth, attributes.cap.max_recv_wr);
  limits_.max_send_segments = std::min(attributes.cap.max_send_sge, kMostSegments);
  limits_.max_receive_segments = shared ? shared_receives_->max_segments()
                                        : std::min(attributes.cap.max_recv_sge, kMostSegments);
  limits_.max_inline = attributes.cap.max_inline_data;
  limits_.max_outstanding_reads = device.limits.max_outstanding_reads;
  limits_.mtu = device.limits.mtu;
  limits_.max_message = device.limits.max_message;

  number_ = handle_->qp_num;
  const size_t send_slots = std::bit_ceil(size_t{limits_.send_depth});
  send_slots_ = std::make_unique<SendSlot[]>(send_slots);
  send_mask_ = send_slots - 1;
  if (!shared) {
    const size_t receive_slots = std::bit_ceil(size_t{limits_.receive_depth});
    receive_ids_ = std::make_unique<uint64_t[]>(receive_slots);
    receive_mask_ = receive_slots - 1;
  }

  const auto reads = [](int value) {
    return std::min(static_cast<uint32_t>(std::max(value, 0)), kMostReads);
  };
  own_ = {.ethernet = device.ethernet(),
          .lid = device.port_attributes.lid,
          .queue_pair = number_,
          .first_sequence = random_sequence(),
          .mtu = device.limits.mtu,
          .initiated_reads = reads(device.attributes.max_qp_init_rd_atom),
          .served_reads = reads(device.attributes.max_qp_rd_atom),
          .max_message = device.limits.max_message,
          .atomics = device.limits.atomics};
  std::copy_n(device.gid.raw, own_.gid.size(), own_.gid.begin());
  return absl::OkStatus();
}

absl::Status VerbsQueuePair::reserve_completions() {
  absl::Status status = send_completions_->reserve(&send_slots_, limits_.send_depth + kMarkerSlots);
  if (!status.ok()) return status;
  if (shared_receives_ != nullptr) {
    status = receive_completions_->reserve(shared_receives_.get(), shared_receives_->depth());
  } else {
    status = receive_completions_->reserve(&receive_ids_, limits_.receive_depth);
  }
  if (!status.ok()) {
    send_completions_->release(&send_slots_);
    return status;
  }
  send_completions_->add(this);
  if (receive_completions_ != send_completions_) receive_completions_->add(this);
  complete_ = true;
  return absl::OkStatus();
}

VerbsQueuePair::~VerbsQueuePair() {
  if (!complete_) return;
  // A poller may be about to use the handle, see observe().
  closing_.store(true, std::memory_order_relaxed);
  send_completions_->wait_for_pollers();
  receive_completions_->wait_for_pollers();
  handle_.reset();
  send_completions_->remove(this);
  if (receive_completions_ != send_completions_) receive_completions_->remove(this);
  send_completions_->release(&send_slots_);
  if (shared_receives_ != nullptr) {
    receive_completions_->release(shared_receives_.get());
  } else {
    receive_completions_->release(&receive_ids_);
  }
}

absl::Status VerbsQueuePair::modify(ibv_qp_attr attributes, int mask, std::string_view step) {
  const int error = ibv_modify_qp(handle_.get(), &attributes, mask);
  if (error == 0) return absl::OkStatus();
  std::string what(step);
  what.append(" towards ").append(peer_).append(" on ").append(context().description);
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
      return make_error(
          absl::StatusCode::kUnavailable, ErrorScope::kPeer,
          what + " failed: there is no route to the peer's address",
          "check that the ports of both ends are in one network, and choose GIDs of it "
          "with CARIAMA_GID_INDEX");
    default:
      return make_errno_error(error, ErrorScope::kLink, what,
                              "check that both ends use GIDs of the same type and network "
                              "(cariama-info lists them)");
  }
}

absl::Status VerbsQueuePair::initialize() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = context().port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (context().limits.atomics) attributes.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "initializing a queue pair");
}

absl::Status VerbsQueuePair::reach(const ConnectAttributes& attributes) {
  absl::Status status =
      modify(attributes.to_ready_to_receive, attributes.to_ready_to_receive_mask, "connecting");
  if (!status.ok()) return status;
  return modify(attributes.to_ready_to_send, attributes.to_ready_to_send_mask, "connecting");
}

absl::Status VerbsQueuePair::connect(std::string_view peer_address, const ConnectOptions& options) {
  const auto refuse = [&options](const absl::Status& why) {
    return make_error(why.code(), error_scope(why),
                      "connecting to " + options.peer + ": " + std::string(why.message()));
  };
  if (connection_.has_value() || state() != QueuePairState::kUnconnected) {
    return refuse(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                             "the queue pair has been connected or has failed already",
                             "use a queue pair for each connection, and repair() one that failed"));
  }
  if (const absl::Status status = check(options); !status.ok()) return refuse(status);
  const absl::StatusOr<Address> peer = decode(peer_address);
  if (!peer.ok()) return refuse(peer.status());
  if (peer->ethernet != own_.ethernet) {
    return refuse(invalid("one end is RoCE, the other InfiniBand",
                          "choose ports of one network with CARIAMA_DEVICE and CARIAMA_PORT"));
  }
  peer_ = options.peer;
  const ConnectAttributes attributes = connect_attributes(context(), own_, *peer, options);
  if (absl::Status status = reach(attributes); !status.ok()) {
    // If there is no route to the peer, the queue pair is unchanged: it still has its receives and
    // can be connected again. A refusal of the second step occurs only on a broken device.
    if (handle_->state != IBV_QPS_INIT) fail();
    peer_ = "(unconnected)";
    return status;
  }
  connection_ = attributes;
  limits_.mtu = std::min(own_.mtu, peer->mtu);
  limits_.max_outstanding_reads = attributes.to_ready_to_send.max_rd_atomic;
  limits_.max_message = std::min(own_.max_message, peer->max_message);
  atomics_ = own_.atomics && peer->atomics;
  if (context().forced_order.has_value()) {
    write_order_ = *context().forced_order;
  } else if (ibv_query_qp_data_in_order(handle_.get(), IBV_WR_RDMA_WRITE, 0) == 1) {
    write_order_ = ArrivalOrder::kWithinWrite;
  }
  state_.store(QueuePairState::kConnected, std::memory_order_release);
  return absl::OkStatus();
}

void VerbsQueuePair::to_error_state() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // Only a device that was removed refuses this, and then there is nothing to flush.
  static_cast<void>(ibv_modify_qp(handle_.get(), &attributes, IBV_QP_STATE));
}

void VerbsQueuePair::fail() {
  to_error_state();
  state_.store(QueuePairState::kError, std::memory_order_release);
}

// Waits until all posted requests are flushed. Posts a marker request behind the sends: when it is
// flushed, all earlier sends are. Receives are counted, except those of a shared receive queue,
// which stay posted.
absl::Status VerbsQueuePair::drain() {
  fail();
  drained_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(send_lock_);
    ibv_send_wr marker{};
    marker.wr_id = marker_id(static_cast<uint32_t>(send_tail_.load(std::memory_order_relaxed)));
    marker.opcode = IBV_WR_RDMA_WRITE;
    marker.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* refused = nullptr;
    if (const int error = ibv_post_send(handle_.get(), &marker, &refused); error != 0) {
      return make_errno_error(error, ErrorScope::kLink, "repairing the connection to " + peer_,
                              "make a new queue pair");
    }
  }
  const auto done = [&] {
    return drained_.load(std::memory_order_acquire) &&
           (shared_receives_ != nullptr || receive_observed_.load(std::memory_order_acquire) ==
                                               receive_tail_.load(std::memory_order_acquire));
  };
  const auto deadline = std::chrono::steady_clock::now() + kDrainDeadline;
  for (;;) {
    send_completions_->gather();
    if (receive_completions_ != send_completions_) receive_completions_->gather();
    if (done()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                        "repairing the connection to " + peer_ + ": " + context().description +
                            " does not flush what was posted",
                        "make a new queue pair");
    }
    std::this_thread::sleep_for(kDrainPause);
  }
}

// Both ends start again at the packet sequence numbers exchanged for connect(). Numbers derived
// from a count of repairs would differ permanently if one end repairs once more than the other. A
// late packet of the old connection could be accepted only if it outlived both the callers'
// agreement to continue and the time of both ends in RESET.
absl::Status VerbsQueuePair::repair() {
  absl::Status status = drain();
  ibv_qp_attr reset{};
  reset.qp_state = IBV_QPS_RESET;
  if (status.ok()) status = modify(reset, IBV_QP_STATE, "resetting the connection");
  if (status.ok()) status = initialize();
  if (status.ok() && connection_.has_value()) status = reach(*connection_);
  const bool connected = status.ok() && connection_.has_value();
  state_.store(connected ? QueuePairState::kConnected : QueuePairState::kUnconnected,
               std::memory_order_release);
  return status;
}

PostResult VerbsQueuePair::post_send(std::span<const WorkRequest> requests) {
  PostResult result;
  if (state() == QueuePairState::kUnconnected) {
    result.error = PostError::kNotConnected;
    return result;
  }
  const std::lock_guard lock(send_lock_);
  while (result.ok() && result.posted < requests.size()) {
    const PostResult batch = post_batch(requests.subspan(result.posted));
    result = {result.posted + batch.posted, batch.error, batch.system_error};
  }
  return result;
}

PostResult VerbsQueuePair::post_batch(std::span<const WorkRequest> requests) {
  // Not initialized: each entry is filled before it is used.
  std::array<ibv_send_wr, kBatchRequests> work;
  std::array<ibv_sge, kBatchSegments> segments;
  const uint64_t tail = send_tail_.load(std::memory_order_relaxed);
  // Acquire: pairs with the release in deliver(); the poller has read a slot before it freed it.
  const uint64_t used = tail - send_head_.load(std::memory_order_acquire);
  const uint64_t room = limits_.send_depth - used;
  PostResult result;
  uint32_t count = 0;
  uint32_t segment_count = 0;
  for (const WorkRequest& request :
       requests.first(std::min<size_t>(requests.size(), kBatchRequests))) {
    result.error = count == room ? PostError::kQueueFull
                                 : internal::validate(request, limits_, atomics_).error;
    if (!result.ok() || segment_count + request.segment_count > kBatchSegments) break;
    const uint64_t position = tail + count;
    send_slots_[position & send_mask_] = {request.id, internal::completion_kind(request.opcode)};
    fill(request, send_id(static_cast<uint32_t>(position)), &segments[segment_count], work[count]);
    segment_count += static_cast<uint32_t>(work[count].num_sge);
    work[count].next = nullptr;
    if (count > 0) work[count - 1].next = &work[count];
    ++count;
  }
  if (count == 0) return result;

  // Stored before the card's doorbell is written, because from then on a poller may process these
  // positions. Release: the poller reads the slots.
  send_tail_.store(tail + count, std::memory_order_release);
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(handle_.get(), work.data(), &refused);
  result.posted = error == 0 ? count : static_cast<uint32_t>(refused - work.data());
  if (error != 0) {
    send_tail_.store(tail + result.posted, std::memory_order_release);
    result.error = error == ENOMEM ? PostError::kQueueFull : PostError::kDeviceError;
    result.system_error = error == ENOMEM ? 0 : static_cast<uint16_t>(error);
  }
  return result;
}

PostResult VerbsQueuePair::post_receive(std::span<const ReceiveRequest> requests) {
  PostResult result;
  if (shared_receives_ != nullptr) {
    result.error = PostError::kUnsupported;
    return result;
  }
  const std::lock_guard lock(receive_lock_);
  while (result.ok() && result.posted < requests.size()) {
    ReceiveBatch batch;
    const uint64_t tail = receive_tail_.load(std::memory_order_relaxed);
    const uint64_t room =
        limits_.receive_depth - (tail - receive_head_.load(std::memory_order_acquire));
    while (result.posted + batch.size() < requests.size()) {
      const ReceiveRequest& request = requests[result.posted + batch.size()];
      result.error = batch.size() == room
                         ? PostError::kQueueFull
                         : internal::validate(request, limits_.max_receive_segments);
      if (!result.ok() || !batch.has_room(request.segment_count)) break;
      const uint64_t position = tail + batch.size();
      receive_ids_[position & receive_mask_] = request.id;
      batch.add(request, receive_id(static_cast<uint32_t>(position)));
    }
    if (batch.size() == 0) break;
    receive_tail_.store(tail + batch.size(), std::memory_order_release);
    int error = 0;
    const uint32_t posted = batch.post(
        [&](ibv_recv_wr* first, ibv_recv_wr** refused) {
          return ibv_post_recv(handle_.get(), first, refused);
        },
        error);
    result.posted += posted;
    if (error != 0) {
      receive_tail_.store(tail + posted, std::memory_order_release);
      result.error = error == ENOMEM ? PostError::kQueueFull : PostError::kDeviceError;
      result.system_error = error == ENOMEM ? 0 : static_cast<uint16_t>(error);
    }
  }
  // soft-RoCE flushes the receives that are posted when the error occurs. It processes its receive
  // queue again only when it is moved to the error state once more.
  if (result.posted > 0 && state() == QueuePairState::kError) to_error_state();
  return result;
}

void VerbsQueuePair::observe(const ibv_wc& work) {
  if (is_marker(work.wr_id)) {
    drained_.store(true, std::memory_order_release);
    return;
  }
  if (is_receive(work.wr_id) && shared_receives_ == nullptr) {
    const uint64_t tail = receive_tail_.load(std::memory_order_acquire);
    receive_observed_.store(full_position(place_of(work.wr_id), tail) + 1,
                            std::memory_order_release);
  }
  if (work.status != IBV_WC_SUCCESS) {
    QueuePairState expected = QueuePairState::kConnected;
    const bool first =
        state_.compare_exchange_strong(expected, QueuePairState::kError, std::memory_order_acq_rel);
    // Flushes the receives posted since the device detected the error; see post_receive().
    if (first && !closing_.load(std::memory_order_relaxed)) to_error_state();
  }
}

bool VerbsQueuePair::deliver(const ibv_wc& work, Completion& completion) {
  const uint32_t place = place_of(work.wr_id);
  completion.status = status_of(work, context().soft_roce);
  completion.has_immediate = false;
  completion.immediate = 0;
  completion.bytes = 0;
  completion.queue_pair = number_;
  completion.vendor_error = 0;
  if (is_receive(work.wr_id)) {
    if (shared_receives_ != nullptr) {
      completion.id = shared_receives_->finish(place);
    } else {
      const uint64_t position = full_position(place, receive_tail_.load(std::memory_order_acquire));
      completion.id = receive_ids_[position & receive_mask_];
      receive_head_.store(position + 1, std::memory_order_release);
    }
    completion.kind = CompletionKind::kReceive;
    if (work.status == IBV_WC_SUCCESS) {
      if (work.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        completion.kind = CompletionKind::kReceiveImmediate;
      }
      completion.has_immediate = (work.wc_flags & IBV_WC_WITH_IMM) != 0;
      if (completion.has_immediate) completion.immediate = ntohl(work.imm_data);
      completion.bytes = work.byte_len;
    }
  } else {
    const uint64_t position = full_position(place, send_tail_.load(std::memory_order_acquire));
    if (is_marker(work.wr_id)) {
      // All earlier requests have ended, including unsignaled ones that succeeded and have no
      // completion.
      send_head_.store(position, std::memory_order_release);
      return false;
    }
    const SendSlot slot = send_slots_[position & send_mask_];
    completion.id = slot.id;
    completion.kind = slot.kind;
    send_head_.store(position + 1, std::memory_order_release);
  }
  if (work.status != IBV_WC_SUCCESS) {
    completion.vendor_error = work.vendor_err;
    if (completion.status == CompletionStatus::kUnknown && work.vendor_err == 0) {
      // The status is the only information left.
      completion.vendor_error = static_cast<uint32_t>(work.status);
    }
  }
  return true;
}

void VerbsQueuePair::drop(const ibv_wc& work) {
  if (is_receive(work.wr_id) && shared_receives_ != nullptr) {
    shared_receives_->finish(place_of(work.wr_id));
  }
}

}  // namespace cariama::verbs
