#include "dtutils/transmitter.h"

#include <algorithm>
#include <array>
#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/flush_cells.h"
#include "dtutils/trace.h"

namespace cariama {
namespace {

constexpr size_t kPollBatch = 16;
// The largest number of segments that write_pieces() and read_pieces() put into one work request.
constexpr size_t kMaxSegments = 16;
// A thread that waits reads the clock for its next probe once in this many polls.
constexpr uint64_t kLooksPerClockRead = 64;

// The bound of (3) in signaling.h: the loose credits of all lanes together.
constexpr uint64_t most_loose_credits(uint64_t depth) {
  uint64_t credits = 0;
  for (size_t lane = 1; lane <= TransmitQueue::kMaxTransmitters; ++lane) {
    credits += internal::batch_size(depth, lane);
  }
  return credits;
}
static_assert(most_loose_credits(TransmitQueue::kMaxDepth) < TransmitQueue::kMaxDepth * 9 / 10);

}  // namespace

// ---- TransmitQueue -----------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<TransmitQueue>> TransmitQueue::create(
    ProtectionDomain& domain, QueuePairOptions options, const TransmitOptions& behaviour) {
  // In the error state every operation completes, signaled or not, and all these completions must
  // fit.
  if (options.send_completions == nullptr) {
    auto completions = domain.create_completion_queue({.depth = options.send_depth});
    if (!completions.ok()) return completions.status();
    options.send_completions = *std::move(completions);
  }
  auto queue_pair = domain.create_queue_pair(options);
  if (!queue_pair.ok()) return queue_pair.status();
  const uint32_t depth =
      std::min({(*queue_pair)->limits().send_depth, options.send_completions->depth(),
                options.send_depth, kMaxDepth});
  return std::unique_ptr<TransmitQueue>(new TransmitQueue(
      std::move(options.send_completions), *std::move(queue_pair), depth, behaviour));
}

TransmitQueue::TransmitQueue(std::shared_ptr<CompletionQueue> completions,
                             std::unique_ptr<QueuePair> queue_pair, uint32_t depth,
                             const TransmitOptions& options)
    : completions_(std::move(completions)),
      queue_pair_(std::move(queue_pair)),
      cell_(internal::take_flush_cell()),
      signaling_(depth, cell_->flushed.load(std::memory_order_relaxed)),
      options_(options),
      counters_("transmit_queue", "queue pair " + std::to_string(queue_pair_->number()), [this] {
        const TransmitStatistics now = statistics();
        return CounterSet::Values{{"operations", now.operations},
                                  {"stored", now.stored},
                                  {"bytes", now.bytes},
                                  {"signaled", now.signaled},
                                  {"grants", now.grants},
                                  {"full_waits", now.full_waits},
                                  {"completions", now.completions},
                                  {"failures", now.failures}};
      }) {}

TransmitQueue::~TransmitQueue() {
  progress();
  const std::string peer = queue_pair_->peer();
  queue_pair_.reset();  // from here on the device accesses no buffer
  for_each_busy_record([&](Record& record) {
    record.ending.end(
        make_error(absl::StatusCode::kUnavailable, ErrorScope::kLink,
                   "the queue to " + peer + " was closed before the operation completed"));
  });
  for (const auto& lane : lanes_) signaling_.retire_all(*lane, cell_->flushed);
  internal::return_flush_cell(cell_);
}

size_t TransmitQueue::progress() {
  std::array<Completion, kPollBatch> batch;
  size_t total = 0;
  size_t count;
  do {
    count = completions_->poll(batch);
    for (size_t i = 0; i < count; ++i) complete(batch[i]);
    total += count;
  } while (count == batch.size());
  if (total != 0) completed_.fetch_add(total, std::memory_order_relaxed);
  return total;
}

