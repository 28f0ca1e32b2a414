// Nim for three players: the example of docs/mcts.md for a game of more than two players.
#ifndef CARIAMA_DOCS_EXAMPLES_NIM_FOR_THREE_H_
#define CARIAMA_DOCS_EXAMPLES_NIM_FOR_THREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"

namespace example {

// [nim_for_three_game]
// The players take any number of stones from one of three heaps in turn. The player that takes the
// last stone is first. The one that would be next is last, and the remaining one is second.
class NimForThree {
 public:
  static constexpr int kPlayers = 3;
  static constexpr int kHeaps = 3;
  static constexpr int kMostStones = 5;  // of a heap
  static constexpr int kMaxMoves = kHeaps * kMostStones;
  using Heaps = std::array<uint8_t, kHeaps>;
  using Values = std::array<float, kPlayers>;  // 1 for the first player, 0.5 for the second
  struct Move {
    uint8_t heap = 0;
    uint8_t stones = 0;
    friend bool operator==(const Move&, const Move&) = default;
  };

  explicit NimForThree(const Heaps& heaps = {1, 3, 5}) : heaps_(heaps) {}
  [[nodiscard]] const Heaps& heaps() const { return heaps_; }

  [[nodiscard]] int to_move() const { return player_; }
  int moves(std::span<Move> out) const {
    size_t count = 0;
    for (uint8_t heap = 0; heap < kHeaps; ++heap) {
      for (uint8_t stones = 1; stones <= heaps_[heap]; ++stones) out[count++] = {heap, stones};
    }
    return static_cast<int>(count);
  }
  void play(Move move) {
    heaps_[move.heap] = static_cast<uint8_t>(heaps_[move.heap] - move.stones);
    player_ = static_cast<uint8_t>((player_ + 1) % kPlayers);
  }
  [[nodiscard]] std::optional<Values> result() const {
    if (heaps_ != Heaps{}) return std::nullopt;
    Values values{};
    values[(player_ + 2U) % kPlayers] = 1;  // has moved last
    values[(player_ + 1U) % kPlayers] = 0.5F;
    return values;
  }
  Values playout(cariama::mcts::Random& random) const {
    NimForThree game = *this;
    for (;;) {
      if (const auto result = game.result()) return *result;
      Move moves[kMaxMoves];
      const int count = game.moves(moves);
      game.play(moves[random.below(static_cast<uint32_t>(count))]);
    }
  }
  friend bool operator==(const NimForThree&, const NimForThree&) = default;

 private:
  Heaps heaps_;
  uint8_t player_ = 0;
};
static_assert(cariama::mcts::Game<NimForThree>);
// [nim_for_three_game]

}  // namespace example

#endif  // CARIAMA_DOCS_EXAMPLES_NIM_FOR_THREE_H_
