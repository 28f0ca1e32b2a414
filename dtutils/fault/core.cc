#include "dtutils/fault/core.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "dtutils/fault/fault_completion_queue.h"
#include "dtutils/fault/fault_queue_pair.h"
#include "dtutils/fault/fault_receives.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::fault {
namespace {

constexpr std::chrono::microseconds kTick{50};

uint32_t capped(uint32_t limit, const std::optional<uint32_t>& cap) {
  return cap.has_value() ? std::min(limit, *cap) : limit;
}

}  // namespace

Core::Core(std::shared_ptr<Device> inner, const FaultOptions& options,
           std::shared_ptr<FaultControl> control)
    : inner_(std::move(inner)),
      options_(options),
      control_(std::move(control)),
      simulated_(inner_->transport() == Transport::kSim),
      limits_(inner_->limits()) {
  limits_.max_send_depth = capped(limits_.max_send_depth, options.max_send_depth);
  limits_.max_receive_depth = capped(limits_.max_receive_depth, options.max_receive_depth);
  limits_.max_segments = capped(limits_.max_segments, options.max_segments);
  limits_.max_inline = capped(limits_.max_inline, options.max_inline);
}

Core::~Core() {
  {
    const std::unique_lock lock = this->lock();
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Dice Core::make_dice() {
  // Odd multipliers, so that adjacent seeds and adjacent queues get different random streams.
  return Dice(options_.seed * 0x9e3779b97f4a7c15u + ++dice_made_ * 0xd1342543de82ef95u);
}

bool Core::strikes(Fault fault, double probability, Dice& dice) {
  // Draws even if the fault is switched off, so that switching it off does not change later
  // decisions.
  return dice.roll(probability) && control_->enabled(fault);
}

std::optional<CompletionStatus> Core::take_fail_next() {
  const int status = control_->fail_next_.exchange(FaultControl::kNone, std::memory_order_relaxed);
  if (status == FaultControl::kNone) return std::nullopt;
  return static_cast<CompletionStatus>(status);
}

bool Core::take_denied() {
  uint32_t left = control_->denied_.load(std::memory_order_relaxed);
  while (left != 0) {
    if (control_->denied_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Core::lock_and_tick() {
  if (!simulated_) {
    const std::unique_lock lock = this->lock();
    ++ticks_;
    progress();
    return;
  }
  for (const std::shared_ptr<Core>& device : control_->devices()) {
    const std::unique_lock lock = device->lock();
    ++device->ticks_;
    device->progress();
  }
}

bool Core::lock_and_ask_busy() {
  if (!simulated_) {
    const std::unique_lock lock = this->lock();
    return busy();
  }
  return std::ranges::any_of(control_->devices(), [](const std::shared_ptr<Core>& device) {
    const std::unique_lock lock = device->lock();
    return device->busy();
  });
}

void Core::progress() {
  for (FaultCompletionQueue* queue : completion_queues_) queue->pull();
  for (FaultSharedReceiveQueue* queue : shared_receives_) queue->forward();
  for (FaultQueuePair* queue_pair : queue_pairs_) queue_pair->progress();
  for (FaultCompletionQueue* queue : completion_queues_) queue->release();
}

bool Core::busy() const {
  const auto is_busy = [](const auto* member) { return member->busy(); };
  return std::ranges::any_of(completion_queues_, is_busy) ||
         std::ranges::any_of(shared_receives_, is_busy) ||
         std::ranges::any_of(queue_pairs_, is_busy);
}

void Core::add(FaultQueuePair* queue_pair) {
  queue_pairs_.push_back(queue_pair);
  by_number_[queue_pair->number()] = queue_pair;
}

absl::Status Core::start_thread() {
  if (simulated_ || thread_.joinable()) return absl::OkStatus();
  auto thread = internal::start_quiet_thread([this] { run_thread(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Core::remove(FaultQueuePair* queue_pair) {
  std::erase(queue_pairs_, queue_pair);
  by_number_.erase(queue_pair->number());
}

void Core::run_thread() {
  std::unique_lock lock = this->lock();
  for (;;) {
    work_.wait(lock, [this] { return stop_ || busy(); });
    if (stop_) return;
    lock.unlock();
    std::this_thread::sleep_for(kTick);
    lock.lock();
    ++ticks_;
    progress();
  }
}

}  // namespace cariama::fault
