// The n-queens problem with BuDDy, for comparison.
#ifndef CARIAMA_BENCH_SUPPORT_BUDDY_QUEENS_H_
#define CARIAMA_BENCH_SUPPORT_BUDDY_QUEENS_H_

#include <cstdint>

namespace cariama::bench {

// Computes the placements of n queens by the same operations as cariama::bdd::queens(), and returns
// the seconds. Defined only if BuDDy was found.
[[nodiscard]] double buddy_queens(uint32_t n);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_BUDDY_QUEENS_H_
