#include "riutils/channel_sender.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "riutils/internal/backlog.h"

namespace cariama {
namespace {

// Images of chunks that may be under way at once, besides the one that is filled.
constexpr size_t kStagingUnits = 8;

// What sleeping_ points to where every publication has to go the long way.
constinit const std::atomic<uint32_t> kAlwaysAsleep{SleepingWord::kAsleep};

// Orders a store before a later load, also for the processor. A locked instruction is cheaper than
// mfence.
void full_fence() {
  std::atomic<uint32_t> line{0};
  line.exchange(1, std::memory_order_seq_cst);
}

absl::Status refusal_of(const MessengerOptions& options, const std::string& peer) {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                    peer + " is behind: its chunks (" + std::to_string(options.max_chunks) +
                        " at most, of " + std::to_string(options.chunk_bytes) +
                        " bytes) are full, and what may be kept is kept",
                    "let it process its calls, or raise max_chunks or exceeding_bytes");
}

}  // namespace

ChannelSender::ChannelSender(ChannelLink& link, const MessengerOptions& options, std::string peer)
    : sleeping_(&kAlwaysAsleep),
      link_(link),
      options_(options),
      peer_(std::move(peer)),
      refusal_(refusal_of(options, peer_)),
      limit_(options.max_chunks),
      backlog_(std::make_unique<internal::Backlog>(link, options.chunk_bytes)) {}

ChannelSender::~ChannelSender() {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    fail(make_error(absl::StatusCode::kCancelled, ErrorScope::kOperation,
                    "the channel to " + peer_ + " was destroyed before this call left"));
  }
}

// ---- Set-up and growth --------------------------------------------------------------------------

absl::Status ChannelSender::check_options() const {
  const MessengerOptions& o = options_;
  const auto refuse = [&](const std::string& what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (o.chunk_bytes < kMinChunkBytes || o.chunk_bytes > kMaxChunkBytes || o.chunk_bytes % 64 != 0) {
    return refuse("chunk_bytes is " + std::to_string(o.chunk_bytes) + ": it has to be from " +
                  std::to_string(kMinChunkBytes) + " to " + std::to_string(kMaxChunkBytes) +
                  ", a multiple of 64");
  }
  if (o.max_chunks == 0 || o.max_chunks > kMaxChunks || o.chunks_per_request == 0 ||
      o.chunks_per_request > o.max_chunks) {
    return refuse("chunks_per_request is " + std::to_string(o.chunks_per_request) +
                  " and max_chunks " + std::to_string(o.max_chunks) +
                  ": they have to be from 1 to " + std::to_string(kMaxChunks) +
                  ", the first not above the second");
  }
  return absl::OkStatus();
}

absl::Status ChannelSender::setup() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (ended_) break;
    if (!failure_.ok()) return failure_;
    if (!chunks_.empty()) return absl::OkStatus();
    if (link_.inside_call()) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                        "a messenger to " + peer_ + " cannot be set up inside a call",
                        "set it up before");
    }
    if (absl::Status obtained = obtain(lock, nullptr); !obtained.ok()) return obtained;
  }
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "the messenger to " + peer_ + " was shut down");
}

