// Tic-tac-toe with AMAF ids. solve() computes the value of a position by exhaustive search. Tests
// compare the outcomes that the tree search proves with it.
#ifndef CARIAMA_TESTS_MCTS_TESTING_TIC_TAC_TOE_H_
#define CARIAMA_TESTS_MCTS_TESTING_TIC_TAC_TOE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

class TicTacToe {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 9;
  static constexpr int kAmafIds = 9;
  // A corner, a side and the centre: by symmetry, each other first move equals one of these.
  static constexpr Move kFirstMoves[] = {0, 1, 4};
  static int amaf_id(Move move) { return move; }

  [[nodiscard]] int to_move() const {
    return std::popcount(static_cast<unsigned>(stones_[0] | stones_[1])) & 1;
  }
  int moves(std::span<Move> out) const {
    int count = 0;
    for (int cell = 0; cell < 9; ++cell) {
      if (((stones_[0] | stones_[1]) >> cell & 1) == 0) out[count++] = static_cast<Move>(cell);
    }
    return count;
  }
  void play(Move cell) {
    uint16_t& own = stones_[to_move()];
    own = static_cast<uint16_t>(own | 1U << cell);
  }
  [[nodiscard]] std::optional<float> result() const {
    for (const unsigned line : {7U, 56U, 448U, 73U, 146U, 292U, 273U, 84U}) {
      if ((stones_[0] & line) == line) return 1.0F;
      if ((stones_[1] & line) == line) return 0.0F;
    }
    if ((stones_[0] | stones_[1]) == 511) return 0.5F;
    return std::nullopt;
  }
  float playout(Random& random, Owned<kAmafIds>& owned) const {
    TicTacToe game = *this;
    std::optional<float> result;
    while (!(result = game.result())) {
      Move moves[kMaxMoves];
      const int count = game.moves(moves);
      game.play(moves[random.below(static_cast<uint32_t>(count))]);
    }
    owned.words[0][0] = game.stones_[0];
    owned.words[1][0] = game.stones_[1];
    return *result;
  }

  [[nodiscard]] uint64_t key() const {
    return Random::mix(uint64_t{stones_[0]} << 16 | stones_[1]);
  }

  // Returns the value with perfect play, for player 0.
  [[nodiscard]] float solve() const {
    if (const auto known = result()) return *known;
    float best = to_move() == 0 ? 0 : 1;
    Move all[kMaxMoves];
    const int count = moves(all);
    for (int i = 0; i < count; ++i) {
      TicTacToe next = *this;
      next.play(all[i]);
      best = to_move() == 0 ? std::max(best, next.solve()) : std::min(best, next.solve());
    }
    return best;
  }

  friend bool operator==(const TicTacToe&, const TicTacToe&) = default;

 private:
  uint16_t stones_[2] = {0, 0};
};
static_assert(Game<TicTacToe> && HasAmaf<TicTacToe>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_TIC_TAC_TOE_H_
