// ExactCount: an unsigned integer of any size, for numbers of states and assignments.
//
//   ExactCount count = 1;
//   count <<= 83;
//   std::puts(count.to_string().c_str());       // 9671406556917033397649408
#ifndef CARIAMA_BDD_EXACT_COUNT_H_
#define CARIAMA_BDD_EXACT_COUNT_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "bdd/export.h"

namespace cariama::bdd {

class CARIAMA_BDD_EXPORT ExactCount {
 public:
  ExactCount() = default;
  // Implicit, so that counts can be compared with literals.
  ExactCount(uint64_t value) {
    if (value != 0) words_.push_back(value);
  }

  ExactCount& operator+=(const ExactCount& other);
  ExactCount& operator<<=(uint32_t bits);
  friend ExactCount operator+(ExactCount a, const ExactCount& b) { return a += b; }
  friend ExactCount operator<<(ExactCount a, uint32_t bits) { return a <<= bits; }
  friend bool operator==(const ExactCount& a, const ExactCount& b) = default;
  friend CARIAMA_BDD_EXPORT std::strong_ordering operator<=>(const ExactCount& a,
                                                             const ExactCount& b);

  // Returns the number in decimal digits.
  [[nodiscard]] std::string to_string() const;
  // Returns the nearest double; infinity beyond the range of double.
  [[nodiscard]] double to_double() const;
  // Returns the decimal logarithm, which is finite for every count but 0 (-infinity).
  [[nodiscard]] double log10() const;

 private:
  std::vector<uint64_t> words_;  // least significant first; the last word is not 0
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_EXACT_COUNT_H_
