// The incoming memory map (Seriema §4.4.1): chunks that service calls have granted to senders, on
// their way to the thread that will receive in them.
//
// insert() is wait-free, by any thread: one exchange, one store. Everything else is the owner's:
// whoever consumes the worker's calls. The owner extracts by sender, in the order of insertion.
#ifndef CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_
#define CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

namespace cariama::internal {

// `Value` is what a sender's key is given: movable.
template <typename Value>
class IncomingMap {
 public:
  IncomingMap() = default;
  ~IncomingMap() {
    absorb();
    if (first_ != &stub_) delete first_;
  }
  IncomingMap(const IncomingMap&) = delete;
  IncomingMap& operator=(const IncomingMap&) = delete;

  // Release: what the value refers to is visible to who extracts it.
  void insert(uint64_t sender, Value value) {
    auto* const node = new Node{nullptr, sender, std::move(value)};
    Node* const before = last_.exchange(node, std::memory_order_acq_rel);
    before->next.store(node, std::memory_order_release);
  }

  // Whether something was inserted that the owner has not absorbed. A load.
  [[nodiscard]] bool has_news() const { return last_.load(std::memory_order_acquire) != first_; }

  // Takes in what was inserted, and calls found(sender) for each. A node whose insert() is between
  // its two steps, and those behind it, stay for the next time.
  template <typename Found>
  void absorb(Found&& found) {
    for (;;) {
      Node* const next = first_->next.load(std::memory_order_acquire);
      if (next == nullptr) return;
      if (first_ != &stub_) delete first_;
      first_ = next;  // stays as the dummy in front, its value moved away
      const uint64_t sender = next->sender;
      values_[sender].push_back(std::move(next->value));
      found(sender);
    }
  }
  void absorb() {
    absorb([](uint64_t) {});
  }

  // Whether all that was inserted before this call has been absorbed.
  [[nodiscard]] bool is_absorbed() const { return !has_news(); }

  [[nodiscard]] size_t count(uint64_t sender) const {
    const auto found = values_.find(sender);
    return found == values_.end() ? 0 : found->second.size();
  }
  // The oldest value of that sender. Precondition of both: count(sender) != 0.
  [[nodiscard]] const Value& front(uint64_t sender) const {
    return values_.find(sender)->second.front();
  }
  [[nodiscard]] Value extract(uint64_t sender) {
    const auto found = values_.find(sender);
    Value value = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) values_.erase(found);
    return value;
  }

 private:
  struct Node {
    std::atomic<Node*> next{nullptr};
    uint64_t sender = 0;
    Value value{};
  };

  Node stub_;
  alignas(64) std::atomic<Node*> last_{&stub_};
  alignas(64) Node* first_ = &stub_;
  std::unordered_map<uint64_t, std::deque<Value>> values_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_
