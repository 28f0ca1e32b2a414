// The uniform playout kernel for AVX2. A batch has 16 boards, or 8 wide ones.
#include "hex/internal/uniform_kernel.h"

#ifdef __AVX2__
#include <immintrin.h>

namespace cariama::hex {
namespace {

template <typename LaneType, typename SignedType>
struct Common {
  using Lane = LaneType;
  typedef LaneType V __attribute__((vector_size(32)));
  typedef uint64_t W __attribute__((vector_size(32)));
  typedef SignedType S __attribute__((vector_size(32)));
  static __m256i raw(V v) { return reinterpret_cast<__m256i>(v); }
  static bool any(V v) { return _mm256_testz_si256(raw(v), raw(v)) == 0; }
  // Returns the number of set bits of each byte, by a table look-up of its two halves.
  static __m256i byte_counts(V v) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(raw(v), nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(raw(v), 4), nibble);
    return _mm256_add_epi8(_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high));
  }
};

struct Narrow : Common<uint16_t, int16_t> {
  static V popcount(V v) {
    const V bytes = reinterpret_cast<V>(byte_counts(v));
    return (bytes & 0xFF) + (bytes >> 8);
  }
  // AVX2 has no shift of 16-bit lanes with a different count per lane, but it has a multiplication:
  // 2^n is the product of one factor for each bit of n.
  static V one_bit(V n) {
    return (1 + (n & 1)) * (1 + 3 * (n >> 1 & 1)) * (1 + 15 * (n >> 2 & 1)) *
           (1 + 255 * (n >> 3 & 1));
  }
  static uint64_t sign_mask(V v) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_srai_epi16(raw(v), 15), _mm256_setzero_si256());
    const auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    return (mask & 0xFF) | (mask >> 8 & 0xFF00);
  }
};

struct Wide : Common<uint32_t, int32_t> {
  static V popcount(V v) {
    const V bytes = reinterpret_cast<V>(byte_counts(v));
    return bytes * 0x01010101 >> 24;
  }
  static V one_bit(V n) {
    return reinterpret_cast<V>(_mm256_sllv_epi32(_mm256_set1_epi32(1), raw(n)));
  }
  static uint64_t sign_mask(V v) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(raw(v))));
  }
};

}  // namespace

const UniformKernels kUniformAVX2 = {&Kernel<Narrow>::run, &Kernel<Wide>::run,
                                     Kernel<Narrow>::kLanes, Kernel<Wide>::kLanes};

}  // namespace cariama::hex
#else
namespace cariama::hex {
const UniformKernels kUniformAVX2 = {};
}  // namespace cariama::hex
#endif
