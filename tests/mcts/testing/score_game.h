// A game of three plies with three moves each, whose results are scores: most of them are neither a
// win nor a loss. No score is a draw. solve() computes the value of a position by exhaustive
// search.
#ifndef CARIAMA_TESTS_MCTS_TESTING_SCORE_GAME_H_
#define CARIAMA_TESTS_MCTS_TESTING_SCORE_GAME_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

class ScoreGame {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;

  // number: selects the scores of the 27 games.
  explicit ScoreGame(uint32_t number = 0) : number_(number) {}

  [[nodiscard]] int to_move() const { return static_cast<int>(played_ & 1); }
  int moves(std::span<Move> out) const {
    for (int i = 0; i < 3; ++i) out[i] = static_cast<Move>(i);
    return 3;
  }
  void play(Move move) {
    path_ = 3 * path_ + move;
    ++played_;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < 3) return std::nullopt;
    constexpr float kScores[] = {0, 0.1F, 0.3F, 0.45F, 0.6F, 0.8F, 0.9F, 1};
    return kScores[Random::mix(uint64_t{number_} << 32 | path_) % 8];
  }
  float playout(Random& random) const {
    ScoreGame game = *this;
    while (!game.result()) game.play(static_cast<Move>(random.below(3)));
    return *game.result();
  }

  // Returns the value with perfect play, for player 0.
  [[nodiscard]] float solve() const {
    if (const auto known = result()) return *known;
    float best = to_move() == 0 ? 0 : 1;
    for (int i = 0; i < 3; ++i) {
      ScoreGame next = *this;
      next.play(static_cast<Move>(i));
      best = to_move() == 0 ? std::max(best, next.solve()) : std::min(best, next.solve());
    }
    return best;
  }

  friend bool operator==(const ScoreGame&, const ScoreGame&) = default;

 private:
  uint32_t number_;
  uint32_t path_ = 0;
  uint32_t played_ = 0;
};
static_assert(Game<ScoreGame>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_SCORE_GAME_H_
