#include "dht/bucket_scan.h"

#include <atomic>

#include "dtutils/internal/shared_copy.h"

#ifdef __x86_64__
#define CARIAMA_DHT_VECTOR 1
#else
#define CARIAMA_DHT_VECTOR 0
#endif

#if CARIAMA_DHT_VECTOR
#include <immintrin.h>
#endif

namespace cariama {
namespace {

uint64_t load_word(const uint64_t* word) {
  // atomic_ref of a const object is C++26.
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
}

size_t scan_portably(const uint64_t* buckets, size_t count, size_t words, uint64_t word,
                     size_t from) {
  for (size_t i = from; i < count; ++i) {
    const uint64_t found = load_word(buckets + i * words);
    if (found == 0 || found == word) return i;
  }
  return count;
}

#if CARIAMA_DHT_VECTOR
// Returns a mask of the 64-bit lanes that are 0 or equal `word`.
[[gnu::target("avx2")]] inline unsigned lanes_to_examine(const uint64_t* from, __m256i word) {
  __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  // Both compares use this one load. Without the barrier the compiler may load once for each: a
  // bucket that another thread sets to `word` in between would equal neither.
  asm volatile("" : "+x"(lanes));
  const __m256i found = _mm256_or_si256(_mm256_cmpeq_epi64(lanes, word),
                                        _mm256_cmpeq_epi64(lanes, _mm256_setzero_si256()));
  return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(found)));
}

[[gnu::target("avx2")]] size_t scan_one_word_avx2(const uint64_t* buckets, size_t count,
                                                  uint64_t word) {
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(word));
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const unsigned found =
        lanes_to_examine(buckets + i, wanted) | lanes_to_examine(buckets + i + 4, wanted) << 4;
    if (found != 0) return i + static_cast<size_t>(__builtin_ctz(found));
  }
  return scan_portably(buckets, count, 1, word, i);
}

[[gnu::target("avx2")]] size_t scan_two_words_avx2(const uint64_t* buckets, size_t count,
                                                   uint64_t word) {
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(word));
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    // Lanes 0 and 2 are words 0.
    const unsigned found = (lanes_to_examine(buckets + 2 * i, wanted) & 5) |
                           (lanes_to_examine(buckets + 2 * i + 4, wanted) & 5) << 4;
    if (found != 0) return i + static_cast<size_t>(__builtin_ctz(found)) / 2;
  }
  return scan_portably(buckets, count, 2, word, i);
}

// ThreadSanitizer would report vector loads as races with the compare-and-swaps of other threads.
// The races are harmless: a vector load tears no aligned word on x86-64, and the caller repeats the
// load of a bucket that it acts on.
bool has_avx2() {
  if (internal::kUnderThreadSanitizer) return false;
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

size_t scan_buckets(const uint64_t* buckets, size_t count, size_t words, uint64_t word) {
#if CARIAMA_DHT_VECTOR
  if (words <= 2 && has_avx2()) {
    return words == 1 ? scan_one_word_avx2(buckets, count, word)
                      : scan_two_words_avx2(buckets, count, word);
  }
#endif
  return scan_portably(buckets, count, words, word, 0);
}

size_t count_occupied(const uint64_t* buckets, size_t count, size_t words) {
  size_t occupied = 0;
  for (size_t i = 0; i < count; ++i) occupied += load_word(buckets + i * words) != 0 ? 1 : 0;
  return occupied;
}

}  // namespace cariama