void TransmitQueue::complete(const Completion& completion) {
  const bool success = completion.status == CompletionStatus::kSuccess;
  absl::Status status;
  if (!success) [[unlikely]] {
    status = note_failure(completion);
    // Unsignaled requests complete when they fail. Those that were posted to the queue pair
    // directly have ids of the user's choice.
    if (!names_record(completion.id)) return;
  }
  Record* const record = reinterpret_cast<Record*>(completion.id);
  // Even if it failed, the device no longer accesses the buffers of this and all earlier
  // operations.
  signaling_.retire(record->proof, cell_->flushed);
  record->ending.end(std::move(status));
  // Release, as the last step: a thread that sees no busy record knows that no completion will
  // touch a Synchronizer any more.
  record->busy.store(false, std::memory_order_release);
}

// Returns true if `id` is the id of a signaled operation in flight. Compares with whole blocks,
// since a failed queue calls this for every request in flight.
bool TransmitQueue::names_record(uint64_t id) const {
  if (id == unsignaled_id()) return false;
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    const size_t blocks = lane->block_count.load(std::memory_order_acquire);
    for (size_t block = 0; block < blocks; ++block) {
      const uint64_t offset = id - id_of(lane->blocks[block][0]);
      if (offset >= (kFirstRecords << block) * sizeof(Record)) continue;
      return offset % sizeof(Record) == 0 &&
             lane->blocks[block][offset / sizeof(Record)].busy.load(std::memory_order_acquire);
    }
  }
  return false;
}

template <typename Function>
void TransmitQueue::for_each_busy_record(Function&& function) const {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    const size_t blocks = lane->block_count.load(std::memory_order_acquire);
    for (size_t block = 0; block < blocks; ++block) {
      for (size_t i = 0; i < kFirstRecords << block; ++i) {
        Record& record = lane->blocks[block][i];
        if (record.busy.load(std::memory_order_acquire)) function(record);
      }
    }
  }
}

bool TransmitQueue::is_drained() const {
  bool drained = true;
  for_each_busy_record([&](Record&) { drained = false; });
  return drained;
}

absl::Status TransmitQueue::note_failure(const Completion& completion) {
  failures_.fetch_add(1, std::memory_order_relaxed);
  trace_instant("transmitter", "failure", "queue_pair", queue_pair_->number());
  const std::lock_guard lock(mutex_);
  // An exception would leave the other completions of the batch, and this operation would not end.
  absl::Status status = internal::error_or_code(absl::StatusCode::kUnavailable, [&] {
    return options_.explain_failure(completion, queue_pair_->peer());
  });
  const bool cause = completion.status != CompletionStatus::kFlushed;
  // The completion that is not kFlushed states the cause; the completions with kFlushed are its
  // consequence. A flushed completion may be recorded first if another thread polled it.
  if (failure_.ok() || (cause && !failure_is_cause_)) {
    failure_ = status;
    failure_is_cause_ = cause;
  }
  failed_.store(true, std::memory_order_release);
  return cause ? status : failure_;
}

absl::Status TransmitQueue::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  return failure_;
}

absl::Status TransmitQueue::repair() {
  const TraceScope scope("transmitter", "repair", "queue_pair", queue_pair_->number());
  if (absl::Status status = queue_pair_->repair(); !status.ok()) return status;
  progress();  // repair() put every outstanding request's completion into the queue
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) signaling_.retire_all(*lane, cell_->flushed);
  failure_ = absl::OkStatus();
  failure_is_cause_ = false;
  failed_.store(false, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<TransmitQueue::Lane*> TransmitQueue::take_lane() {
  const std::lock_guard lock(mutex_);
  if (!unused_lanes_.empty()) {
    Lane* const lane = unused_lanes_.back();
    unused_lanes_.pop_back();
    return lane;
  }
  if (lanes_.size() == kMaxTransmitters) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                      "the queue to " + queue_pair_->peer() + " has " +
                          std::to_string(kMaxTransmitters) + " transmitters already",
                      "let threads share one in turn, or open a second queue pair");
  }
  unused_lanes_.reserve(lanes_.size() + 1);  // return_lane() needs no memory
  lanes_.push_back(std::make_unique<Lane>());
  signaling_.add_lane();
  return lanes_.back().get();
}

void TransmitQueue::return_lane(Lane* lane) noexcept {
  signaling_.give_back(*lane);
  const std::lock_guard lock(mutex_);
  unused_lanes_.push_back(lane);
}

