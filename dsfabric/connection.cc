#include "dsfabric/internal/connection.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// The words of credit_memory_.
constexpr uint64_t kFromPeer = 0;
constexpr uint64_t kToPeer = 64;  // a line of its own: the peer writes the other

constexpr size_t kMessageAlignment = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::create(
    uint32_t rank, ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives,
    std::shared_ptr<RDMAAllocator> allocator, GeneralAllocator& memory, uint32_t units,
    uint32_t unit_bytes, uint32_t send_depth) {
  auto connection = std::unique_ptr<Connection>(new Connection(rank, memory));
  connection->domain_ = &domain;
  auto queue = TransmitQueue::create(domain, {.receive_completions = std::move(receives),
                                              .send_depth = send_depth,
                                              .receive_depth = units,
                                              .max_send_segments = 1,
                                              .max_receive_segments = 1});
  if (!queue.ok()) return queue.status();
  connection->queue_ = *std::move(queue);
  auto transmitter = Transmitter::create(*connection->queue_, FullQueue::kRefuse);
  if (!transmitter.ok()) return transmitter.status();
  connection->transmitter_ = *std::move(transmitter);

  auto unit_memory = memory.allocate(size_t{units} * unit_bytes);
  if (!unit_memory.ok()) return unit_memory.status();
  connection->unit_memory_ = *unit_memory;
  auto credit_memory = memory.allocate(2 * kToPeer);
  if (!credit_memory.ok()) return credit_memory.status();
  connection->credit_memory_ = *credit_memory;
  std::memset(credit_memory->get_buffer(), 0, credit_memory->size());
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
    unit.bytes = unit_memory->get_buffer() + size_t{i} * unit_bytes;
    if (!connection->post_unit(&unit)) {
      return make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                        "the receive units of a new connection could not be posted");
    }
  }
  return connection;
}

Connection::~Connection() {
  transmitter_.reset();
  queue_.reset();  // the device lets go of everything below
  if (unit_memory_.get_buffer() != nullptr) static_cast<void>(memory_.free(unit_memory_));
  if (credit_memory_.get_buffer() != nullptr) static_cast<void>(memory_.free(credit_memory_));
}

ConnectionOffer Connection::offer() const {
  return {.address = queue_->queue_pair().address(),
          .credit = {reinterpret_cast<uint64_t>(credit_memory_.get_buffer()) + kFromPeer,
                     sizeof(uint64_t), credit_memory_.locator(domain_).key, rank_, 0},
          .receive_units = static_cast<uint32_t>(units_.size()),
          .receive_unit_bytes = unit_bytes_};
}

absl::Status Connection::connect(const ConnectionOffer& theirs, const std::string& peer) {
  if (theirs.receive_units == 0 || theirs.receive_unit_bytes <= sizeof(MessageHeader) ||
      theirs.credit.length != sizeof(uint64_t)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      peer + " offered a connection without receive units or credit word");
  }
  {
    const std::lock_guard lock(mutex_);
    peer_credit_ = theirs.credit;
    peer_units_ = theirs.receive_units;
    // What we send has to fit into our ring as well.
    peer_unit_bytes_ = std::min(theirs.receive_unit_bytes, unit_bytes_);
  }
  return queue_->queue_pair().connect(theirs.address, {.peer = peer});
}

uint64_t Connection::finished_by_peer() const {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(credit_memory_.get_buffer() + kFromPeer))
      .load(std::memory_order_acquire);
}

uint64_t Connection::unfinished() const {
  const std::lock_guard lock(mutex_);
  const uint64_t finished = finished_by_peer();
  return sent_ - std::min(sent_, finished) + deferred_.size();
}

// Posts one message: built from header and call, or from ready bytes, or (neither) nothing.
Connection::Sent Connection::post_locked(const MessageHeader* header, const OutgoingCall* call,
                                         std::string_view ready) {
  // A credit word larger than what was sent is not ours to believe.
  if (sent_ - std::min(sent_, finished_by_peer()) >= peer_units_) return Sent::kNoCredit;
  RDMAMemory* unit = ring_->allocate();
  if (unit == nullptr) {
    static_cast<void>(transmitter_->flush());
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
  const absl::Status posted = transmitter_->send(*unit, 0, size);
  if (posted.ok()) {
    ++sent_;
    return Sent::kPosted;
  }
  return absl::IsResourceExhausted(posted) ? Sent::kNoCredit : Sent::kFailed;
}

Connection::Sent Connection::send(const MessageHeader& header, const OutgoingCall& call) {
  const std::lock_guard lock(mutex_);
  if (!deferred_.empty()) return queue_->status().ok() ? Sent::kNoCredit : Sent::kFailed;
  return post_locked(&header, &call, {});
}

size_t Connection::defer(const MessageHeader& header, const OutgoingCall& call) {
  std::string message(sizeof header + call.total() + kMessageAlignment, '\0');
  // The call is written in place, and wants its alignment.
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

size_t Connection::flush() {
  size_t bytes = 0;
  const std::lock_guard lock(mutex_);
  while (!deferred_.empty()) {
    const Sent sent = post_locked(nullptr, nullptr, deferred_.front());
    if (sent == Sent::kNoCredit) break;
    bytes += deferred_.front().size();  // of a failed connection they are dropped, one by one
    deferred_.pop_front();
  }
  return bytes;
}

Connection::Sent Connection::wake(uint32_t index) {
  const std::lock_guard lock(mutex_);
  if (sent_ - std::min(sent_, finished_by_peer()) >= peer_units_) return Sent::kNoCredit;
  const absl::Status posted = transmitter_->notify(index);
  if (posted.ok()) {
    ++sent_;
    return Sent::kPosted;
  }
  return absl::IsResourceExhausted(posted) ? Sent::kNoCredit : Sent::kFailed;
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
  return unit;
}

void Connection::finish(ArrivedMessage* unit) {
  // Of a broken connection the units stay where they are.
  if (!post_unit(unit)) return;
  finished_.fetch_add(1, std::memory_order_acq_rel);
  return_credits(false);
}

void Connection::return_credits(bool all) {
  const uint64_t threshold = all ? 1 : std::max<uint64_t>(1, units_.size() / 2);
  const std::lock_guard lock(mutex_);
  const uint64_t finished = finished_.load(std::memory_order_acquire);
  if (finished - returned_ < threshold) return;
  std::memcpy(credit_memory_.get_buffer() + kToPeer, &finished, sizeof finished);
  // A full queue: the next one to finish, or the service thread, comes by again.
  if (transmitter_->write(credit_memory_, kToPeer, sizeof finished, peer_credit_).ok()) {
    returned_ = finished;
    writes_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Connection::probe() {
  const std::lock_guard lock(mutex_);
  queue_->progress();
  if (!queue_->has_outstanding()) static_cast<void>(transmitter_->flush());
}

}  // namespace cariama::internal
