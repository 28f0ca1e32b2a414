// Priors: learned estimates of the quality of moves, which guide the search where it has few
// visits.
//
//   move_priors(board, last, moves, priors);   // priors[i] of moves[i]; their sum is 1
//
// A softmax over sums of learned weights (Coulom 2007; as priors of Hex: Huang et al., "MoHex 2.0",
// 2013). The features of a move are: the stones within two cells, the distances of the edges, the
// distance of the opponent's last move, and how much the winner of random playouts depends on the
// owner of the cell. The weights were learned from games of this engine against itself:
// bench/bench_hex_games, bench_hex_priors.
//
// A position turned by 180 degrees, or mirrored with exchanged colours, has the same priors, except
// for the feature from playouts: the seed of the playouts is computed from the position.
// Thread-safe.
#ifndef CARIAMA_HEX_PRIORS_H_
#define CARIAMA_HEX_PRIORS_H_

#include <array>
#include <cstdint>
#include <span>

#include "hex/board.h"

namespace cariama::hex {

// The features of moves. Each move has kPerMove features; each feature is the index of a weight.
class PriorFeatures {
 public:
  // The index of the first weight of each kind of feature.
  //   kRing      the six neighbours; the opponent's last stone has its own value
  //   kWedges    two adjacent neighbours and the cells behind them, 5 cells
  //   kRays      a neighbour and the cells behind it, 4 cells
  //   kEdges     the distances of the edges of the player to move and of the opponent's edges
  //   kNear      the position of the opponent's last move, relative to the cell
  //   kPlayouts  the result of random playouts
  static constexpr int kRing = 0;
  static constexpr int kWedges = kRing + 4096;
  static constexpr int kRays = kWedges + 3 * 243;
  static constexpr int kEdges = kRays + 3 * 81;
  static constexpr int kNear = kEdges + 36;
  static constexpr int kPlayouts = kNear + 46;
  static constexpr int kWeights = kPlayouts + 16;
  static constexpr int kPerMove = 16;
  using Indices = std::array<uint16_t, kPerMove>;

  // Computes the features for the moves of the side to move. last: the opponent's last move, or
  // kNoMove.
  template <int kWords>
  PriorFeatures(const BasicBoard<kWords>& board, Move last);

  // Returns the features of a move. Requires: an empty cell of the board.
  [[nodiscard]] Indices of(Move cell) const;

  // Returns the representative of the pair of weights that a rotation by 180 degrees exchanges.
  // Both weights of a pair have the same value.
  [[nodiscard]] static int same_as(int weight);

 private:
  static constexpr int kMargin = 2;
  static constexpr int kPlaces = (kMaxSide + 2 * kMargin) * (kMaxSide + 2 * kMargin);

  [[nodiscard]] int place(int col, int row) const {
    return (row + kMargin) * stride_ + col + kMargin;
  }
  void code(Move last);
  template <int kWords>
  void play_out(const BasicBoard<kWords>& board);

  int cols_;
  int rows_;
  int stride_;
  bool black_;  // Black is to move
  Move last_;
  std::array<uint16_t, kPlaces> states_;  // 0 empty, 1 own, 2 the opponent's
  std::array<uint16_t, kPlaces> rings_;
  std::array<std::array<uint16_t, kPlaces>, 6> wedges_;
  std::array<std::array<uint16_t, kPlaces>, 6> rays_;
  std::array<uint8_t, kMaxCells> playouts_;
};

// Returns the sum of the given weights of a move's features. Used for learning.
[[nodiscard]] float prior_logit(const PriorFeatures::Indices& indices,
                                std::span<const float> weights);

// Returns the learned weights: kWeights numbers.
[[nodiscard]] std::span<const float> prior_weights();

// Writes the priors of `moves` to `out`. They are positive and their sum is 1. Takes about 8 µs on
// 11x11. Requires: the moves are empty cells, and `out` has the size of `moves`.
template <int kWords>
void move_priors(const BasicBoard<kWords>& board, Move last, std::span<const Move> moves,
                 std::span<float> out);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_PRIORS_H_
