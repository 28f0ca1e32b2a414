// Random numbers for playouts: fast, seeded, the same sequence on every machine. Not for secrets.
#ifndef CARIAMA_HEX_RANDOM_H_
#define CARIAMA_HEX_RANDOM_H_

#include <cstdint>

namespace cariama::hex {

// A bijection of 64-bit words that scatters them: the output function of SplitMix64 (Steele, Lea,
// Flood 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// SplitMix64: one addition between calls, so that calls overlap in the processor; period 2^64.
// One thread at a time.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(mix64(seed)) {}

  constexpr uint64_t next() {
    const uint64_t result = mix64(state_);
    state_ += 0x9E3779B97F4A7C15;
    return result;
  }

  // 0 <= below(n) < n, exactly uniform (Lemire 2019). Precondition: n > 0.
  constexpr uint32_t below(uint32_t n) {
    uint64_t product = (next() >> 32) * n;
    if (static_cast<uint32_t>(product) < n) [[unlikely]] {
      const uint32_t reject = -n % n;
      while (static_cast<uint32_t>(product) < reject) product = (next() >> 32) * n;
    }
    return static_cast<uint32_t>(product >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_RANDOM_H_
