#include "dsfabric/peers/connection.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/fabric_options.h"
#include "dsfabric/internal/call_doorbells.h"
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

// The credit word: the count of finished messages, and below it the number of units. Both counts
// are in one word, because a WRITE of several words may arrive in parts. The count of messages
// wraps: the word contains its lower kCountBits bits.
constexpr uint32_t kUnitBits = 24;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;
constexpr uint32_t kCountBits = 64 - kUnitBits;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
static_assert(FabricOptions::kMaxPerProcess <= kUnitMask);  // limit of receive_units

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
    GeneralAllocator& memory, UnitBudget& budget, const ReceiveUnitLimits& units,
    uint32_t send_depth, bool answers_always_polled, std::shared_ptr<UserMemory> user_memory) {
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
       .receive_depth = units.most,
       .max_send_segments = 1,
       .max_receive_segments = 1},
      {.user_memory = std::move(user_memory), .explain_failure = &connection_failure});
  if (!queue.ok()) return queue.status();
  connection->queue_ = *std::move(queue);
  auto transmitter = Transmitter::create(*connection->queue_, FullQueue::kRefuse);
  if (!transmitter.ok()) return transmitter.status();
  connection->transmitter_ = *std::move(transmitter);

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
      {.unit_bytes = units.bytes, .initial_units = 4, .max_units = send_depth});
  if (!ring.ok()) return ring.status();
  connection->ring_ = *std::move(ring);

  // The device may have granted a shorter receive queue, which would refuse the other units.
  ReceiveUnitLimits granted = units;
  granted.most = std::min(units.most, connection->queue_->queue_pair().limits().receive_depth);
  granted.reserved = std::min(units.reserved, granted.most);
  connection->units_.emplace(*connection, rank, memory, budget, granted);
  while (connection->units_->count() < granted.reserved) {
    absl::StatusOr<ArrivedMessage*> unit = connection->units_->add_reserved();
    if (!unit.ok()) return unit.status();
    if (!connection->post_unit(*unit)) {
      return make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                        "the receive units of a new connection could not be posted");
    }
  }
  connection->posted_ = connection->told_ = granted.reserved;
  connection->repeated_ = connection->credit_word();
  return connection;
}

Connection::~Connection() {
  transmitter_.reset();
  queue_.reset();  // the device must not access the memory below any more
  units_.reset();
  if (credit_memory_.get_buffer() != nullptr) memory_.free_or_keep(std::move(credit_memory_));
}

