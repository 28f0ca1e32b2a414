// The cost of registering and deregistering memory, as the helper policy predicts it from the times
// that it has measured.
//
//   CostModel cost(54, 2000);           // 54 ns for each page and 2 µs
//   cost.add(pages, nanoseconds);       // one measurement
//   int64_t expected = cost.predict(pages);
#ifndef CARIAMA_DTUTILS_REGISTRATION_COST_MODEL_H_
#define CARIAMA_DTUTILS_REGISTRATION_COST_MODEL_H_

#include <cstdint>

#include "dtutils/export.h"

namespace cariama {

// The cost of an operation on p pages, a * p + b, fitted by linear regression in which older
// samples fade (the last 64 count most). Not thread-safe.
class CARIAMA_DTUTILS_EXPORT CostModel {
 public:
  // The initial line, in ns.
  CostModel(double per_page, double base);
  void add(uint64_t pages, int64_t nanoseconds);
  // Never negative.
  [[nodiscard]] int64_t predict(uint64_t pages) const;
  // The largest cost to be expected: the line plus an upper bound of the recent deviations from it,
  // which rises with each larger deviation and falls slowly. The bound is the smaller of two, in ns
  // and relative to the line: a long operation that was interrupted must not count for short ones,
  // nor a short one that took many times its cost as many times the cost of a long one.
  [[nodiscard]] int64_t predict_most(uint64_t pages) const;

 private:
  double weight_, x_, y_, xx_, xy_;
  double per_page_, base_;
  double deviation_ = 0;           // ns
  double relative_deviation_ = 0;  // a factor of the line
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_COST_MODEL_H_
