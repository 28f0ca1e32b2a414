#include <algorithm>
#include <cstring>
#include <string>

#include "dtutils/error.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/backlog.h"

namespace cariama {

// ---- Deferred calls -----------------------------------------------------------------------------

// Moves deferred calls into chunks and publishes them. Returns kDone if none are left; the owner's
// next call then opens the window.
ChannelSender::Progress ChannelSender::drain_deferred(Transmitter* transmitter) {
  while (!backlog_->empty()) {
    if (chunks_.empty()) return Progress::kObtain;
    internal::Backlog::Run run;
    if (chunk_open_) run = backlog_->front(static_cast<uint64_t>(chunk_end_ - closed_at_));
    if (run.bytes == 0) {
      if (const Progress progress = advance(transmitter); progress != Progress::kDone) {
        return progress;
      }
      continue;
    }
    constexpr uint64_t kWord = sizeof(CallHeader);
    std::byte* const at = closed_at_;
    std::byte* const next = at + run.bytes;
    const std::byte* const from = run.memory->get_buffer() + run.offset;
    absl::Status status;
    store_word(next, 0);
    switch (path_->arrival) {
      case Arrival::kMapped: {
        std::memcpy(at + kWord, from + kWord, run.bytes - kWord);
        uint64_t header;
        std::memcpy(&header, from, sizeof header);
        publish_word(at, header);
        break;
      }
      case Arrival::kEvent:
        status = write_into_chunk(transmitter, *run.memory, run.offset, run.bytes, at);
        break;
      default:
        status = write_image(transmitter, next, kWord);
        if (status.ok() && run.bytes > kWord) {
          status = write_into_chunk(transmitter, *run.memory, run.offset + kWord, run.bytes - kWord,
                                    at + kWord);
        }
        if (status.ok()) status = write_into_chunk(transmitter, *run.memory, run.offset, kWord, at);
        break;
    }
    publications_ = publications_ + 1;
    if (status.ok()) status = after_publication(next, run.bytes / 8);
    closed_at_ = batch_ = leave_zeros(next);
    if (!status.ok()) {
      fail(status);
      return Progress::kFailed;
    }
    backlog_->pop(run);
  }
  deferring_ = false;
  return Progress::kDone;
}

bool ChannelSender::drain(const std::function<Transmitter*()>& transmitter_of) {
  std::unique_lock lock(mutex_);
  if (!deferring_) return true;
  if (absl::Status status = link_.status(); !status.ok()) {
    fail(status);
    return true;
  }
  while (deferring_) {
    Transmitter* transmitter = nullptr;
    if (path_.has_value() && path_->arrival != Arrival::kMapped) {
      transmitter = transmitter_of();
      if (transmitter == nullptr) return false;
    }
    const Progress progress = drain_deferred(transmitter);
    if (progress == Progress::kDone || progress == Progress::kFailed) return true;
    if (progress == Progress::kFull || obtaining_) return false;
    absl::Status obtained = obtain(lock, transmitter);
    if (!obtained.ok()) {
      if (!absl::IsResourceExhausted(obtained) && !absl::IsDeadlineExceeded(obtained)) {
        fail(obtained);
      }
      return !deferring_;
    }
  }
  return true;
}

// ---- The end ------------------------------------------------------------------------------------

absl::Status ChannelSender::shutdown(Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    close_window();
    if (ended_ || !failure_.ok()) {
      ended_ = true;
      return failure_;
    }
    if (!deferring_) {
      if (chunks_.empty()) {
        ended_ = true;
        return absl::OkStatus();
      }
      absl::Status status;
      if (chunk_open_) status = flush_batch(path_->transmitter);
      if (status.ok() && (chunk_open_ || advance(path_->transmitter) == Progress::kDone)) {
        status = end_chunk(path_->transmitter, EndMarker::kShutdown);
        ended_ = true;
      }
      if (!status.ok()) fail(status);
      if (ended_ || !failure_.ok()) continue;
    }
    const uint64_t deferred = backlog_->bytes();
    lock.unlock();
    const bool room = link_.wait([&] { return look_for_room(deferred); }, deadline);
    lock.lock();
    if (!room) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        peer_ + " did not make room for " + std::to_string(backlog_->bytes()) +
                            " bytes of calls in time",
                        "let it process its calls");
    }
  }
}

bool ChannelSender::is_released() const {
  const std::lock_guard lock(mutex_);
  if (!path_.has_value() || !failure_.ok()) return true;
  if (!ended_ || grant_pending_) return false;
  const uint64_t consumed = control_->consumed_chunks.load(std::memory_order_acquire);
  return consumed == ChannelControl::kBroken || consumed >= filled_;
}

}  // namespace cariama
