// The arithmetic of selection.h on plain arrays: compiled once for each instruction set, and chosen
// once by what the processor has.
#ifndef CARIAMA_MCTS_SELECT_KERNEL_H_
#define CARIAMA_MCTS_SELECT_KERNEL_H_

#include <cstdint>

#include "mcts/export.h"

namespace cariama::mcts::internal {

// The arrays of a node, padded to groups of 16, and the coefficients of the score.
struct SelectJob {
  const int32_t* visits;
  const double* value;
  const float* amaf_visits;  // nullptr: no AMAF
  const float* amaf_value;
  const float* prior;
  const float* bias;
  int padded;
  float first_play;
  float amaf_equivalence;
  float exploration;   // times sqrt(ln N); 0: none
  float prior_weight;  // 0: none
};

// The first of the moves with the highest score, or -1 if all are closed.
using SelectKernel = int (*)(const SelectJob& job);

int select_portable(const SelectJob& job);
extern const SelectKernel kSelectAVX2;    // nullptr: not in this build
extern const SelectKernel kSelectAVX512;  // ditto

// The fastest that the processor has, or what CARIAMA_MCTS_SIMD names: portable, avx2, avx512.
[[nodiscard]] CARIAMA_MCTS_EXPORT SelectKernel select_kernel();
// All that this machine has, slowest first; `count` of them: for tests.
[[nodiscard]] CARIAMA_MCTS_EXPORT const SelectKernel* available_select_kernels(int* count);

}  // namespace cariama::mcts::internal

#endif  // CARIAMA_MCTS_SELECT_KERNEL_H_
