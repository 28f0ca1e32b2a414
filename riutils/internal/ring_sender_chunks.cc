#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"
#include "riutils/internal/ring_sender.h"

namespace cariama::internal {
namespace {

// After a request that found no memory for more chunks, the next one is sent after the channel's
// timeout, but within these limits.
constexpr std::chrono::milliseconds kLeastPause{10};
constexpr std::chrono::milliseconds kMostPause{1000};

}  // namespace

// ---- Requests -----------------------------------------------------------------------------------

absl::Status RingSender::setup() {
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  if (absl::Status refused = refusal(); !refused.ok()) return refused;
  if (!chunks_.none()) return absl::OkStatus();
  if (link_.inside_call()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a messenger to " + peer_ + " cannot be set up inside a call",
                      "set it up before");
  }
  return await_chunks(lock, 0);
}

void RingSender::want_chunks(uint64_t bytes) {
  if (state_ == ChannelState::kUnopened) enter(ChannelState::kOpening);
  chunks_.want(bytes);
}

absl::StatusOr<bool> RingSender::poll_requests(Lock& lock, uint64_t bytes) {
  if (in_link_) return false;
  absl::Status status = check_options(options_);
  // An answer that is outstanding is taken, also if no call wants its chunks any more.
  while (status.ok() && (!chunks_.has_wanted() || chunk_asked_)) {
    if (state_ == ChannelState::kFailed) return failure_;
    const bool opens = writer_ == nullptr;
    // While an answer is outstanding, obtain() ignores its arguments.
    const SenderChunks::Request request = chunks_.next_request();
    std::optional<absl::StatusOr<ChannelLink::Path>> path;
    std::optional<absl::StatusOr<std::vector<ChannelLink::Chunk>>> grant;
    in_link_ = true;
    try {
      // Before the request is sent: take_grant() and end_chunk() do not allocate.
      if (!chunk_asked_) chunks_.reserve(request.count);
      lock.unlock();
      if (opens) {
        path = link_.open();
      } else {
        grant = link_.obtain(request.count, request.bytes);
      }
      lock.lock();
      chunk_asked_ = !opens && !grant.has_value();
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      status = exception_error(error, "requesting chunks from " + peer_,
                               absl::InternalError("requesting chunks from " + peer_));
    }
    in_link_ = false;
    if (!status.ok()) break;
    if (path.has_value()) {
      status = path->ok() ? take_path(**path) : path->status();
    } else if (grant.has_value()) {
      status = grant->status();
      if (status.ok()) take_grant(**std::move(grant));
    } else {
      // The chunks of the answer cannot be mapped now: continue with those that can. The answer is
      // still outstanding.
      if (link_.unmapped().ok() || chunks_.lacks(bytes)) return false;
      grow_later();
      return true;
    }
  }
  if (status.ok()) return true;
  chunks_.want_no_more();
  // The receiver has no memory for more chunks now: continue with the chunks that were granted.
  if (absl::IsResourceExhausted(status) && !chunks_.lacks(bytes)) {
    grow_later();
    return true;
  }
  return status;
}

void RingSender::grow_later() {
  chunks_.limit_until(std::chrono::steady_clock::now() +
                      std::clamp(options_.timeout, kLeastPause, kMostPause));
}

absl::Status RingSender::take_path(const ChannelLink::Path& path) {
  auto writer = ChunkWriter::create(link_, path, options_.chunk_bytes, peer_);
  if (!writer.ok()) return writer.status();  // the next attempt opens the path again
  writer_ = *std::move(writer);
  path_ = path;
  if (path_->arrival == Arrival::kMapped && !path_->fence) doorbell_ = path_->doorbell;
  return absl::OkStatus();
}

void RingSender::take_grant(std::vector<ChannelLink::Chunk> grant) {
  ++counts_.requests;
  counts_.chunks += grant.size();
  for (const ChannelLink::Chunk& chunk : grant) counts_.chunk_bytes += chunk.bytes();
  trace_instant("riutils", "chunks granted", "chunks", grant.size());
  if (!chunks_.take(std::move(grant))) return;
  if (state_ == ChannelState::kOpening) {
    enter(backlog_.empty() ? ChannelState::kOpen : ChannelState::kBacklogged);
  } else if (backlog_.empty()) {
    chunks_.want_no_more();  // no call needs further chunks: the channel is closing or has failed
  }
}

absl::StatusOr<bool> RingSender::ask_for_chunks(Lock& lock, uint64_t bytes) {
  want_chunks(bytes);
  absl::StatusOr<bool> granted = poll_requests(lock, bytes);
  close_window();  // incoming calls that this thread ran while it connected may have opened it
  if (absl::IsUnavailable(granted.status())) fail(granted.status());
  return granted;
}