TransmitQueue::Record* TransmitQueue::Lane::take_record() {
  // Completions arrive in order, so the next record is nearly always free. When all blocks exist,
  // there are more records than the queue is deep (kMaxDepth), so one of them is free.
  const size_t count = block_count.load(std::memory_order_relaxed);
  const size_t patience = count == blocks.size() ? SIZE_MAX : 4;
  for (size_t looked = 0; looked < patience && count != 0; ++looked) {
    if (slot == kFirstRecords << block) {
      slot = 0;
      block = (block + 1) % count;
    }
    Record& record = blocks[block][slot++];
    if (!record.busy.load(std::memory_order_acquire)) return &record;
  }
  // First: after bad_alloc, `block` still names a block that exists.
  blocks[count] = std::make_unique<Record[]>(kFirstRecords << count);
  block = count;
  slot = 1;
  block_count.store(count + 1, std::memory_order_release);
  return &blocks[block][0];
}

TransmitStatistics TransmitQueue::statistics() const {
  TransmitStatistics sum;
  sum.completions = completed_.load(std::memory_order_relaxed);
  sum.failures = failures_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    sum.stored += lane->stored.load(std::memory_order_relaxed);
    sum.operations += lane->posted.load(std::memory_order_relaxed);
    sum.bytes += lane->bytes.load(std::memory_order_relaxed);
    sum.signaled += lane->signaled.load(std::memory_order_relaxed);
    sum.grants += lane->grants.load(std::memory_order_relaxed);
    sum.full_waits += lane->full_waits.load(std::memory_order_relaxed);
  }
  sum.operations += sum.stored;
  return sum;
}

// ---- Transmitter -------------------------------------------------------------------------------

namespace {

// Adds to a counter that only the calling thread writes.
void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

absl::Status bad_range(const std::string& peer, uint64_t offset, uint64_t bytes, uint64_t local,
                       uint64_t remote) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "a transfer to " + peer + " of " + std::to_string(bytes) + " bytes at offset " +
                        std::to_string(offset) + " does not fit into " + std::to_string(local) +
                        " bytes here and " + std::to_string(remote) + " bytes there",
                    "check offset and size against the buffer and the locator");
}

absl::Status unregistered(const std::string& peer) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "a buffer of a transfer to " + peer +
                        " is not registered with the protection domain of its queue pair",
                    "take it from an allocator that was created with this domain, or pass it as a "
                    "std::span (TransmitOptions::user_memory)");
}

}  // namespace

absl::StatusOr<Transmitter> Transmitter::create(TransmitQueue& queue, FullQueue full_queue) {
  auto lane = queue.take_lane();
  if (!lane.ok()) return lane.status();
  // The queue pair is usually connected by now, so its peer's name is known. Called without the
  // queue's lock, because a snapshot locks the registry first and then the queue.
  queue.counters_.rename(queue.queue_pair_->peer() + ", queue pair " +
                         std::to_string(queue.queue_pair_->number()));
  return Transmitter(&queue, *lane, full_queue);
}

Transmitter::Transmitter(TransmitQueue* queue, TransmitQueue::Lane* lane, FullQueue full_queue)
    : queue_(queue),
      lane_(lane),
      queue_pair_(queue->queue_pair_.get()),
      cell_(queue->cell_),
      domain_(queue_pair_->domain()),
      fast_bytes_(std::min<uint64_t>(queue_pair_->limits().max_message, UINT32_MAX)),
      inline_bytes_(queue_pair_->limits().max_inline),
      full_queue_(full_queue) {}

Transmitter::~Transmitter() {
  if (lane_ != nullptr) queue_->return_lane(lane_);
}

Transmitter::Transmitter(Transmitter&& other) noexcept
    : queue_(other.queue_),
      lane_(std::exchange(other.lane_, nullptr)),
      queue_pair_(other.queue_pair_),
      cell_(other.cell_),
      domain_(other.domain_),
      fast_bytes_(other.fast_bytes_),
      inline_bytes_(other.inline_bytes_),
      full_queue_(other.full_queue_),
      direct_writer_(other.direct_writer_),
      copied_range_(other.copied_range_) {}

