// The uniform playout kernel for every processor: vectors of 16 bytes, which the compiler
// translates to SSE2 on x86-64 and NEON on AArch64. A batch has 8 boards, or 4 wide ones.
#include "hex/internal/uniform_kernel.h"

namespace cariama::hex {
namespace {

template <typename LaneType, typename SignedType>
struct Portable {
  using Lane = LaneType;
  typedef LaneType V __attribute__((vector_size(16)));
  typedef uint64_t W __attribute__((vector_size(16)));
  typedef SignedType S __attribute__((vector_size(16)));
  static constexpr int kLanes = 16 / sizeof(Lane);

  static bool any(V v) {
    const W words = reinterpret_cast<W>(v);
    return (words[0] | words[1]) != 0;
  }
  static V popcount(V v) {
    v -= v >> 1 & static_cast<Lane>(0x55555555);
    v = (v & static_cast<Lane>(0x33333333)) + (v >> 2 & static_cast<Lane>(0x33333333));
    v = (v + (v >> 4)) & static_cast<Lane>(0x0F0F0F0F);
    v += v >> 8;
    if constexpr (sizeof(Lane) == 4) v += v >> 16;
    return v & Lane{0x3F};
  }
  // 1 << n by steps for the bits of n: SSE2 has no shift with a different count per lane.
  static V one_bit(V n) {
    V bit = V{} + Lane{1};
    bit += bit & -(n & Lane{1});
    for (int i = 1; (1U << i) < sizeof(Lane) * 8; ++i) {
      const V chosen = -(n >> i & Lane{1});
      bit ^= (bit ^ bit << (1 << i)) & chosen;
    }
    return bit;
  }
  static uint64_t sign_mask(V v) {
    uint64_t mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= uint64_t{v[i]} >> (sizeof(Lane) * 8 - 1) << i;
    return mask;
  }
};
using Narrow = Portable<uint16_t, int16_t>;
using Wide = Portable<uint32_t, int32_t>;

}  // namespace

const UniformKernels kUniformPortable = {&Kernel<Narrow>::run, &Kernel<Wide>::run, Narrow::kLanes,
                                         Wide::kLanes};

}  // namespace cariama::hex
