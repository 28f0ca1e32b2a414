// Makes an allocation of the calling thread fail, for tests of paths that find no memory:
//
//   {
//     const FailAllocation fail(512);
//     EXPECT_THROW(transmitter.write(...), std::bad_alloc);
//   }
//
// The header replaces the global operators new and delete of the program. They are weak, so several
// source files may include it. Sanitizers define these operators: a test starts with
// CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS().
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_FAIL_ALLOCATION_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_FAIL_ALLOCATION_H_

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace cariama::testing {

// The next allocation of this thread that takes at least this number of bytes fails. 0: none fails.
inline thread_local size_t failing_bytes = 0;
// The number of such allocations that succeed before.
inline thread_local size_t failing_skips = 0;

// The next allocations of the other threads of the process fail, as many as this. A thread is
// exempt once it has set `is_exempt`.
inline std::atomic<int> failures_elsewhere{0};
inline thread_local bool is_exempt = false;

// While an object of this class lives, the first allocation of its thread that takes `bytes` bytes
// or more fails, after `skips` of them.
class FailAllocation {
 public:
  explicit FailAllocation(size_t bytes, size_t skips = 0) {
    failing_bytes = bytes;
    failing_skips = skips;
  }
  ~FailAllocation() { failing_bytes = failing_skips = 0; }
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
};

}  // namespace cariama::testing

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS() \
  GTEST_SKIP() << "the sanitizer defines operator new"
#else
#define CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS() static_cast<void>(0)

namespace cariama::testing {
inline bool allocation_fails(size_t bytes) {
  if (failures_elsewhere.load(std::memory_order_relaxed) > 0 && !is_exempt) {
    return failures_elsewhere.fetch_sub(1, std::memory_order_relaxed) > 0;
  }
  if (failing_bytes == 0 || bytes < failing_bytes) return false;
  if (failing_skips != 0) {
    --failing_skips;
    return false;
  }
  failing_bytes = 0;
  return true;
}
}  // namespace cariama::testing

// Not inlined: gcc warns about a mismatch if it sees malloc together with operator delete.
[[gnu::noinline, gnu::weak]] void* operator new(size_t bytes) {
  if (cariama::testing::allocation_fails(bytes)) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline, gnu::weak]] void* operator new(size_t bytes, std::align_val_t alignment) {
  if (cariama::testing::allocation_fails(bytes)) throw std::bad_alloc();
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

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_FAIL_ALLOCATION_H_
