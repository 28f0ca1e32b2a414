// The incoming calls of one thread: a wait-free queue with several producers. It preserves the
// order of each producer's nodes, and does not own the nodes.
#ifndef CARIAMA_DSFABRIC_PEERS_INBOX_H_
#define CARIAMA_DSFABRIC_PEERS_INBOX_H_

#include <atomic>
#include <cstdint>

namespace cariama::internal {

// Embedded in a queued object. A node is in at most one inbox at a time.
struct InboxNode {
  std::atomic<InboxNode*> next{nullptr};
};

// push() is wait-free; any thread may call it. pop() may only be called by the thread that has
// acquired the inbox with try_consume(). 128 bytes.
class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void push(InboxNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    InboxNode* const before = last_.exchange(node, std::memory_order_acq_rel);
    before->next.store(node, std::memory_order_release);
  }

  // Makes the caller the only consumer until done(). Acquire and release order successive
  // consumers, so the order of nodes is kept.
  [[nodiscard]] bool try_consume() { return !consuming_.exchange(true, std::memory_order_acquire); }
  void done() { consuming_.store(false, std::memory_order_release); }

  // Returns the oldest node, or nullptr. May miss a node whose push() has not yet linked it.
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
      // `first` is the only node. Push the stub behind it, so that this node can be removed.
      stub_.next.store(nullptr, std::memory_order_relaxed);
      InboxNode* const before = last_.exchange(&stub_, std::memory_order_acq_rel);
      before->next.store(&stub_, std::memory_order_release);
      next = first->next.load(std::memory_order_acquire);
      if (next == nullptr) return nullptr;
    }
    first_ = next;
    return first;
  }

  // Returns true if all pushed nodes have been popped. Exact only if no push() is running.
  [[nodiscard]] bool empty() const { return last_.load(std::memory_order_acquire) == &stub_; }

 private:
  alignas(64) std::atomic<InboxNode*> last_{&stub_};
  alignas(64) InboxNode* first_ = &stub_;
  std::atomic<bool> consuming_{false};
  InboxNode stub_;
};
static_assert(sizeof(Inbox) == 128);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_INBOX_H_
