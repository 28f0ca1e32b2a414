// A limit on the bytes of messages that wait: FabricOptions::deferred_bytes and buffered_bytes.
#ifndef CARIAMA_DSFABRIC_PEERS_BYTE_BUDGET_H_
#define CARIAMA_DSFABRIC_PEERS_BYTE_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace cariama::internal {

// Thread-safe, lock-free.
class ByteBudget {
 public:
  explicit ByteBudget(uint64_t limit) : limit_(limit) {}

  // Adds `bytes`. Returns false, and adds nothing, if the budget is in use and the sum would exceed
  // the limit. So at least one message is accepted under every limit.
  [[nodiscard]] bool reserve(uint64_t bytes) {
    uint64_t before = used_.load(std::memory_order_relaxed);
    do {
      if (before != 0 && before + bytes > limit_) return false;
    } while (!used_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    return true;
  }
  // Adds `bytes` even beyond the limit.
  void add(uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void release(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return used_.load(std::memory_order_relaxed) != 0; }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_BYTE_BUDGET_H_
