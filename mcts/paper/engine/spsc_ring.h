// SpscRing: a wait-free queue of fixed length, with one producer and one consumer thread.
#ifndef CARIAMA_MCTS_PAPER_ENGINE_SPSC_RING_H_
#define CARIAMA_MCTS_PAPER_ENGINE_SPSC_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cariama::mcts {

// Only one thread may call push(), and only one thread pop(). Each takes a bounded number of steps.
template <typename T, size_t kSize>
class SpscRing {
  static_assert((kSize & (kSize - 1)) == 0);

 public:
  // Returns false if the queue is full.
  [[nodiscard]] bool push(T value) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    // Acquire: pairs with the release in pop(). The consumer has read the slot before this thread
    // overwrites it.
    if (tail - head_.load(std::memory_order_acquire) == kSize) return false;
    slots_[tail % kSize] = value;
    tail_.store(tail + 1, std::memory_order_seq_cst);  // see Host::wake_workers
    return true;
  }
  [[nodiscard]] std::optional<T> pop() {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;
    const T value = slots_[head % kSize];
    head_.store(head + 1, std::memory_order_release);
    return value;
  }
  [[nodiscard]] bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_seq_cst);
  }

 private:
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::array<T, kSize> slots_{};
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PAPER_ENGINE_SPSC_RING_H_
