// The life cycle of a connection: creation, connect(), failure, repair(), the end of the peer,
// destruction.
#include <algorithm>
#include <bit>
#include <new>
#include <thread>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/random_word.h"
#include "dtutils/shm/address.h"
#include "dtutils/shm/queue_pair.h"

namespace cariama::shm {
namespace {

// Time limit for repair() to wait for a peer that is stopped in the middle of a copy into a receive
// of this process.
constexpr std::chrono::seconds kRepairTimeout{2};

// Changes a status word if it has this serial number and generation and is not failed. Returns true
// if it was changed.
bool break_status(std::atomic<uint64_t>& word, uint32_t serial, uint32_t generation,
                  LinkState state) {
  uint64_t seen = word.load();
  for (;;) {
    const QueuePairStatus status(seen);
    if (status.serial() != serial || status.generation() != (generation & 0xffffff) ||
        status.failed()) {
      return false;
    }
    if (word.compare_exchange_weak(seen, status.with(state).word())) return true;
  }
}

// Records the end of the other side, which repair() cannot undo, in any generation. Returns true if
// the word was changed.
bool end_status(std::atomic<uint64_t>& word, uint32_t serial, LinkState state) {
  uint64_t seen = word.load();
  for (;;) {
    const QueuePairStatus status(seen);
    if (status.serial() != serial || status.state() >= LinkState::kPeerGone) return false;
    if (word.compare_exchange_weak(seen, status.with(state).word())) return true;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> ShmQueuePair::create(
    std::shared_ptr<ShmDevice> device, std::shared_ptr<ProtectionDomain> domain,
    uint32_t domain_number, const QueuePairOptions& options,
    std::shared_ptr<ShmCompletionQueue> send_completions,
    std::shared_ptr<ShmCompletionQueue> receive_completions, std::shared_ptr<ReceiveQueue> receives,
    bool shared_receives) {
  const auto exhausted = [](std::string_view what) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess, what,
                      "use fewer or shorter queues, or a second device");
  };
  const uint32_t ring_entries = std::bit_ceil(receives->depth());
  ControlBlock ring(device->control(), ring_entries * sizeof(ReceiveRingEntry));
  if (!ring.valid()) return exhausted("create_queue_pair: the control segment is full");
  // Until take_place() has succeeded, the queue pair has no device, so an error or exception has
  // nothing to undo. Therefore all allocations come before that call.
  auto account = std::make_unique<CompletionAccount>();
  auto receive_account = std::make_unique<CompletionAccount>();
  std::unique_ptr<ShmQueuePair> result(new ShmQueuePair);
  ShmQueuePair& self = *result;
  const std::optional<ShmDevice::Place> place = device->take_place();
  if (!place.has_value()) return exhausted("create_queue_pair: the device has 65536 queue pairs");
  self.header_ = &queue_pair_table(device->control()->base())[place->index];
  self.header_->status.store(QueuePairStatus(place->serial, 0, LinkState::kWaiting).word());
  self.index_ = place->index;
  self.serial_ = place->serial;
  self.number_ = place->serial;
  self.domain_ = domain.get();
  self.domain_owner_ = std::move(domain);
  self.domain_number_ = domain_number;
  self.local_regions_ = device->regions().local();
  self.account_ = account.release();
  self.receive_account_ = receive_account.release();
  self.send_queue_ = send_completions.get();
  self.send_completions_ = std::move(send_completions);
  self.receive_completions_ = std::move(receive_completions);
  self.receives_ = std::move(receives);
  self.shared_receives_ = shared_receives;
  self.ring_block_ = std::move(ring);
  self.ring_ = reinterpret_cast<ReceiveRingEntry*>(self.ring_block_.data());
  self.ring_mask_ = ring_entries - 1;
  self.device_ = std::move(device);

  const DeviceLimits& most = self.device_->limits();
  self.limits_.send_depth = std::min(options.send_depth, most.max_send_depth);
  self.limits_.receive_depth = shared_receives ? 0 : self.receives_->depth();
  self.limits_.max_send_segments = std::clamp(options.max_send_segments, 1u, kMaxSegments);
  self.limits_.max_receive_segments = std::clamp(options.max_receive_segments, 1u, kMaxSegments);
  // At least a word, so that post_one() need not compare its size with the limit. Data of every
  // size is copied during posting, so a larger limit costs nothing.
  self.limits_.max_inline = std::clamp(options.max_inline, kMinInline, most.max_inline);
  self.limits_.max_outstanding_reads = most.max_outstanding_reads;
  self.limits_.mtu = most.mtu;
  self.limits_.max_message = most.max_message;

  self.device_->add(result.get());
  const std::optional<uint32_t> bit = self.receive_completions_->attach(result.get());
  if (!bit.has_value()) {
    return exhausted("create_queue_pair: 4096 queue pairs share the receive completion queue");
  }
  self.ready_bit_ = *bit;
  QueuePairHeader* header = self.header_;
  header->nonce.store(internal::random_word());
  header->peer_nonce.store(0);
  header->receive_queue.store(self.receives_->offset());
  header->receive_ring.store(self.ring_block_.offset());
  header->completion_queue.store(self.receive_completions_->offset());
  header->ring_entries.store(ring_entries);
  header->ready_bit.store(*bit);
  header->in_peer.store(0);
  header->domain.store(domain_number);
  return absl::StatusOr<std::unique_ptr<QueuePair>>(std::move(result));
}

ShmQueuePair::~ShmQueuePair() {
  if (device_ == nullptr) return;  // create() has failed
  account_->dead.store(true);
  receive_account_->dead.store(true);
  if (device_->inherited()) {
    // The queue pair belongs to the parent: do not notify the peer, and release nothing.
    return;
  }
  device_->remove(this);
  if (has_waiting_.load()) device_->count_waiting(-1);
  // Set to kClosed before looking at the peer (seq_cst): either a peer that is about to connect or
  // to access this memory sees kClosed, or this thread sees that the peer is connected to this
  // queue pair.
  header_->status.store(QueuePairStatus(serial_, generation_, LinkState::kClosed).word());
  if (remote_.header != nullptr && peer_is_ours() &&
      end_status(remote_.header->status, remote_.serial, LinkState::kPeerGone)) {
    announce_to_peer();
  }
  header_->nonce.store(0);
  if (ready_bit_ != ~0u) receive_completions_->detach(ready_bit_);

  RetiredQueuePair retired;
  retired.link = link_owner_;
  retired.peer = remote_.header;
  retired.peer_serial = remote_.serial;
  retired.index = index_;
  retired.ring = std::move(ring_block_);
  retired.receives = std::move(receives_);
  device_->retire(std::move(retired));
  // The completions reserved for operations that are still deferred will never be pushed.
  uint32_t references = 1;
  for (const Waiting& waiting : waiting_) {
    if ((waiting.request.flags & kSignaled) != 0) ++references;
  }
  account_->release(references);
  receive_account_->release();
}

std::string ShmQueuePair::address() const {
  Address address;
  address.device = device_->control()->uuid();
  address.pid = control_header(device_->control()->base())->pid;
  address.index = index_;
  address.serial = serial_;
  address.nonce = header_->nonce.load();
  return encode(address);
}

absl::Status ShmQueuePair::connect(std::string_view peer_address, const ConnectOptions& options) {
  const auto invalid = [&](std::string_view what, std::string_view remedy) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "connect to " + options.peer + ": " + std::string(what), remedy);
  };
  const std::optional<Address> address = decode(peer_address);
  if (!address.has_value()) {
    return invalid("these bytes are not an address of a shm queue pair",
                   "give what address() of the peer's queue pair returned, of the same release");
  }
  if (options.retry_count > 6) {
    return invalid("retry_count is " + std::to_string(options.retry_count), "use 0 to 6");
  }
  if (options.receiver_retry_count > 7) {
    return invalid("receiver_retry_count is " + std::to_string(options.receiver_retry_count),
                   "use 0 to 7");
  }
  if (options.ack_timeout.count() < 0 || options.receiver_retry_delay.count() < 0) {
    return invalid("a time is negative", "use 0 or more");
  }
  std::lock_guard lock(mutex_);
  if (connected_ || status().failed()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "connect to " + options.peer + ": the queue pair is, or was, connected",
                      "use repair(), or a new queue pair");
  }
  options_ = options;
  std::string peer_name = options.peer;
  absl::StatusOr<std::shared_ptr<Link>> link =
      device_->link_to(address->device, address->pid, options.peer);
  if (!link.ok()) return link.status();
  link_owner_ = *link;
  link_ = link_owner_.get();
  const auto undo = [&] {
    link_ = nullptr;
    link_owner_ = nullptr;
    remote_ = Peer{};
    device_->release(*link);
  };
  absl::Status resolved;
  try {
    resolved = resolve_peer(address->index, address->serial, address->nonce);
    if (resolved.ok()) {
      auto writable = link_->writable_regions(remote_.domain);
      if (writable.ok()) writable_regions_ = *writable;
      resolved = writable.status();
    }
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
  if (!resolved.ok()) {
    undo();
    return resolved;
  }
  peer_domain_ = remote_.domain;
  QueuePair::peer_ = std::move(peer_name);
  header_->peer_nonce.store(address->nonce);
  generation_ = 1;
  connected_ = true;
  expected_.store(QueuePairStatus(serial_, generation_, LinkState::kReady).word());
  header_->status.store(QueuePairStatus(serial_, generation_, LinkState::kWaiting).word());
  device_->bind(this, link_owner_);
  try_ready();
  return absl::OkStatus();
}

