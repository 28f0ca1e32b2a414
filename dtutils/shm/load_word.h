// Words that other threads or processes write, as operands. Each function is an acquire load and
// one operation with its result.
//
// g++ and clang load an atomic word into a register first, although x86 can compare and add words
// in memory. On x86 every load is an acquire load, so only the compiler must not move one.
#ifndef CARIAMA_DTUTILS_SHM_LOAD_WORD_H_
#define CARIAMA_DTUTILS_SHM_LOAD_WORD_H_

#include <atomic>
#include <cstdint>

namespace cariama::shm {

static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

// Returns word == value.
[[nodiscard, gnu::always_inline]] inline bool equals(const std::atomic<uint64_t>& word,
                                                     uint64_t value) {
  bool result;
  asm volatile("cmpq %[value], %[word]"
               : "=@cce"(result)
               : [word] "m"(reinterpret_cast<const uint64_t&>(word)), [value] "r"(value)
               : "memory");
  return result;
}
// Returns word > value.
[[nodiscard, gnu::always_inline]] inline bool exceeds(const std::atomic<uint64_t>& word,
                                                      uint64_t value) {
  bool result;
  asm volatile("cmpq %[value], %[word]"
               : "=@cca"(result)
               : [word] "m"(reinterpret_cast<const uint64_t&>(word)), [value] "r"(value)
               : "memory");
  return result;
}
// Returns value + word.
[[nodiscard, gnu::always_inline]] inline uint64_t plus(uint64_t value,
                                                       const std::atomic<uint64_t>& word) {
  asm volatile("addq %[word], %[value]"
               : [value] "+r"(value)
               : [word] "m"(reinterpret_cast<const uint64_t&>(word))
               : "memory", "cc");
  return value;
}
// Returns value - word.
[[nodiscard, gnu::always_inline]] inline uint64_t minus(uint64_t value,
                                                        const std::atomic<uint64_t>& word) {
  asm volatile("subq %[word], %[value]"
               : [value] "+r"(value)
               : [word] "m"(reinterpret_cast<const uint64_t&>(word))
               : "memory", "cc");
  return value;
}

#else

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

#endif

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LOAD_WORD_H_
