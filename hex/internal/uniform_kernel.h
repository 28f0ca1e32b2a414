// The vectorised uniform playout, written once for all instruction sets. Each uniform_*.cc defines
// its vector operations in an unnamed namespace and instantiates Kernel with them, compiled for
// that instruction set. This header must not use the standard library: the linker might keep an
// inline function compiled for this instruction set for the whole program.
//
// Layout: one board per lane of a vector. Vector y contains row y of all boards, one bit per
// column. Connected cells are found by flooding whole rows.
//
// Filling: the empty cells, numbered 0 .. e-1, are packed into dense vectors ("packed rows"), so
// that the work decreases with e. First each cell gets a random bit. Then, on the side with too
// many stones, uniformly chosen stones change their colour until the number is right (repair). By
// symmetry, all sets of the right size then have the same probability, for every number before the
// repair. This holds, too, if boards with a surplus above a limit are drawn again, which avoids
// most of the slow repairs.
#ifndef CARIAMA_HEX_INTERNAL_UNIFORM_KERNEL_H_
#define CARIAMA_HEX_INTERNAL_UNIFORM_KERNEL_H_

#include <stdint.h>

namespace cariama::hex {

// A segment: bits of a packed row that belong to one row of the board. They are shifted first, then
// selected by `mask`.
struct FillSegment {
  uint8_t packed_row;
  uint8_t row;
  int8_t shift;  // to the left if positive
  uint32_t mask;
};

// The parameters and results of one call of a kernel. It has only plain types, so that code
// compiled for any processor can fill it in.
struct UniformJob {
  static constexpr int kMaxRows = 25;
  static constexpr int kMaxSegments = 2 * 625;
  // State of the generator: 128 bits per 64-bit lane of the widest vector.
  static constexpr int kStateWords = 16;

  int cols = 0;
  int rows = 0;
  uint32_t black[kMaxRows];  // the black stones of the position
  int packed_rows = 0;
  uint32_t packed_valid[kMaxRows];  // the bits of the packed rows that are cells
  int black_to_add = 0;
  int surplus_limit = 0;
  const FillSegment* segments = nullptr;
  int num_segments = 0;

  uint64_t* state = nullptr;  // in and out, kStateWords
  int playouts = 0;           // in
  int black_wins = 0;         // out
  // Out, if not null: for each cell, the number of playouts in which it was black at the end, and
  // the number of these that Black won. The kernel adds to the present values.
  uint32_t* black_owned = nullptr;
  uint32_t* black_owned_and_won = nullptr;
  // Out, if not null: the black cells of each playout, `rows` words per playout.
  uint32_t* boards = nullptr;
};

using UniformKernel = void (*)(UniformJob&);

// The kernels for boards of up to 16 columns (narrow) and of up to 32 columns (wide). nullptr if
// this build does not support the instruction set.
struct UniformKernels {
  UniformKernel narrow = nullptr;
  UniformKernel wide = nullptr;
  int narrow_lanes = 0;
  int wide_lanes = 0;
};
extern const UniformKernels kUniformPortable;
extern const UniformKernels kUniformAVX2;
extern const UniformKernels kUniformAVX512;

// Ops provides the types and functions of an instruction set:
//   Lane          an unsigned integer, one lane of a vector
//   V             a vector of Lane
//   W, S          the same bytes as a vector of 64-bit lanes, and of signed lanes
//   popcount(v)   the number of set bits, per lane
//   one_bit(n)    1 << n, per lane
//   any(v)        true if any bit of the vector is set
//   sign_mask(v)  a word with bit i set if the highest bit of lane i is set
template <typename Ops>
struct Kernel {
  using Lane = typename Ops::Lane;
  using V = typename Ops::V;
  using W = typename Ops::W;
  using S = typename Ops::S;
  static constexpr int kLaneBits = sizeof(Lane) * 8;
  static constexpr int kLanes = sizeof(V) / sizeof(Lane);
  static constexpr int kWords = sizeof(V) / 8;

  // xoroshiro128++ (Blackman, Vigna 2019), one generator in each 64-bit lane.
  struct Generator {
    W s0, s1;
    V next() {
      const W sum = s0 + s1;
      const W result = (sum << 17 | sum >> 47) + s0;
      s1 ^= s0;
      s0 = (s0 << 49 | s0 >> 15) ^ s1 ^ s1 << 21;
      s1 = s1 << 28 | s1 >> 36;
      return reinterpret_cast<V>(result);
    }
  };

  static V all(uint32_t value) { return V{} + static_cast<Lane>(value); }
  static V select(V mask, V a, V b) { return b ^ ((a ^ b) & mask); }

