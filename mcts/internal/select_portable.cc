#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <type_traits>

#include "mcts/internal/select_kernels.h"

namespace cariama::mcts::internal {

int select_portable(const SelectJob& job)
#include "mcts/internal/select_body.inc"

    namespace {

  struct Kernels {
    SelectKernel list[3] = {select_portable, nullptr, nullptr};
    int count = 1;
    SelectKernel chosen = select_portable;

    Kernels() {
      [[maybe_unused]] const auto add = [&](const char* name, SelectKernel kernel, bool usable) {
        if (kernel == nullptr || !usable) return;
        list[count++] = kernel;
        if (wanted.empty() || wanted == name) chosen = kernel;
      };
#if defined(__x86_64__)
      __builtin_cpu_init();
      add("avx2", kSelectAVX2, __builtin_cpu_supports("avx2"));
      add("avx512", kSelectAVX512,
          __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl"));
#endif
    }
    const char* variable = std::getenv("CARIAMA_MCTS_SIMD");
    std::string_view wanted = variable != nullptr ? variable : "";
  };

  const Kernels& kernels() {
    static const Kernels all;
    return all;
  }

}  // namespace

SelectKernel select_kernel() {
  static const SelectKernel kernel = kernels().chosen;
  return kernel;
}

const SelectKernel* available_select_kernels(int* count) {
  *count = kernels().count;
  return kernels().list;
}

}  // namespace cariama::mcts::internal
