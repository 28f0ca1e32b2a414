// A game of three plies with six moves each, whose result is a table of the path. The priors of
// expand() prefer the worst move of each position. The first refinement makes them even, and the
// second one prefers the best move. No result is a win, a draw or a loss, so nothing is proved.
#ifndef CARIAMA_TESTS_MCTS_TESTING_REFINED_GAME_H_
#define CARIAMA_TESTS_MCTS_TESTING_REFINED_GAME_H_

#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

class RefinedGame {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 6;
  static constexpr int kPlies = 3;

  [[nodiscard]] int to_move() const { return played_ & 1; }
  int moves(std::span<Move> out) const {
    for (int i = 0; i < kMaxMoves; ++i) out[static_cast<size_t>(i)] = static_cast<Move>(i);
    return kMaxMoves;
  }
  int expand(std::span<Candidate<Move>> out) const {
    for (Move i = 0; i < kMaxMoves; ++i) out[i] = {i, prior(i, 0)};
    return kMaxMoves;
  }
  void refine(std::span<Candidate<Move>> moves, std::span<Verdict>, int level) const {
    for (auto& one : moves) one.prior = prior(one.move, level + 1);
  }
  void play(Move move) {
    path_ = path_ * kMaxMoves + move;
    ++played_;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < kPlies) return std::nullopt;
    return static_cast<float>(1 + 2 * (Random::mix(path_ + 7) % 32)) / 64;
  }
  float playout(Random& random) const {
    RefinedGame game = *this;
    while (!game.result()) game.play(static_cast<Move>(random.below(kMaxMoves)));
    return *game.result();
  }
  [[nodiscard]] uint64_t key() const { return Random::mix(uint64_t{played_} << 32 | path_); }

  // Returns the prior of a move after this number of refinements.
  [[nodiscard]] float prior(Move move, int refinements) const {
    if (refinements == 1) return 1.0F / kMaxMoves;
    return move == extreme(/*best=*/refinements == 2) ? 0.75F : 0.05F;
  }
  // Returns the value for player 0 with perfect play.
  [[nodiscard]] float solve() const {
    if (const auto end = result()) return *end;
    return after(extreme(/*best=*/true)).solve();
  }
  [[nodiscard]] RefinedGame after(Move move) const {
    RefinedGame next = *this;
    next.play(move);
    return next;
  }

 private:
  // Returns the best or the worst move of the player to move, the first one of several.
  [[nodiscard]] Move extreme(bool best) const {
    const bool most = best == (to_move() == 0);
    Move found = 0;
    for (Move i = 1; i < kMaxMoves; ++i) {
      const float one = after(i).solve();
      const float other = after(found).solve();
      if (most ? one > other : one < other) found = i;
    }
    return found;
  }

  uint32_t path_ = 0;
  uint32_t played_ = 0;
};
static_assert(Game<RefinedGame> && RefinesPriors<RefinedGame>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_REFINED_GAME_H_
