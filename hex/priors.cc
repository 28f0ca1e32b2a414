#include "hex/priors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "hex/playout.h"

namespace cariama::hex {
namespace {

constexpr int kPlayoutsPerPosition = 256;

// The learned weights, multiplied by 100.
constexpr int16_t kLearned[PriorFeatures::kWeights] = {
#include "hex/internal/prior_weights.inc"
};

}  // namespace

template <int kWords>
PriorFeatures::PriorFeatures(const BasicBoard<kWords>& board, Move last)
    : cols_(board.cols()),
      rows_(board.rows()),
      stride_(cols_ + 2 * kMargin),
      black_(board.to_move() == Color::kBlack),
      last_(last) {
  // Cells beyond an edge have the colour of the edge. Beyond a corner, where two edges meet, they
  // have the colour of the player to move, so that the features are the same for both sides.
  const uint16_t black = black_ ? 1 : 2;
  const auto white = static_cast<uint16_t>(3 - black);
  for (int row = -kMargin; row < rows_ + kMargin; ++row) {
    uint16_t* const states = &states_[static_cast<size_t>(place(0, row))];
    const bool inside = row >= 0 && row < rows_;
    std::fill(states - kMargin, states + cols_ + kMargin, inside ? white : 1);
    std::fill(states, states + cols_, inside ? 0 : black);
  }
  board.stones(Color::kBlack).for_each([&](int cell) {
    states_[static_cast<size_t>(place(cell % cols_, cell / cols_))] = black;
  });
  board.stones(Color::kWhite).for_each([&](int cell) {
    states_[static_cast<size_t>(place(cell % cols_, cell / cols_))] = white;
  });
  code(last);
  play_out(board);
}

void PriorFeatures::code(Move last) {
  // For White the board is mirrored at the long diagonal, so that White joins top and bottom, too.
  const int right = black_ ? 1 : stride_;
  const int down = black_ ? stride_ : 1;
  const std::array<int, 6> around = {right, down, down - right, -right, -down, right - down};
  const int first = place(0, 0);
  const int end = place(cols_ - 1, rows_ - 1) + 1;
  const auto add = [&](std::array<uint16_t, kPlaces>& codes, int offset, int factor) {
    const uint16_t* const states = states_.data() + offset;
    for (int i = first; i < end; ++i) {
      codes[static_cast<size_t>(i)] =
          static_cast<uint16_t>(codes[static_cast<size_t>(i)] + states[i] * factor);
    }
  };
  const auto clear = [&](std::array<uint16_t, kPlaces>& codes) {
    std::fill(codes.begin() + first, codes.begin() + end, 0);
  };
  clear(rings_);
  for (size_t i = 0; i < 6; ++i) add(rings_, around[i], 1 << 2 * i);
  for (size_t i = 0; i < 6; ++i) {
    const int here = around[i];
    const int next = around[(i + 1) % 6];
    const int before = around[(i + 5) % 6];
    clear(wedges_[i]);
    add(wedges_[i], here, 1);
    add(wedges_[i], next, 3);
    add(wedges_[i], here + next, 9);
    add(wedges_[i], 2 * here, 27);
    add(wedges_[i], 2 * next, 81);
    clear(rays_[i]);
    add(rays_[i], here, 1);
    add(rays_[i], here + before, 3);
    add(rays_[i], here + next, 9);
    add(rays_[i], 2 * here, 27);
  }
  if (last >= kMaxCells) return;
  // The last stone is 3 instead of 2 in the rings of its neighbours.
  const int stone = place(last % cols_, last / cols_);
  for (size_t i = 0; i < 6; ++i) {
    const int where = stone - around[i];
    if (states_[static_cast<size_t>(stone)] == 2 && where >= first && where < end) {
      rings_[static_cast<size_t>(where)] =
          static_cast<uint16_t>(rings_[static_cast<size_t>(where)] + (1 << 2 * i));
    }
  }
}

// Computes the playout feature of each empty cell: the share of random playouts that Black wins
// when Black owns the cell, minus the share that Black wins when White owns it. A larger difference
// means a better move, for both sides. The feature counts steps of 0.4 standard deviations over all
// empty cells.
template <int kWords>
void PriorFeatures::play_out(const BasicBoard<kWords>& board) {
  UniformPlayouts playouts(board.key());
  Ownership owned;
  const UniformResult result = playouts.run(board, kPlayoutsPerPosition, &owned);
  std::array<float, kMaxCells> gain;
  float sum = 0;
  float squares = 0;
  int count = 0;
  board.empty().for_each([&](int cell) {
    const auto where = static_cast<size_t>(cell);
    const auto black = static_cast<float>(owned.black[where]);
    const auto won = static_cast<float>(owned.black_and_won[where]);
    const float white = static_cast<float>(result.playouts) - black;
    const float if_black = black > 0 ? won / black : 0.5F;
    const float if_white = white > 0 ? (static_cast<float>(result.black_wins) - won) / white : 0.5F;
    gain[where] = if_black - if_white;
    sum += gain[where];
    squares += gain[where] * gain[where];
    ++count;
  });
  const float mean = sum / static_cast<float>(std::max(count, 1));
  const float variance = squares / static_cast<float>(std::max(count, 1)) - mean * mean;
  const float scale = variance > 0 ? 1 / (0.4F * std::sqrt(variance)) : 0;
  board.empty().for_each([&](int cell) {
    const auto where = static_cast<size_t>(cell);
    const float step = (gain[where] - mean) * scale + 5;
    playouts_[where] = static_cast<uint8_t>(std::clamp(step, 0.0F, 15.0F));
  });
}

PriorFeatures::Indices PriorFeatures::of(Move cell) const {
  const int col = cell % cols_;
  const int row = cell / cols_;
  const auto where = static_cast<size_t>(place(col, row));
  Indices indices;
  indices[0] = static_cast<uint16_t>(kRing + rings_[where]);
  for (size_t i = 0; i < 6; ++i) {
    // Direction i and i + 3 use the same weights: a rotation by 180 degrees exchanges them.
    const auto kind = static_cast<int>(i % 3);
    indices[1 + i] = static_cast<uint16_t>(kWedges + kind * 243 + wedges_[i][where]);
    indices[7 + i] = static_cast<uint16_t>(kRays + kind * 81 + rays_[i][where]);
  }
  const int across = std::min({col, cols_ - 1 - col, 5});
  const int along = std::min({row, rows_ - 1 - row, 5});
  indices[13] = static_cast<uint16_t>(kEdges + (black_ ? along * 6 + across : across * 6 + along));
  int near = 45;
  if (last_ < kMaxCells) {
    int dx = last_ % cols_ - col;
    int dy = last_ / cols_ - row;
    if (!black_) std::swap(dx, dy);
    if (dx < 0 || (dx == 0 && dy < 0)) {
      dx = -dx;
      dy = -dy;
    }
    // The distance in steps from cell to adjacent cell.
    const int steps = std::max({std::abs(dx), std::abs(dy), std::abs(dx + dy)});
    if (steps <= 4) near = dx * 9 + dy + 4;
  }
  indices[14] = static_cast<uint16_t>(kNear + near);
  indices[15] = static_cast<uint16_t>(kPlayouts + playouts_[cell]);
  return indices;
}

int PriorFeatures::same_as(int weight) {
  if (weight >= kWedges) return weight;
  const int ring = weight - kRing;
  return kRing + std::min(ring, (ring << 6 | ring >> 6) & 4095);
}

float prior_logit(const PriorFeatures::Indices& indices, std::span<const float> weights) {
  float sum = 0;
  for (const uint16_t index : indices) sum += weights[index];
  return sum;
}

std::span<const float> prior_weights() {
  static const std::array<float, PriorFeatures::kWeights> weights = [] {
    std::array<float, PriorFeatures::kWeights> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(kLearned[i]) / 100;
    return all;
  }();
  return weights;
}

template <int kWords>
void move_priors(const BasicBoard<kWords>& board, Move last, std::span<const Move> moves,
                 std::span<float> out) {
  const PriorFeatures features(board, last);
  const std::span<const float> weights = prior_weights();
  float highest = -1e30F;
  for (size_t i = 0; i < moves.size(); ++i) {
    out[i] = prior_logit(features.of(moves[i]), weights);
    highest = std::max(highest, out[i]);
  }
  float sum = 0;
  for (size_t i = 0; i < moves.size(); ++i) {
    out[i] = std::exp(out[i] - highest);
    sum += out[i];
  }
  for (size_t i = 0; i < moves.size(); ++i) out[i] /= sum;
}

#define CARIAMA_HEX_PRIORS(kWords)                                                  \
  template PriorFeatures::PriorFeatures(const BasicBoard<kWords>&, Move);           \
  template void move_priors(const BasicBoard<kWords>&, Move, std::span<const Move>, \
                            std::span<float>)
CARIAMA_HEX_PRIORS(1);
CARIAMA_HEX_PRIORS(2);
CARIAMA_HEX_PRIORS(4);
CARIAMA_HEX_PRIORS(10);
#undef CARIAMA_HEX_PRIORS

}  // namespace cariama::hex
