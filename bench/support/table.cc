#include "bench/support/table.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "bench/support/report.h"

namespace cariama::bench {
namespace {

constexpr size_t kLeastWidth = 8;
constexpr size_t kWidthOfSpread = 18;  // "12.3 (10.1..14.5)"
constexpr size_t kGap = 2;

std::string three_digits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f", decimals, value);
}

}  // namespace

Table::Table(const std::vector<std::string>& headings) {
  for (const std::string& heading : headings) {
    const bool spread = heading.find('/') != std::string::npos;
    widths_.push_back(std::max(heading.size(), spread ? kWidthOfSpread : kLeastWidth));
  }
  row(headings);
}

void Table::row(const std::vector<std::string>& cells) const {
  progress("");
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += absl::StrFormat("%*s", static_cast<int>(widths_[i] + (i == 0 ? 0 : kGap)), cells[i]);
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string metric_text(double value) {
  constexpr std::array<const char*, 4> kPrefixes = {"", " k", " M", " G"};
  size_t prefix = 0;
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  return three_digits(value) + kPrefixes[prefix];
}

std::string latency_text(double p50_ns, double p99_ns) {
  constexpr std::array<const char*, 3> kUnits = {" ns", " us", " ms"};
  size_t unit = 0;
  while (p50_ns >= 10000 && unit + 1 < kUnits.size()) {
    p50_ns /= 1000;
    p99_ns /= 1000;
    ++unit;
  }
  const auto text = [unit](double value) {
    return unit == 0 ? absl::StrFormat("%.0f", value) : three_digits(value);
  };
  return text(p50_ns) + "/" + text(p99_ns) + kUnits[unit];
}

std::string ratio_text(const Summary& summary) {
  return absl::StrFormat("%.2f (%.2f..%.2f)", summary.median, summary.min, summary.max);
}

}  // namespace cariama::bench
