#include "riutils/channel_sender.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "riutils/internal/backlog.h"

namespace cariama {
namespace {

// sleeping_ points here if every publication has to take the slow path.
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
                        " bytes) are full, and the call cannot be deferred",
                    "let it process its calls, or raise max_chunks or deferred_bytes");
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
                    "the channel to " + peer_ + " was destroyed before it published this call"));
  }
}

// ---- The window ---------------------------------------------------------------------------------

void ChannelSender::close_window() {
  if (!window_open_) return;
  closed_at_ = position_;
  if (batch_ == nullptr) batch_ = closed_at_;
  if (batch_is_empty()) closed_at_ = batch_;  // discard the batch word of an empty batch
  end_ = batch_end_ = position_;
  window_open_ = false;
}

void ChannelSender::open_window(bool batch) {
  if (deferring_ || ended_ || !failure_.ok() || !chunk_open_) return;
  window_open_ = true;
  if (closed_at_ == batch_ && batch && options_.flush_age.count() == 0) {
    begin_batch(closed_at_);
    return;
  }
  position_ = closed_at_;
  batch_end_ = closed_at_;
  if (closed_at_ == batch_) {
    batch_ = nullptr;
    end_ = chunk_end_;
  } else {
    end_ = closed_at_;
    // If batches age, every batched call takes the slow path, which reads the clock.
    if (options_.flush_age.count() == 0) set_batch_end();
  }
}

void ChannelSender::set_batch_end() {
  std::byte* const first = batch_ + kBatchWord;
  batch_end_ = first + std::min<ptrdiff_t>(options_.flush_bytes, chunk_end_ - first);
}

void ChannelSender::begin_batch(std::byte* at) {
  if (chunk_end_ - at > kBatchWord) {
    batch_ = at;
    position_ = at + kBatchWord;
    end_ = at;
    set_batch_end();
  } else {
    batch_ = nullptr;
    position_ = at;
    end_ = chunk_end_;
    batch_end_ = at;
  }
}

void ChannelSender::fail(absl::Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  deferring_ = false;
  backlog_->fail(failure_);
  for (Synchronizer* departure : departures_) departure->fail(failure_);
  departures_.clear();
}

void ChannelSender::peer_died() {
  const std::lock_guard lock(mutex_);
  if (path_.has_value() && path_->sleeping != nullptr) {
    path_->sleeping->state.store(SleepingWord::kDead, std::memory_order_relaxed);
  }
}

void ChannelSender::close(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  close_window();
  fail(why);
}

// ---- Chunks -------------------------------------------------------------------------------------

// Returns true if the next chunk of the ring is free. `in_use` is the number of chunks begun since
// the channel began, consumed ones included. Updates consumed_ if necessary.
bool ChannelSender::ring_has_room(uint64_t in_use, Transmitter* transmitter) {
  if (in_use - consumed_ < chunks_.size()) return true;
  uint64_t consumed = control_->consumed_chunks.load(std::memory_order_acquire);
  if (consumed == ChannelControl::kBroken) [[unlikely]] {
    fail(make_error(absl::StatusCode::kInternal, ErrorScope::kLink,
                    peer_ + " found malformed data in the channel and has stopped reading it"));
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
          path_->control, kScratch, sizeof consumed,
          next.remote.slice(offsetof(ChunkHeader, consumer.chunks), sizeof consumed), &done);
      if (read.ok()) read = transmitter->wait(done, deadline_after(options_.timeout));
      if (!read.ok()) {
        fail(read);
        return false;
      }
      std::memcpy(&consumed, path_->control.get_buffer() + kScratch, sizeof consumed);
    }
  }
  // Ignore a count that is not possible: the peer wrote it.
  if (consumed > consumed_ && consumed <= filled_) consumed_ = consumed;
  return in_use - consumed_ < chunks_.size();
}

bool ChannelSender::open_chunk(uint32_t index, Transmitter* transmitter) {
  if (path_->arrival == Arrival::kMapped) {
    base_ = chunks_[index].mapped;
  } else {
    auto unit = transmitter->acquire(*staging_, deadline_after(options_.timeout));
    if (!unit.ok()) {
      fail(unit.status());
      return false;
    }
    unit_ = *unit;
    base_ = unit_->get_buffer();  // leave_zeros() advances it
  }
  current_ = index;
  chunk_open_ = true;
  closed_at_ = batch_ = base_ + sizeof(ChunkHeader);
  chunk_end_ = base_ + options_.chunk_bytes - sizeof(CallHeader);
  return true;
}