  // Fills the packed rows with random stones, job.black_to_add of them black, on each board.
  static void fill(const UniformJob& job, Generator& generator, V* packed) {
    const int n = job.packed_rows;
    V surplus = {};
    V pending = ~V{};
    const V limit = all(job.surplus_limit);
    const V twice = limit + limit;
    do {
      V count = all(-job.black_to_add);
      for (int i = 0; i < n; ++i) {
        const V drawn = generator.next() & all(job.packed_valid[i]);
        packed[i] = select(pending, drawn, packed[i]);
        count += Ops::popcount(drawn);
      }
      surplus = select(pending, count, surplus);
      pending = reinterpret_cast<V>(surplus + limit > twice);
    } while (Ops::any(pending));

    // Choose a packed row by Lemire's multiplication on 8 bits. It is exactly uniform if products
    // with a low byte below `reject` are rejected.
    const V reject = all(256 % (n == 0 ? 1 : n));
    while (Ops::any(surplus)) {
      const V random = generator.next();
      const V column = random & static_cast<Lane>(kLaneBits - 1);
      const V product = ((random >> 8) & Lane{255}) * static_cast<Lane>(n);
      const V row = product >> 8;
      const V negative = reinterpret_cast<V>(reinterpret_cast<S>(surplus) >> (kLaneBits - 1));
      const V usable = reinterpret_cast<V>((product & Lane{255}) >= reject) &
                       reinterpret_cast<V>(surplus != V{});
      const V bit = Ops::one_bit(column) & usable;
      V hit = {};
      for (int i = 0; i < n; ++i) {
        const V removable = (packed[i] ^ negative) & all(job.packed_valid[i]);
        const V change = removable & bit & reinterpret_cast<V>(row == all(i));
        packed[i] ^= change;
        hit |= change;
      }
      const V step = negative | Lane{1};  // -1 in lanes with too few black stones
      surplus -= step & reinterpret_cast<V>(hit != V{});
    }
  }

  static void unpack(const UniformJob& job, const V* packed, V* black) {
    for (int y = 0; y < job.rows; ++y) black[y] = all(job.black[y]);
    for (int i = 0; i < job.num_segments; ++i) {
      const FillSegment& segment = job.segments[i];
      const V bits = packed[segment.packed_row];
      const V moved = segment.shift >= 0 ? bits << segment.shift : bits >> -segment.shift;
      black[segment.row] |= moved & all(segment.mask);
    }
  }

  // Spreads the seeds along the runs of set bits of `open` that contain them. Towards higher bits
  // the carry of one addition does this; towards lower bits it takes log2(lane bits) steps.
  static V spread(V seeds, V open) {
    seeds |= open & ~(open + seeds);
    V through = open;
    seeds |= through & seeds >> 1;
    through &= through >> 1;
    seeds |= through & seeds >> 2;
    through &= through >> 2;
    seeds |= through & seeds >> 4;
    through &= through >> 4;
    seeds |= through & seeds >> 8;
    if constexpr (kLaneBits == 32) {
      through &= through >> 8;
      seeds |= through & seeds >> 16;
    }
    return seeds;
  }

  // Returns a vector with all bits set in the lanes in which black connects the first row with the
  // last row.
  static V black_wins(const V* black, int rows) {
    V reached[UniformJob::kMaxRows];
    reached[0] = black[0];
    for (int y = 1; y < rows; ++y) {
      reached[y] = spread((reached[y - 1] | reached[y - 1] >> 1) & black[y], black[y]);
    }
    for (;;) {
      const V open_lanes = reinterpret_cast<V>(reached[rows - 1] == V{});
      // Spread upwards, for paths that turn back up, then downwards again.
      V changed = {};
      for (int y = rows - 2; y > 0; --y) {
        const V seeds = reached[y] | ((reached[y + 1] | reached[y + 1] << 1) & black[y]);
        const V more = spread(seeds, black[y]);
        changed |= more ^ reached[y];
        reached[y] = more;
      }
      if (!Ops::any(changed & open_lanes)) return ~open_lanes;
      for (int y = 1; y < rows; ++y) {
        const V seeds = reached[y] | ((reached[y - 1] | reached[y - 1] >> 1) & black[y]);
        reached[y] = spread(seeds, black[y]);
      }
    }
  }

  static void count_owned(const UniformJob& job, const V* black, uint64_t counted, uint64_t won) {
    for (int y = 0, cell = 0; y < job.rows; ++y) {
      for (int x = 0; x < job.cols; ++x, ++cell) {
        const uint64_t owned = Ops::sign_mask(black[y] << (kLaneBits - 1 - x)) & counted;
        job.black_owned[cell] += static_cast<uint32_t>(__builtin_popcountll(owned));
        job.black_owned_and_won[cell] += static_cast<uint32_t>(__builtin_popcountll(owned & won));
      }
    }
  }

  static void run(UniformJob& job) {
    Generator generator;
    __builtin_memcpy(&generator.s0, job.state, sizeof(W));
    __builtin_memcpy(&generator.s1, job.state + UniformJob::kStateWords / 2, sizeof(W));
    job.black_wins = 0;
    for (int done = 0; done < job.playouts; done += kLanes) {
      V packed[UniformJob::kMaxRows] = {};
      V black[UniformJob::kMaxRows];
      fill(job, generator, packed);
      unpack(job, packed, black);
      const int rest = job.playouts - done;
      const uint64_t counted =
          rest >= kLanes ? ~uint64_t{0} >> (64 - kLanes) : (uint64_t{1} << rest) - 1;
      const uint64_t won = Ops::sign_mask(black_wins(black, job.rows)) & counted;
      job.black_wins += __builtin_popcountll(won);
      if (job.black_owned != nullptr) count_owned(job, black, counted, won);
      if (job.boards != nullptr) {
        for (int lane = 0; lane < kLanes && lane < rest; ++lane) {
          for (int y = 0; y < job.rows; ++y) {
            job.boards[(done + lane) * job.rows + y] = black[y][lane];
          }
        }
      }
    }
    __builtin_memcpy(job.state, &generator.s0, sizeof(W));
    __builtin_memcpy(job.state + UniformJob::kStateWords / 2, &generator.s1, sizeof(W));
  }
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_INTERNAL_UNIFORM_KERNEL_H_
