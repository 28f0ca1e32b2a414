// The incoming memory map (Seriema §4.4.1). Service threads insert the chunks that they have
// granted to senders; the thread that receives in these chunks extracts them.
//
// insert() is thread-safe and wait-free: one exchange and one store. All other functions belong to
// the owner: the thread that currently runs the worker's calls. The owner extracts values by
// sender, in the order of insertion.
#ifndef CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_
#define CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

namespace cariama::internal {

// `Value` is the type of the values inserted for a sender. It must be movable.
template <typename Value>
class IncomingMap {
  struct Node {
    std::atomic<Node*> next{nullptr};
    uint64_t sender = 0;
    Value value{};
  };

 public:
  IncomingMap() = default;
  ~IncomingMap() {
    absorb();
    if (first_ != &stub_) delete first_;
  }
  IncomingMap(const IncomingMap&) = delete;
  IncomingMap& operator=(const IncomingMap&) = delete;

  // A value that is ready to be inserted.
  using Prepared = std::unique_ptr<Node>;
  // Allocates memory; insert() does not.
  [[nodiscard]] static Prepared prepare(uint64_t sender, Value value) {
    return Prepared(new Node{nullptr, sender, std::move(value)});
  }
  // Release: the thread that extracts the value also sees the memory that the value refers to.
  void insert(Prepared value) {
    Node* const node = value.release();
    Node* const before = last_.exchange(node, std::memory_order_acq_rel);
    before->next.store(node, std::memory_order_release);
  }

  // Returns true if there are inserted values that the owner has not absorbed. Costs one load.
  [[nodiscard]] bool has_pending() const { return last_.load(std::memory_order_acquire) != first_; }

  // Moves all inserted values into the owner's table, and calls found(sender) before each value. If
  // that throws, or memory is exhausted, this value and all values behind it remain for the next
  // absorb(), which calls found(sender) again. Stops at a node whose insert() is between its two
  // steps: that node and all nodes behind it remain for the next absorb().
  template <typename Found>
  void absorb(Found&& found) {
    for (;;) {
      Node* const next = first_->next.load(std::memory_order_acquire);
      if (next == nullptr) return;
      const uint64_t sender = next->sender;
      found(sender);
      values_[sender].push_back(std::move(next->value));
      if (first_ != &stub_) delete first_;
      first_ = next;  // its value moved away, it remains as the dummy node in front
    }
  }
  void absorb() {
    absorb([](uint64_t) {});
  }

  // Returns true if all values inserted before this call have been absorbed.
  [[nodiscard]] bool is_absorbed() const { return !has_pending(); }

  [[nodiscard]] size_t count(uint64_t sender) const {
    const auto found = values_.find(sender);
    return found == values_.end() ? 0 : found->second.size();
  }
  // front() returns and extract() removes the oldest value of `sender`. Both require count(sender)
  // != 0.
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
  Node stub_;
  alignas(64) std::atomic<Node*> last_{&stub_};
  alignas(64) Node* first_ = &stub_;
  std::unordered_map<uint64_t, std::deque<Value>> values_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_INCOMING_MAP_H_
