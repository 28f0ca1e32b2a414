#include "riutils/internal/ring_sender.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// doorbell_ points here if every publication has to take the slow path.
const Doorbell& always_armed() {
  static Doorbell doorbell;
  [[maybe_unused]] static const uint32_t expected = doorbell.arm();
  return doorbell;
}

absl::Status no_room_error(const MessengerOptions& options, const std::string& peer) {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                    peer + " is behind: none of its chunks (" + std::to_string(options.max_chunks) +
                        " at most, of " + std::to_string(options.chunk_bytes) +
                        " bytes) has room, and the call cannot be deferred",
                    "let it process its calls, or raise max_chunks or deferred_bytes");
}

}  // namespace

RingSender::RingSender(ChannelLink& link, const MessengerOptions& options, std::string peer)
    : ChannelSender(&always_armed()),
      link_(link),
      options_(options),
      peer_(std::move(peer)),
      no_room_(no_room_error(options, peer_)),
      chunks_(options_),
      backlog_(link, options.chunk_bytes) {}

RingSender::~RingSender() {
  {
    const std::lock_guard lock(mutex_);
    close_window();
    fail(error_or_code(absl::StatusCode::kCancelled, [&] {
      return make_error(absl::StatusCode::kCancelled, ErrorScope::kOperation,
                        "the channel to " + peer_ + " was destroyed before this call ended",
                        "shut the messenger down before, and wait for its calls");
    }));
    fail_transmitted();
  }
  fail_lost_calls();
  // The READ in flight refers to consumed_. It completes or fails.
  if (consumed_.is_reading()) consumed_.wait(*path_->transmitter);
}

// ---- The state ----------------------------------------------------------------------------------

void RingSender::enter(ChannelState to) {
  assert(may_follow(state_, to));
  state_ = to;
}

void RingSender::fail(absl::Status status) {
  if (state_ == ChannelState::kFailed || state_ == ChannelState::kClosed) return;
  const bool was_opened = state_ != ChannelState::kUnopened;
  enter(ChannelState::kFailed);
  failure_ = std::move(status);
  failed_.store(true, std::memory_order_release);
  must_tell_waiters_.store(true, std::memory_order_release);
  if (was_opened) link_.failed();
  backlog_.fail(failure_);
  // While the window is open, the owner uses transmitted_ without mutex_, and fails them itself.
  if (!window_open_) fail_transmitted();
}

void RingSender::fail_transmitted() {
  if (state_ != ChannelState::kFailed || transmitted_.empty()) return;
  for (const EventReceiver& transmitted : transmitted_) transmitted.complete(failure_);
  transmitted_.clear();
  must_tell_waiters_.store(true, std::memory_order_release);
}

absl::Status RingSender::refusal() const {
  switch (state_) {
    case ChannelState::kFailed:
      return failure_;
    case ChannelState::kClosing:
    case ChannelState::kClosed:
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                        "the messenger to " + peer_ + " was shut down");
    default:
      return absl::OkStatus();
  }
}

absl::Status RingSender::not_set_up() const {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                    "the channel to " + peer_ + " is not set up yet, and " +
                        std::to_string(backlog_.bytes()) +
                        " bytes of calls are deferred until then",
                    "try again, or call setup() before, outside of calls");
}

void RingSender::peer_died() {
  const std::lock_guard lock(mutex_);
  if (writer_ != nullptr) writer_->peer_died();
}

void RingSender::close(const absl::Status& why) {
  const TellWaiters tell(*this);
  const std::lock_guard lock(mutex_);
  // Only the owner, which may be inside a call now, changes the other fields of the window. Its
  // next call takes the slow path, or its next publication does; there it finds the failure.
  fail(why);
  end_ = nullptr;
  batch_end_ = nullptr;
  if (writer_ != nullptr) writer_->peer_died();
}

void RingSender::tell_waiters() {
  if (!must_tell_waiters_.exchange(false, std::memory_order_acq_rel)) return;
  if (failed_.load(std::memory_order_acquire)) fail_lost_calls();
  link_.tell_waiters();
}

// A call that is noted before fail_lost_calls() looks is ended there. A call that is noted later
// finds failed_ set, and is refused: carries_awaited_ and the link's record of the call are
// written, and read, under a lock.
void RingSender::note_awaited(uint64_t awaited) {
  if (!carries_awaited_) {
    const std::lock_guard lock(mutex_);
    carries_awaited_ = true;
  }
  link_.carries(awaited);
}

