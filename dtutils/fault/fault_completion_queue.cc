#include "dtutils/fault/fault_completion_queue.h"

#include <algorithm>

#include "dtutils/error.h"
#include "dtutils/fault/fault_queue_pair.h"

namespace cariama::fault {

// Sleeps in slices while work is delayed: ticks release this work, and the inner channel does not
// know of ticks. Slices are counted instead of timed, since time is virtual over a simulated
// fabric.
bool FaultCompletionChannel::wait(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kSlice = std::chrono::microseconds(50);
  std::chrono::nanoseconds remaining = std::max(timeout, std::chrono::nanoseconds(0));
  for (;;) {
    if (woken_.exchange(false, std::memory_order_acquire)) return true;
    {
      // The inner queues are armed before the tick polls them once more, so that no completion is
      // missed in between.
      const std::unique_lock lock = core_->lock();
      for (FaultCompletionQueue* queue : queues_) queue->arm_inner();
    }
    core_->lock_and_tick();
    const std::chrono::nanoseconds slice =
        core_->lock_and_ask_busy() ? std::min(remaining, kSlice) : remaining;
    {
      const std::unique_lock lock = core_->lock();
      if (std::exchange(event_, false)) return true;
      sleeping_ = true;
    }
    const bool woken = inner_->wait(slice);
    const std::unique_lock lock = core_->lock();
    sleeping_ = false;
    if (woken) {
      core_->progress();
      for (FaultCompletionQueue* queue : queues_) queue->inner_event();
    } else {
      remaining -= slice;
    }
    if (remaining == std::chrono::nanoseconds(0)) return std::exchange(event_, false);
  }
}

void FaultCompletionChannel::signal() {
  event_ = true;
  if (sleeping_) inner_->wake();  // the completion that fired may never have been in an inner queue
}

FaultCompletionQueue::FaultCompletionQueue(std::shared_ptr<Core> core,
                                           std::shared_ptr<CompletionQueue> inner,
                                           std::shared_ptr<FaultCompletionChannel> channel)
    : core_(std::move(core)),
      inner_(std::move(inner)),
      channel_(std::move(channel)),
      dice_(core_->make_dice()) {
  core_->add(this);
  if (channel_ != nullptr) channel_->add(this);
}

FaultCompletionQueue::~FaultCompletionQueue() {
  const std::unique_lock lock = core_->lock();
  core_->remove(this);
  if (channel_ != nullptr) channel_->remove(this);
}

size_t FaultCompletionQueue::poll(std::span<Completion> completions) {
  core_->lock_and_tick();
  const std::unique_lock lock = core_->lock();
  const size_t count = std::min(completions.size(), visible_);
  for (size_t i = 0; i < count; ++i) {
    const Entry entry = entries_.pop_front();
    --visible_;
    completions[i] = entry.completion;
    if (entry.operation == kReceived) continue;
    FaultQueuePair* owner = core_->queue_pair(entry.completion.queue_pair);
    if (owner != nullptr) owner->polled(entry.operation);
  }
  return count;
}

absl::Status FaultCompletionQueue::arm(bool solicited_only) {
  const std::unique_lock lock = core_->lock();
  const absl::Status status = inner_->arm(solicited_only);  // fails without a channel
  if (!status.ok()) return status;
  if (!solicited_only) {
    armed_ = Armed::kAll;
  } else if (armed_ == Armed::kNo) {
    armed_ = Armed::kSolicited;
    fire_after_ = entries_.size() - visible_;
  }
  return absl::OkStatus();
}

void FaultCompletionQueue::arm_inner() {
  // The inner queue has a channel, so arm() cannot fail.
  if (armed_ != Armed::kNo) static_cast<void>(inner_->arm(armed_ == Armed::kSolicited));
}

void FaultCompletionQueue::inner_event() {
  if (armed_ != Armed::kSolicited) return;  // release() fires for kAll
  fire_after_ = entries_.size() - visible_;
  if (fire_after_ == 0) fire();
}

void FaultCompletionQueue::fire() {
  armed_ = Armed::kNo;
  fire_after_ = 0;
  channel_->signal();
}

void FaultCompletionQueue::push(const Completion& completion, uint64_t operation) {
  uint64_t release = core_->ticks();
  if (core_->strikes(Fault::kLateCompletion, core_->options().late_completion, dice_)) {
    release = core_->random_release(dice_);
    core_->count(Fault::kLateCompletion);
  }
  entries_.push_back({completion, operation, release});
}

void FaultCompletionQueue::pull() {
  Completion batch[16];
  for (;;) {
    const size_t count = inner_->poll(batch);
    for (const Completion& completion : std::span(batch, count)) {
      FaultQueuePair* owner = core_->queue_pair(completion.queue_pair);
      if (owner != nullptr) owner->inner_completed(completion);
    }
    if (count < std::size(batch)) return;
  }
}

void FaultCompletionQueue::release() {
  while (visible_ < entries_.size() && entries_[visible_].release <= core_->ticks()) {
    const bool failed = entries_[visible_].completion.status != CompletionStatus::kSuccess;
    ++visible_;
    if (armed_ == Armed::kAll) {
      fire();
    } else if (armed_ == Armed::kSolicited && (failed || (fire_after_ > 0 && --fire_after_ == 0))) {
      fire();
    }
  }
}

void FaultCompletionQueue::drop(uint32_t queue_pair) {
  size_t index = 0;
  size_t visible = 0;
  size_t awaited = 0;  // of the entries that fire_after_ counts
  const size_t awaited_end = visible_ + fire_after_;
  entries_.erase_if([&](const Entry& entry) {
    const size_t here = index++;
    if (entry.completion.queue_pair != queue_pair) return false;
    if (here < visible_) {
      ++visible;
    } else if (here < awaited_end) {
      ++awaited;
    }
    return true;
  });
  visible_ -= visible;
  fire_after_ -= awaited;
  // An event that finds no completion is allowed, a missing one is not.
  if (awaited != 0 && fire_after_ == 0) fire();
}

void FaultCompletionQueue::release_all() {
  for (size_t i = visible_; i < entries_.size(); ++i) entries_[i].release = 0;
  release();
}

}  // namespace cariama::fault