absl::Status RingSender::await_chunks(Lock& lock, uint64_t bytes) {
  absl::StatusOr<bool> granted = ask_for_chunks(lock, bytes);
  if (!granted.ok() || *granted) return granted.status();
  const TraceScope trace("riutils", "stall: chunks requested", "chunks", chunks_.wanted());
  const auto look = [&] {
    Lock again(mutex_);
    // The drain thread may have taken the answer, and it may have been an error.
    if (chunks_.lacks(bytes) && refusal().ok()) want_chunks(bytes);
    granted = poll_requests(again, bytes);
    return !granted.ok() || *granted;
  };
  const bool ended =
      unlocked(lock, [&] { return link_.wait(look, deadline_after(options_.timeout)); });
  if (!ended) {
    granted = make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                         peer_ + " did not grant chunks in time",
                         "let its process run, or raise timeout");
    if (!in_link_ && !link_.unmapped().ok()) granted = link_.unmapped();
  }
  close_window();  // incoming calls that this thread ran while it waited may have opened it
  if (absl::IsUnavailable(granted.status())) fail(granted.status());
  return granted.status();
}

// ---- Chunks -------------------------------------------------------------------------------------

RingSender::Progress RingSender::count_consumed(Transmitter* transmitter) {
  const absl::StatusOr<bool> updated =
      consumed_.update(transmitter, *path_, chunks_.ring(), chunks_.is_open() ? 1 : 0, peer_);
  if (!updated.ok()) {
    fail(updated.status());
    return Progress::kFailed;
  }
  return *updated ? Progress::kDone : Progress::kTransfers;
}

RingSender::Progress RingSender::find_free_chunk(Transmitter* transmitter) {
  // The end marker of the open chunk inserts an unreported chunk behind it, so that this chunk is
  // the next one.
  const ChunkRing<ChannelLink::Chunk>& ring = chunks_.ring();
  if (chunks_.is_open() && chunks_.has_unreported()) {
    // The receiver frees the small chunk that is replaced. So no READ of its header may be in
    // flight.
    if (!chunks_.is_small() || !consumed_.is_reading()) return Progress::kDone;
    transmitter->queue().progress();
    return consumed_.is_reading() ? Progress::kTransfers : Progress::kDone;
  }
  const uint64_t begun = ring.ended() + (chunks_.is_open() ? 1 : 0);
  const auto has_free = [&] {
    return begun - std::max(consumed_.value(), ring.replaced()) < ring.size();
  };
  if (has_free()) return Progress::kDone;
  const Progress counted = count_consumed(transmitter);
  if (counted != Progress::kDone) return counted;
  return has_free() ? Progress::kDone : Progress::kFull;
}

RingSender::Progress RingSender::advance(Transmitter* transmitter, uint64_t bytes) {
  if (state_ == ChannelState::kFailed) return Progress::kFailed;
  const Progress found = find_free_chunk(transmitter);
  if (found == Progress::kFailed || found == Progress::kTransfers) return found;
  if (chunks_.is_open()) {
    // The end marker reports the chunks that were granted: request them before it is written.
    if (found == Progress::kFull && (chunks_.may_grow() || chunks_.lacks(bytes)))
      return Progress::kGrant;
    absl::Status ended = flush_batch(transmitter, "publish: chunk is full");
    if (ended.ok()) ended = end_chunk(transmitter, 0);
    if (!ended.ok()) {
      fail(ended);
      return Progress::kFailed;
    }
  }
  if (found == Progress::kFull) return Progress::kFull;
  const absl::StatusOr<bool> begun = writer_->begin(transmitter, chunks_.ring().current());
  if (!begun.ok()) {
    fail(begun.status());
    return Progress::kFailed;
  }
  if (!*begun) return Progress::kTransfers;
  chunks_.open();
  open_bytes_ = chunks_.ring().current().bytes();
  closed_at_ = batch_ = writer_->base() + sizeof(ChunkHeader);
  return Progress::kDone;
}

RingSender::Progress RingSender::make_room(Lock& lock, uint64_t bytes) {
  Progress progress = Progress::kDone;
  const auto step = [&] {
    progress = Progress::kDone;
    // A call that is too long for the small first chunk goes to the chunk behind it.
    while (progress == Progress::kDone && !has_room(bytes)) {
      progress = chunks_.none() ? Progress::kGrant : advance(path_->transmitter, bytes);
    }
    return progress != Progress::kTransfers;
  };
  if (step()) return progress;
  const TraceScope trace("riutils", "stall: transfers");
  const auto look = [&] {
    const std::lock_guard again(mutex_);
    close_window();  // the wait hook may run tasks that send
    return !refusal().ok() || !backlog_.empty() || step();
  };
  const bool ended =
      unlocked(lock, [&] { return wait_until(look, deadline_after(options_.timeout)); });
  if (!ended) {
    fail(make_error(absl::StatusCode::kUnavailable, ErrorScope::kLink,
                    "transfers to " + peer_ + " did not complete in time",
                    peer_remedy(PeerRemedy::kUnreachable)));
  }
  return state_ == ChannelState::kFailed ? Progress::kFailed : progress;
}

