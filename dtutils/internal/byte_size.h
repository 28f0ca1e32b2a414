// Sizes in bytes as text: "2 MiB", "64k", "1073741824".
#ifndef CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_
#define CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
// The size of the smaller huge page of x86-64 and AArch64.
inline constexpr uint64_t kHugePage = 2 * kMiB;
// Returns the size of the base page of this machine.
[[nodiscard]] size_t base_page();

// Returns the least multiple of `unit` that is not less than `value`. Requires: unit > 0, and
// that the result fits.
[[nodiscard]] constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Returns "2 MiB" if the unit divides the size, else one decimal ("1.5 GiB"); "17 B"; "unlimited"
// for the largest value.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string format_bytes(uint64_t bytes);

// Parses a whole number with an optional binary unit (k, M, G, T, with or without "iB" or "B", in
// either case, after optional spaces), or "unlimited". Returns an empty optional for any other text
// and on overflow.
[[nodiscard]] std::optional<uint64_t> parse_bytes(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_
