// Completion queues and channels of the shm transport.
//
// The initiator itself pushes send completions into a lock-free ring. Receive completions lie in
// rings that peers write (layout.h); poll() collects them from the queue pairs whose bit is set in
// the ready bitmap.
#ifndef CARIAMA_DTUTILS_SHM_COMPLETION_QUEUE_H_
#define CARIAMA_DTUTILS_SHM_COMPLETION_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"

namespace cariama::shm {

class ShmDevice;

class ShmChannel final : public CompletionChannel {
 public:
  ShmChannel(std::shared_ptr<ShmDevice> device, ControlBlock block)
      : device_(std::move(device)),
        block_(std::move(block)),
        shared_(reinterpret_cast<SharedChannel*>(block_.data())) {}

  bool wait(std::chrono::nanoseconds timeout) override;
  void wake() override { shared_->signal(); }

  [[nodiscard]] const ShmDevice* device() const { return device_.get(); }
  [[nodiscard]] SharedChannel* shared() const { return shared_; }
  [[nodiscard]] uint64_t offset() const { return block_.offset(); }

 private:
  std::shared_ptr<ShmDevice> device_;
  ControlBlock block_;
  SharedChannel* shared_;
  uint32_t consumed_ = 0;  // number of events that wait() has consumed
};

// Counts the unpolled completions of a queue pair in a completion queue, plus 1 while the queue
// pair exists. The release() that removes the last reference deletes the account, so the queue pair
// may be destroyed before its completions are polled.
struct CompletionAccount {
  std::atomic<uint32_t> references{1};
  std::atomic<bool> dead{false};  // the queue pair was destroyed: drop its completions

  void release(uint32_t count = 1) {
    if (references.fetch_sub(count, std::memory_order_acq_rel) == count) delete this;
  }
};

// A queue pair as a source from which poll() collects receive completions.
class ReceiveSource {
 public:
  virtual ~ReceiveSource() = default;
  // Moves completions to `completions` and returns their number. If the span was filled, the source
  // may have more. Called by one thread at a time.
  virtual size_t drain_receives(std::span<Completion> completions) = 0;
};

class ShmCompletionQueue final : public CompletionQueue {
  struct Entry {
    Completion completion;
    CompletionAccount* account = nullptr;
  };

 public:
  ShmCompletionQueue(std::shared_ptr<ShmDevice> device, ControlBlock block, uint32_t depth,
                     std::shared_ptr<ShmChannel> channel);
  ~ShmCompletionQueue() override;

  size_t poll(std::span<Completion> completions) override;
  absl::Status arm(bool solicited_only) override;
  uint32_t depth() const override { return depth_; }

  [[nodiscard]] const ShmDevice* device() const { return device_.get(); }
  [[nodiscard]] uint64_t offset() const { return block_.offset(); }

  // Returns true if the ring has room for a completion. Approximate with several threads;
  // completions that do not fit go to the overflow list.
  [[nodiscard]] bool has_room() const {
    return tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_relaxed) < depth_ &&
           !overflowed_.load(std::memory_order_relaxed);
  }
  // Memory for one completion in the overflow list. A caller that must not lose a completion makes
  // it before the step after which the completion is due.
  using Spare = std::list<Entry>;
  // Throws std::bad_alloc.
  [[nodiscard]] static Spare make_spare() { return Spare(1); }
  // Adds a completion. Requires: the caller has added one reference to `account` for it. Throws
  // std::bad_alloc, and adds nothing, if the ring has no room and there is no memory.
  void push(const Completion& completion, CompletionAccount* account);
  // As push(), but needs no memory. Requires: `spare` is from make_spare().
  void push(const Completion& completion, CompletionAccount* account, Spare spare) noexcept;

  // Registers a source of receive completions. Returns its bit, or an empty optional when all 4096
  // bits are in use.
  [[nodiscard]] std::optional<uint32_t> attach(ReceiveSource* source);
  // Removes a source. After the return no thread executes or will call drain_receives() of the
  // source.
  void detach(uint32_t bit);
  // Sets the source's bit, so that poll() drains it.
  void announce(uint32_t bit) {
    shared_->announce(bit, channel_ != nullptr ? channel_->shared() : nullptr, true);
  }
  // Locked while sources are drained. Also for code that moves completions out of a source outside
  // of poll().
  [[nodiscard]] std::mutex& drain_mutex() { return drain_mutex_; }

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> sequence;
    Entry entry;
  };

  [[nodiscard]] bool push_to_ring(const Entry& entry);
  void push_to_overflow(const Entry& entry, Spare& spare) noexcept;
  void fire(const Completion& completion);
  [[nodiscard]] bool pop(Entry* entry);
  [[nodiscard]] bool pop_overflow(Entry* entry);
  [[nodiscard]] size_t collect_sends(std::span<Completion> completions);
  [[nodiscard]] size_t collect_receives(std::span<Completion> completions);
  [[nodiscard]] bool anything_ready() const;

  std::shared_ptr<ShmDevice> device_;
  ControlBlock block_;
  SharedCompletionQueue* shared_;
  std::shared_ptr<ShmChannel> channel_;
  uint32_t depth_;
  uint32_t mask_;
  std::unique_ptr<Cell[]> ring_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  std::atomic<bool> receives_first_{false};

  alignas(64) std::atomic<bool> overflowed_{false};
  std::mutex overflow_mutex_;
  std::list<Entry> overflow_;

  std::atomic<uint32_t> words_{0};     // number of words of the ready bitmap in use
  std::atomic<bool> draining_{false};  // a thread has taken bits that it may put back
  std::mutex drain_mutex_;
  std::vector<ReceiveSource*> sources_;  // indexed by bit
  uint32_t next_word_ = 0;
  uint32_t next_bit_ = 0;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_COMPLETION_QUEUE_H_
