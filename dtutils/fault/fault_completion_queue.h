// Completion queues and channels of a fault device. Completions are delayed here until their
// release tick.
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
  // Adds a completion for the user. `operation`: the number of the completed send operation, or
  // kReceived.
  void push(const Completion& completion, uint64_t operation);
  // Polls the inner queue and passes its completions to the queue pairs.
  void pull();
  // Makes the completions visible whose release tick has come.
  void release();
  // Drops the completions of a queue pair that is being destroyed, also those that are delayed.
  void drop(uint32_t queue_pair);
  // Makes all completions visible now.
  void release_all();
  [[nodiscard]] bool busy() const { return visible_ < entries_.size(); }

  // --- called by the channel ---
  // Arms the inner queue, so that its next completion wakes the channel.
  void arm_inner();
  // Called when the inner channel had an event, which may be for another queue.
  void inner_event();

 private:
  struct Entry {
    Completion completion;
    uint64_t operation = kReceived;
    uint64_t release = 0;  // tick at which the completion becomes visible
  };
  enum class Armed : uint8_t { kNo, kSolicited, kAll };

  void fire();

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<CompletionQueue> inner_;
  const std::shared_ptr<FaultCompletionChannel> channel_;
  Dice dice_;
  Armed armed_ = Armed::kNo;
  // Used while armed for solicited completions: the solicited one may be among the entries that are
  // not visible yet, so the event is due when this many entries, counted from the first invisible
  // one, have been released.
  size_t fire_after_ = 0;
  size_t visible_ = 0;  // number of visible entries, from the front of entries_
  internal::GrowingRing<Entry> entries_;
};

}  // namespace cariama::fault

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_COMPLETION_QUEUE_H_