Transmitter& Transmitter::operator=(Transmitter&& other) noexcept {
  if (this != &other) {
    this->~Transmitter();
    new (this) Transmitter(std::move(other));
  }
  return *this;
}

absl::Status Transmitter::take_credit(FullQueue full_queue) {
  TransmitQueue::Lane& lane = *lane_;
  if (queue_->failed_.load(std::memory_order_acquire)) return queue_->status();
  if (lane.credits != 0) return absl::OkStatus();
  // Polls before it takes credits, so that one batch includes the credits that polling returns.
  if (queue_->signaling_.half_full()) queue_->progress();
  const auto acquired = [&] {
    return queue_->signaling_.acquire(lane) || queue_->failed_.load(std::memory_order_acquire);
  };
  if (!acquired()) {
    count(lane.full_waits);
    if (full_queue == FullQueue::kRefuse) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                        "the send queue to " + queue_pair_->peer() + " (" +
                            std::to_string(queue_->depth()) + " operations) is full",
                        "poll with progress() and try again");
    }
    const TraceScope scope("transmitter", "queue full", "queue_pair", queue_pair_->number());
    // This wait ends: a signaled operation is in flight (signaling.h (3)), and completes with
    // success or error.
    static_cast<void>(wait_until(
        [&] {
          queue_->progress();
          return acquired();
        },
        kForever));
  }
  if (lane.credits == 0) return queue_->status();
  count(lane.grants);
  return absl::OkStatus();
}

absl::Status Transmitter::post_accounted(WorkRequest& request, TransmitQueue::Ending ending,
                                         bool signaled, FullQueue full_queue) {
  if (absl::Status status = take_credit(full_queue); !status.ok()) return status;
  TransmitQueue::Lane& lane = *lane_;
  PostResult result;
  const auto post = [&](const internal::Proof* proof) {
    TransmitQueue::Record* record = nullptr;
    request.id = TransmitQueue::unsignaled_id();
    request.flags &= static_cast<uint8_t>(~kSignaled);
    if (proof != nullptr) {
      record = lane.take_record();
      record->ending = ending;
      record->proof = *proof;
      record->busy.store(true, std::memory_order_release);
      request.id = TransmitQueue::id_of(*record);
      request.flags |= kSignaled;
    }
    // kQueueFull here means that the transport has no room for a completion, or that the user
    // posted to the queue pair directly. Both conditions end by polling.
    try {
      static_cast<void>(wait_until(
          [&] {
            result = queue_pair_->post_send(request);
            if (result.error != PostError::kQueueFull) return true;
            queue_->progress();
            return full_queue == FullQueue::kRefuse ||
                   queue_->failed_.load(std::memory_order_acquire);
          },
          kForever));
    } catch (...) {  // the transport has no memory, and has posted nothing
      if (record != nullptr) record->busy.store(false, std::memory_order_relaxed);
      throw;
    }
    if (record != nullptr) {
      if (result.ok()) {
        count(lane.signaled);
      } else {
        record->busy.store(false, std::memory_order_relaxed);
      }
    }
    return result.ok();
  };
  if (queue_->signaling_.post(lane, signaled || !ending.empty(), post)) return absl::OkStatus();
  if (queue_->failed_.load(std::memory_order_acquire)) return queue_->status();
  return to_status(result, queue_pair_->peer());
}

// Tags the memory of a posted piece. If kMaxUses other queue pairs use the memory, it waits for
// this transfer to complete instead. Returns no error: the transfer is posted, so its `done`
// carries the error.
void Transmitter::note_use(const Piece& piece, bool written_through) {
  if (written_through || piece.memory->set_last_use(cell_, queue_->signaling_.tag(*lane_))) return;
  // Waits even with FullQueue::kRefuse, because the transfer is already in flight.
  Synchronizer here;
  WorkRequest request;
  if (post_accounted(request, &here, true, FullQueue::kWait).ok()) {
    static_cast<void>(wait(here, kForever));
    return;
  }
  // The queue has failed. Its completions tell when the device no longer accesses the memory.
  static_cast<void>(wait_until(
      [&] {
        queue_->progress();
        return queue_->is_drained();
      },
      kForever));
}

