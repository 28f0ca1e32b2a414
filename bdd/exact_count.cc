#include "bdd/exact_count.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cariama::bdd {

ExactCount& ExactCount::operator+=(const ExactCount& other) {
  words_.resize(std::max(words_.size(), other.words_.size()));
  uint64_t carry = 0;
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t addend = i < other.words_.size() ? other.words_[i] : 0;
    const uint64_t partial = words_[i] + carry;
    carry = partial < carry ? 1 : 0;
    words_[i] = partial + addend;
    carry += words_[i] < partial ? 1 : 0;
  }
  if (carry != 0) words_.push_back(carry);
  return *this;
}

ExactCount& ExactCount::operator<<=(uint32_t bits) {
  if (words_.empty()) return *this;
  if (const uint32_t part = bits % 64; part != 0) {
    uint64_t carry = 0;
    for (uint64_t& word : words_) {
      const uint64_t next = word >> (64 - part);
      word = word << part | carry;
      carry = next;
    }
    if (carry != 0) words_.push_back(carry);
  }
  words_.insert(words_.begin(), bits / 64, 0);
  return *this;
}

std::strong_ordering operator<=>(const ExactCount& a, const ExactCount& b) {
  if (a.words_.size() != b.words_.size()) return a.words_.size() <=> b.words_.size();
  for (size_t i = a.words_.size(); i-- > 0;) {
    if (a.words_[i] != b.words_[i]) return a.words_[i] <=> b.words_[i];
  }
  return std::strong_ordering::equal;
}

std::string ExactCount::to_string() const {
  if (words_.empty()) return "0";
  constexpr uint32_t kBase = 1'000'000'000;
  std::vector<uint32_t> halves;  // of the remaining quotient, most significant first
  for (size_t i = words_.size(); i-- > 0;) {
    halves.push_back(static_cast<uint32_t>(words_[i] >> 32));
    halves.push_back(static_cast<uint32_t>(words_[i]));
  }
  std::string reversed;
  while (!halves.empty()) {
    uint64_t remainder = 0;
    for (uint32_t& half : halves) {
      const uint64_t dividend = remainder << 32 | half;
      half = static_cast<uint32_t>(dividend / kBase);
      remainder = dividend % kBase;
    }
    halves.erase(halves.begin(), std::find_if(halves.begin(), halves.end(),
                                              [](uint32_t half) { return half != 0; }));
    for (int digit = 0; digit < 9; ++digit, remainder /= 10) {
      reversed.push_back(static_cast<char>('0' + remainder % 10));
    }
  }
  while (reversed.back() == '0') reversed.pop_back();
  return {reversed.rbegin(), reversed.rend()};
}

double ExactCount::to_double() const {
  if (words_.size() <= 1) return words_.empty() ? 0 : static_cast<double>(words_[0]);
  // The highest 64 bits, with the lowest of them set if a bit below them is: then the conversion,
  // the only step that rounds, rounds as for the whole number.
  const size_t top = words_.size() - 1;
  const int shift = std::countl_zero(words_[top]);
  uint64_t high = words_[top] << shift;
  if (shift != 0) high |= words_[top - 1] >> (64 - shift);
  const bool has_lower_bits =
      (words_[top - 1] << shift) != 0 ||
      std::any_of(words_.begin(), words_.begin() + static_cast<ptrdiff_t>(top - 1),
                  [](uint64_t word) { return word != 0; });
  const size_t exponent = 64 * top - static_cast<size_t>(shift);
  if (exponent > 1024) return std::numeric_limits<double>::infinity();
  return std::ldexp(static_cast<double>(high | uint64_t{has_lower_bits}),
                    static_cast<int>(exponent));
}

double ExactCount::log10() const {
  double mantissa = 0;  // of the count in units of 2^exponent
  size_t lowest = words_.size();
  while (lowest != 0 && words_.size() - lowest < 2) {
    mantissa = std::ldexp(mantissa, 64) + static_cast<double>(words_[--lowest]);
  }
  return std::log10(mantissa) + static_cast<double>(64 * lowest) * std::log10(2.0);
}

}  // namespace cariama::bdd
