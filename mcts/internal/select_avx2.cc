// The select kernel for AVX2. CMakeLists.txt compiles this file for AVX2 on x86-64. On other
// processors it contains no kernel.
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "mcts/internal/select_kernels.h"

namespace cariama::mcts::internal {

#if defined(__AVX2__)
namespace {
int select_avx2(const SelectJob& job)
#include "mcts/internal/select_body.inc"
}  // namespace
extern const SelectKernel kSelectAVX2 = select_avx2;
#else
extern const SelectKernel kSelectAVX2 = nullptr;
#endif

}  // namespace cariama::mcts::internal
