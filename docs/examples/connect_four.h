// Connect-Four on the usual board of 7 columns and 6 rows, or on a smaller one: the example of
// docs/mcts.md. Player 0 moves first.
#ifndef CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_H_
#define CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_H_

#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"

namespace example {

// [connect_four_game]
// A column takes kRows + 1 bits of a word, the lowest cell first. The top bit of a column is always
// 0, so that no line of four continues from one column into the next (Tromp's Fhourstones).
template <int kColumns = 7, int kRows = 6>
class BasicConnectFour {
 public:
  using Move = uint8_t;  // a column
  static constexpr int kMaxMoves = kColumns;

  [[nodiscard]] int to_move() const { return played_ & 1; }
  [[nodiscard]] int played() const { return played_; }
  // The stones of a player: bit column * (kRows + 1) + row.
  [[nodiscard]] uint64_t stones(int player) const { return stones_[player]; }

  int moves(std::span<Move> out) const {
    int count = 0;
    for (int column = 0; column < kColumns; ++column) {
      if (fits(column)) out[count++] = static_cast<Move>(column);
    }
    return count;
  }

  void play(Move column) {
    // The cell above the highest stone of the column.
    const uint64_t all = stones_[0] | stones_[1];
    const uint64_t stone = (all + bottom(column)) & column_mask(column) & ~all;
    stones_[to_move()] |= stone;
    ++played_;
  }

  [[nodiscard]] std::optional<float> result() const {
    const int last = (played_ + 1) & 1;  // only the last player can have won
    if (has_line(stones_[last])) return last == 0 ? 1.0F : 0.0F;
    if (played_ == kColumns * kRows) return 0.5F;
    return std::nullopt;
  }

  float playout(cariama::mcts::Random& random) const {
    BasicConnectFour game = *this;
    for (;;) {
      if (const auto result = game.result()) return *result;
      Move moves[kMaxMoves];
      const int count = game.moves(moves);
      game.play(moves[random.below(static_cast<uint32_t>(count))]);
    }
  }

  // Equal positions have equal keys. The stones of the player to move, together with all stones
  // of both players, identify the position.
  [[nodiscard]] uint64_t key() const {
    return cariama::mcts::Random::mix(stones_[to_move()] * 0x9E3779B97F4A7C15 ^
                                      (stones_[0] | stones_[1]));
  }

  friend bool operator==(const BasicConnectFour&, const BasicConnectFour&) = default;

 private:
  static constexpr int kStride = kRows + 1;

  static constexpr uint64_t bottom(int column) { return uint64_t{1} << (column * kStride); }
  static constexpr uint64_t column_mask(int column) {
    return ((uint64_t{1} << kRows) - 1) << (column * kStride);
  }
  [[nodiscard]] bool fits(int column) const {
    const uint64_t top = bottom(column) << (kRows - 1);
    return ((stones_[0] | stones_[1]) & top) == 0;
  }
  [[nodiscard]] static bool has_line(uint64_t stones) {
    for (const int step : {1, kStride, kStride - 1, kStride + 1}) {
      const uint64_t pairs = stones & stones >> step;
      if ((pairs & pairs >> 2 * step) != 0) return true;
    }
    return false;
  }

  uint64_t stones_[2] = {0, 0};
  uint64_t played_ = 0;
};

using ConnectFour = BasicConnectFour<>;
static_assert(cariama::mcts::Game<ConnectFour>);
// [connect_four_game]

}  // namespace example

#endif  // CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_H_
