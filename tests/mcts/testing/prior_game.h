// A game of two plies: eight first moves, each with one reply. A table gives the prior and the
// score of each first move. The scores are neither wins nor draws nor losses, so they prove
// nothing.
#ifndef CARIAMA_TESTS_MCTS_TESTING_PRIOR_GAME_H_
#define CARIAMA_TESTS_MCTS_TESTING_PRIOR_GAME_H_

#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

class PriorGame {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 8;
  static constexpr Move kPreferred = 2;  // kMisleading: the move with the highest prior
  static constexpr Move kBest = 5;       // kMisleading: the move with the highest score
  enum class Table : uint8_t { kMisleading, kEven, kWithoutPriors };

  explicit PriorGame(Table table = Table::kMisleading) : table_(table) {}

  [[nodiscard]] int to_move() const { return played_ & 1; }
  int moves(std::span<Move> out) const {
    const int count = played_ == 0 ? kMaxMoves : 1;
    for (int i = 0; i < count; ++i) out[i] = static_cast<Move>(i);
    return count;
  }
  int expand(std::span<Candidate<Move>> out) const {
    Move all[kMaxMoves];
    const int count = moves(all);
    for (int i = 0; i < count; ++i) out[i] = {all[i], played_ == 0 ? prior(all[i]) : 1};
    return count;
  }
  void play(Move move) {
    if (played_++ == 0) first_ = move;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < 2) return std::nullopt;
    return score(first_);
  }
  float playout(Random&) const { return score(first_); }
  [[nodiscard]] uint64_t key() const {
    return Random::mix(uint64_t{played_} << 16 | uint64_t{first_} << 8 |
                       static_cast<uint64_t>(table_));
  }

  [[nodiscard]] float prior(Move move) const {
    if (table_ == Table::kEven) return 0.125F;
    if (table_ == Table::kWithoutPriors) return 0;
    return move == kPreferred ? 0.65F : 0.05F;
  }
  [[nodiscard]] float score(Move move) const {
    if (table_ != Table::kMisleading) return 0.4F;
    return move == kBest ? 0.6F : move == kPreferred ? 0.55F : 0.3F;
  }
  friend bool operator==(const PriorGame&, const PriorGame&) = default;

 private:
  Table table_;
  uint8_t played_ = 0;
  uint8_t first_ = 0;
};
static_assert(Game<PriorGame> && HasExpand<PriorGame>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_PRIOR_GAME_H_
