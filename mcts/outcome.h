// Outcome: the proved result of a position.
#ifndef CARIAMA_MCTS_OUTCOME_H_
#define CARIAMA_MCTS_OUTCOME_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace cariama::mcts {

// The result of a position with perfect play. kOpen: not proved. Behind the named ones, the wins of
// players 2, 3, ... have the next numbers (win_of()). The search proves draws in games of two
// players only.
enum class Outcome : uint8_t { kOpen, kFirstWins, kSecondWins, kDraw };
constexpr Outcome win_of(int player) {
  return player == 0   ? Outcome::kFirstWins
         : player == 1 ? Outcome::kSecondWins
                       : static_cast<Outcome>(static_cast<int>(Outcome::kDraw) + player - 1);
}
// Returns the value for player 0 in a game of two players. Requires: outcome != kOpen.
constexpr float value_of(Outcome outcome) {
  return outcome == Outcome::kFirstWins ? 1.0F : outcome == Outcome::kSecondWins ? 0.0F : 0.5F;
}
// Returns the outcome of a game of two players that has ended with this result for player 0. kOpen:
// the result is neither a win nor a draw nor a loss, so it proves nothing.
constexpr Outcome outcome_of(float result) {
  return result == 1.0F   ? Outcome::kFirstWins
         : result == 0.0F ? Outcome::kSecondWins
         : result == 0.5F ? Outcome::kDraw
                          : Outcome::kOpen;
}
// The same for a game of another number of players: the win of a player if the result is 1 for this
// player and 0 for all others, otherwise kOpen.
template <size_t kPlayers>
constexpr Outcome outcome_of(const std::array<float, kPlayers>& result) {
  Outcome outcome = Outcome::kOpen;
  for (size_t player = 0; player < kPlayers; ++player) {
    if (result[player] == 0.0F) continue;
    if (result[player] != 1.0F || outcome != Outcome::kOpen) return Outcome::kOpen;
    outcome = win_of(static_cast<int>(player));
  }
  return outcome;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_OUTCOME_H_
