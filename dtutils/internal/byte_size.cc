#include "dtutils/internal/byte_size.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <limits>

namespace cariama::internal {

size_t base_page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes == std::numeric_limits<uint64_t>::max()) return "unlimited";
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  uint64_t divisor = 1;
  while (unit + 1 < std::size(kUnits) && bytes / divisor >= 1024) {
    divisor *= 1024;
    ++unit;
  }
  char text[32];
  if (bytes % divisor == 0) {
    std::snprintf(text, sizeof(text), "%llu %s", static_cast<unsigned long long>(bytes / divisor),
                  kUnits[unit]);
  } else {
    std::snprintf(text, sizeof(text), "%.1f %s",
                  static_cast<double>(bytes) / static_cast<double>(divisor), kUnits[unit]);
  }
  return text;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  if (text == "unlimited") return std::numeric_limits<uint64_t>::max();
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);

  std::string unit;
  for (const char c : text) unit += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  int shift = 0;
  if (!unit.empty() && unit != "b") {
    static constexpr std::string_view kPrefixes = "kmgt";
    const size_t prefix = kPrefixes.find(unit[0]);
    if (prefix == std::string_view::npos) return std::nullopt;
    const std::string_view tail = std::string_view(unit).substr(1);
    if (!tail.empty() && tail != "b" && tail != "ib") return std::nullopt;
    shift = 10 * (static_cast<int>(prefix) + 1);
  }
  if (number > (std::numeric_limits<uint64_t>::max() >> shift)) return std::nullopt;
  return number << shift;
}

}  // namespace cariama::internal