void RingSender::fail_lost_calls() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != ChannelState::kFailed || !carries_awaited_) return;
  }
  link_.lost(failure_);  // failure_ does not change any more
}

// ---- The window ---------------------------------------------------------------------------------

void RingSender::close_window() {
  if (!window_open_) return;
  std::byte* const at = position_;
  closed_at_ = at;
  if (batch_ == nullptr) batch_ = closed_at_;
  if (batch_is_empty()) closed_at_ = batch_;  // discard the batch word of an empty batch
  end_ = at;
  batch_end_ = at;
  window_open_ = false;
}

void RingSender::open_window(bool batch) {
  if (state_ != ChannelState::kOpen || !chunks_.is_open() || single_ != 0) return;
  window_open_ = true;
  publishes_by_store_ = may_publish_by_store() && !trace_enabled();
  if (closed_at_ == batch_ && batch && options_.flush_age.count() == 0) {
    begin_batch(closed_at_);
    return;
  }
  position_ = closed_at_;
  batch_end_ = closed_at_;
  if (closed_at_ == batch_) {
    batch_ = nullptr;
    end_ = trace_enabled() ? closed_at_ : chunk_end();
  } else {
    end_ = closed_at_;
    // If batches age, every batched call takes the slow path, which reads the clock.
    if (options_.flush_age.count() == 0) set_batch_end();
  }
}

void RingSender::set_batch_end() {
  std::byte* const first = batch_ + kBatchWord;
  batch_end_ = first + std::min<ptrdiff_t>(options_.flush_bytes, chunk_end() - first);
}

void RingSender::begin_batch(std::byte* at) {
  if (chunk_end() - at > kBatchWord) {
    batch_ = at;
    position_ = at + kBatchWord;
    end_ = at;
    set_batch_end();
  } else {
    batch_ = nullptr;
    position_ = at;
    end_ = trace_enabled() ? at : chunk_end();
    batch_end_ = at;
  }
}

// ---- Publication --------------------------------------------------------------------------------

CallResult RingSender::published_slowly(std::byte* first, std::byte* next) {
  absl::Status status;
  try {
    status = failed_.load(std::memory_order_acquire)
                 ? failure_
                 : writer_->publish(path_->transmitter, first, next, produced_at(next));
  } catch (...) {  // no memory: the next call or flush() publishes this one
    const std::lock_guard lock(mutex_);
    close_window();
    batch_ = first;
    std::memcpy(&single_, first, sizeof single_);
    throw;
  }
  if (path_->arrival != Arrival::kMapped) publications_ = publications_ + 1;
  if (status.ok() && writer_->resumes_in_place()) [[likely]]
    return status;
  const TellWaiters tell(*this);
  const std::lock_guard lock(mutex_);
  close_window();
  if (!status.ok()) {
    fail(status);
    fail_transmitted();
  } else {
    closed_at_ = batch_ = writer_->resume(next);
    open_window();
  }
  return status;
}

