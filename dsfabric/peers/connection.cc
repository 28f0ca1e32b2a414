#include "dsfabric/peers/connection.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// Offsets in credit_memory_.
constexpr uint64_t kFromPeer = 0;
constexpr uint64_t kToPeer = 64;  // a separate cache line: the peer writes the one before
constexpr uint64_t kSign = 8;     // relative to both of them
constexpr uint64_t kPeerWords = 16;

constexpr uint64_t kOutcomes = 128;
constexpr uint64_t kAnswers = 192;
constexpr uint64_t kAnswerBytes = AnswerSlots::kCount * sizeof(AnswerSlot);
constexpr uint64_t kCreditMemory = kAnswers + kAnswerBytes;

constexpr size_t kMessageAlignment = 8;

// Names a failed operation, up to the peer's label.
std::string_view operation_with(CompletionKind kind) {
  switch (kind) {
    case CompletionKind::kSend:
      return "a call to ";
    case CompletionKind::kReceive:
    case CompletionKind::kReceiveImmediate:
      return "a message from ";
    case CompletionKind::kRead:
      return "a transfer from ";
    case CompletionKind::kFetchAdd:
    case CompletionKind::kCompareSwap:
      return "an atomic operation on memory of ";
    case CompletionKind::kWrite:
      break;
  }
  return "a transfer to ";
}

}  // namespace

absl::Status connection_failure(const Completion& completion, std::string_view peer) {
  const absl::Status plain = to_status(completion, peer);  // its code and scope hold here, too
  std::string what(peer);
  std::string_view remedy;
  switch (completion.status) {
    case CompletionStatus::kPeerDied:
      what += " is dead: the transport reports that its process has ended";
      remedy = peer_remedy(PeerRemedy::kEnded);
      break;
    case CompletionStatus::kRetryExceeded:
    case CompletionStatus::kReceiverNotReady:
      what += completion.status == CompletionStatus::kRetryExceeded
                  ? " is dead or unreachable: it has not acknowledged a transfer in time"
                  : " is dead or stopped: it has not accepted a message in time";
      remedy = peer_remedy(PeerRemedy::kUnreachable);
      break;
    case CompletionStatus::kFlushed:
      what = "the connection to " + what +
             " has ended: that process has left the job, or one end considers the other failed";
      remedy = peer_remedy(PeerRemedy::kDisconnected);
      break;
    default:
      what = std::string(operation_with(completion.kind)) + what + " failed: ";
      what += status_name(completion.status);
      if (completion.vendor_error != 0) {
        what += " (vendor error " + std::to_string(completion.vendor_error) + ")";
      }
      remedy =
          completion.status == CompletionStatus::kLocalProtection
              ? "check that the memory of the transfer is still registered and, with soft-RoCE, "
                "that the network interface of this host is up; the connection cannot be used any "
                "more"
              : "check that each RemoteMemoryLocator names memory that its owner has still "
                "registered; the connection cannot be used any more";
  }
  return make_error(plain.code(), error_scope(plain), what, remedy);
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::create(
    uint32_t rank, ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives,
    std::shared_ptr<CompletionChannel> channel, std::shared_ptr<RDMAAllocator> allocator,
    GeneralAllocator& memory, uint32_t units, uint32_t unit_bytes, uint32_t send_depth,
    bool answers_always_polled, std::shared_ptr<UserMemory> user_memory) {
  auto connection = std::unique_ptr<Connection>(new Connection(rank, memory));
  connection->domain_ = &domain;
  auto completions =
      domain.create_completion_queue({.depth = send_depth, .channel = std::move(channel)});
  if (!completions.ok()) return completions.status();
  connection->send_completions_ = *completions;
  auto queue = TransmitQueue::create(
      domain,
      {.send_completions = *std::move(completions),
       .receive_completions = std::move(receives),
       .send_depth = send_depth,
       .receive_depth = units,
       .max_send_segments = 1,
       .max_receive_segments = 1},
      {.user_memory = std::move(user_memory), .explain_failure = &connection_failure});
  if (!queue.ok()) return queue.status();
  connection->queue_ = *std::move(queue);
  auto transmitter = Transmitter::create(*connection->queue_, FullQueue::kRefuse);
  if (!transmitter.ok()) return transmitter.status();
  connection->transmitter_ = *std::move(transmitter);

  auto unit_memory = memory.allocate(size_t{units} * unit_bytes);
  if (!unit_memory.ok()) return unit_memory.status();
  connection->unit_memory_ = *std::move(unit_memory);
  auto credit_memory = memory.allocate(kCreditMemory);
  if (!credit_memory.ok()) return credit_memory.status();
  connection->credit_memory_ = *std::move(credit_memory);
  std::byte* const credits = connection->credit_memory_.get_buffer();
  std::memset(credits, 0, kCreditMemory);
  for (uint64_t outcome = 0; outcome <= static_cast<uint64_t>(CallOutcome::kUnknown); ++outcome) {
    const uint64_t word = outcome + 1;
    std::memcpy(credits + kOutcomes + 8 * outcome, &word, sizeof word);
  }
  connection->answers_.emplace(reinterpret_cast<AnswerSlot*>(credits + kAnswers),
                               answers_always_polled);
  auto ring = CircularAllocator::create(
      std::move(allocator),
      {.unit_bytes = unit_bytes, .initial_units = 4, .max_units = send_depth});
  if (!ring.ok()) return ring.status();
  connection->ring_ = *std::move(ring);

  connection->unit_bytes_ = unit_bytes;
  connection->units_ = std::vector<ArrivedMessage>(units);
  for (uint32_t i = 0; i < units; ++i) {
    ArrivedMessage& unit = connection->units_[i];
    unit.connection = connection.get();
    unit.rank = rank;
    unit.bytes = connection->unit_memory_.get_buffer() + size_t{i} * unit_bytes;
    if (!connection->post_unit(&unit)) {
      return make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                        "the receive units of a new connection could not be posted");
    }
  }
  return connection;
}