// Returns with the mutex, and with more chunks unless it fails; or another thread was at it.
absl::Status ChannelSender::obtain(std::unique_lock<std::mutex>& lock, Transmitter* transmitter) {
  if (absl::Status valid = check_options(); !valid.ok()) return valid;
  if (obtaining_) {
    lock.unlock();
    const bool ended = link_.wait(
        [&] {
          const std::lock_guard look(mutex_);
          return !obtaining_;
        },
        deadline_after(options_.timeout));
    lock.lock();
    if (ended) return absl::OkStatus();
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      peer_ + " did not give chunks in time");
  }
  obtaining_ = true;
  const auto count = static_cast<uint32_t>(
      chunks_.empty() ? options_.chunks_per_request
                      : std::min<size_t>(chunks_.size(), limit_ - chunks_.size()));
  const bool meet = !way_.has_value();
  lock.unlock();
  absl::StatusOr<ChannelLink::Way> way = absl::UnknownError("");
  absl::StatusOr<std::vector<ChannelLink::Chunk>> more = absl::UnknownError("");
  std::unique_ptr<CircularAllocator> staging;
  absl::Status status;
  if (meet) {
    way = link_.open();
    status = way.status();
    if (status.ok() && way->arrival != Arrival::kMapped) {
      auto made = CircularAllocator::create(way->allocator, {.unit_bytes = image_bytes(),
                                                             .initial_units = 2,
                                                             .max_units = kStagingUnits,
                                                             .growth = Growth::kLinear});
      status = made.status();
      if (made.ok()) staging = *std::move(made);
    }
  }
  if (status.ok()) {
    more = link_.obtain(count);
    status = more.status();
  }
  lock.lock();
  obtaining_ = false;
  close_window();  // calls of this thread may have opened it meanwhile
  if (way.ok()) {
    way_ = *std::move(way);
    staging_ = std::move(staging);
    control_ = reinterpret_cast<ChannelControl*>(way_->control.get_buffer());
    if (way_->arrival == Arrival::kMapped && !way_->fence) {
      sleeping_ = &way_->sleeping->state;
      publishes_by_store_ = options_.flush_age.count() == 0;
    }
  }
  if (!status.ok()) {
    // With fewer chunks than allowed it goes on as if the limit were lower.
    if (!chunks_.empty() && absl::IsResourceExhausted(status)) {
      limit_ = static_cast<uint32_t>(chunks_.size());
      return absl::OkStatus();
    }
    if (absl::IsUnavailable(status)) fail(status);
    return status;
  }
  ++counts_.requests;
  counts_.chunks += more->size();
  const bool first = chunks_.empty();
  std::vector<Chunk> chunks;
  for (const ChannelLink::Chunk& chunk : *more) chunks.push_back({chunk.remote, chunk.mapped});
  chunks_.insert(chunks_.begin() + (first ? 0 : current_ + 1), chunks.begin(), chunks.end());
  if (!first) {
    inserted_ += static_cast<uint32_t>(chunks.size());
  } else if (!open_chunk(0, transmitter != nullptr ? transmitter : way_->transmitter)) {
    return failure_;
  }
  return absl::OkStatus();
}

// ---- The window ---------------------------------------------------------------------------------

void ChannelSender::close_window() {
  if (!window_open_) return;
  closed_at_ = position_;
  if (batch_ == nullptr) batch_ = closed_at_;
  if (batch_is_empty()) closed_at_ = batch_;  // a batch's word alone is nothing
  end_ = hold_end_ = position_;
  window_open_ = false;
}

void ChannelSender::open_window(bool hold) {
  if (keeping_ || ended_ || !failure_.ok() || !chunk_open_) return;
  window_open_ = true;
  if (closed_at_ == batch_ && hold && options_.flush_age.count() == 0) {
    begin_batch(closed_at_);
    return;
  }
  position_ = closed_at_;
  hold_end_ = closed_at_;
  if (closed_at_ == batch_) {
    batch_ = nullptr;
    end_ = chunk_end_;
  } else {
    end_ = closed_at_;
    // With an age to watch every held call goes the long way.
    if (options_.flush_age.count() == 0) set_hold_end();
  }
}

void ChannelSender::set_hold_end() {
  std::byte* const first = batch_ + kBatchWord;
  hold_end_ = first + std::min<ptrdiff_t>(options_.flush_bytes, chunk_end_ - first);
}

void ChannelSender::begin_batch(std::byte* at) {
  if (chunk_end_ - at > kBatchWord) {
    batch_ = at;
    position_ = at + kBatchWord;
    end_ = at;
    set_hold_end();
  } else {
    batch_ = nullptr;
    position_ = at;
    end_ = chunk_end_;
    hold_end_ = at;
  }
}

void ChannelSender::fail(absl::Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  keeping_ = false;
  backlog_->fail(failure_);
  for (Synchronizer* departure : departures_) departure->fail(failure_);
  departures_.clear();
}

void ChannelSender::peer_died() {
  const std::lock_guard lock(mutex_);
  if (way_.has_value() && way_->sleeping != nullptr) {
    way_->sleeping->state.store(SleepingWord::kDead, std::memory_order_relaxed);
  }
}

void ChannelSender::close(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  close_window();
  fail(why);
}

// ---- Chunks -------------------------------------------------------------------------------------