absl::Status Transmitter::transfer_pieces(Opcode opcode, std::span<const Piece> pieces,
                                          const RemoteMemoryLocator& remote, uint32_t immediate,
                                          TransmitQueue::Ending ending,
                                          ReceiverDoorbells* receiver) {
  const bool sends = opcode == Opcode::kSend || opcode == Opcode::kSendImmediate;
  uint64_t total = 0;
  for (const Piece& piece : pieces) {
    if (piece.memory == nullptr || piece.offset > piece.memory->size() ||
        piece.bytes > piece.memory->size() - piece.offset || piece.bytes > UINT64_MAX - total) {
      return bad_range(queue_pair_->peer(), piece.offset, piece.bytes,
                       piece.memory == nullptr ? 0 : piece.memory->size(), remote.length);
    }
    total += piece.bytes;
    if (piece.memory->region(domain_) == nullptr) return unregistered(queue_pair_->peer());
  }
  const QueuePairLimits& limits = queue_pair_->limits();
  const size_t max_segments = std::min<size_t>(limits.max_send_segments, kMaxSegments);
  if (!sends && total > remote.length) {
    return bad_range(queue_pair_->peer(), 0, total, total, remote.length);
  }
  if (sends && (total > limits.max_message || pieces.size() > max_segments)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a SEND of " + std::to_string(total) + " bytes in " +
                          std::to_string(pieces.size()) + " pieces to " + queue_pair_->peer() +
                          " exceeds one message (" + std::to_string(limits.max_message) +
                          " bytes, " + std::to_string(max_segments) + " pieces)",
                      "use WRITE, which is split, or send several");
  }

  std::array<Segment, kMaxSegments> segments;
  size_t piece = 0;
  uint64_t piece_offset = 0;  // bytes of the current piece that are already posted
  uint64_t sent = 0;
  do {
    // Builds one work request from as many bytes and as many pieces as fit.
    const size_t first_piece = piece;
    size_t used = 0;
    uint64_t bytes = 0;
    while (piece < pieces.size() && used < max_segments && bytes < limits.max_message) {
      const Piece& from = pieces[piece];
      // A segment's length has 32 bits, even if the device's message limit is larger.
      const uint64_t part = std::min({from.bytes - piece_offset, limits.max_message - bytes,
                                      uint64_t{UINT32_MAX} & ~uint64_t{4095}});
      if (part != 0) {
        segments[used++] = {from.memory->get_buffer() + from.offset + piece_offset,
                            static_cast<uint32_t>(part), from.memory->local_key(domain_)};
      }
      bytes += part;
      piece_offset += part;
      if (piece_offset == from.bytes) {
        ++piece;
        piece_offset = 0;
      }
    }
    // Trailing empty pieces need no work request.
    while (piece < pieces.size() && piece_offset == 0 && pieces[piece].bytes == 0) ++piece;
    const bool last = piece == pieces.size();
    WorkRequest request;
    request.opcode = opcode == Opcode::kWriteImmediate && !last ? Opcode::kWrite : opcode;
    const bool inlined = opcode != Opcode::kRead && bytes <= limits.max_inline;
    request.flags = inlined ? kInline : 0;
    request.segment_count = static_cast<uint16_t>(used);
    request.segments = segments.data();
    request.remote_address = remote.address + sent;
    request.remote_key = remote.key;
    request.immediate = immediate;
    if (receiver != nullptr) {
      request.flags |= kWakesReceiver;
      request.operand = reinterpret_cast<uint64_t>(receiver);
    }
    const FullQueue full_queue = sent == 0 ? full_queue_ : FullQueue::kWait;
    if (absl::Status status =
            post_accounted(request, last ? ending : TransmitQueue::Ending(), false, full_queue);
        !status.ok()) {
      return status;
    }
    count(lane_->bytes, bytes);
    sent += bytes;
    const size_t touched_end = std::min(pieces.size(), piece + 1);
    for (size_t i = first_piece; i < touched_end; ++i) note_use(pieces[i], inlined);
  } while (piece < pieces.size());
  return absl::OkStatus();
}