// Publishes the end marker of the current chunk. Requires: the batch is flushed.
absl::Status RingSender::end_chunk(Transmitter* transmitter, uint8_t flags) {
  const uint64_t bytes = chunks_.ring().current().bytes();
  const uint64_t first = offset_of(closed_at_);
  // The marker is published behind the calls, and counts itself. If this throws (no memory),
  // nothing is published: the chunk stays open, and is ended later.
  absl::Status published = writer_->end(transmitter, chunks_.end_marker(flags), closed_at_,
                                        produced_at(closed_at_) + sizeof(CallHeader));
  chunks_.end_chunk(flags);
  if (chunks_.ring().replaced() == chunks_.ring().ended()) {
    counts_.chunk_bytes -= bytes;
    ++counts_.chunks_replaced;
  }
  ++counts_.chunks_filled;
  chunk_first_ = first;
  // offset_of(closed_at_) is now the first offset of the next chunk, which is not open yet.
  closed_at_ = batch_ = writer_->base() + sizeof(ChunkHeader);
  return published;
}

// ---- Deferred calls -----------------------------------------------------------------------------

RingSender::Progress RingSender::drain_backlog(Transmitter* transmitter) {
  while (!backlog_.empty()) {
    if (chunks_.none()) return Progress::kGrant;
    Backlog::Run run;
    const ptrdiff_t room = chunks_.is_open() ? chunk_end() - closed_at_ - writer_->copy_front() : 0;
    if (room > 0) run = backlog_.front(static_cast<uint64_t>(room));
    if (run.bytes == 0) {
      const Progress progress = advance(transmitter, backlog_.front_bytes());
      if (progress != Progress::kDone) return progress;
      continue;
    }
    std::byte* const next = closed_at_ + writer_->copy_front() + run.bytes;
    publications_ = publications_ + 1;
    const TraceScope trace("riutils", "publish: deferred calls", "bytes", run.bytes);
    begin_arrows(run, closed_at_);
    absl::Status status = writer_->publish_copy(transmitter, run, closed_at_, produced_at(next));
    closed_at_ = batch_ = writer_->resume(next);
    if (!status.ok()) {
      fail(status);
      return Progress::kFailed;
    }
    if (backlog_.pop(run)) must_tell_waiters_.store(true, std::memory_order_release);
  }
  if (state_ == ChannelState::kBacklogged) enter(ChannelState::kOpen);
  return Progress::kDone;
}

void RingSender::wake_drain_thread() {
  if (drain_requested_) return;
  link_.drain_later();  // may throw: then the next deferred call asks again
  drain_requested_ = true;
}

bool RingSender::drain(const std::function<Transmitter*()>& transmitter_of) {
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  bool asked_again = false;
  for (;;) {
    const bool opens = state_ == ChannelState::kOpening && !backlog_.empty();
    if (!opens && state_ != ChannelState::kBacklogged && state_ != ChannelState::kClosing) {
      // The first grant may have had room for all deferred calls. The requests for the other chunks
      // of chunks_per_request go on. Once only: without descriptors the last answer is not taken
      // now.
      if (state_ == ChannelState::kOpen && chunks_.lacks_first() && !asked_again) {
        asked_again = true;
        const absl::StatusOr<bool> granted = poll_requests(lock, 0);
        if (granted.ok() && !*granted) return false;
        if (absl::IsUnavailable(granted.status())) fail(granted.status());
        continue;  // a call may have been deferred meanwhile
      }
      drain_requested_ = false;
      return true;
    }
    if (absl::Status status = link_.status(); !status.ok()) {
      fail(status);
      continue;
    }
    Transmitter* transmitter = nullptr;
    if (path_.has_value() && path_->arrival != Arrival::kMapped) {
      transmitter = transmitter_of();
      if (transmitter == nullptr) return false;
    }
    const Progress progress =
        state_ == ChannelState::kClosing ? finish(transmitter) : drain_backlog(transmitter);
    if (progress == Progress::kDone || progress == Progress::kFailed) continue;
    if (progress != Progress::kGrant) return false;
    const uint64_t needed = backlog_.front_bytes();
    want_chunks(needed);
    const absl::StatusOr<bool> granted = poll_requests(lock, needed);
    if (granted.ok()) {
      if (!*granted) return false;
      continue;
    }
    if (backlog_.empty()) continue;  // no call needs the chunks any more
    if (absl::IsResourceExhausted(granted.status()) || absl::IsDeadlineExceeded(granted.status())) {
      return false;  // the receiver's process may grant chunks later
    }
    fail(granted.status());
  }
}