// Reads and checks the peer's description of its queue pair.
absl::Status ShmQueuePair::resolve_peer(uint32_t index, uint32_t serial, uint64_t nonce) {
  std::byte* control = link_->control();
  QueuePairHeader* header = &queue_pair_table(control)[index];
  Peer peer;
  peer.header = header;
  peer.serial = serial;
  peer.claimant = index + 1;
  peer.domain = header->domain.load();
  const uint64_t queue = header->receive_queue.load();
  const uint64_t ring = header->receive_ring.load();
  const uint64_t completions = header->completion_queue.load();
  const uint32_t entries = header->ring_entries.load();
  peer.ready_bit = header->ready_bit.load();
  if (header->nonce.load() != nonce || QueuePairStatus(header->status.load()).serial() != serial) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "connect to " + options_.peer + ": its queue pair was destroyed",
                      "exchange the addresses again");
  }
  const auto inside = [](uint64_t offset, uint64_t bytes) {
    return offset >= kHeapOffset && offset % 64 == 0 && offset <= kControlBytes &&
           bytes <= kControlBytes - offset;
  };
  bool sane = inside(queue, sizeof(ReceiveQueueHeader)) && std::has_single_bit(entries) &&
              entries <= 2 * kMaxDepth && inside(ring, entries * sizeof(ReceiveRingEntry)) &&
              inside(completions, sizeof(SharedCompletionQueue)) &&
              peer.ready_bit < kMaxQueuePairsPerCompletionQueue &&
              // With kNoDomain, regions that must not be written directly would appear to belong to
              // the peer.
              peer.domain != RemoteRegion::kNoDomain;
  if (sane) {
    const auto* shared = reinterpret_cast<const ReceiveQueueHeader*>(control + queue);
    const uint32_t queue_entries = read_once(shared->entries);
    const uint32_t slots = read_once(shared->slots);
    const uint32_t segments = read_once(shared->max_segments);
    sane = std::has_single_bit(queue_entries) && queue_entries <= 2 * kMaxDepth &&
           slots <= queue_entries && segments <= kMaxSegments &&
           inside(queue, receive_queue_bytes(queue_entries, slots, segments));
    if (sane) peer.receives = ReceiveQueueView(control + queue, queue_entries, slots, segments);
    peer.ring = reinterpret_cast<ReceiveRingEntry*>(control + ring);
    peer.ring_mask = entries - 1;
    peer.completions = reinterpret_cast<SharedCompletionQueue*>(control + completions);
    const uint64_t channel = peer.completions->channel.load();
    sane = sane && (channel == 0 || inside(channel, sizeof(SharedChannel)));
    if (sane && channel != 0) peer.channel = reinterpret_cast<SharedChannel*>(control + channel);
  }
  if (!sane) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "connect to " + options_.peer + ": its control segment is damaged",
                      "restart the peer");
  }
  remote_ = peer;
  return absl::OkStatus();
}

