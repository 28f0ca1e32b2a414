// The vectorised uniform playout, written once for all instruction sets. Each uniform_*.cc defines
// its vector operations in an unnamed namespace and instantiates Kernel with them, compiled for
// that instruction set. Nothing here may come from the standard library: an inline function
// compiled there could be the one that the linker keeps for the whole program.
//
// Layout: as many boards side by side as a vector has lanes; vector y holds row y of all of them,
// one bit for each column. Connected cells are found by flooding whole rows.
//
// Filling: the empty cells, numbered 0 .. e-1, are packed into dense vectors ("packed rows"), so
// that the work falls with e. Each gets a random bit; then surplus stones of the side that has too
// many, chosen uniformly, change sides. Whatever the number of stones was before, by symmetry each
// set of the right size is equally likely afterwards. That stays true if boards are drawn again as
// long as the surplus exceeds a limit, which saves most of the slow repairs.
#ifndef CARIAMA_HEX_INTERNAL_UNIFORM_KERNEL_H_
#define CARIAMA_HEX_INTERNAL_UNIFORM_KERNEL_H_

#include <stdint.h>

namespace cariama::hex {

// Bits of a packed row that go to a row of the board: those under `mask` after the shift.
struct FillSegment {
  uint8_t packed_row;
  uint8_t row;
  int8_t shift;  // left if positive
  uint32_t mask;
};

// What one call of a kernel does. Plain pointers, so that it can be filled in by code compiled for
// any processor.
struct UniformJob {
  static constexpr int kMaxRows = 25;
  static constexpr int kMaxSegments = 2 * 625;
  // Working memory of the generator: 128 bits for each 64 of the widest vector.
  static constexpr int kStateWords = 16;

  int cols = 0;
  int rows = 0;
  uint32_t black[kMaxRows];  // stones that are there
  int packed_rows = 0;
  uint32_t packed_valid[kMaxRows];  // which bits of the packed rows are cells
  int black_to_add = 0;
  int surplus_limit = 0;
  const FillSegment* segments = nullptr;
  int num_segments = 0;

  uint64_t* state = nullptr;  // in and out, kStateWords
  int playouts = 0;           // in
  int black_wins = 0;         // out
  // Out, unless null: for each cell, in how many playouts it was black in the end, and in how many
  // of these Black won. Added to what is there.
  uint32_t* black_owned = nullptr;
  uint32_t* black_owned_and_won = nullptr;
  // Out, unless null: the black cells of each playout, `rows` words each.
  uint32_t* boards = nullptr;
};

using UniformKernel = void (*)(UniformJob&);

// The kernels: for boards of up to 16 and of up to 32 columns. Null where the compiler does not
// know the instruction set.
struct UniformKernels {
  UniformKernel narrow = nullptr;
  UniformKernel wide = nullptr;
  int narrow_lanes = 0;
  int wide_lanes = 0;
};
extern const UniformKernels kUniformPortable;
extern const UniformKernels kUniformAVX2;
extern const UniformKernels kUniformAVX512;

// Ops gives: Lane, V (vector of Lane), W (the same bytes as 64-bit lanes), S (as signed lanes),
// popcount(V) per lane, one_bit(V n) = 1 << n per lane, any(V), sign_mask(V): bit i says that the
// highest bit of lane i is set.
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

    // Lemire's multiplication on 8 bits: exactly uniform if the few low products are passed over.
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
      const V step = negative | Lane{1};  // -1 where stones are missing
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

  // The seeds, spread along the runs of `open` that hold them. Upwards a carry does it; downwards
  // it takes log2 steps.
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

  // All ones in the lanes in which black connects the first row with the last.
  static V black_wins(const V* black, int rows) {
    V reached[UniformJob::kMaxRows];
    reached[0] = black[0];
    for (int y = 1; y < rows; ++y) {
      reached[y] = spread((reached[y - 1] | reached[y - 1] >> 1) & black[y], black[y]);
    }
    for (;;) {
      const V open_lanes = reinterpret_cast<V>(reached[rows - 1] == V{});
      // What a path that turns back up reaches; and down again from there.
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