// Whether, with so many chunks in use, the next one in the ring is not.
bool ChannelSender::ring_has_room(uint64_t in_use, Transmitter* transmitter) {
  if (in_use - consumed_ < chunks_.size()) return true;
  uint64_t consumed = control_->consumed_chunks.load(std::memory_order_acquire);
  if (consumed == ChannelControl::kBroken) [[unlikely]] {
    fail(make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                    peer_ + " found something malformed in the channel, and reads no more of it"));
    return false;
  }
  if (options_.consumption == Consumption::kPull) {
    const Chunk& next = chunks_[(current_ + 1) % chunks_.size()];
    ++counts_.pulls;
    consumed = 0;
    if (next.mapped != nullptr) {
      auto* const header = reinterpret_cast<ChunkHeader*>(next.mapped);
      consumed = std::atomic_ref(header->consumer.chunks).load(std::memory_order_acquire);
    } else {
      constexpr uint64_t kScratch = sizeof(ChannelControl);
      Synchronizer done;
      absl::Status read = transmitter->read(
          way_->control, kScratch, sizeof consumed,
          next.remote.slice(offsetof(ChunkHeader, consumer.chunks), sizeof consumed), &done);
      if (read.ok()) read = transmitter->wait(done, deadline_after(options_.timeout));
      if (!read.ok()) {
        fail(read);
        return false;
      }
      std::memcpy(&consumed, way_->control.get_buffer() + kScratch, sizeof consumed);
    }
  }
  // A count that cannot be is not ours to believe.
  if (consumed > consumed_ && consumed <= filled_) consumed_ = consumed;
  return in_use - consumed_ < chunks_.size();
}

bool ChannelSender::open_chunk(uint32_t index, Transmitter* transmitter) {
  if (way_->arrival == Arrival::kMapped) {
    base_ = chunks_[index].mapped;
  } else {
    auto unit = transmitter->acquire(*staging_, deadline_after(options_.timeout));
    if (!unit.ok()) {
      fail(unit.status());
      return false;
    }
    unit_ = *unit;
    base_ = unit_->get_buffer();  // moves on: leave_zeros()
  }
  current_ = index;
  chunk_open_ = true;
  closed_at_ = batch_ = base_ + sizeof(ChunkHeader);
  chunk_end_ = base_ + options_.chunk_bytes - sizeof(CallHeader);
  return true;
}

// Precondition: the batch is flushed.
absl::Status ChannelSender::end_chunk(Transmitter* transmitter, uint8_t flags) {
  if (absl::Status written = write_producer(transmitter, true); !written.ok()) return written;
  const uint64_t marker = word_of(EndMarker::make(inserted_, flags));
  inserted_ = 0;
  ++filled_;
  ++counts_.chunks_filled;
  chunks_[current_].filled_as = filled_;
  chunk_open_ = false;
  const uint64_t first = offset_of(closed_at_);
  absl::Status published;
  publish_word(closed_at_, marker);
  if (way_->arrival != Arrival::kMapped) {
    published = write_image(transmitter, closed_at_, sizeof marker);
  }
  if (published.ok()) published = after_publication(closed_at_, 1);
  chunk_first_ = first;
  closed_at_ = batch_ = base_ + sizeof(ChunkHeader);  // offset_of: nothing of the next chunk yet
  return published;
}

ChannelSender::Progress ChannelSender::advance(Transmitter* transmitter) {
  if (chunk_open_) {
    if (!ring_has_room(filled_ + 1, transmitter)) {
      if (!failure_.ok()) return Progress::kFailed;
      // The end marker says how many chunks follow it anew, so they have to be there first.
      if (chunks_.size() < limit_) return Progress::kObtain;
    }
    absl::Status ended = flush_batch(transmitter);
    if (ended.ok()) ended = end_chunk(transmitter, 0);
    if (!ended.ok()) {
      fail(ended);
      return Progress::kFailed;
    }
  }
  if (!ring_has_room(filled_, transmitter)) {
    return failure_.ok() ? Progress::kFull : Progress::kFailed;
  }
  return open_chunk((current_ + 1) % static_cast<uint32_t>(chunks_.size()), transmitter)
             ? Progress::kDone
             : Progress::kFailed;
}

// ---- Publication --------------------------------------------------------------------------------

// Writes part of the image, or of what is kept, to where the chunk has `at`.
absl::Status ChannelSender::write_image(Transmitter* transmitter, const std::byte* at,
                                        uint64_t bytes) {
  return write_kept(transmitter, *unit_, static_cast<uint64_t>(at - unit_->get_buffer()), bytes,
                    at);
}
absl::Status ChannelSender::write_kept(Transmitter* transmitter, RDMAMemory& memory,
                                       uint64_t offset, uint64_t bytes, const std::byte* at) {
  return transmitter->write(
      memory, offset, bytes,
      chunks_[current_].remote.slice(static_cast<uint64_t>(at - base_), bytes));
}