// ---- Shutdown -----------------------------------------------------------------------------------

RingSender::Progress RingSender::finish(Transmitter* transmitter) {
  if (const Progress drained = drain_backlog(transmitter); drained != Progress::kDone) {
    return drained;
  }
  if (chunks_.none()) {
    // The receiver's process may have created the channel already.
    if (chunk_asked_ || in_link_) return Progress::kGrant;
  } else {
    if (!chunks_.is_open()) {
      if (const Progress opened = advance(transmitter, 0); opened != Progress::kDone) return opened;
    }
    absl::Status status = flush_batch(transmitter, "publish: shutdown");
    if (status.ok()) status = end_chunk(transmitter, EndMarker::kShutdown);
    if (!status.ok()) {
      fail(status);
      return Progress::kFailed;
    }
    counts_.chunk_bytes = 0;
  }
  enter(ChannelState::kClosed);
  return Progress::kDone;
}

absl::Status RingSender::shutdown(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    close_window();
    fail_transmitted();
    if (state_ != ChannelState::kClosing && state_ != ChannelState::kClosed &&
        state_ != ChannelState::kFailed) {
      enter(ChannelState::kClosing);
    }
  }
  const auto look = [&] {
    try {
      return look_for_end();
    } catch (const std::bad_alloc&) {  // is tried again, after the deadline by the drain thread
      return false;
    }
  };
  const bool ended = look() || link_.wait(look, deadline);
  const std::lock_guard lock(mutex_);
  if (state_ == ChannelState::kFailed) return failure_;
  if (state_ == ChannelState::kClosing) wake_drain_thread();
  if (ended) return absl::OkStatus();
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    peer_ + " did not make room for " + std::to_string(backlog_.bytes()) +
                        " bytes of calls in time",
                    "let it process its calls");
}

bool RingSender::end_if_quiet() {
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  // A grant that no call waits for any more is taken, so that the end marker reports its chunks.
  if (state_ == ChannelState::kOpen && waits_ == 0 && chunk_asked_ && !in_link_) {
    static_cast<void>(poll_requests(lock, 0));
  }
  if (state_ != ChannelState::kOpen || waits_ != 0 || chunk_asked_ || in_link_) return false;
  close_window();
  if (!chunks_.is_open() && advance(path_->transmitter, 0) != Progress::kDone) return false;
  enter(ChannelState::kClosing);
  try {
    return finish(path_->transmitter) == Progress::kDone;
  } catch (const std::bad_alloc&) {  // the drain thread ends the channel
    wake_drain_thread();
    return false;
  }
}

bool RingSender::look_for_end() {
  const TellWaiters tell(*this);
  Lock lock(mutex_);
  if (state_ != ChannelState::kClosing) return true;
  const Progress progress = finish(path_.has_value() ? path_->transmitter : nullptr);
  if (state_ != ChannelState::kClosing) return true;
  if (absl::Status status = link_.status(); !status.ok()) {
    fail(status);
    return true;
  }
  if (progress == Progress::kGrant) {
    if (backlog_.empty()) return true;
    if (writer_ != nullptr) {
      want_chunks(backlog_.front_bytes());
      // The drain thread repeats the request. If the error is permanent, it fails the channel.
      static_cast<void>(poll_requests(lock, backlog_.front_bytes()));
    }
  }
  return state_ != ChannelState::kClosing;
}

bool RingSender::may_have_lost_calls() const {
  const std::lock_guard lock(mutex_);
  return state_ == ChannelState::kFailed ||
         (path_.has_value() && control_of(*path_).consumed_chunks.load(std::memory_order_acquire) ==
                                   ChannelControl::kBroken);
}

bool RingSender::is_released() const {
  const std::lock_guard lock(mutex_);
  if (consumed_.is_reading()) return false;
  if (state_ == ChannelState::kFailed || state_ == ChannelState::kUnopened) return true;
  if (state_ != ChannelState::kClosed) return false;
  if (chunks_.ring().ended() == 0) return true;
  const uint64_t consumed = control_of(*path_).consumed_chunks.load(std::memory_order_acquire);
  return consumed == ChannelControl::kBroken || consumed >= chunks_.ring().ended();
}

}  // namespace cariama::internal