Connection::~Connection() {
  transmitter_.reset();
  queue_.reset();  // the device must not access the memory below any more
  if (unit_memory_.get_buffer() != nullptr)
    static_cast<void>(memory_.free(std::move(unit_memory_)));
  if (credit_memory_.get_buffer() != nullptr)
    static_cast<void>(memory_.free(std::move(credit_memory_)));
}

ConnectionOffer Connection::offer() const {
  return {.address = queue_->queue_pair().address(),
          .credit = {reinterpret_cast<uint64_t>(credit_memory_.get_buffer()) + kFromPeer,
                     kPeerWords, credit_memory_.locator(domain_).key, rank_, 0},
          .answers = {reinterpret_cast<uint64_t>(credit_memory_.get_buffer()) + kAnswers,
                      kAnswerBytes, credit_memory_.locator(domain_).key, rank_, 0},
          .receive_units = static_cast<uint32_t>(units_.size()),
          .receive_unit_bytes = unit_bytes_};
}

absl::Status Connection::connect(const ConnectionOffer& theirs, const std::string& peer,
                                 std::chrono::milliseconds ack_timeout) {
  if (theirs.receive_units == 0 || theirs.receive_unit_bytes <= sizeof(MessageHeader) ||
      theirs.credit.length != kPeerWords || theirs.answers.length != kAnswerBytes) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
        peer + " offered a connection without receive units, credit word or answer slots");
  }
  {
    const std::lock_guard lock(mutex_);
    peer_credit_ = theirs.credit;
    their_answers_ = theirs.answers;
    peer_units_ = theirs.receive_units;
    // An outgoing message must fit into this process's ring, too.
    peer_unit_bytes_ = std::min(theirs.receive_unit_bytes, unit_bytes_);
  }
  return queue_->queue_pair().connect(theirs.address, {.peer = peer, .ack_timeout = ack_timeout});
}

AnswerSlot* Connection::map_peer_answers() {
  auto* const answers =
      reinterpret_cast<AnswerSlot*>(queue_->queue_pair().direct_access(their_answers_));
  if (reinterpret_cast<uintptr_t>(answers) % alignof(AnswerSlot) != 0) return nullptr;
  peer_answers_.store(answers, std::memory_order_release);
  return answers;
}

// If WRITEs are unordered, an older count may replace a newer one for a short time. So take the
// maximum. A count above sent_ is invalid, so it is limited to sent_.
bool Connection::has_credit() {
  const uint64_t said =
      std::atomic_ref(*reinterpret_cast<uint64_t*>(credit_memory_.get_buffer() + kFromPeer))
          .load(std::memory_order_acquire);
  finished_by_peer_ = std::max(finished_by_peer_, std::min(said, sent_));
  return sent_ - finished_by_peer_ < peer_units_;
}

uint64_t Connection::unfinished() const {
  const std::lock_guard lock(mutex_);
  return sent_ - finished_by_peer_ + deferred_.size();
}

Connection::Sent Connection::sent(const absl::Status& posted) {
  if (posted.ok()) return Sent::kPosted;
  return absl::IsResourceExhausted(posted) ? Sent::kNoCredit : Sent::kFailed;
}

template <typename Post>
Connection::Sent Connection::post_in_any_room(Post&& post) {
  const Sent result = sent(post());
  if (result != Sent::kNoCredit) [[likely]]
    return result;
  queue_->progress();  // the queue may have room that has not been polled for
  return sent(post());
}

