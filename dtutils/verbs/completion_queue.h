// Completion queues over verbs. They find the queue pair of each completion, free the slots that
// the completion covers, and restore the caller's ids.
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

// Lock order: this lock is taken before the lock of a shared receive queue; it is never held
// together with any other lock.
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
  // receive queue) that can have `entries` of them at the same time. This prevents an overrun,
  // which would lose completions, and on most devices break the queue for all its users. A source
  // that is reserved several times is counted once. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status reserve(const void* source, uint32_t entries);
  void release(const void* source);

  // From add() to remove(), poll() reports the completions of that queue pair.
  void add(VerbsQueuePair* queue_pair);
  // Removes a queue pair, and drops its completions that were not polled yet. Requires: the device
  // has finished with the queue pair.
  void remove(VerbsQueuePair* queue_pair);

  // Returns when every poll() that was running at the call has ended.
  void wait_for_pollers() { const std::lock_guard lock(lock_); }

  // Moves all completions from the device's queue to gathered_, for a later poll(). repair() uses
  // it, because some devices discard the completions of a queue pair when it is reset.
  void gather();

 private:
  // A completion that was read from the device's queue. It names its queue pair by address: the
  // device may give a new queue pair the number of one that is being destroyed.
  struct Gathered {
    VerbsQueuePair* queue_pair;
    ibv_wc work;
  };
  struct Reservation {
    uint32_t users = 0;
    uint32_t entries = 0;
  };

  VerbsCompletionQueue(std::shared_ptr<const Context> context,
                       std::shared_ptr<VerbsCompletionChannel> channel)
      : context_(std::move(context)), channel_(std::move(channel)) {}

  // Returns the queue pair with that number, or nullptr.
  VerbsQueuePair* find(uint32_t number);

  const std::shared_ptr<const Context> context_;
  const std::shared_ptr<VerbsCompletionChannel> channel_;  // may be nullptr
  EventAccount events_;
  CompletionQueueHandle handle_;

  mutable SpinLock lock_;  // guards all members below
  std::unordered_map<uint32_t, VerbsQueuePair*> queue_pairs_;
  // Cache: the completions of a batch mostly belong to one queue pair.
  VerbsQueuePair* last_found_ = nullptr;
  std::deque<Gathered> gathered_;  // older than the completions in the device's queue
  std::map<const void*, Reservation> reservations_;
  uint64_t reserved_ = 0;  // sum of the entries of all reservations
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_COMPLETION_QUEUE_H_
