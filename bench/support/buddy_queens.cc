#include "bench/support/buddy_queens.h"

#ifdef CARIAMA_BENCH_BUDDY
#include <bdd.h>

#include <chrono>
#include <vector>

namespace cariama::bench {

double buddy_queens(uint32_t n) {
  const auto start = std::chrono::steady_clock::now();
  // 20 MB of nodes: no collection for up to 9 queens.
  bdd_init(1'000'000, 100'000);
  bdd_gbc_hook(nullptr);
  bdd_setmaxincrease(1'000'000);
  bdd_setvarnum(static_cast<int>(n * n));
  double seconds = 0;
  {
    std::vector<bdd> squares;
    for (uint32_t i = 0; i < n * n; ++i) squares.push_back(bdd_ithvar(static_cast<int>(i)));
    bdd all = bddtrue;
    for (uint32_t i = 0; i < n; ++i) {
      bdd row = bddfalse;
      for (uint32_t j = 0; j < n; ++j) {
        bdd queen = squares[i * n + j];
        for (uint32_t k = 0; k < n; ++k) {
          for (uint32_t l = 0; l < n; ++l) {
            const bool attacked = k == i || l == j || k + j == l + i || k + l == i + j;
            if (attacked && (k != i || l != j)) queen = queen & !squares[k * n + l];
          }
        }
        row = row | queen;
      }
      all = all & row;
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  bdd_done();
  return seconds;
}

}  // namespace cariama::bench
#endif
