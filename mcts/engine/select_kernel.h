// The select kernels: the score computation of selection.h on plain arrays. It is compiled once per
// instruction set; one kernel is chosen at the first use, by the features of the processor.
#ifndef CARIAMA_MCTS_ENGINE_SELECT_KERNEL_H_
#define CARIAMA_MCTS_ENGINE_SELECT_KERNEL_H_

#include <cstdint>

#include "mcts/export.h"

namespace cariama::mcts::internal {

// The arrays of a node, padded to a multiple of 16 moves, and the coefficients of the score.
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
  float exploration;   // exploration * sqrt(ln N); 0: no UCB term
  float prior_weight;  // factor of prior / (1 + visits); 0: no prior term
};

// Returns the move with the highest score, the first one of several, or -1 if all moves are closed.
using SelectKernel = int (*)(const SelectJob& job);

// Returns the fastest kernel that the processor supports, or the one that the environment variable
// CARIAMA_MCTS_SIMD names (portable, avx2, avx512), if the processor supports it.
[[nodiscard]] CARIAMA_MCTS_EXPORT SelectKernel select_kernel();

}  // namespace cariama::mcts::internal

#endif  // CARIAMA_MCTS_ENGINE_SELECT_KERNEL_H_
