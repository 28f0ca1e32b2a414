// Pseudo-random numbers: fast, seeded, the same sequence on every machine. Not for secrets.
//
//   Random random(42);
//   const uint32_t die = random.below(6) + 1;
#ifndef CARIAMA_DTUTILS_RANDOM_H_
#define CARIAMA_DTUTILS_RANDOM_H_

#include <cstdint>
#include <iterator>
#include <utility>

namespace cariama {

// SplitMix64 (Steele, Lea, Flood 2014). Only one addition depends on the previous call, so calls
// overlap in the processor. Period 2^64. Not thread-safe.
class Random {
 public:
  // Added to the state before each number: 2^64 divided by the golden ratio.
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

  explicit constexpr Random(uint64_t seed) : state_(mix(seed + kStep)) {}

  constexpr uint64_t next() { return mix(state_ += kStep); }

  // Returns a number 0 <= x < n, exactly uniform (Lemire 2019). Requires: n > 0.
  constexpr uint32_t below(uint32_t n) {
    uint64_t product = (next() >> 32) * n;
    if (static_cast<uint32_t>(product) < n) [[unlikely]] {
      const uint32_t reject = -n % n;
      while (static_cast<uint32_t>(product) < reject) product = (next() >> 32) * n;
    }
    return static_cast<uint32_t>(product >> 32);
  }

  // Puts the elements of a random-access range of fewer than 2^32 elements in random order; each
  // order has the same probability (Fisher and Yates).
  template <typename Range>
  constexpr void shuffle(Range&& range) {
    for (auto left = static_cast<uint32_t>(std::size(range)); left > 1; --left) {
      std::swap(std::begin(range)[left - 1], std::begin(range)[below(left)]);
    }
  }

  // A bijection of 64-bit words that mixes their bits: the output function of SplitMix64.
  static constexpr uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  }

 private:
  uint64_t state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_RANDOM_H_