// Sends [first, next) of the image, whose headers are all in place.
absl::Status ChannelSender::write_batch(Transmitter* transmitter, std::byte* first,
                                        std::byte* next) {
  const auto bytes = static_cast<uint64_t>(next - first);
  if (way_->arrival == Arrival::kEvent) return write_image(transmitter, first, bytes);
  constexpr uint64_t kWord = sizeof(CallHeader);
  // Everything behind the first header, with the zeros that follow; then that header.
  if (absl::Status body = write_image(transmitter, first + kWord, bytes); !body.ok()) return body;
  return write_image(transmitter, first, kWord);
}

// The zeros behind a publication stay zeros in the image, since the transfer may still have to read
// them: the next call is built behind them, and goes to where they were in the chunk. Polled only;
// others send none.
std::byte* ChannelSender::leave_zeros(std::byte* next) {
  if (way_->arrival != Arrival::kPolled) return next;
  base_ += sizeof(CallHeader);
  chunk_end_ += sizeof(CallHeader);
  return next + sizeof(CallHeader);
}

// Each publication, of 8 bytes at least, leaves 8 bytes of zeros.
size_t ChannelSender::image_bytes() const { return 2 * options_.chunk_bytes; }

// The receiver has to learn of it if it sleeps, or always.
absl::Status ChannelSender::after_publication(const std::byte* next, uint64_t words) {
  switch (way_->arrival) {
    case Arrival::kMapped: {
      std::atomic<uint32_t>& state = way_->sleeping->state;
      if (way_->fence) full_fence();
      const uint32_t seen = state.load(std::memory_order_relaxed);
      if (seen == SleepingWord::kAwake) [[likely]]
        return absl::OkStatus();
      if (seen == SleepingWord::kDead) {
        absl::Status why = link_.status();
        return !why.ok() ? why
                         : make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                      peer_ + " has died");
      }
      if (state.exchange(SleepingWord::kAwake, std::memory_order_acq_rel) ==
          SleepingWord::kAsleep) {
        wakes_ = wakes_ + 1;
        link_.wake();
      }
      return absl::OkStatus();
    }
    case Arrival::kPolled: {
      // sleep_protocol.h: says how far, then looks whether the receiver sleeps.
      WakeState& wake = control_->wake;
      // End markers count, too: nothing may follow one for long, and it has to be waited for.
      wake.published.exchange(offset_of(next) + filled_ * sizeof(CallHeader),
                              std::memory_order_seq_cst);
      if (wake.asleep.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
        wake.asleep.store(0, std::memory_order_relaxed);
        wakes_ = wakes_ + 1;
        link_.wake();
      }
      return absl::OkStatus();
    }
    default:
      events_ = events_ + 1;
      link_.announce(words);
      return absl::OkStatus();
  }
}

CallResult ChannelSender::published_slowly(std::byte* first, std::byte* next) {
  absl::Status status;
  if (way_->arrival != Arrival::kMapped) {
    publications_ = publications_ + 1;
    status = write_batch(way_->transmitter, first, next);
  }
  if (status.ok()) status = after_publication(next, static_cast<uint64_t>(next - first) / 8);
  if (status.ok() && way_->arrival != Arrival::kPolled) [[likely]]
    return status;
  const std::lock_guard lock(mutex_);
  close_window();
  if (!status.ok()) {
    fail(status);
  } else {
    closed_at_ = batch_ = leave_zeros(next);
    open_window();
  }
  return status;
}

bool ChannelSender::build(const OutgoingCallView& call, bool hold) {
  const auto total = static_cast<ptrdiff_t>(call.total());
  const auto most = static_cast<ptrdiff_t>(options_.flush_bytes);
  const bool ages = options_.flush_age.count() != 0;
  const bool joins = closed_at_ != batch_;
  // A call that is a batch by its length needs no word before it.
  const bool begins =
      !joins && hold && total < most && chunk_end_ - closed_at_ >= kBatchWord + total;
  if (begins) {
    closed_at_ += kBatchWord;
    if (ages) batch_since_ = std::chrono::steady_clock::now();
  }
  call.write_behind_header(closed_at_ + sizeof(CallHeader));
  if (begins || joins) {
    store_word(closed_at_, word_of(call.header()));
  } else {
    single_ = word_of(call.header());
  }
  closed_at_ += total;
  return !hold || single_ != 0 || closed_at_ - batch_ - kBatchWord >= most ||
         (ages && std::chrono::steady_clock::now() - batch_since_ >= options_.flush_age);
}

