#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/error.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/backlog.h"

namespace cariama {
namespace {

// Maximum number of chunk images of one channel: the one being filled, and those with transfers in
// flight.
constexpr size_t kStagingUnits = 8;

}  // namespace

// ---- Set-up and growth --------------------------------------------------------------------------

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

// Meets the peer if that has not been done, and obtains chunks. Requires that `lock` is held;
// releases it while it waits, and holds it again on return. OK: there are more chunks now, or
// another thread has finished obtaining them, or limit_ was lowered to the present number of
// chunks. The caller must re-check.
//
// Both ends derive the members of the ring from the same two records: the first grant, and the end
// markers, which report all later grants in the order of granting. So a request may take any number
// of grants, and may end early, without any difference between the two rings.
absl::Status ChannelSender::obtain(std::unique_lock<std::mutex>& lock, Transmitter* transmitter) {
  if (absl::Status valid = check_options(options_); !valid.ok()) return valid;
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
                      peer_ + " did not grant chunks in time");
  }
  obtaining_ = true;
  const Deadline deadline = deadline_after(options_.timeout);
  const auto count = static_cast<uint32_t>(
      chunks_.empty() ? options_.chunks_per_request
                      : std::min<size_t>(chunks_.size(), limit_ - chunks_.size()));
  const bool meet = !path_.has_value();
  lock.unlock();
  absl::StatusOr<ChannelLink::Path> path = absl::UnknownError("");
  std::vector<Chunk> more;
  size_t first_grant = 0;  // number of chunks in the first of the grants
  std::unique_ptr<CircularAllocator> staging;
  absl::Status status;
  if (meet) {
    path = link_.open(deadline);
    status = path.status();
    if (status.ok() && path->arrival != Arrival::kMapped) {
      // Arrival::kPolled: each publication of 8 bytes or more leaves 8 bytes of zeros in the image.
      auto made =
          CircularAllocator::create(path->allocator, {.unit_bytes = 2 * options_.chunk_bytes,
                                                      .initial_units = 2,
                                                      .max_units = kStagingUnits,
                                                      .growth = Growth::kLinear});
      if (made.ok()) {
        staging = *std::move(made);
      } else {
        path = status = made.status();  // the next attempt opens the path again
      }
    }
  }
  uint64_t grants = 0;
  while (status.ok() && more.size() < count) {
    absl::StatusOr<std::vector<ChannelLink::Chunk>> grant =
        link_.obtain(count - static_cast<uint32_t>(more.size()), deadline);
    status = grant.status();
    if (!status.ok()) break;
    for (const ChannelLink::Chunk& chunk : *grant) more.push_back({chunk.remote, chunk.mapped});
    if (++grants == 1) first_grant = grant->size();
  }
  lock.lock();
  obtaining_ = false;
  close_window();  // incoming calls that this thread ran while it waited may have opened it
  if (path.ok()) {
    path_ = *std::move(path);
    staging_ = std::move(staging);
    control_ = reinterpret_cast<ChannelControl*>(path_->control.get_buffer());
    if (path_->arrival == Arrival::kMapped && !path_->fence) {
      sleeping_ = &path_->sleeping->state;
      publishes_by_store_ = options_.flush_age.count() == 0;
    }
  }
  grant_pending_ = path_.has_value() && absl::IsDeadlineExceeded(status);
  counts_.requests += grants;
  counts_.chunks += more.size();
  if (!more.empty()) {
    const bool first = chunks_.empty();
    const auto end_of_first = more.begin() + static_cast<ptrdiff_t>(first ? first_grant : 0);
    chunks_.insert(chunks_.begin(), more.begin(), end_of_first);
    // The receiver inserts the chunks of later grants behind the current chunk in the order of
    // granting: behind those that the current chunk's end marker is to report already.
    chunks_.insert(chunks_.begin() + current_ + 1 + inserted_, end_of_first, more.end());
    inserted_ += static_cast<uint32_t>(more.end() - end_of_first);
    if (first && !open_chunk(0, transmitter != nullptr ? transmitter : path_->transmitter)) {
      return failure_;
    }
  }
  if (!status.ok()) {
    // The receiver has no memory for more chunks: continue with those that there are.
    if (!chunks_.empty() && absl::IsResourceExhausted(status)) {
      limit_ = static_cast<uint32_t>(chunks_.size());
      return absl::OkStatus();
    }
    if (absl::IsUnavailable(status)) fail(status);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace cariama
