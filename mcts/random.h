// Random numbers for searches: fast, seeded, the same sequence on every machine. Not for secrets.
#ifndef CARIAMA_MCTS_RANDOM_H_
#define CARIAMA_MCTS_RANDOM_H_

#include <cstdint>

namespace cariama::mcts {

// SplitMix64 (Steele, Lea, Flood 2014): one addition between calls; period 2^64. One thread at a
// time.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(mix(seed)) {}

  constexpr uint64_t next() { return mix(state_ += kStep); }

  // 0 <= below(n) < n. Not exactly uniform: off by less than n / 2^32. Precondition: n > 0.
  constexpr uint32_t below(uint32_t n) {
    return static_cast<uint32_t>((next() >> 32) * uint64_t{n} >> 32);
  }

  // A bijection of 64-bit words that scatters them.
  static constexpr uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
  uint64_t state_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_RANDOM_H_
