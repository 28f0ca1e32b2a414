// The uniform playout kernel for AVX-512 with BITALG (Ice Lake, Zen 4 and later). A batch has 32
// boards, or 16 wide ones.
#include "hex/internal/uniform_kernel.h"

#ifdef __AVX512BITALG__
#include <immintrin.h>

namespace cariama::hex {
namespace {

template <typename LaneType, typename SignedType>
struct Common {
  using Lane = LaneType;
  typedef LaneType V __attribute__((vector_size(64)));
  typedef uint64_t W __attribute__((vector_size(64)));
  typedef SignedType S __attribute__((vector_size(64)));
  static __m512i raw(V v) { return reinterpret_cast<__m512i>(v); }
  static bool any(V v) { return _mm512_test_epi64_mask(raw(v), raw(v)) != 0; }
};

struct Narrow : Common<uint16_t, int16_t> {
  static V popcount(V v) { return reinterpret_cast<V>(_mm512_popcnt_epi16(raw(v))); }
  static V one_bit(V n) {
    return reinterpret_cast<V>(_mm512_sllv_epi16(_mm512_set1_epi16(1), raw(n)));
  }
  static uint64_t sign_mask(V v) { return _mm512_movepi16_mask(raw(v)); }
};

struct Wide : Common<uint32_t, int32_t> {
  static V popcount(V v) {
    const V halves = reinterpret_cast<V>(_mm512_popcnt_epi16(raw(v)));
    return (halves & 0xFFFF) + (halves >> 16);
  }
  static V one_bit(V n) {
    return reinterpret_cast<V>(_mm512_sllv_epi32(_mm512_set1_epi32(1), raw(n)));
  }
  static uint64_t sign_mask(V v) { return _mm512_movepi32_mask(raw(v)); }
};

}  // namespace

const UniformKernels kUniformAVX512 = {&Kernel<Narrow>::run, &Kernel<Wide>::run,
                                       Kernel<Narrow>::kLanes, Kernel<Wide>::kLanes};

}  // namespace cariama::hex
#else
namespace cariama::hex {
const UniformKernels kUniformAVX512 = {};
}  // namespace cariama::hex
#endif
