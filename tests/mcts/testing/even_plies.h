// A game whose positions all have the same value, so that each mean of values is known exactly.
#ifndef CARIAMA_TESTS_MCTS_TESTING_EVEN_PLIES_H_
#define CARIAMA_TESTS_MCTS_TESTING_EVEN_PLIES_H_

#include <cstdint>
#include <optional>
#include <span>

namespace cariama::mcts::testing {

// The given number of plies of three moves each. A test's game derives from it, and adds how a
// position is evaluated.
template <int kPlies>
class EvenPlies {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;
  static constexpr float kValue = 0.25F;

  [[nodiscard]] int to_move() const { return played_ % 2; }
  int moves(std::span<Move> out) const {
    for (Move move = 0; move < kMaxMoves; ++move) out[move] = move;
    return kMaxMoves;
  }
  void play(Move) { ++played_; }
  [[nodiscard]] std::optional<float> result() const {
    return played_ < kPlies ? std::nullopt : std::optional(kValue);
  }
  friend bool operator==(const EvenPlies&, const EvenPlies&) = default;

 private:
  uint8_t played_ = 0;
};

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_EVEN_PLIES_H_
