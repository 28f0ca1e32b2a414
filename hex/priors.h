// How good moves look at first sight: what search starts from where it has counted nothing yet.
//
//   move_priors(board, last, moves, priors);   // priors[i] of moves[i]; their sum is 1
//
// A softmax over sums of learned weights (Coulom 2007; as priors of Hex: Huang et al., "MoHex 2.0",
// 2013), of what lies within two cells of the move, how far the edges are, where the opponent has
// just moved, and how much the winner of random playouts depends on who owns the cell. The weights
// were learned from games of this engine against itself: bench/bench_hex_games, bench_hex_priors.
//
// Equal for positions turned by 180 degrees, and for those mirrored with exchanged colours, but for
// the random numbers of the playouts, which follow from the position. Thread-safe.
#ifndef CARIAMA_HEX_PRIORS_H_
#define CARIAMA_HEX_PRIORS_H_

#include <array>
#include <cstdint>
#include <span>

#include "hex/board.h"

namespace cariama::hex {

// What the weights belong to: each move has kPerMove features, one of each kind.
class PriorFeatures {
 public:
  // Where the weights of each kind begin.
  static constexpr int kRing = 0;               // the six neighbours, the last stone told apart
  static constexpr int kWedges = kRing + 4096;  // two neighbours and what lies behind them, 5 cells
  static constexpr int kRays = kWedges + 3 * 243;  // a neighbour and what lies behind it, 4 cells
  static constexpr int kEdges = kRays + 3 * 81;    // the distances of the edges, own and other
  static constexpr int kNear = kEdges + 36;        // where the opponent has just moved
  static constexpr int kPlayouts = kNear + 46;     // what random playouts say
  static constexpr int kWeights = kPlayouts + 16;
  static constexpr int kPerMove = 16;
  using Indices = std::array<uint16_t, kPerMove>;

  // Of the moves of the side to move. `last`: the opponent's last move, or kNoMove.
  template <int kWords>
  PriorFeatures(const BasicBoard<kWords>& board, Move last);

  // Precondition: an empty cell of the board.
  [[nodiscard]] Indices of(Move cell) const;

  // The weight that stands for this one too, in the position turned by 180 degrees.
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
  bool black_;  // to move
  Move last_;
  std::array<uint16_t, kPlaces> states_;  // 0 empty, 1 own, 2 the opponent's
  std::array<uint16_t, kPlaces> rings_;
  std::array<std::array<uint16_t, kPlaces>, 6> wedges_;
  std::array<std::array<uint16_t, kPlaces>, 6> rays_;
  std::array<uint8_t, kMaxCells> playouts_;
};

// The sum of the weights of a move's features, from the weights given: for learning.
[[nodiscard]] float prior_logit(const PriorFeatures::Indices& indices,
                                std::span<const float> weights);

// The learned weights, kWeights of them.
[[nodiscard]] std::span<const float> prior_weights();

// Writes the priors of `moves` to out, which is as long: above 0, their sum is 1. About 8 µs on
// 11x11. Precondition: empty cells.
template <int kWords>
void move_priors(const BasicBoard<kWords>& board, Move last, std::span<const Move> moves,
                 std::span<float> out);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_PRIORS_H_
