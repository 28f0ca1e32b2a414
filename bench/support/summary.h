// What repetitions of a measurement say together.
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

// Precondition: values is not empty.
[[nodiscard]] Summary summarize(std::vector<double> values);

// The value below which `fraction` of the values lie (nearest rank). Reorders them. Precondition:
// values is not empty, 0 < fraction <= 1.
[[nodiscard]] double percentile(std::vector<double>& values, double fraction);

// a[i] / b[i] of repetitions that ran side by side: what disturbs the machine for longer than a
// repetition disturbs both. Precondition: equal sizes.
[[nodiscard]] std::vector<double> ratios(const std::vector<double>& a,
                                         const std::vector<double>& b);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_SUMMARY_H_
