// Summary statistics of the repetitions of a measurement.
#ifndef CARIAMA_BENCH_SUPPORT_SUMMARY_H_
#define CARIAMA_BENCH_SUPPORT_SUMMARY_H_

#include <cstddef>
#include <vector>

namespace cariama::bench {

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  size_t n = 0;  // repetitions
};

// Requires: values is not empty.
[[nodiscard]] Summary summarize(std::vector<double> values);

// Returns the value below which `fraction` of the values lie (nearest rank). Reorders the values.
// Requires: values is not empty, 0 < fraction <= 1.
[[nodiscard]] double percentile(std::vector<double>& values, double fraction);

// Returns a[i] / b[i] for repetitions that ran one directly after the other: a disturbance of the
// machine that lasts longer than a repetition affects both. Requires: equal sizes.
[[nodiscard]] std::vector<double> ratios(const std::vector<double>& a,
                                         const std::vector<double>& b);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_SUMMARY_H_
