// Completion queues over verbs: they find the queue pair of each completion, free the slots that it
// covers, and give the caller's own ids back.
#ifndef CARIAMA_DTUTILS_VERBS_COMPLETION_QUEUE_H_
#define CARIAMA_DTUTILS_VERBS_COMPLETION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/completion_channel.h"
#include "dtutils/verbs/context.h"
#include "dtutils/verbs/handles.h"
#include "dtutils/verbs/spin_lock.h"

namespace cariama::verbs {

class VerbsQueuePair;

// Lock order: this lock is taken before that of a shared receive queue, and with no other.
class VerbsCompletionQueue final : public CompletionQueue {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<VerbsCompletionQueue>> create(
      std::shared_ptr<const Context> context, const CompletionQueueOptions& options);
  ~VerbsCompletionQueue() override;

  [[nodiscard]] size_t poll(std::span<Completion> completions) override;
  [[nodiscard]] absl::Status arm(bool solicited_only) override;
  [[nodiscard]] uint32_t depth() const override;

  [[nodiscard]] const Context* context() const { return context_.get(); }
  [[nodiscard]] ibv_cq* handle() const { return handle_.get(); }

  // Makes room for the completions of one more source (a send queue, a receive queue or a shared
  // receive queue) that can have `entries` of them at once. An overrun would lose completions, and
  // break the queue for everyone on most devices; so it cannot happen. A source is counted once
  // however often it is reserved. Errors: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status reserve(const void* source, uint32_t entries);
  void release(const void* source);

  // From add() to remove(), poll() reports completions of that queue pair.
  void add(VerbsQueuePair* queue_pair);
  // The device must be done with it. Its completions that were not polled yet are dropped.
  void remove(VerbsQueuePair* queue_pair);

  // On return, every poll() that was running has ended.
  void wait_for_pollers() { const std::lock_guard lock(lock_); }

  // Takes all completions out of the device's queue and keeps them for poll(). repair() uses it:
  // some devices throw the completions of a queue pair away when it is reset.
  void gather();

 private:
  struct Reservation {
    uint32_t users = 0;
    uint32_t entries = 0;
  };

  VerbsCompletionQueue(std::shared_ptr<const Context> context,
                       std::shared_ptr<VerbsCompletionChannel> channel)
      : context_(std::move(context)), channel_(std::move(channel)) {}

  // The queue pair with that number, or nullptr.
  VerbsQueuePair* find(uint32_t number);

  const std::shared_ptr<const Context> context_;
  const std::shared_ptr<VerbsCompletionChannel> channel_;  // or nullptr
  EventAccount events_;
  CompletionQueueHandle handle_;

  mutable SpinLock lock_;  // guards all below
  std::unordered_map<uint32_t, VerbsQueuePair*> queue_pairs_;
  VerbsQueuePair* last_found_ = nullptr;  // batches come from one queue pair mostly
  std::deque<ibv_wc> gathered_;           // older than what is in the device's queue
  std::map<const void*, Reservation> reservations_;
  uint64_t reserved_ = 0;  // entries
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_COMPLETION_QUEUE_H_
