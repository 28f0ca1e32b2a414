#include "hex/playout.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "hex/internal/uniform_kernel.h"

namespace cariama::hex {
namespace {

// The bytes of the padded board: bits 0 and 1 are the stone (1 black, 2 white; edges have the
// colour of their owner). Bit 7 marks the edges at which walk_border() ends.
constexpr uint8_t kBlackStone = 1;
constexpr uint8_t kWhiteStone = 2;
constexpr uint8_t kGoal = 0x80;

std::span<const Simd> find_simd() {
  static const std::array<Simd, 3> all = {Simd::kPortable, Simd::kAVX2, Simd::kAVX512};
  size_t count = 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (kUniformAVX2.narrow != nullptr && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("bmi")) {
    count = 2;
    if (kUniformAVX512.narrow != nullptr && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bitalg")) {
      count = 3;
    }
  }
#endif
  return {all.data(), count};
}

const UniformKernels* kernels_of(Simd simd) {
  switch (simd) {
    case Simd::kAVX2:
      return &kUniformAVX2;
    case Simd::kAVX512:
      return &kUniformAVX512;
    case Simd::kPortable:
      break;
  }
  return &kUniformPortable;
}

// Returns a table, indexed by the colours around a stone of the opponent (two bits per neighbour,
// in the order of Geometry::ring). An entry is the bit mask of the empty neighbours at which `own`
// completes a bridge that the stone intrudes into. Such a neighbour is between two own stones in
// the ring around the opponent's stone.
std::array<uint8_t, 4096> make_bridge_replies(unsigned own) {
  std::array<uint8_t, 4096> table{};
  for (unsigned code = 0; code < table.size(); ++code) {
    const auto at = [code](unsigned i) { return code >> (2 * (i % 6)) & 3; };
    for (unsigned i = 0; i < 6; ++i) {
      if (at(i) == 0 && at(i + 1) == own && at(i + 5) == own) {
        table[code] |= static_cast<uint8_t>(1U << i);
      }
    }
  }
  return table;
}

// Returns the tables, indexed by the colour that replies: kBlackStone or kWhiteStone.
const std::array<std::array<uint8_t, 4096>, 3>& bridge_replies() {
  static const std::array<std::array<uint8_t, 4096>, 3> tables = {std::array<uint8_t, 4096>{},
                                                                  make_bridge_replies(kBlackStone),
                                                                  make_bridge_replies(kWhiteStone)};
  return tables;
}

}  // namespace

std::string_view simd_name(Simd simd) {
  switch (simd) {
    case Simd::kAVX2:
      return "avx2";
    case Simd::kAVX512:
      return "avx512";
    case Simd::kPortable:
      break;
  }
  return "portable";
}

std::span<const Simd> available_simd() {
  static const std::span<const Simd> available = find_simd();
  return available;
}

Simd default_simd() {
  static const Simd chosen = [] {
    const std::span<const Simd> available = available_simd();
    if (const char* wanted = std::getenv("CARIAMA_HEX_SIMD")) {
      for (const Simd simd : available) {
        if (simd_name(simd) == wanted) return simd;
      }
    }
    return available.back();
  }();
  return chosen;
}

int UniformPlayouts::batch(int cols) const {
  return cols <= 16 ? kernels_->narrow_lanes : kernels_->wide_lanes;
}

UniformPlayouts::UniformPlayouts(uint64_t seed, Simd simd) : kernels_(kernels_of(simd)) {
  mcts::Random random(seed);
  for (uint64_t& word : state_) word = random.next();
}

UniformResult UniformPlayouts::run(const Position& position, int n, Ownership* owned,
                                   std::vector<uint32_t>* boards) {
  static_assert(UniformJob::kMaxRows == kMaxSide && UniformJob::kMaxSegments >= 2 * kMaxCells);
  static_assert(UniformJob::kStateWords == std::tuple_size_v<decltype(state_)>);
  const bool narrow = position.cols <= 16;
  const int lane_bits = narrow ? 16 : 32;
  UniformJob job;
  job.cols = position.cols;
  job.rows = position.rows;

  // Pack the empty cells: each run of empty cells in a row becomes a segment of a packed row.
  std::array<FillSegment, UniformJob::kMaxSegments> segments;
  int empties = 0;
  for (int row = 0; row < position.rows; ++row) {
    job.black[row] = position.black[row];
    uint32_t rest = position.empty[row];
    while (rest != 0) {
      const int column = std::countr_zero(rest);
      const int bit = empties % lane_bits;
      const int run = std::min(std::countr_one(rest >> column), lane_bits - bit);
      const uint32_t mask = static_cast<uint32_t>(((uint64_t{1} << run) - 1) << column);
      segments[job.num_segments++] = {static_cast<uint8_t>(empties / lane_bits),
                                      static_cast<uint8_t>(row), static_cast<int8_t>(column - bit),
                                      mask};
      rest &= ~mask;
      empties += run;
    }
  }
  job.segments = segments.data();
  job.packed_rows = (empties + lane_bits - 1) / lane_bits;
  for (int i = 0; i < job.packed_rows; ++i) {
    const int bits = std::min(lane_bits, empties - i * lane_bits);
    job.packed_valid[i] = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  }
  job.black_to_add = (empties + (position.black_to_move ? 1 : 0)) / 2;
  // About 0.7 standard deviations of the number of stones drawn. This was the fastest value on 9x9
  // to 13x13; values near it are almost as fast.
  job.surplus_limit = static_cast<int>(std::lround(0.35 * std::sqrt(empties)));

  job.playouts = n;
  job.state = state_.data();
  if (owned != nullptr) {
    job.black_owned = owned->black.data();
    job.black_owned_and_won = owned->black_and_won.data();
  }
  if (boards != nullptr) {
    const size_t before = boards->size();
    boards->resize(before + static_cast<size_t>(n) * position.rows);
    job.boards = boards->data() + before;
  }
  (narrow ? kernels_->narrow : kernels_->wide)(job);
  return {n, job.black_wins};
}

PolicyPlayouts::PolicyPlayouts(int cols, int rows) : cols_(cols), rows_(rows), stride_(cols + 2) {
  around_ = {1, stride_, stride_ - 1, -1, -stride_, -stride_ + 1};
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      places_[row * cols + col] = static_cast<uint16_t>((row + 1) * stride_ + col + 1);
    }
  }
  // walk_border() starts in the top left corner. It ends at the right edge, including its upper
  // corner, or at the bottom edge, including its left corner.
  frame_ = {};
  for (int col = 0; col < stride_; ++col) {
    frame_[col] = kBlackStone;
    frame_[(rows + 1) * stride_ + col] = kBlackStone | kGoal;
  }
  for (int row = 0; row <= rows; ++row) {
    if (row > 0) frame_[row * stride_] = kWhiteStone;
    frame_[row * stride_ + cols + 1] = kWhiteStone | kGoal;
  }
  start(Color::kBlack);
  bridge_replies();
}

