// Completion queues and channels of a faulty device: completions wait here for their release.
#ifndef CARIAMA_DTUTILS_FAULT_FAULT_COMPLETION_QUEUE_H_
#define CARIAMA_DTUTILS_FAULT_FAULT_COMPLETION_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "dtutils/device.h"
#include "dtutils/fault/core.h"
#include "dtutils/internal/growing_ring.h"

namespace cariama::fault {

class FaultCompletionChannel final : public CompletionChannel {
 public:
  FaultCompletionChannel(std::shared_ptr<Core> core, std::shared_ptr<CompletionChannel> inner)
      : core_(std::move(core)), inner_(std::move(inner)) {}

  bool wait(std::chrono::nanoseconds timeout) override;
  void wake() override {
    woken_.store(true, std::memory_order_release);
    inner_->wake();
  }

  [[nodiscard]] const std::shared_ptr<Core>& core() const { return core_; }
  [[nodiscard]] const std::shared_ptr<CompletionChannel>& inner() const { return inner_; }
  void signal();
  void add(FaultCompletionQueue* queue) { queues_.push_back(queue); }
  void remove(FaultCompletionQueue* queue) { std::erase(queues_, queue); }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<CompletionChannel> inner_;
  bool event_ = false;
  bool sleeping_ = false;  // in the inner channel
  std::atomic<bool> woken_{false};
  std::vector<FaultCompletionQueue*> queues_;
};

class FaultCompletionQueue final : public CompletionQueue {
 public:
  FaultCompletionQueue(std::shared_ptr<Core> core, std::shared_ptr<CompletionQueue> inner,
                       std::shared_ptr<FaultCompletionChannel> channel);
  ~FaultCompletionQueue() override;

  size_t poll(std::span<Completion> completions) override;
  absl::Status arm(bool solicited_only) override;
  uint32_t depth() const override { return inner_->depth(); }

  [[nodiscard]] const std::shared_ptr<Core>& core() const { return core_; }
  [[nodiscard]] const std::shared_ptr<CompletionQueue>& inner() const { return inner_; }

  static constexpr uint64_t kReceived = ~uint64_t{0};
  // A completion for the user. `operation`: the number of the send that completes, or kReceived.
  void push(const Completion& completion, uint64_t operation);
  // Takes what the inner queue has, and tells the queue pairs.
  void pull();
  // Makes visible what has been held long enough.
  void release();
  // Makes everything visible now.
  void release_all();
  [[nodiscard]] bool busy() const { return visible_ < entries_.size(); }

  // --- called by the channel ---
  // Asks the inner queue to wake the channel when it has something.
  void arm_inner();
  // The inner channel had an event, perhaps for us.
  void inner_event();

 private:
  struct Entry {
    Completion completion;
    uint64_t operation = kReceived;
    uint64_t release = 0;  // the tick
  };
  enum class Armed : uint8_t { kNo, kSolicited, kAll };

  void fire();

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<CompletionQueue> inner_;
  const std::shared_ptr<FaultCompletionChannel> channel_;
  Dice dice_;
  Armed armed_ = Armed::kNo;
  // Armed for solicited completions: one may be among the entries that are not visible yet, so the
  // event is due when so many of them (counted from the first not visible) have been released.
  size_t fire_after_ = 0;
  size_t visible_ = 0;  // of entries_, from the front
  internal::GrowingRing<Entry> entries_;
};

}  // namespace cariama::fault

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_COMPLETION_QUEUE_H_