// Makes both ends ready when both have reached this generation. Each end calls it after it has set
// its own status, so at least the later one sees the other's status (seq_cst).
void ShmQueuePair::try_ready() {
  QueuePairHeader* peer = remote_.header;
  const QueuePairStatus theirs(peer->status.load());
  if (theirs.serial() != remote_.serial || theirs.state() == LinkState::kClosed) {
    if (end_status(header_->status, serial_, LinkState::kPeerGone)) announce_receives();
    return;
  }
  if (theirs.generation() != (generation_ & 0xffffff) ||
      peer->peer_nonce.load() != header_->nonce.load()) {
    return;
  }
  if (theirs.failed()) {  // the peer reached this generation earlier, and failed since
    if (break_status(header_->status, serial_, generation_, LinkState::kBroken)) {
      announce_receives();
    }
    return;
  }
  uint64_t mine = QueuePairStatus(serial_, generation_, LinkState::kWaiting).word();
  header_->status.compare_exchange_strong(mine,
                                          QueuePairStatus(mine).with(LinkState::kReady).word());
  uint64_t other = theirs.with(LinkState::kWaiting).word();
  peer->status.compare_exchange_strong(other, theirs.with(LinkState::kReady).word());
}

void ShmQueuePair::break_connection() {
  break_status(header_->status, serial_, generation_, LinkState::kBroken);
  if (connected_ && peer_is_ours() &&
      break_status(remote_.header->status, remote_.serial, generation_, LinkState::kBroken)) {
    announce_to_peer();
  }
  announce_receives();
}