// Posts one message: from header and call, or from the bytes `ready`.
Connection::Sent Connection::post(const MessageHeader* header, const OutgoingCall* call,
                                  std::string_view ready) {
  if (!has_credit()) {
    // Without credit nothing is posted, so a failed queue pair is only detected by polling
    // completions.
    queue_->progress();
    return queue_->status().ok() ? Sent::kNoCredit : Sent::kFailed;
  }
  RDMAMemory* unit = ring_->allocate();
  if (unit == nullptr) {
    static_cast<void>(transmitter_->signal_all());
    queue_->progress();
    unit = ring_->allocate();
    if (unit == nullptr) return queue_->status().ok() ? Sent::kNoCredit : Sent::kFailed;
  }
  size_t size = ready.size();
  if (call != nullptr) {
    std::memcpy(unit->get_buffer(), header, sizeof *header);
    call->write(unit->get_buffer() + sizeof *header);
    size = sizeof *header + call->total();
  } else {
    std::memcpy(unit->get_buffer(), ready.data(), ready.size());
  }
  // The arrow begins before the message can arrive.
  const uint64_t start = trace_enabled() ? trace_now() : 0;
  const Sent result = sent(transmitter_->send(*unit, 0, size));
  if (result != Sent::kPosted) return result;
  ++sent_;
  if (start != 0) [[unlikely]] {
    trace_record('s', "dsfabric", "call", start, 0, nullptr, trace_arrow_id(trace_out_, sent_));
  }
  return result;
}

Connection::Sent Connection::send(const MessageHeader& header, const OutgoingCall& call) {
  const std::lock_guard lock(mutex_);
  if (!deferred_.empty()) return queue_->status().ok() ? Sent::kNoCredit : Sent::kFailed;
  return post(&header, &call, {});
}

size_t Connection::defer(const MessageHeader& header, const OutgoingCall& call) {
  std::string message(sizeof header + call.total() + kMessageAlignment, '\0');
  // The call is written in place, and requires an 8-byte aligned address.
  void* at = message.data();
  size_t room = message.size();
  std::align(kMessageAlignment, sizeof header, at, room);
  auto* const begin = static_cast<std::byte*>(at);
  std::memcpy(begin, &header, sizeof header);
  call.write(begin + sizeof header);
  message.erase(0, reinterpret_cast<char*>(begin) - message.data());
  message.resize(sizeof header + call.total());
  const size_t bytes = message.size();
  const std::lock_guard lock(mutex_);
  deferred_.push_back(std::move(message));
  return bytes;
}

size_t Connection::send_deferred() {
  size_t bytes = 0;
  const std::lock_guard lock(mutex_);
  if (deferred_.empty()) return 0;
  const TraceScope trace("dsfabric", "send deferred", "messages", deferred_.size());
  while (!deferred_.empty() && post(nullptr, nullptr, deferred_.front()) == Sent::kPosted) {
    bytes += deferred_.front().size();
    deferred_.pop_front();
  }
  return bytes;
}

size_t Connection::drop_deferred() {
  size_t bytes = 0;
  const std::lock_guard lock(mutex_);
  for (const std::string& message : deferred_) bytes += message.size();
  deferred_.clear();
  return bytes;
}

Connection::Sent Connection::wake(uint32_t index) {
  const std::lock_guard lock(mutex_);
  if (!has_credit()) return queue_->status().ok() ? Sent::kNoCredit : Sent::kFailed;
  const Sent result = post_in_any_room([&] { return transmitter_->notify(index); });
  if (result == Sent::kPosted) ++sent_;
  return result;
}

Connection::Sent Connection::write(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                   const RemoteMemoryLocator& remote, Synchronizer* done) {
  const std::lock_guard lock(mutex_);
  const Sent result = sent(transmitter_->write(local, offset, bytes, remote, done));
  if (result == Sent::kPosted) {
    writes_.fetch_add(1, std::memory_order_relaxed);
    if (done != nullptr) awaited_.store(true, std::memory_order_release);
  }
  return result;
}

Connection::Sent Connection::read(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  const RemoteMemoryLocator& remote, Synchronizer* done) {
  const std::lock_guard lock(mutex_);
  const Sent result = sent(transmitter_->read(local, offset, bytes, remote, done));
  if (result == Sent::kPosted && done != nullptr) awaited_.store(true, std::memory_order_release);
  return result;
}

Connection::Sent Connection::write_outcome(CallOutcome outcome, const RemoteMemoryLocator& target) {
  const uint64_t offset = kOutcomes + 8 * static_cast<uint64_t>(outcome);
  return write(credit_memory_, offset, sizeof(uint64_t), target, nullptr);
}