absl::Status Transmitter::write_elsewhere(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                          uint64_t remote_address, uint64_t remote_length,
                                          RemoteKey remote_key, Synchronizer* done) {
  if (done == nullptr && local.region(domain_) != nullptr &&
      fits(local, offset, bytes, {remote_address, remote_length, remote_key}) &&
      queue_pair_->open_direct_writer(remote_key, direct_writer_)) {
    copied_range_ = local.range();
    if (direct_writer_.write(local.get_buffer() + offset, bytes, remote_address, remote_key)) {
      count_stored(bytes);
      return absl::OkStatus();
    }
  }
  return transfer(Opcode::kWrite, local, offset, bytes, remote_address, remote_length, remote_key,
                  done);
}

absl::Status Transmitter::transfer(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                   uint64_t bytes, uint64_t remote_address, uint64_t remote_length,
                                   RemoteKey remote_key, Synchronizer* done) {
  TransmitQueue::Lane& lane = *lane_;
  const MemoryRegion* const region = local.region(domain_);
  // Fast path: nothing to signal, a credit left that is not the last one, one work request, and a
  // free use slot in the handle, so that set_last_use() succeeds.
  if (done == nullptr && lane.credits > 1 && bytes <= fast_bytes_ && offset <= local.size() &&
      bytes <= local.size() - offset && bytes <= remote_length && region != nullptr &&
      local.simple_use(cell_) && !queue_->failed_.load(std::memory_order_relaxed)) [[likely]] {
    const Segment segment{local.get_buffer() + offset, static_cast<uint32_t>(bytes),
                          region->local_key()};
    WorkRequest request;
    request.id = TransmitQueue::unsignaled_id();
    request.opcode = opcode;
    const bool inlined = opcode == Opcode::kWrite && bytes <= inline_bytes_;
    request.flags = inlined ? kInline : 0;
    request.segment_count = 1;
    request.segments = &segment;
    request.remote_address = remote_address;
    request.remote_key = remote_key;
    if (queue_pair_->post_send(request).ok()) [[likely]] {
      // The tag is read after posting: signaling.h (1).
      if (!inlined) local.set_last_use(cell_, queue_->signaling_.tag());
      count_post(lane, bytes);
      return absl::OkStatus();
    }
  }
  const Piece piece{&local, offset, bytes};
  const RemoteMemoryLocator remote{remote_address, remote_length, remote_key};
  return transfer_pieces(opcode, std::span(&piece, 1), remote, 0, done);
}

absl::Status Transmitter::write_immediate(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                          const RemoteMemoryLocator& remote, uint32_t immediate,
                                          Synchronizer* done) {
  const Piece piece{&local, offset, bytes};
  return transfer_pieces(Opcode::kWriteImmediate, std::span(&piece, 1), remote, immediate, done);
}

absl::Status Transmitter::notify(uint32_t immediate, Synchronizer* done) {
  return transfer_pieces(Opcode::kWriteImmediate, {}, {}, immediate, done);
}

absl::Status Transmitter::send(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                               Synchronizer* done) {
  const Piece piece{&local, offset, bytes};
  return transfer_pieces(Opcode::kSend, std::span(&piece, 1), {}, 0, done);
}

absl::Status Transmitter::send(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                               ReceiverDoorbells& receiver) {
  const Piece piece{&local, offset, bytes};
  return transfer_pieces(Opcode::kSend, std::span(&piece, 1), {}, 0, {}, &receiver);
}

absl::Status Transmitter::write_pieces(std::span<const Piece> pieces,
                                       const RemoteMemoryLocator& remote, Synchronizer* done) {
  return transfer_pieces(Opcode::kWrite, pieces, remote, 0, done);
}

absl::Status Transmitter::read_pieces(std::span<const Piece> pieces,
                                      const RemoteMemoryLocator& remote, Synchronizer* done) {
  return transfer_pieces(Opcode::kRead, pieces, remote, 0, done);
}

