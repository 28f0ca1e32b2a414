#include "dtutils/shm/copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cariama::shm {
namespace {

#if defined(__x86_64__)

// Uses vector intrinsics: for a memcpy of 64 bytes in code that g++ considers rarely executed it
// emits string instructions, which are five times slower.

inline void copy_block_sse2(std::byte* to, const std::byte* from) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in);
  const __m128i b = _mm_loadu_si128(in + 1);
  const __m128i c = _mm_loadu_si128(in + 2);
  const __m128i d = _mm_loadu_si128(in + 3);
  _mm_storeu_si128(out, a);
  _mm_storeu_si128(out + 1, b);
  _mm_storeu_si128(out + 2, c);
  _mm_storeu_si128(out + 3, d);
}
void copy_sse2(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t last = bytes - 64;
  for (size_t done = 0; done < last; done += 64) copy_block_sse2(to + done, from + done);
  copy_block_sse2(to + last, from + last);
}

[[gnu::target("avx2")]] inline void copy_block_avx2(std::byte* to, const std::byte* from) {
  const auto* in = reinterpret_cast<const __m256i*>(from);
  auto* out = reinterpret_cast<__m256i*>(to);
  const __m256i a = _mm256_loadu_si256(in);
  const __m256i b = _mm256_loadu_si256(in + 1);
  _mm256_storeu_si256(out, a);
  _mm256_storeu_si256(out + 1, b);
}
[[gnu::target("avx2")]] void copy_avx2(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t last = bytes - 64;
  for (size_t done = 0; done < last; done += 64) copy_block_avx2(to + done, from + done);
  copy_block_avx2(to + last, from + last);
}

[[gnu::target("avx512f")]] void copy_avx512(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t last = bytes - 64;
  for (size_t done = 0; done < last; done += 64) {
    _mm512_storeu_si512(to + done, _mm512_loadu_si512(from + done));
  }
  _mm512_storeu_si512(to + last, _mm512_loadu_si512(from + last));
}

CopyFunction best_copy() {
  __builtin_cpu_init();
  // Requires avx512vl too: older processors with avx512f but without avx512vl reduce their clock
  // when it is used.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return copy_avx512;
  if (__builtin_cpu_supports("avx2")) return copy_avx2;
  return copy_sse2;
}

#else

void copy_plain(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t last = bytes - 64;
  for (size_t done = 0; done < last; done += 64) std::memcpy(to + done, from + done, 64);
  std::memcpy(to + last, from + last, 64);
}

CopyFunction best_copy() { return copy_plain; }

#endif

}  // namespace

const CopyFunction kCopyBlocks = best_copy();

}  // namespace cariama::shm
