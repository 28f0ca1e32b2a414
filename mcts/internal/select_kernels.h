// The select kernels of this build, one per instruction set, from which select_kernel() chooses.
#ifndef CARIAMA_MCTS_INTERNAL_SELECT_KERNELS_H_
#define CARIAMA_MCTS_INTERNAL_SELECT_KERNELS_H_

#include "mcts/engine/select_kernel.h"

namespace cariama::mcts::internal {

int select_portable(const SelectJob& job);
extern const SelectKernel kSelectAVX2;    // nullptr: not in this build
extern const SelectKernel kSelectAVX512;  // nullptr: not in this build

// For tests: returns all kernels that the processor supports, the slowest first, and writes their
// number to `count`.
[[nodiscard]] const SelectKernel* available_select_kernels(int* count);

}  // namespace cariama::mcts::internal

#endif  // CARIAMA_MCTS_INTERNAL_SELECT_KERNELS_H_
