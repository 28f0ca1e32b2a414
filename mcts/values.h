// Values: what a position is worth for each player. In a game of two players one number, the value
// for player 0: that for player 1 is the difference from 1. In a game of another number of players
// (Game::kPlayers) an array with the value for each player.
#ifndef CARIAMA_MCTS_VALUES_H_
#define CARIAMA_MCTS_VALUES_H_

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "mcts/outcome.h"

namespace cariama::mcts {

// Limit of Game::kPlayers: the messages with results of rollouts have one number for each player.
inline constexpr int kMostPlayers = 16;

template <typename G>
concept HasPlayers = requires {
  requires std::bool_constant<(G::kPlayers >= 1 && G::kPlayers <= kMostPlayers)>::value;
};
// Returns the number of players of a game.
template <typename G>
constexpr int players() {
  if constexpr (HasPlayers<G>) {
    return G::kPlayers;
  } else {
    return 2;
  }
}
template <typename G>
inline constexpr bool kTwoPlayers = players<G>() == 2;

// The value of a position, of which each number is from 0 to 1.
template <typename G>
using ValueOf = std::conditional_t<kTwoPlayers<G>, float, std::array<float, players<G>()>>;

namespace internal {

// A sum of values.
template <typename G>
using SumOf = std::conditional_t<kTwoPlayers<G>, double, std::array<double, players<G>()>>;

// Returns the numbers of a value or of a sum: one in a game of two players, otherwise one for each
// player.
template <typename T>
[[nodiscard]] constexpr auto numbers_of(T& value) {
  if constexpr (requires { value.size(); }) {
    return std::span(value);
  } else {
    return std::span<T, 1>(&value, 1);
  }
}

template <typename G>
constexpr void add_value(SumOf<G>& sum, const ValueOf<G>& value) {
  const auto to = numbers_of(sum);
  const auto from = numbers_of(value);
  for (size_t i = 0; i < to.size(); ++i) to[i] += double{from[i]};
}
// Returns the sum of one value.
template <typename G>
[[nodiscard]] constexpr SumOf<G> sum_of(const ValueOf<G>& value) {
  SumOf<G> sum{};
  add_value<G>(sum, value);
  return sum;
}

// Returns the value of a position with this outcome: 1 for the winner and 0 for the other players;
// for a draw 0.5 for all players. Requires: outcome != kOpen.
template <typename G>
[[nodiscard]] constexpr ValueOf<G> value_with(Outcome outcome) {
  if constexpr (kTwoPlayers<G>) {
    return value_of(outcome);
  } else {
    ValueOf<G> value{};
    for (int player = 0; player < players<G>(); ++player) {
      value[static_cast<size_t>(player)] = outcome == Outcome::kDraw   ? 0.5F
                                           : outcome == win_of(player) ? 1.0F
                                                                       : 0.0F;
    }
    return value;
  }
}

}  // namespace internal
}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_VALUES_H_