void PolicyPlayouts::start(Color to_move) {
  to_move_ = to_move;
  num_open_ = 0;
  std::memcpy(start_.data(), frame_.data(), static_cast<size_t>(stride_) * (rows_ + 2));
}

Color PolicyPlayouts::run(mcts::Random& random, Move last) {
  const auto& replies = bridge_replies();
  uint8_t* const colors = colors_.data();
  std::memcpy(colors, start_.data(), static_cast<size_t>(stride_) * (rows_ + 2));
  uint16_t* const open = open_.data();
  unsigned own = to_move_ == Color::kBlack ? kBlackStone : kWhiteStone;
  int place = last < kMaxCells ? places_[last] : -1;
  for (int left = num_open_; left > 0; --left) {
    // The first `left` entries of open_ are the cells that are still empty. A cell that gets a
    // stone is swapped behind them. So open_ stays a permutation of all empty cells of the
    // position, and the next playout can use it without initialization.
    uint32_t index = 0;
    unsigned reply = 0;
    if (place >= 0) {
      const uint8_t* const here = colors + place;
      const unsigned code = (here[around_[0]] & 3U) | (here[around_[1]] & 3U) << 2 |
                            (here[around_[2]] & 3U) << 4 | (here[around_[3]] & 3U) << 6 |
                            (here[around_[4]] & 3U) << 8 | (here[around_[5]] & 3U) << 10;
      reply = replies[own][code];
    }
    if (reply != 0) {
      // If the stone intrudes into several bridges, save a random one.
      if ((reply & (reply - 1)) != 0) {
        for (uint32_t skip = random.below(static_cast<uint32_t>(std::popcount(reply))); skip > 0;
             --skip) {
          reply &= reply - 1;
        }
      }
      place += around_[std::countr_zero(reply)];
      index = index_[place];
    } else {
      index = static_cast<uint32_t>((random.next() >> 32) * static_cast<uint64_t>(left) >> 32);
      place = open[index];
    }
    const uint16_t moved = open[left - 1];
    open[left - 1] = static_cast<uint16_t>(place);
    open[index] = moved;
    index_[moved] = static_cast<uint16_t>(index);
    index_[place] = static_cast<uint16_t>(left - 1);
    colors[place] = static_cast<uint8_t>(own);
    own ^= kBlackStone | kWhiteStone;
  }
  return walk_border();
}

// Follows the border between the black group of the top edge and the white group of the left edge,
// up to the opposite edge of one of them. Exactly one of the groups reaches its opposite edge: its
// side has won.
Color PolicyPlayouts::walk_border() const {
  const uint8_t* const colors = colors_.data();
  // State of the walk: a black cell at the border, the offset to an adjacent white cell, and the
  // offset to the next cell, which touches both. The next cell replaces the black or the white
  // cell, depending on its colour. The loop has no branch on the colour, which would be
  // unpredictable, and no table: in the ring around a cell, each direction is the sum of the two
  // directions beside it, so the new offsets are differences of the old ones.
  int black = 1;              // the edge above the first cell
  int to_white = around_[2];  // from `black` to the edge left of the first cell
  int to_ahead = around_[1];
  for (;;) {
    const int next = black + to_ahead;
    const uint8_t color = colors[next];
    const bool is_black = (color & kBlackStone) != 0;
    if ((color & kGoal) != 0) return is_black ? Color::kBlack : Color::kWhite;
    const int turn = to_white - to_ahead;
    black = is_black ? next : black;
    const int old_white = to_white;
    to_white = is_black ? turn : to_ahead;
    to_ahead = is_black ? old_white : -turn;
  }
}

}  // namespace cariama::hex
