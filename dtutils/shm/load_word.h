// Words that other threads or processes write, as operands. Each function is an acquire load and one
// operation with its result.
#ifndef CARIAMA_DTUTILS_SHM_LOAD_WORD_H_
#define CARIAMA_DTUTILS_SHM_LOAD_WORD_H_

#include <atomic>
#include <cstdint>

namespace cariama::shm {

[[nodiscard]] inline bool equals(const std::atomic<uint64_t>& word, uint64_t value) {
  return word.load(std::memory_order_acquire) == value;
}
[[nodiscard]] inline bool exceeds(const std::atomic<uint64_t>& word, uint64_t value) {
  return word.load(std::memory_order_acquire) > value;
}
[[nodiscard]] inline uint64_t plus(uint64_t value, const std::atomic<uint64_t>& word) {
  return value + word.load(std::memory_order_acquire);
}
[[nodiscard]] inline uint64_t minus(uint64_t value, const std::atomic<uint64_t>& word) {
  return value - word.load(std::memory_order_acquire);
}

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LOAD_WORD_H_