bool RingSender::build(const OutgoingCall& call, bool batch) {
  const auto total = static_cast<ptrdiff_t>(call.total());
  const auto most = static_cast<ptrdiff_t>(options_.flush_bytes);
  const bool ages = options_.flush_age.count() != 0;
  const bool joins = closed_at_ != batch_;
  // A call that fills a batch by its own length is published without a batch word.
  const bool begins =
      !joins && batch && total < most && chunk_end() - closed_at_ >= kBatchWord + total;
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

void RingSender::begin_arrow(const std::byte* at) const {
  if (!trace_enabled()) [[likely]]
    return;
  trace_arrow_begin("riutils", "call", trace_arrow_id(link_.trace_stream(), offset_of(at)));
}

void RingSender::begin_arrows(const Backlog::Run& run, const std::byte* at) const {
  if (!trace_enabled() || writer_->copy_front() != 0) return begin_arrow(at);  // one batch
  const std::byte* const calls = run.memory->get_buffer() + run.offset;
  for (uint64_t offset = 0; offset < run.bytes;) {
    begin_arrow(at + offset);
    CallHeader header;
    std::memcpy(&header, calls + offset, sizeof header);
    offset += sizeof header + header.bytes();
  }
}

const char* RingSender::cause_unless_old(const char* cause) const {
  if (!trace_enabled() || options_.flush_age.count() == 0) return cause;
  const bool is_old = std::chrono::steady_clock::now() - batch_since_ >= options_.flush_age;
  return is_old ? "publish: batch is old" : cause;
}

absl::Status RingSender::flush_batch(Transmitter* transmitter, const char* cause) {
  if (batch_ == closed_at_) return absl::OkStatus();
  std::byte* const first = batch_;
  const TraceScope trace("riutils", single_ != 0 ? "publish: one call" : cause, "bytes",
                         static_cast<uint64_t>(closed_at_ - first));
  begin_arrow(first);
  store_word(closed_at_, 0);
  publish_word(
      first, single_ != 0
                 ? single_
                 : word_of(BatchWord::make(static_cast<size_t>(closed_at_ - first - kBatchWord))));
  // If this throws (no memory), nothing is published, and the batch is published later.
  absl::Status status = writer_->publish(transmitter, first, closed_at_, produced_at(closed_at_));
  publications_ = publications_ + 1;
  single_ = 0;
  closed_at_ = batch_ = writer_->resume(closed_at_);
  if (!status.ok()) {
    fail(status);
    return status;
  }
  if (transmitted_.empty()) return status;
  for (const EventReceiver& transmitted : transmitted_) transmitted.complete(absl::OkStatus());
  transmitted_.clear();
  must_tell_waiters_.store(true, std::memory_order_release);
  return status;
}

absl::Status RingSender::flush() {
  if (window_open_ && batch_is_empty()) return {};
  if (window_open_ && publishes_by_store_ && transmitted_.empty() &&
      !failed_.load(std::memory_order_acquire)) {
    return publish_batch(position_);
  }
  const TellWaiters tell(*this);
  const std::lock_guard lock(mutex_);
  if (state_ == ChannelState::kFailed) {
    close_window();
    fail_transmitted();
    return failure_;
  }
  if (!path_.has_value()) return {};  // no chunk, no batch
  // The window may be closed with a batch: a call that ran while setup() waited has begun the
  // batch, or an exception has left send_slowly().
  const bool was_open = window_open_;
  close_window();
  absl::Status status = flush_batch(path_->transmitter, cause_unless_old("publish: flush()"));
  if (was_open) open_window();
  return status;
}

// Publishes the batch, which ends at `next`, by storing its batch word. Requires: the batch is not
// empty, and there is room for one word at `next`.
CallResult RingSender::publish_batch(std::byte* next) {
  std::byte* const first = batch_;
  store_word(next, 0);
  publications_ = publications_ + 1;
  begin_batch(next);  // before the publication, as in send()
  publish_word(first, word_of(BatchWord::make(static_cast<size_t>(next - first - kBatchWord))));
  if (doorbell_->is_armed()) [[unlikely]] {
    return published_slowly(first, next);
  }
  return {};
}

// Handles the usual case: the call joins the batch, which is then published. Calls send_slowly() in
// all other cases.
CallResult RingSender::batch_slowly(const OutgoingCall& call, WhenNoRoom when) {
  std::byte* const at = position_;
  const auto total = static_cast<ptrdiff_t>(call.total());
  if (!window_open_ || !publishes_by_store_ || !transmitted_.empty() || call.id.value == 0 ||
      failed_.load(std::memory_order_acquire) || batch_is_empty() || chunk_end() - at < total) {
    EventReceiver nothing;
    return send_slowly(call, when, true, nothing);
  }
  call.write_behind_header(at + sizeof(CallHeader));
  store_word(at, word_of(call.header()));
  return publish_batch(at + total);
}

bool RingSender::batch_is_old() const {
  return options_.flush_age.count() != 0 && window_open_ && !batch_is_empty() &&
         std::chrono::steady_clock::now() - batch_since_ >= options_.flush_age;
}

// ---- The slow path ------------------------------------------------------------------------------

// Fetches the lines that the next call fills if it is as long as this one: the receiver's core read
// them last. Most callers that come here wait for the end of this call, so that fetching takes none
// of their time, and the next call is stored without waiting for its lines. The receiver polls the
// word at `next`, so that this line stays shared.
void RingSender::fetch_next(std::byte* next, size_t bytes) const {
  constexpr ptrdiff_t kMost = 8192;
  const ptrdiff_t size =
      std::min({static_cast<ptrdiff_t>(bytes + sizeof(CallHeader)), kMost, chunk_end() - next});
  const auto behind = reinterpret_cast<uintptr_t>(next) % kLine;
  for (auto at = static_cast<ptrdiff_t>(kLine - behind); at < size;
       at += static_cast<ptrdiff_t>(kLine)) {
    fetch_for_writing(next + at);
  }
}

// The fast path of send(), for a call of any form. Requires: the call fits into the window, and no
// completion object waits for the publication of its batch.
CallResult RingSender::send_in_window(const OutgoingCall& call, bool batch,
                                      const EventReceiver& transmitted) {
  std::byte* const at = position_;
  std::byte* const next = at + call.total();
  call.write_behind_header(at + sizeof(CallHeader));
  if (batch) {
    store_word(at, word_of(call.header()));
    position_ = next;
    return {};
  }
  store_word(next, 0);
  position_ = next;  // before the publication, as in send()
  publish_word(at, word_of(call.header()));
  if (doorbell_->is_armed()) {
    if (CallResult published = published_slowly(at, next); !published.ok()) return published;
  }
  if (publishes_by_store_) fetch_next(next, call.total());
  if (transmitted) {
    transmitted.complete(absl::OkStatus());
    link_.tell_waiters();
  }
  return {};
}

CallResult RingSender::send_slowly(const OutgoingCall& call, WhenNoRoom when, bool batch,
                                   EventReceiver& transmitted) {
  if (call.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this call is in a library that was loaded after the fabric "
                      "was created",
                      "load the library first");
  }
  const uint64_t total = call.total();
  if (call.awaited != 0) note_awaited(call.awaited);
  if (total > max_call_bytes(options_.chunk_bytes)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(total) + " bytes to " + peer_ +
                          " is longer than a chunk takes (" +
                          std::to_string(max_call_bytes(options_.chunk_bytes)) + " bytes)",
                      "raise chunk_bytes, or pass the data by call_buffer with Sync, Async or a "
                      "target");
  }
  if ((batch ? batch_end_ : end_) - position_ >= static_cast<ptrdiff_t>(total) &&
      !(batch && transmitted) && (call.awaited == 0 || !failed_.load(std::memory_order_acquire))) {
    return send_in_window(call, batch, transmitted);
  }
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  std::optional<Deadline> deadline;  // of the wait for room
  for (;;) {
    close_window();
    fail_transmitted();
    if (absl::Status refused = refusal(); !refused.ok()) return refused;
    const bool inside = link_.inside_call();
    // A sender that defers further calls also moves deferred calls into chunks. Otherwise the
    // drain thread might never empty the backlog.
    if (!backlog_.empty() && when.defer && !inside && writer_ != nullptr &&
        drain_backlog(path_->transmitter) == Progress::kFailed) {
      return failure_;
    }
    bool grows = false;
    if (backlog_.empty()) {
      const Progress progress = make_room(lock, total);
      if (progress == Progress::kFailed) return failure_;
      // While this thread waited, calls that it ran may have sent other calls or shut the channel
      // down.
      if (!backlog_.empty() || progress == Progress::kTransfers) continue;
      if (single_ != 0) {  // the publication of this call found no memory
        absl::Status flushed = flush_batch(path_->transmitter, "publish: one call");
        if (!flushed.ok()) return flushed;
        continue;
      }
      if (progress == Progress::kDone) {
        const bool leaves = build(call, batch);
        absl::Status status;
        if (leaves) {
          status =
              flush_batch(path_->transmitter, batch ? cause_unless_old("publish: batch is full")
                                                    : "publish: call that is not batched");
          if (status.ok() && transmitted) {
            transmitted.complete(status);
            must_tell_waiters_.store(true, std::memory_order_release);
          }
        } else if (transmitted) {
          transmitted_.push_back(std::move(transmitted));
        }
        open_window(batch);
        return status;
      }
      grows = progress == Progress::kGrant;
      if (grows && !inside && (!when.defer || chunks_.none())) {
        // The first chunks are requested here also for a call that does not wait for them: the
        // caller then gets the error of a destination that does not exist.
        absl::StatusOr<bool> granted = true;
        if (when.defers_first) {
          granted = ask_for_chunks(lock, total);
        } else if (absl::Status awaited = await_chunks(lock, total); !awaited.ok()) {
          granted = awaited;
        }
        if (!granted.ok()) {
          open_window();
          return granted.status();
        }
        if (*granted) continue;
      }
      // Publish the batch: it must not wait for room for this call.
      if (chunks_.is_open()) {
        absl::Status flushed = flush_batch(path_->transmitter, "publish: no room for a call");
        if (!flushed.ok()) return flushed;
      }
    }
    if (when.defer || grows || (inside && when.policy == WhenFull::kRetry)) {
      if (backlog_.bytes() + total <= options_.deferred_bytes) return defer(call, transmitted);
      if (grows && !inside) {
        if (absl::Status granted = await_chunks(lock, total); !granted.ok()) return granted;
        continue;
      }
    }
    if (inside || when.policy != WhenFull::kRetry) {
      // A failed receiver makes no room any more.
      if (absl::Status status = link_.status(); !status.ok()) {
        fail(status);
        return failure_;
      }
      ++counts_.refused;
      trace_instant("riutils", chunks_.none() ? "refuse: no chunk yet" : "refuse: no free chunk",
                    "bytes", total);
      open_window();
      return chunks_.none() ? not_set_up() : no_room_;
    }
    const uint64_t deferred = backlog_.bytes();
    const TraceScope trace("riutils",
                           deferred != 0 ? "stall: deferred calls" : "stall: no free chunk");
    if (!deadline.has_value()) {
      const std::chrono::milliseconds time = link_.retry_timeout();
      deadline = time.count() == 0 ? kForever : deadline_after(time);
    }
    const bool in_time = unlocked(
        lock, [&] { return link_.wait([&] { return look_for_room(deferred); }, *deadline); });
    if (!in_time) {
      close_window();  // incoming calls that this thread ran while it waited may have opened it
      ++counts_.refused;
      open_window();
      return no_room_in_time(peer_);
    }
  }
}