void Connection::poll_sends() {
  // A posting thread sets the flag after it has posted. So this thread clears the flag before it
  // polls, and sets the flag again if operations are outstanding.
  awaited_.store(false, std::memory_order_seq_cst);
  queue_->progress();
  if (queue_->has_outstanding()) awaited_.store(true, std::memory_order_release);
}

bool Connection::post_unit(ArrivedMessage* unit) {
  const Segment segment{unit->bytes, unit_bytes_, unit_memory_.local_key(domain_)};
  const ReceiveRequest request{
      .id = reinterpret_cast<uint64_t>(unit), .segments = &segment, .segment_count = 1};
  return queue_->queue_pair().post_receive(request).ok();
}

ArrivedMessage* Connection::unit_of(const Completion& completion) {
  auto* const unit = reinterpret_cast<ArrivedMessage*>(completion.id);
  unit->size = completion.kind == CompletionKind::kReceive ? completion.bytes : 0;
  ++received_;
  unit->arrow = trace_enabled() ? trace_arrow_id(trace_in_, received_) : 0;
  return unit;
}

// The message of the unit has been taken. An exception would lose the event that it carries, or
// leave a destructor that ends a call.
bool Connection::finish(ArrivedMessage* unit) noexcept {
  if (unit->waits) {
    unit->waits = false;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  try {
    // If the connection has failed, the unit cannot be posted; it stays unused.
    if (!post_unit(unit)) return true;
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    unit->next.store(unposted_, std::memory_order_relaxed);
    unposted_ = unit;
    return false;
  }
  finished_.fetch_add(1, std::memory_order_acq_rel);
  try {
    return return_credits();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Connection::post_unposted() {
  while (unposted_ != nullptr) {
    ArrivedMessage* const unit = unposted_;
    // Loaded first: once the unit is posted, its next message may use the link.
    InboxNode* const next = unit->next.load(std::memory_order_relaxed);
    const bool posted = post_unit(unit);
    unposted_ = static_cast<ArrivedMessage*>(next);
    if (posted) finished_.fetch_add(1, std::memory_order_acq_rel);
  }
}

bool Connection::return_credits() {
  const uint64_t threshold = std::max<uint64_t>(1, units_.size() / 2);
  const std::lock_guard lock(mutex_);
  post_unposted();
  const uint64_t finished = finished_.load(std::memory_order_acquire);
  return finished - returned_ < threshold || write_credits(finished);
}

void Connection::repeat_credits() {
  const std::lock_guard lock(mutex_);
  const uint64_t finished = finished_.load(std::memory_order_acquire);
  if (finished != repeated_ && write_credits(finished)) repeated_ = finished;
}

// Returns false if the send queue is full. Returns true on a failed queue: its peer needs no
// credits.
bool Connection::write_credits(uint64_t finished) {
  std::memcpy(credit_memory_.get_buffer() + kToPeer, &finished, sizeof finished);
  const Sent written = post_in_any_room([&] {
    return transmitter_->write(credit_memory_, kToPeer, sizeof finished, peer_credit_, nullptr);
  });
  if (written == Sent::kPosted) {
    trace_instant("dsfabric", "return credits", "messages", finished - returned_);
    returned_ = finished;
    writes_.fetch_add(1, std::memory_order_relaxed);
  }
  return written != Sent::kNoCredit;
}

uint64_t Connection::exchange_signs(bool may_write) {
  const std::lock_guard lock(mutex_);
  if (may_write) {
    ++signs_;
    std::memcpy(credit_memory_.get_buffer() + kToPeer + kSign, &signs_, sizeof signs_);
    RemoteMemoryLocator target = peer_credit_;
    target.address += kSign;
    target.length -= kSign;
    // If the send queue is full, the next heartbeat repeats the sign.
    static_cast<void>(post_in_any_room([&] {
      return transmitter_->write(credit_memory_, kToPeer + kSign, sizeof signs_, target, nullptr);
    }));
  }
  const uint64_t sign =
      std::atomic_ref(*reinterpret_cast<uint64_t*>(credit_memory_.get_buffer() + kFromPeer + kSign))
          .load(std::memory_order_relaxed);
  silent_beats_ = sign == last_sign_ ? silent_beats_ + 1 : 0;
  last_sign_ = sign;
  return silent_beats_;
}

void Connection::probe() {
  const std::lock_guard lock(mutex_);
  queue_->progress();
  if (!queue_->has_outstanding()) static_cast<void>(transmitter_->signal_all());
}

}  // namespace cariama::internal
