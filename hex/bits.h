// Bits: a set of cells as a fixed number of 64-bit words.
#ifndef CARIAMA_HEX_BITS_H_
#define CARIAMA_HEX_BITS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cariama::hex {

template <int kWords>
struct Bits {
  static_assert(kWords >= 1);
  uint64_t words[kWords] = {};

  constexpr Bits() = default;
  // Converts a set with another number of words. Drops cells that do not fit.
  template <int kOther>
  explicit constexpr Bits(const Bits<kOther>& other) {
    for (int i = 0; i < std::min(kWords, kOther); ++i) words[i] = other.words[i];
  }
  static constexpr Bits single(int cell) {
    Bits set;
    set.set(cell);
    return set;
  }

  // test(), set() and reset() require 0 <= cell < 64 * kWords.
  [[nodiscard]] constexpr bool test(int cell) const {
    return (words[cell >> 6] >> (cell & 63)) & 1;
  }
  constexpr void set(int cell) { words[cell >> 6] |= uint64_t{1} << (cell & 63); }
  constexpr void reset(int cell) { words[cell >> 6] &= ~(uint64_t{1} << (cell & 63)); }

  [[nodiscard]] constexpr bool any() const {
    uint64_t all = 0;
    for (const uint64_t word : words) all |= word;
    return all != 0;
  }
  [[nodiscard]] constexpr int count() const {
    int sum = 0;
    for (const uint64_t word : words) sum += std::popcount(word);
    return sum;
  }
  // Returns the lowest cell. Requires: any().
  [[nodiscard]] constexpr int first() const {
    int i = 0;
    while (words[i] == 0) ++i;
    return i * 64 + std::countr_zero(words[i]);
  }
  [[nodiscard]] constexpr bool intersects(const Bits& other) const { return (*this & other).any(); }
  [[nodiscard]] constexpr bool contains(const Bits& other) const {
    return !other.without(*this).any();
  }
  [[nodiscard]] constexpr Bits without(const Bits& other) const {
    Bits result;
    for (int i = 0; i < kWords; ++i) result.words[i] = words[i] & ~other.words[i];
    return result;
  }

  // Calls f(cell) for each cell, in ascending order.
  template <typename F>
  constexpr void for_each(F&& f) const {
    for (int i = 0; i < kWords; ++i) {
      for (uint64_t word = words[i]; word != 0; word &= word - 1) {
        f(i * 64 + std::countr_zero(word));
      }
    }
  }

  constexpr Bits& operator|=(const Bits& other) {
    for (int i = 0; i < kWords; ++i) words[i] |= other.words[i];
    return *this;
  }
  constexpr Bits& operator&=(const Bits& other) {
    for (int i = 0; i < kWords; ++i) words[i] &= other.words[i];
    return *this;
  }
  friend constexpr Bits operator|(Bits a, const Bits& b) { return a |= b; }
  friend constexpr Bits operator&(Bits a, const Bits& b) { return a &= b; }
  friend constexpr bool operator==(const Bits&, const Bits&) = default;

  // Return the set with n added to, or subtracted from, the number of every cell. Cells outside of
  // 0 .. 64 * kWords - 1 are dropped. Requires: 0 < n < 64.
  [[nodiscard]] constexpr Bits up(int n) const {
    Bits result;
    for (int i = kWords - 1; i > 0; --i) {
      result.words[i] = words[i] << n | words[i - 1] >> (64 - n);
    }
    result.words[0] = words[0] << n;
    return result;
  }
  [[nodiscard]] constexpr Bits down(int n) const {
    Bits result;
    for (int i = 0; i + 1 < kWords; ++i) {
      result.words[i] = words[i] >> n | words[i + 1] << (64 - n);
    }
    result.words[kWords - 1] = words[kWords - 1] >> n;
    return result;
  }
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_BITS_H_