// Returns true if the peer's queue pair is connected to this one, and not (by a wrong address) to
// another.
bool ShmQueuePair::peer_is_ours() const {
  return remote_.header->peer_nonce.load() == header_->nonce.load();
}

// Makes the peer's poll() check the status of its queue pair.
void ShmQueuePair::announce_to_peer() {
  // While in_peer is not 0, the peer does not reuse its memory. If its queue pair is closed
  // already, the check below finds that.
  header_->in_peer.store(1);
  const QueuePairStatus theirs(remote_.header->status.load());
  if (theirs.serial() == remote_.serial && theirs.state() != LinkState::kClosed) {
    remote_.completions->announce(remote_.ready_bit, remote_.channel, true);
  }
  header_->in_peer.store(0);
}

void ShmQueuePair::fail() {
  std::lock_guard lock(mutex_);
  break_connection();
  if (has_waiting_.load()) progress_locked();
}

QueuePairState ShmQueuePair::state() const {
  const QueuePairStatus now = status();
  if (now.failed()) return QueuePairState::kError;
  return now.generation() == 0 ? QueuePairState::kUnconnected : QueuePairState::kConnected;
}

absl::Status ShmQueuePair::repair() {
  std::lock_guard lock(mutex_);
  const auto unavailable = [this](std::string_view what, ErrorScope scope,
                                  std::string_view remedy) {
    return make_error(absl::StatusCode::kUnavailable, scope,
                      "repair towards " + peer() + ": " + std::string(what), remedy);
  };
  const auto gone = [&] {
    return unavailable(
        status().state() == LinkState::kPeerDead ? "the peer process has died"
                                                 : "the peer's queue pair was destroyed",
        ErrorScope::kPeer, "create a new queue pair and exchange the addresses again");
  };
  if (!connected_) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "repair: the queue pair was never connected", "call connect()");
  }
  break_connection();
  progress_locked();
  if (absl::Status drained = drain_for_repair(); !drained.ok()) {
    return status().state() >= LinkState::kPeerGone ? gone() : drained;
  }
  if (status().state() >= LinkState::kPeerGone) return gone();

  const uint32_t next = (generation_ + 1) & 0xffffff;
  uint64_t broken = status().word();
  if (!header_->status.compare_exchange_strong(
          broken, QueuePairStatus(serial_, next, LinkState::kWaiting).word())) {
    return gone();  // only the end of the peer changes a failed status
  }
  generation_ = next;
  send_failure_reported_ = false;
  {
    std::lock_guard drain_lock(receive_completions_->drain_mutex());
    receive_failure_reported_ = false;
  }
  expected_.store(QueuePairStatus(serial_, generation_, LinkState::kReady).word());
  try_ready();
  return absl::OkStatus();
}