absl::Status RingSender::defer(const OutgoingCall& call, EventReceiver& transmitted) {
  if (absl::Status appended = backlog_.append(call, transmitted); !appended.ok()) return appended;
  ++counts_.deferred;
  trace_instant("riutils", chunks_.none() ? "defer: no chunk yet" : "defer: no free chunk", "bytes",
                call.total());
  counts_.deferred_bytes_high_water = std::max(counts_.deferred_bytes_high_water, backlog_.bytes());
  if (state_ == ChannelState::kUnopened) enter(ChannelState::kOpening);
  if (state_ == ChannelState::kOpen) enter(ChannelState::kBacklogged);
  wake_drain_thread();
  return absl::OkStatus();
}

bool RingSender::look_for_room(uint64_t deferred_before) {
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  if (!refusal().ok() || window_open_) return true;
  if (absl::Status status = link_.status(); !status.ok()) {
    fail(status);
    return true;
  }
  if (!backlog_.empty()) {
    if (writer_ == nullptr) return false;  // the drain thread sets the channel up
    switch (drain_backlog(path_->transmitter)) {
      case Progress::kDone:
      case Progress::kFailed:
        return true;
      case Progress::kGrant:
        want_chunks(backlog_.front_bytes());
        // The drain thread repeats the request. If the error is permanent, it fails the channel.
        static_cast<void>(poll_requests(lock, backlog_.front_bytes()));
        [[fallthrough]];
      default:
        return backlog_.bytes() < deferred_before;
    }
  }
  // All deferred calls were published: the wait ends, whether or not another chunk is free.
  if (deferred_before != 0 || chunks_.none()) return true;
  const Progress progress = find_free_chunk(path_->transmitter);
  return progress == Progress::kDone || progress == Progress::kFailed ||
         (progress == Progress::kFull && chunks_.is_open() && chunks_.may_grow());
}