absl::Status Transmitter::atomic(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                 const RemoteMemoryLocator& remote, uint64_t operand, uint64_t swap,
                                 Synchronizer* done) {
  if (offset > local.size() || local.size() - offset < sizeof(uint64_t) ||
      remote.length < sizeof(uint64_t)) {
    return bad_range(queue_pair_->peer(), offset, sizeof(uint64_t), local.size(), remote.length);
  }
  if (local.region(domain_) == nullptr) return unregistered(queue_pair_->peer());
  const Piece piece{&local, offset, sizeof(uint64_t)};
  const Segment segment{local.get_buffer() + offset, sizeof(uint64_t), local.local_key(domain_)};
  WorkRequest request;
  request.opcode = opcode;
  request.segment_count = 1;
  request.segments = &segment;
  request.remote_address = remote.address;
  request.remote_key = remote.key;
  request.operand = operand;
  request.swap = swap;
  if (absl::Status status = post_accounted(request, done, false, full_queue_); !status.ok()) {
    return status;
  }
  count(lane_->bytes, sizeof(uint64_t));
  note_use(piece, false);
  return absl::OkStatus();
}

absl::Status Transmitter::fetch_add(RDMAMemory& local, uint64_t offset,
                                    const RemoteMemoryLocator& remote, uint64_t addend,
                                    Synchronizer* done) {
  return atomic(Opcode::kFetchAdd, local, offset, remote, addend, 0, done);
}

absl::Status Transmitter::compare_swap(RDMAMemory& local, uint64_t offset,
                                       const RemoteMemoryLocator& remote, uint64_t expected,
                                       uint64_t desired, Synchronizer* done) {
  return atomic(Opcode::kCompareSwap, local, offset, remote, expected, desired, done);
}

absl::Status Transmitter::post(WorkRequest request, Synchronizer* done) {
  return post_accounted(request, done, false, full_queue_);
}

absl::Status Transmitter::signal_all(Synchronizer* done) {
  WorkRequest request;  // a WRITE of 0 bytes
  return post_accounted(request, done, true, full_queue_);
}

absl::Status Transmitter::wait(Synchronizer& done, Deadline deadline) {
  const std::chrono::milliseconds interval = queue_->options_.probe_interval;
  Deadline next_probe = interval.count() == 0 ? kForever : deadline_after(interval);
  uint64_t looks = 0;
  const auto look = [&] {
    if (done.done()) return true;
    if (queue_->progress() != 0) return done.done();
    if (++looks % kLooksPerClockRead == 0 && next_probe != kForever &&
        std::chrono::steady_clock::now() >= next_probe) {
      next_probe = deadline_after(interval);
      // Operations in flight detect a dead peer themselves. A failed queue needs no probe.
      if (!queue_->has_outstanding() && queue_->status().ok()) static_cast<void>(signal_all());
    }
    if (done.done()) return true;
    // On a failed queue every outstanding operation completes with an error. If `done` then still
    // counts operations, the peer was to notify them, and these notifications will not arrive.
    return queue_->failed_.load(std::memory_order_acquire) && queue_->is_drained();
  };
  if (!wait_until(look, deadline)) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                      std::to_string(done.operations_left()) + " operation(s) towards " +
                          queue_pair_->peer() + " not finished in time");
  }
  return done.done() ? done.status() : queue_->status();
}

absl::Status Transmitter::no_memory() const {
  if (absl::Status status = queue_->status(); !status.ok()) return status;
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                    "no unit of the circular allocator became free in time",
                    "raise its limit, or bind it to this queue: a unit in use by a slow queue pair "
                    "stalls a shared ring");
}

absl::Status Transmitter::too_large(size_t bytes, size_t most) const {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "a segment of " + std::to_string(bytes) + " bytes for " + queue_pair_->peer() +
                        ": the allocator's units hold " + std::to_string(most),
                    "make its unit_bytes larger, or take the memory from a GeneralAllocator");
}

}  // namespace cariama