absl::Status ChannelSender::flush_batch(Transmitter* transmitter) {
  if (batch_ == closed_at_) return absl::OkStatus();
  std::byte* const first = batch_;
  publications_ = publications_ + 1;
  store_word(closed_at_, 0);
  const uint64_t single = std::exchange(single_, 0);
  publish_word(
      first, single != 0
                 ? single
                 : word_of(BatchWord::make(static_cast<size_t>(closed_at_ - first - kBatchWord))));
  absl::Status status;
  if (way_->arrival != Arrival::kMapped) status = write_batch(transmitter, first, closed_at_);
  if (status.ok()) {
    status = after_publication(closed_at_, static_cast<uint64_t>(closed_at_ - first) / 8);
  }
  closed_at_ = batch_ = leave_zeros(closed_at_);
  if (!status.ok()) {
    fail(status);
    return status;
  }
  for (Synchronizer* departure : departures_) departure->decrease();
  departures_.clear();
  return status;
}

absl::Status ChannelSender::write_producer(Transmitter* transmitter, bool filled) {
  const bool mapped = way_->arrival == Arrival::kMapped;
  std::byte* const at = mapped ? base_ : unit_->get_buffer();
  auto* const header = reinterpret_cast<ChunkHeader*>(at);
  const auto set = [](uint64_t& field, uint64_t value) {
    std::atomic_ref(field).store(value, std::memory_order_relaxed);
  };
  set(header->producer.first, chunk_first_);
  set(header->producer.last, offset_of(batch_));
  set(header->producer.filled, filled ? 1 : 0);
  return mapped ? absl::OkStatus()
                : write_kept(transmitter, *unit_, 0, sizeof(uint64_t) * 3, base_);
}

CallResult ChannelSender::flush() {
  if (window_open_ && batch_is_empty()) return {};
  if (window_open_ && publishes_by_store_ && departures_.empty()) return publish_batch(position_);
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (!window_open_) return {};  // it was closed by whoever flushed
  close_window();
  absl::Status status = flush_batch(way_->transmitter);
  open_window();
  return status;
}

// Precondition: something is held, and there is room behind it for a word.
CallResult ChannelSender::publish_batch(std::byte* next) {
  std::byte* const first = batch_;
  store_word(next, 0);
  publish_word(first, word_of(BatchWord::make(static_cast<size_t>(next - first - kBatchWord))));
  publications_ = publications_ + 1;
  begin_batch(next);
  if (sleeping_->load(std::memory_order_relaxed) != SleepingWord::kAwake) [[unlikely]] {
    return published_slowly(first, next);
  }
  return {};
}

// The usual end of a batch: this call joins it, and it leaves.
CallResult ChannelSender::hold_slowly(const OutgoingCallView& call, WhenNoRoom when) {
  std::byte* const at = position_;
  const auto total = static_cast<ptrdiff_t>(call.total());
  if (!window_open_ || !publishes_by_store_ || !departures_.empty() || call.id.value == 0 ||
      batch_is_empty() || chunk_end_ - at < total) {
    return send_slowly(call, when, true, nullptr);
  }
  call.write_behind_header(at + sizeof(CallHeader));
  store_word(at, word_of(call.header()));
  return publish_batch(at + total);
}

CallResult ChannelSender::publish() {
  if (CallResult flushed = flush(); !flushed.ok()) return flushed;
  const std::lock_guard lock(mutex_);
  if (!window_open_) return {};
  close_window();
  absl::Status status = write_producer(way_->transmitter, false);
  if (!status.ok()) fail(status);
  open_window();
  return status;
}

bool ChannelSender::batch_is_old() const {
  return options_.flush_age.count() != 0 && window_open_ && !batch_is_empty() &&
         std::chrono::steady_clock::now() - batch_since_ >= options_.flush_age;
}

// ---- The slow path ------------------------------------------------------------------------------

