// Counts calls of operator new, for tests of paths that must not allocate. Include it in exactly
// one source file of a program: it replaces the global operators.
#ifndef CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_
#define CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace cariama::testing {
inline std::atomic<size_t> allocations{0};
}  // namespace cariama::testing

// Not inlined: seeing malloc and operator delete together, gcc suspects a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  cariama::testing::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  cariama::testing::allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<size_t>(alignment);
  if (void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

#endif  // CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_
