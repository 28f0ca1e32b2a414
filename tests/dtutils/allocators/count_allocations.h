// Counts allocations, for tests of paths that must not allocate. The header replaces the global
// operators new and delete of the program. They are weak, so several source files may include it.
// In sanitizer builds, which replace these operators already, it counts through the sanitizer's
// allocation hook.
#ifndef CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_
#define CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace cariama::testing {
inline std::atomic<size_t> allocations{0};
}  // namespace cariama::testing

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

// Declared as in sanitizer/allocator_interface.h, a header that g++ does not install.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             size_t),
                                                         void (*free_hook)(const volatile void*));

namespace cariama::testing {
inline const int kSanitizerCounts = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { allocations.fetch_add(1, std::memory_order_relaxed); },
    [](const volatile void*) {});
}  // namespace cariama::testing

#else

// Not inlined: gcc warns about a mismatch if it sees malloc together with operator delete.
[[gnu::noinline, gnu::weak]] void* operator new(size_t bytes) {
  cariama::testing::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline, gnu::weak]] void* operator new(size_t bytes, std::align_val_t alignment) {
  cariama::testing::allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<size_t>(alignment);
  if (void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline, gnu::weak]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline, gnu::weak]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline, gnu::weak]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline, gnu::weak]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

#endif  // sanitizers

#endif  // CARIAMA_TESTS_DTUTILS_ALLOCATORS_COUNT_ALLOCATIONS_H_