ConnectionOffer Connection::offer() const {
  return {.address = queue_->queue_pair().address(),
          .credit = {reinterpret_cast<uint64_t>(credit_memory_.get_buffer()) + kFromPeer,
                     kPeerWords, credit_memory_.locator(domain_).key, rank_, 0},
          .answers = {reinterpret_cast<uint64_t>(credit_memory_.get_buffer()) + kAnswers,
                      kAnswerBytes, credit_memory_.locator(domain_).key, rank_, 0},
          .doorbells = doorbells_ == nullptr ? RemoteMemoryLocator{} : doorbells_->locator(domain_),
          .receive_units = units_->limits().reserved,
          .receive_unit_bytes = units_->limits().bytes};
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
    their_doorbells_ = theirs.doorbells;
    posted_by_peer_ = peer_reserved_units_ = theirs.receive_units;
    // An outgoing message must fit into this process's ring, too.
    peer_unit_bytes_ = std::min(theirs.receive_unit_bytes, units_->limits().bytes);
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

[[gnu::cold]] void Connection::map_peer_doorbells() {
  QueuePair& queue = queue_->queue_pair();
  if (queue.state() != QueuePairState::kConnected) return;  // the next message tries again
  if (their_doorbells_.length != 0) {
    std::byte* const mapped = queue.direct_access(their_doorbells_);
    if (reinterpret_cast<uintptr_t>(mapped) % alignof(CallDoorbells) == 0) peer_doorbells_ = mapped;
  }
  tried_to_map_doorbells_ = true;
}

// Does not read the doorbells: only the transport knows whether the peer still has them.
ReceiverDoorbells* Connection::receiver_of(const MessageHeader& header) {
  if (!tried_to_map_doorbells_) [[unlikely]]
    map_peer_doorbells();
  if (peer_doorbells_ == nullptr) return nullptr;
  // The number of a service is larger than that of any worker.
  const uint64_t offset = uint64_t{header.destination} * kDoorbellStride;
  if (offset + kDoorbellStride > their_doorbells_.length) return nullptr;
  return reinterpret_cast<CallDoorbells*>(peer_doorbells_ + offset);
}

// If WRITEs are unordered, older credits may replace newer ones for a short time. Both counts only
// grow, so take the maximum of each. Of the counts with the same lower bits, the one next to sent_
// is meant. A count of finished messages above sent_ consists of bytes of two words (the order of
// bytes is all that some transports promise), so the word is ignored.
bool Connection::has_credit() {
  const uint64_t word =
      std::atomic_ref(*reinterpret_cast<uint64_t*>(credit_memory_.get_buffer() + kFromPeer))
          .load(std::memory_order_acquire);
  const uint64_t behind = (sent_ - (word >> kUnitBits)) & kCountMask;
  if (behind > kCountMask / 2) [[unlikely]]
    return sent_ < posted_by_peer_;
  const uint64_t finished = sent_ - behind;
  finished_by_peer_ = std::max(finished_by_peer_, finished);
  posted_by_peer_ = std::max(posted_by_peer_, finished + (word & kUnitMask));
  return sent_ < posted_by_peer_;
}

void Connection::set_messages(uint64_t count) {
  const std::lock_guard lock(mutex_);
  sent_ = finished_by_peer_ = finished_ = count;
  posted_by_peer_ = count + peer_reserved_units_;
  posted_ = told_ = count + units_->count();
  repeated_ = credit_word();
  const uint64_t word = count << kUnitBits | peer_reserved_units_;  // as if the peer had written it
  std::memcpy(credit_memory_.get_buffer() + kFromPeer, &word, sizeof word);
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
  ReceiverDoorbells* const receiver = header == nullptr ? nullptr : receiver_of(*header);
  const Sent result = sent(receiver == nullptr ? transmitter_->send(*unit, 0, size)
                                               : transmitter_->send(*unit, 0, size, *receiver));
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
  try {
    while (!deferred_.empty() && post(nullptr, nullptr, deferred_.front()) == Sent::kPosted) {
      bytes += deferred_.front().size();
      deferred_.pop_front();
    }
  } catch (const std::bad_alloc&) {  // an exception would lose the bytes of the messages before
    if (bytes == 0) throw;
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
  return units_->post(unit, queue_->queue_pair(), domain_);
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
bool Connection::finish(ArrivedMessage* unit, bool returned) noexcept {
  if (unit->waits) {
    unit->waits = false;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  std::unique_lock lock(mutex_);
  try {
    if (returned && units_->remove(unit)) {
      ++finished_;  // repeat_credits() reports it
      return true;
    }
    if (!post_unit(unit)) {  // the connection has failed
      units_->remove(unit);
      return true;
    }
  } catch (const std::bad_alloc&) {
    if (queue_->queue_pair().state() == QueuePairState::kError) {  // cut() may have run before
      units_->remove(unit);
      return true;
    }
    unit->next.store(unposted_, std::memory_order_relaxed);
    unposted_ = unit;
    return false;
  }
  ++finished_;
  ++posted_;
  try {
    return write_due_credits(lock);
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
    if (posted) {
      ++finished_;
      ++posted_;
    } else {
      units_->remove(unit);
    }
  }
}

void Connection::cut() {
  queue_->queue_pair().fail();
  const std::lock_guard lock(mutex_);
  while (unposted_ != nullptr) {
    ArrivedMessage* const unit = unposted_;
    unposted_ = static_cast<ArrivedMessage*>(unit->next.load(std::memory_order_relaxed));
    units_->remove(unit);
  }
}

void Connection::drop(const ArrivedMessage* unit) {
  const std::lock_guard lock(mutex_);
  units_->remove(unit);
}

bool Connection::return_credits() {
  std::unique_lock lock(mutex_);
  post_unposted();
  return write_due_credits(lock);
}

bool Connection::write_due_credits(std::unique_lock<std::mutex>& lock) {
  if (posted_ - told_ < std::max<uint64_t>(1, units_->count() / 2)) return true;
  if (units_->count() < units_->limits().most && !adds_units_) add_units(lock);
  return write_credits();
}

// Doubles the number of units, as far as there are units to take. The credits for them are due
// afterwards, too, also if they cannot be written now: the new units alone are half of all.
// Other threads use the connection while the memory of the units is registered.
[[gnu::cold]] void Connection::add_units(std::unique_lock<std::mutex>& lock) {
  const auto is_connected = [this] {
    return queue_->queue_pair().state() == QueuePairState::kConnected;
  };
  if (!is_connected()) return;
  const uint32_t more = std::min(units_->count(), units_->limits().most - units_->count());
  adds_units_ = true;  // no other thread adds units meanwhile
  lock.unlock();
  std::vector<ReceiveUnits::NewUnit> units;
  try {
    while (units.size() < more) {
      ReceiveUnits::NewUnit unit = units_->create_shared();
      if (unit == nullptr) break;
      units.push_back(std::move(unit));
    }
  } catch (const std::bad_alloc&) {  // the connection works with the units that it has
  }
  lock.lock();
  adds_units_ = false;
  if (!is_connected()) return;
  for (ReceiveUnits::NewUnit& unit : units) {
    ArrivedMessage* added = nullptr;
    bool posted = false;
    try {
      added = units_->add(std::move(unit));
      posted = post_unit(added);
    } catch (const std::bad_alloc&) {  // as above
    }
    if (!posted) {
      if (added != nullptr) units_->remove(added);
      return;
    }
    ++posted_;
  }
}

void Connection::repeat_credits() {
  const std::lock_guard lock(mutex_);
  const uint64_t word = credit_word();
  if (word != repeated_ && write_credits()) repeated_ = word;
}

uint64_t Connection::credit_word() const {
  return (finished_ << kUnitBits) | (posted_ - finished_);
}

// Returns false if the send queue is full. Returns true on a failed queue: its peer needs no
// credits.
bool Connection::write_credits() {
  const uint64_t word = credit_word();
  std::memcpy(credit_memory_.get_buffer() + kToPeer, &word, sizeof word);
  const Sent written = post_in_any_room([&] {
    return transmitter_->write(credit_memory_, kToPeer, sizeof word, peer_credit_, nullptr);
  });
  if (written == Sent::kPosted) {
    trace_instant("dsfabric", "return credits", "messages", posted_ - told_);
    told_ = posted_;
    writes_.fetch_add(1, std::memory_order_relaxed);
  }
  return written != Sent::kNoCredit;
}

void Connection::return_idle_units(Deadline now, std::chrono::milliseconds after) {
  const std::lock_guard lock(mutex_);
  if (sent_ != idle_sent_ || !deferred_.empty()) {
    idle_sent_ = sent_;
    idle_since_ = now;
    return;
  }
  if (std::chrono::floor<std::chrono::milliseconds>(now - idle_since_) < after) return;
  if (!has_credit() || finished_by_peer_ != sent_) return;
  while (posted_by_peer_ - sent_ > peer_reserved_units_) {
    if (post_in_any_room([&] { return transmitter_->notify(kReturnsUnit); }) != Sent::kPosted) {
      break;
    }
    ++sent_;
  }
  idle_sent_ = sent_;
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
