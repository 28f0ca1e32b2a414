#include "dtutils/sim/sim_completion_queue.h"

#include <algorithm>
#include <thread>

#include "dtutils/error.h"
#include "dtutils/sim/sim_queue_pair.h"

namespace cariama::sim {

bool SimCompletionChannel::wait(std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::steady_clock;
  timeout = std::max(timeout, std::chrono::nanoseconds(0));
  const Clock::time_point idle_until =
      Clock::now() + std::min<std::chrono::nanoseconds>(timeout, fabric_->options().idle_grace);
  std::unique_lock lock = fabric_->lock();
  // Saturates: nanoseconds::max() means no timeout, which is 106 days of virtual time.
  const SimTime longest = SimTime::max() - fabric_->now();
  const bool endless = timeout > std::chrono::duration_cast<std::chrono::nanoseconds>(longest);
  const SimTime deadline =
      std::min(endless ? SimTime::max() : fabric_->now() + timeout, fabric_->horizon());

  for (uint32_t executed = 0;; ++executed) {
    if (woken_.exchange(false, std::memory_order_acquire) || event_) {
      event_ = false;
      return true;
    }
    const bool worked = fabric_->step(deadline);
    // Releases the lock regularly, because events may continue without end (a receiver that is
    // never ready).
    const bool wait_idle = !worked && fabric_->idle() && Clock::now() < idle_until;
    if (!worked && !wait_idle) break;
    if (wait_idle || executed % 64 == 63) {
      const uint32_t expected = fabric_->activity().arm();
      lock.unlock();
      if (!wait_idle) {
        std::this_thread::yield();
      } else if (!woken_.load(std::memory_order_acquire)) {
        fabric_->activity().wait(expected, idle_until);
      }
      lock.lock();
    }
  }
  if (deadline != SimTime::max()) fabric_->advance_to(deadline);
  return false;
}

size_t SimCompletionQueue::poll(std::span<Completion> completions) {
  const std::unique_lock lock = fabric_->lock();
  if (entries_.empty()) fabric_->step(fabric_->horizon());
  size_t count = 0;
  while (count < completions.size() && !entries_.empty()) {
    const Entry entry = entries_.pop_front();
    completions[count++] = entry.completion;
    if (entry.operation == kReceived) continue;
    SimQueuePair* owner = fabric_->queue_pair(entry.completion.queue_pair);
    if (owner != nullptr) owner->polled(entry.operation);
  }
  return count;
}

absl::Status SimCompletionQueue::arm(bool solicited_only) {
  if (channel_ == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "arming a completion queue that has no channel",
                      "give it one in CompletionQueueOptions");
  }
  const std::unique_lock lock = fabric_->lock();
  // kAll includes solicited completions, so a second thread must not reduce it to kSolicited.
  if (!solicited_only) {
    armed_ = Armed::kAll;
  } else if (armed_ == Armed::kNo) {
    armed_ = Armed::kSolicited;
  }
  return absl::OkStatus();
}

void SimCompletionQueue::push(const Completion& completion, uint64_t operation, bool solicited) {
  if (entries_.size() >= depth_) ++fabric_->statistics().completion_overruns;
  entries_.push_back({completion, operation});
  const bool failed = completion.status != CompletionStatus::kSuccess;
  if (armed_ == Armed::kAll || (armed_ == Armed::kSolicited && (solicited || failed))) {
    armed_ = Armed::kNo;
    channel_->signal();
  }
}

}  // namespace cariama::sim