// ---- Statistics ---------------------------------------------------------------------------------

ChannelState RingSender::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

absl::Status RingSender::failure() const {
  const std::lock_guard lock(mutex_);
  return state_ == ChannelState::kFailed ? failure_ : absl::OkStatus();
}

Arrival RingSender::arrival() const {
  const std::lock_guard lock(mutex_);
  return path_.has_value() ? path_->arrival : Arrival::kAuto;
}

uint64_t RingSender::accepted_bytes() const {
  const std::lock_guard lock(mutex_);
  if (writer_ == nullptr || writer_->base() == nullptr) return backlog_.bytes();
  // A batch word counts as accepted bytes as soon as there is a call behind it.
  const std::byte* at = closed_at_;
  if (window_open_) at = batch_ != nullptr && batch_is_empty() ? batch_ : position_;
  return offset_of(at) + backlog_.bytes();
}

MessengerStatistics RingSender::statistics() const {
  const std::lock_guard lock(mutex_);
  MessengerStatistics statistics = counts_;
  statistics.publications = publications_;
  statistics.pulls = consumed_.pulls();
  if (writer_ == nullptr) return statistics;
  statistics.wakes = writer_->wakes();
  statistics.events = writer_->events();
  const uint64_t pushed = control_of(*path_).consumed_chunks.load(std::memory_order_acquire);
  statistics.chunks_consumed =
      std::max(consumed_.value(), pushed <= chunks_.ring().ended() ? pushed : 0);
  return statistics;
}

}  // namespace cariama::internal