// Waits until every receive has its completion in the queue, including receives that the peer was
// filling.
absl::Status ShmQueuePair::drain_for_repair() {
  const Deadline deadline = deadline_after(kRepairTimeout);
  for (;;) {
    const bool peer_outside = remote_.header->in_peer.load() == 0 || link_->ended.load();
    move_receives_to_queue();
    if (peer_outside) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(
          absl::StatusCode::kUnavailable, ErrorScope::kLink,
          "repair towards " + peer() + ": the peer is stopped in the middle of a message",
          "let it run, then repair again");
    }
    std::this_thread::yield();
  }
}

// Moves the receive completions that poll() would collect into the completion queue.
void ShmQueuePair::move_receives_to_queue() {
  std::lock_guard lock(receive_completions_->drain_mutex());
  for (;;) {
    // First: an exception after drain_receives() would lose the completion.
    ShmCompletionQueue::Spare spare = ShmCompletionQueue::make_spare();
    Completion completion;
    if (drain_receives(std::span(&completion, 1)) == 0) return;
    receive_account_->references.fetch_add(1);
    receive_completions_->push(completion, receive_account_, std::move(spare));
  }
}

void ShmQueuePair::peer_ended(bool died) {
  if (end_status(header_->status, serial_, died ? LinkState::kPeerDead : LinkState::kPeerGone)) {
    announce_receives();
  }
}

void ShmQueuePair::end_peer() {
  if (!peer_is_ours() || !end_status(remote_.header->status, remote_.serial, LinkState::kPeerGone))
    return;
  // A thread that posts meanwhile accesses the peer's memory, and announce_to_peer() would tell the
  // peer that no thread does. Without the announcement the peer notices the end when it posts.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) announce_to_peer();
}

void ShmQueuePair::recover_receives() {
  move_receives_to_queue();  // the receives that the peer did finish
  std::lock_guard lock(receive_completions_->drain_mutex());
  for (uint32_t slot : receives_->claimed_by(index_ + 1)) {
    if (shared_receives_) {
      receives_->repost(slot, index_ + 1);
      continue;
    }
    // First: an exception after finish() would lose the receive.
    ShmCompletionQueue::Spare spare = ShmCompletionQueue::make_spare();
    const auto request = receives_->finish(slot, index_ + 1);
    if (!request.has_value()) continue;
    Completion completion;
    completion.id = request->id;
    completion.status = CompletionStatus::kPeerDied;
    completion.kind = CompletionKind::kReceive;
    completion.queue_pair = number_;
    receive_account_->references.fetch_add(1);
    receive_completions_->push(completion, receive_account_, std::move(spare));
  }
}

}  // namespace cariama::shm
