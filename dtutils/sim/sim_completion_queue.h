// Completion queues and channels of simulated endpoints. Locking: see fabric.h.
#ifndef CARIAMA_DTUTILS_SIM_SIM_COMPLETION_QUEUE_H_
#define CARIAMA_DTUTILS_SIM_SIM_COMPLETION_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "dtutils/device.h"
#include "dtutils/internal/growing_ring.h"
#include "dtutils/sim/fabric.h"

namespace cariama::sim {

class SimCompletionChannel final : public CompletionChannel {
 public:
  explicit SimCompletionChannel(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  bool wait(std::chrono::nanoseconds timeout) override;
  void wake() override {
    woken_.store(true, std::memory_order_release);
    fabric_->activity().ring();
  }

  void signal() {
    event_ = true;
    fabric_->activity().ring();
  }

 private:
  const std::shared_ptr<Fabric> fabric_;
  bool event_ = false;
  // Not guarded by the lock, because a signal handler may call wake().
  std::atomic<bool> woken_{false};
};

class SimCompletionQueue final : public CompletionQueue {
 public:
  SimCompletionQueue(std::shared_ptr<Fabric> fabric, const Endpoint* endpoint,
                     const CompletionQueueOptions& options)
      : fabric_(std::move(fabric)),
        endpoint_(endpoint),
        depth_(options.depth),
        channel_(std::static_pointer_cast<SimCompletionChannel>(options.channel)) {}

  size_t poll(std::span<Completion> completions) override;
  absl::Status arm(bool solicited_only) override;
  uint32_t depth() const override { return depth_; }

  [[nodiscard]] const Endpoint* endpoint() const { return endpoint_; }

  static constexpr uint64_t kReceived = ~uint64_t{0};
  // Adds a completion. `operation`: the number of the completed send operation, or kReceived.
  void push(const Completion& completion, uint64_t operation, bool solicited);
  // Drops the completions of a queue pair that is being destroyed.
  void drop(uint32_t queue_pair) {
    entries_.erase_if(
        [&](const Entry& entry) { return entry.completion.queue_pair == queue_pair; });
  }

 private:
  struct Entry {
    Completion completion;
    uint64_t operation = kReceived;
  };
  enum class Armed : uint8_t { kNo, kSolicited, kAll };

  const std::shared_ptr<Fabric> fabric_;
  const Endpoint* const endpoint_;
  const uint32_t depth_;
  Armed armed_ = Armed::kNo;
  const std::shared_ptr<SimCompletionChannel> channel_;
  internal::GrowingRing<Entry> entries_;
};

}  // namespace cariama::sim

#endif  // CARIAMA_DTUTILS_SIM_SIM_COMPLETION_QUEUE_H_
