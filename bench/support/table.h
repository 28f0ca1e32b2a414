// Prints a table for people on stdout, row by row while it is measured.
//
//   Table table({"bytes", "manual", "auto", "auto/manual"});
//   table.row({"8", metric_text(171e6), metric_text(176e6), ratio_text(summary)});
#ifndef CARIAMA_BENCH_SUPPORT_TABLE_H_
#define CARIAMA_BENCH_SUPPORT_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "bench/support/summary.h"

namespace cariama::bench {

class Table {
 public:
  // Prints the headings.
  explicit Table(const std::vector<std::string>& headings);
  // Prints a row, aligned to the right. Requires: as many cells as headings.
  void row(const std::vector<std::string>& cells) const;

 private:
  std::vector<size_t> widths_;
};

// Returns three significant digits and a decimal prefix: "171 M", "28.5 k", "950".
[[nodiscard]] std::string metric_text(double value);
// Returns "108/127 ns", in us from 10000 ns and in ms from 10000 us.
[[nodiscard]] std::string latency_text(double p50_ns, double p99_ns);
// Returns the median, and the least and the greatest value: "0.66 (0.55..0.86)".
[[nodiscard]] std::string ratio_text(const Summary& summary);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TABLE_H_
