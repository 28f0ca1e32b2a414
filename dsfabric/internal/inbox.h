// Calls on their way to one thread: a wait-free multi-producer queue of nodes that somebody else
// owns, in the order of arrival per producer.
#ifndef CARIAMA_DSFABRIC_INTERNAL_INBOX_H_
#define CARIAMA_DSFABRIC_INTERNAL_INBOX_H_

#include <atomic>
#include <cstdint>

#include "dtutils/wait.h"

namespace cariama::internal {

// Embedded in what is queued. In at most one inbox at a time.
struct InboxNode {
  std::atomic<InboxNode*> next{nullptr};
};

// push() by any thread, never waits. pop() by one thread at a time: whoever got try_consume(). 128
// bytes.
class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void push(InboxNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    // Sequentially consistent for deliver(), which looks afterwards whose business the inbox is.
    InboxNode* const before = last_.exchange(node, std::memory_order_seq_cst);
    before->next.store(node, std::memory_order_release);
    arrivals().wake();
  }

  // Makes the caller the only consumer, until done(). Order holds whoever consumes in turn.
  [[nodiscard]] bool try_consume() { return !consuming_.exchange(true, std::memory_order_acquire); }
  void done() { consuming_.store(false, std::memory_order_release); }

  // The oldest node, or nullptr. It may miss one whose push() is between its two steps.
  [[nodiscard]] InboxNode* pop() {
    InboxNode* first = first_;
    InboxNode* next = first->next.load(std::memory_order_acquire);
    if (first == &stub_) {
      if (next == nullptr) return nullptr;
      first_ = first = next;
      next = first->next.load(std::memory_order_acquire);
    }
    if (next == nullptr) {
      if (last_.load(std::memory_order_acquire) != first) return nullptr;
      // The only one: the stub goes behind it, so that it can leave.
      stub_.next.store(nullptr, std::memory_order_relaxed);
      InboxNode* const before = last_.exchange(&stub_, std::memory_order_acq_rel);
      before->next.store(&stub_, std::memory_order_release);
      next = first->next.load(std::memory_order_acquire);
      if (next == nullptr) return nullptr;
    }
    first_ = next;
    return first;
  }

  // Whether nothing was pushed that has not been popped; exact only when nobody pushes.
  [[nodiscard]] bool empty() const { return last_.load(std::memory_order_seq_cst) == &stub_; }

  // Woken by each push(), and by whoever has other news for the thread.
  [[nodiscard]] WakeWord& arrivals() { return *arrivals_at_; }
  // Has it lie where other processes can wake it. Before anybody uses it; `word` outlives the
  // inbox.
  void place_arrivals(WakeWord& word) { arrivals_at_ = &word; }

 private:
  alignas(64) std::atomic<InboxNode*> last_{&stub_};
  WakeWord arrivals_;
  WakeWord* arrivals_at_ = &arrivals_;
  alignas(64) InboxNode* first_ = &stub_;
  std::atomic<bool> consuming_{false};
  InboxNode stub_;
};
static_assert(sizeof(Inbox) == 128);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_INBOX_H_
