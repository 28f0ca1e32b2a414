// Sizes in bytes as people write them: "2 MiB", "64k", "1073741824".
#ifndef CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_
#define CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// "2 MiB" when the unit divides it, else with one decimal ("1.5 GiB"); "17 B"; "unlimited" for the
// largest value.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string format_bytes(uint64_t bytes);

// Accepts a whole number with an optional binary unit (k, M, G, T, with or without "iB" or "B", in
// either case, after optional spaces) and "unlimited". Nothing for anything else, also on overflow.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::optional<uint64_t> parse_bytes(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_BYTE_SIZE_H_
