// Random numbers that another process cannot predict: keys, nonces.
#ifndef CARIAMA_DTUTILS_INTERNAL_RANDOM_WORD_H_
#define CARIAMA_DTUTILS_INTERNAL_RANDOM_WORD_H_

#include <cstdint>
#include <random>

namespace cariama::internal {

// Returns 64 bits of the system's random source. A generator that is seeded once would be cheaper,
// but from some of its numbers a process can compute the others. Thread-safe.
[[nodiscard]] inline uint64_t random_word() {
  std::random_device source;
  return uint64_t{source()} << 32 | source();
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_RANDOM_WORD_H_