CallResult ChannelSender::send_slowly(const OutgoingCallView& call, WhenNoRoom when, bool hold,
                                      Synchronizer* transmitted) {
  if (call.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this call is in a library that was loaded after the fabric "
                      "was created",
                      "load the library first");
  }
  const uint64_t total = call.total();
  if (total > chunk_capacity(options_.chunk_bytes)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(total) + " bytes to " + peer_ +
                          " is longer than a chunk takes (" +
                          std::to_string(chunk_capacity(options_.chunk_bytes)) + " bytes)",
                      "raise chunk_bytes, or have the buffer written or read beside the call");
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    close_window();
    if (!failure_.ok()) return failure_;
    if (ended_) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                        "the messenger to " + peer_ + " was shut down");
    }
    bool obtainable = false;
    // Whoever makes more of them brings on those that are kept: the drainer alone might never come
    // to the end of them.
    if (keeping_ && when.keep && !obtaining_ && way_.has_value() && !link_.inside_call() &&
        drain_kept(way_->transmitter) == Progress::kFailed) {
      return failure_;
    }
    if (!keeping_) {
      Progress progress = Progress::kObtain;
      if (has_room(total)) {
        progress = Progress::kDone;
      } else if (!chunks_.empty()) {
        progress = advance(way_->transmitter);
        if (progress == Progress::kFailed) return failure_;
      }
      if (progress == Progress::kDone) {
        const bool leaves = build(call, hold);
        if (transmitted != nullptr) departures_.push_back(transmitted);
        absl::Status status;
        if (leaves) status = flush_batch(way_->transmitter);
        open_window(hold);
        return status;
      }
      obtainable = progress == Progress::kObtain;
      if (obtainable && !link_.inside_call()) {
        absl::Status obtained = obtain(lock, nullptr);
        if (!obtained.ok()) {
          open_window();
          return obtained;
        }
        continue;
      }
      // What is held must not wait for what comes after it.
      if (!chunks_.empty()) {
        if (absl::Status flushed = flush_batch(way_->transmitter); !flushed.ok()) return flushed;
      }
    }
    const bool inside = link_.inside_call();
    if (when.keep || obtainable || (inside && when.policy == WhenFull::kRetry)) {
      if (backlog_->bytes() + total <= options_.exceeding_bytes) {
        if (absl::Status kept = backlog_->append(call, transmitted); !kept.ok()) return kept;
        ++counts_.exceeding;
        counts_.exceeding_bytes_high_water =
            std::max(counts_.exceeding_bytes_high_water, backlog_->bytes());
        if (!std::exchange(keeping_, true)) link_.drain_later();
        return {};
      }
      if (inside || when.policy != WhenFull::kRetry) {
        ++counts_.refused;
        return refusal_;
      }
    } else if (when.policy != WhenFull::kRetry) {
      ++counts_.refused;
      open_window();
      return refusal_;
    }
    const uint64_t kept = backlog_->bytes();
    lock.unlock();
    static_cast<void>(link_.wait([&] { return look_for_room(kept); }, kForever));
    lock.lock();
  }
}

bool ChannelSender::look_for_room(uint64_t kept_before) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok() || ended_ || window_open_) return true;
  if (absl::Status status = link_.status(); !status.ok()) {
    fail(status);
    return true;
  }
  if (keeping_) {
    if (!way_.has_value() || obtaining_) return false;  // the drainer is at it
    switch (drain_kept(way_->transmitter)) {
      case Progress::kDone:
      case Progress::kFailed:
        return true;
      default:
        return backlog_->bytes() < kept_before;
    }
  }
  // The drainer was faster: what was waited for is over, whether or not another chunk is free.
  if (kept_before != 0) return true;
  return chunks_.empty() || ring_has_room(filled_ + (chunk_open_ ? 1 : 0), way_->transmitter) ||
         !failure_.ok() || (chunk_open_ && chunks_.size() < limit_);
}

// ---- Statistics ---------------------------------------------------------------------------------

uint64_t ChannelSender::accepted_bytes() const {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) return backlog_->bytes();
  // A batch's word counts as soon as there is a call behind it.
  const std::byte* at = closed_at_;
  if (window_open_) at = batch_ != nullptr && batch_is_empty() ? batch_ : position_;
  return offset_of(at) + backlog_->bytes();
}

MessengerStatistics ChannelSender::statistics() const {
  const std::lock_guard lock(mutex_);
  MessengerStatistics statistics = counts_;
  statistics.publications = publications_;
  statistics.wakes = wakes_;
  statistics.events = events_;
  if (control_ != nullptr) {
    const uint64_t pushed = control_->consumed_chunks.load(std::memory_order_acquire);
    statistics.chunks_consumed = std::max(consumed_, pushed <= filled_ ? pushed : 0);
  }
  return statistics;
}

}  // namespace cariama