// Publishes the end marker of the current chunk. Requires: the batch is flushed.
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
  if (path_->arrival != Arrival::kMapped) {
    published = write_image(transmitter, closed_at_, sizeof marker);
  }
  if (published.ok()) published = after_publication(closed_at_, 1);
  chunk_first_ = first;
  // offset_of(closed_at_) is now the first offset of the next chunk, which is not open yet.
  closed_at_ = batch_ = base_ + sizeof(ChunkHeader);
  return published;
}

ChannelSender::Progress ChannelSender::advance(Transmitter* transmitter) {
  if (chunk_open_) {
    if (!ring_has_room(filled_ + 1, transmitter)) {
      if (!failure_.ok()) return Progress::kFailed;
      // The end marker contains the number of newly inserted chunks: obtain them before ending.
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

// Writes the `bytes` bytes at `at` of the image to the corresponding place of the remote chunk.
absl::Status ChannelSender::write_image(Transmitter* transmitter, const std::byte* at,
                                        uint64_t bytes) {
  return write_into_chunk(transmitter, *unit_, static_cast<uint64_t>(at - unit_->get_buffer()),
                          bytes, at);
}
// Writes bytes [offset, offset + bytes) of `memory` to the place of the remote chunk that
// corresponds to `at`.
absl::Status ChannelSender::write_into_chunk(Transmitter* transmitter, RDMAMemory& memory,
                                             uint64_t offset, uint64_t bytes, const std::byte* at) {
  return transmitter->write(
      memory, offset, bytes,
      chunks_[current_].remote.slice(static_cast<uint64_t>(at - base_), bytes));
}

// Writes [first, next) of the image to the remote chunk. Requires: all headers are in the image.
absl::Status ChannelSender::write_batch(Transmitter* transmitter, std::byte* first,
                                        std::byte* next) {
  const auto bytes = static_cast<uint64_t>(next - first);
  if (path_->arrival == Arrival::kEvent) return write_image(transmitter, first, bytes);
  constexpr uint64_t kWord = sizeof(CallHeader);
  // Write everything behind the publishing word, including the word of zeros at `next`; then write
  // the publishing word.
  if (absl::Status body = write_image(transmitter, first + kWord, bytes); !body.ok()) return body;
  return write_image(transmitter, first, kWord);
}

// Returns the position of the next call in the image after a publication that ended at `next`. With
// Arrival::kPolled the transfer may still have to read the word of zeros at `next`. So that word
// stays zero in the image: the next call is built behind it, and base_ and chunk_end_ advance by
// one word, so that the call still goes to the word's place in the chunk. The other arrival modes
// transfer no zeros.
std::byte* ChannelSender::leave_zeros(std::byte* next) {
  if (path_->arrival != Arrival::kPolled) return next;
  base_ += sizeof(CallHeader);
  chunk_end_ += sizeof(CallHeader);
  return next + sizeof(CallHeader);
}

// Notifies the receiver of a publication of `words` 8-byte words that ends at `next`. Mapped and
// polled arrival: only if the receiver sleeps. Event: always.
absl::Status ChannelSender::after_publication(const std::byte* next, uint64_t words) {
  switch (path_->arrival) {
    case Arrival::kMapped: {
      std::atomic<uint32_t>& state = path_->sleeping->state;
      if (path_->fence) full_fence();
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
      // sleep_protocol.h: the sender stores the published count, then loads the receiver's state.
      WakeState& wake = control_->wake;
      // End markers count too: an end marker may be the last publication for a long time, and the
      // receiver must be woken for it.
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
  if (path_->arrival != Arrival::kMapped) {
    publications_ = publications_ + 1;
    status = write_batch(path_->transmitter, first, next);
  }
  if (status.ok()) status = after_publication(next, static_cast<uint64_t>(next - first) / 8);
  if (status.ok() && path_->arrival != Arrival::kPolled) [[likely]]
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

bool ChannelSender::build(const OutgoingCallView& call, bool batch) {
  const auto total = static_cast<ptrdiff_t>(call.total());
  const auto most = static_cast<ptrdiff_t>(options_.flush_bytes);
  const bool ages = options_.flush_age.count() != 0;
  const bool joins = closed_at_ != batch_;
  // A call that fills a batch by its own length is published without a batch word.
  const bool begins =
      !joins && batch && total < most && chunk_end_ - closed_at_ >= kBatchWord + total;
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
  return !batch || single_ != 0 || closed_at_ - batch_ - kBatchWord >= most ||
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
  if (path_->arrival != Arrival::kMapped) status = write_batch(transmitter, first, closed_at_);
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
  const bool mapped = path_->arrival == Arrival::kMapped;
  std::byte* const at = mapped ? base_ : unit_->get_buffer();
  auto* const header = reinterpret_cast<ChunkHeader*>(at);
  const auto set = [](uint64_t& field, uint64_t value) {
    std::atomic_ref(field).store(value, std::memory_order_relaxed);
  };
  set(header->producer.first, chunk_first_);
  set(header->producer.last, offset_of(batch_));
  set(header->producer.filled, filled ? 1 : 0);
  return mapped ? absl::OkStatus()
                : write_into_chunk(transmitter, *unit_, 0, sizeof(uint64_t) * 3, base_);
}

CallResult ChannelSender::flush() {
  if (window_open_ && batch_is_empty()) return {};
  if (window_open_ && publishes_by_store_ && departures_.empty()) return publish_batch(position_);
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (!window_open_) return {};  // the slow path that closed the window has flushed the batch
  close_window();
  absl::Status status = flush_batch(path_->transmitter);
  open_window();
  return status;
}

// Publishes the batch, which ends at `next`, by storing its batch word. Requires: the batch is not
// empty, and there is room for one word at `next`.
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

// Called when a batched call does not fit before batch_end_. The usual case: the call joins the
// batch, which is then published. All other cases take send_slowly().
CallResult ChannelSender::batch_slowly(const OutgoingCallView& call, WhenNoRoom when) {
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
  absl::Status status = write_producer(path_->transmitter, false);
  if (!status.ok()) fail(status);
  open_window();
  return status;
}

bool ChannelSender::batch_is_old() const {
  return options_.flush_age.count() != 0 && window_open_ && !batch_is_empty() &&
         std::chrono::steady_clock::now() - batch_since_ >= options_.flush_age;
}

// ---- The slow path ------------------------------------------------------------------------------

CallResult ChannelSender::send_slowly(const OutgoingCallView& call, WhenNoRoom when, bool batch,
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
    // A sender that defers further calls also moves deferred calls into chunks. Otherwise the
    // drainer might never catch up with it.
    if (deferring_ && when.defer && !obtaining_ && path_.has_value() && !link_.inside_call() &&
        drain_deferred(path_->transmitter) == Progress::kFailed) {
      return failure_;
    }
    if (!deferring_) {
      Progress progress = Progress::kObtain;
      if (has_room(total)) {
        progress = Progress::kDone;
      } else if (!chunks_.empty()) {
        progress = advance(path_->transmitter);
        if (progress == Progress::kFailed) return failure_;
      }
      if (progress == Progress::kDone) {
        const bool leaves = build(call, batch);
        if (transmitted != nullptr) departures_.push_back(transmitted);
        absl::Status status;
        if (leaves) status = flush_batch(path_->transmitter);
        open_window(batch);
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
      // Publish the batch: it must not wait for room for this call.
      if (!chunks_.empty()) {
        if (absl::Status flushed = flush_batch(path_->transmitter); !flushed.ok()) return flushed;
      }
    }
    const bool inside = link_.inside_call();
    if (when.defer || obtainable || (inside && when.policy == WhenFull::kRetry)) {
      if (backlog_->bytes() + total <= options_.deferred_bytes) {
        if (absl::Status appended = backlog_->append(call, transmitted); !appended.ok())
          return appended;
        ++counts_.deferred;
        counts_.deferred_bytes_high_water =
            std::max(counts_.deferred_bytes_high_water, backlog_->bytes());
        if (!std::exchange(deferring_, true)) link_.drain_later();
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
    const uint64_t deferred = backlog_->bytes();
    lock.unlock();
    static_cast<void>(link_.wait([&] { return look_for_room(deferred); }, kForever));
    lock.lock();
  }
}

bool ChannelSender::look_for_room(uint64_t deferred_before) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok() || ended_ || window_open_) return true;
  if (absl::Status status = link_.status(); !status.ok()) {
    fail(status);
    return true;
  }
  if (deferring_) {
    if (!path_.has_value() || obtaining_) return false;  // the drainer is obtaining chunks
    switch (drain_deferred(path_->transmitter)) {
      case Progress::kDone:
      case Progress::kFailed:
        return true;
      default:
        return backlog_->bytes() < deferred_before;
    }
  }
  // The drainer has sent all deferred calls: the wait ends, whether or not another chunk is free.
  if (deferred_before != 0) return true;
  return chunks_.empty() || ring_has_room(filled_ + (chunk_open_ ? 1 : 0), path_->transmitter) ||
         !failure_.ok() || (chunk_open_ && chunks_.size() < limit_);
}

// ---- Statistics ---------------------------------------------------------------------------------

uint64_t ChannelSender::accepted_bytes() const {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) return backlog_->bytes();
  // The batch word counts as soon as there is a call behind it.
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
