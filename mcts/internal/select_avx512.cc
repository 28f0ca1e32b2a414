// The select kernel for AVX-512. CMakeLists.txt compiles this file for AVX-512 on x86-64. On other
// processors it contains no kernel.
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "mcts/internal/select_kernels.h"

namespace cariama::mcts::internal {

#if defined(__AVX512F__)
namespace {
int select_avx512(const SelectJob& job)
#include "mcts/internal/select_body.inc"
}  // namespace
extern const SelectKernel kSelectAVX512 = select_avx512;
#else
extern const SelectKernel kSelectAVX512 = nullptr;
#endif

}  // namespace cariama::mcts::internal
