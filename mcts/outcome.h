// Outcome: the proved result of a position.
#ifndef CARIAMA_MCTS_OUTCOME_H_
#define CARIAMA_MCTS_OUTCOME_H_

#include <cstdint>

namespace cariama::mcts {

// The result of a position with perfect play. kOpen: not proved.
enum class Outcome : uint8_t { kOpen, kFirstWins, kSecondWins, kDraw };
constexpr Outcome win_of(int player) {
  return player == 0 ? Outcome::kFirstWins : Outcome::kSecondWins;
}
// Returns the value for player 0. Requires: outcome != kOpen.
constexpr float value_of(Outcome outcome) {
  return outcome == Outcome::kFirstWins ? 1.0F : outcome == Outcome::kSecondWins ? 0.0F : 0.5F;
}
// Returns the outcome of a game that has ended with this result for player 0. kOpen: the result is
// neither a win nor a draw nor a loss, so it proves nothing.
constexpr Outcome outcome_of(float result) {
  return result == 1.0F   ? Outcome::kFirstWins
         : result == 0.0F ? Outcome::kSecondWins
         : result == 0.5F ? Outcome::kDraw
                          : Outcome::kOpen;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_OUTCOME_H_
