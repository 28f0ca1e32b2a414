#include "dtutils/fault/fault_receives.h"

#include <algorithm>

#include "dtutils/internal/validate.h"

namespace cariama::fault {

PostResult FaultReceives::post(std::span<const ReceiveRequest> requests, uint32_t depth,
                               uint32_t max_segments, bool may_delay) {
  PostResult result;
  for (const ReceiveRequest& request : requests) {
    result.error = internal::validate(request, max_segments);
    if (result.ok() && outstanding_ >= depth) result.error = PostError::kQueueFull;
    if (!result.ok()) break;
    uint64_t release = 0;
    if (may_delay &&
        core_.strikes(Fault::kReceiverNotReady, core_.options().receiver_not_ready, dice_)) {
      release = core_.random_release(dice_);
      core_.count(Fault::kReceiverNotReady);
    }
    receives_.push_back({.id = request.id,
                         .segments = {request.segments, request.segments + request.segment_count},
                         .release = release});
    ++outstanding_;
    ++result.posted;
  }
  return result;
}

std::vector<uint64_t> FaultReceives::forward(const InnerPost& inner_post, bool at_once) {
  std::vector<uint64_t> refused;
  while (forwarded_ < receives_.size()) {
    Receive& receive = receives_[forwarded_];
    if (!at_once && receive.release > core_.ticks()) break;
    const PostResult result =
        inner_post({.id = kTag | (first_ + forwarded_),
                    .segments = receive.segments.data(),
                    .segment_count = static_cast<uint32_t>(receive.segments.size())});
    if (result.error == PostError::kQueueFull) break;  // the next completion makes room
    ++forwarded_;
    if (!result.ok()) {
      refused.push_back(receive.id);
      receive.done = true;
      --outstanding_;
    }
  }
  drop_done();
  return refused;
}

std::optional<uint64_t> FaultReceives::take(uint64_t inner_id) {
  const uint64_t number = inner_id & ~kTag;
  if (number < first_ || number - first_ >= forwarded_) return std::nullopt;
  Receive& receive = receives_[number - first_];
  if (receive.done) return std::nullopt;
  const uint64_t id = receive.id;
  receive.done = true;
  --outstanding_;
  drop_done();
  return id;
}

std::vector<uint64_t> FaultReceives::take_delayed() {
  std::vector<uint64_t> ids;
  for (size_t i = forwarded_; i < receives_.size(); ++i) {
    ids.push_back(receives_[i].id);
    receives_[i].done = true;
    --outstanding_;
  }
  forwarded_ = receives_.size();
  drop_done();
  return ids;
}

void FaultReceives::drop_done() {
  while (!receives_.empty() && receives_.front().done) {
    receives_.pop_front();
    ++first_;
    --forwarded_;
  }
}

FaultSharedReceiveQueue::FaultSharedReceiveQueue(std::shared_ptr<Core> core,
                                                 std::shared_ptr<SharedReceiveQueue> inner,
                                                 const SharedReceiveQueueOptions& options)
    : core_(std::move(core)), inner_(std::move(inner)), options_(options), receives_(*core_) {
  core_->add(this);
}

FaultSharedReceiveQueue::~FaultSharedReceiveQueue() {
  const std::unique_lock lock = core_->lock();
  core_->remove(this);
}

PostResult FaultSharedReceiveQueue::post_receive(std::span<const ReceiveRequest> requests) {
  const std::unique_lock lock = core_->lock();
  const PostResult result =
      receives_.post(requests, options_.depth, options_.max_segments, core_->patient_senders());
  forward();
  core_->wake_thread();
  return result;
}

void FaultSharedReceiveQueue::forward() {
  // A shared queue never fails, so a refusal only means that it is full, and the receive is
  // retried.
  static_cast<void>(receives_.forward(
      [this](const ReceiveRequest& request) {
        PostResult result = inner_->post_receive(request);
        if (!result.ok()) result.error = PostError::kQueueFull;
        return result;
      },
      false));
}

}  // namespace cariama::fault
