// Checks a search of a game of other than two players against exhaustive search.
#ifndef CARIAMA_TESTS_MCTS_TESTING_CHECK_PLAYERS_H_
#define CARIAMA_TESTS_MCTS_TESTING_CHECK_PLAYERS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gtest/gtest.h"
#include "mcts/outcome.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/players_games.h"

namespace cariama::mcts::testing {

// Checks that the best move is as good as that of the solution, its value that for the player to
// move, and the values of the root those for all players. The search continues until it has the
// values, or has run as often as suffices by far: a process without a core delays the values of
// some moves. Returns the best move. lossless: see check_nodes(). Requires: the solution is no win.
template <typename G>
typename G::Move check_solution(Search<G>& search, const G& game, bool lossless = true) {
  constexpr int kMostRuns = 20;
  constexpr double kTolerance = 0.08;
  const auto solution = solve_for_all(game);
  const auto mover = static_cast<size_t>(game.to_move());
  auto result = search.run(game, {.iterations = 20'000});
  const auto deviation = [&] {
    G next = game;
    next.play(result.moves[0].move);
    double most = std::abs(solve_for_all(next)[mover] - solution[mover]);
    most = std::max(most, std::abs(result.moves[0].value - solution[mover]));
    for (size_t i = 0; i < solution.size(); ++i) {
      most = std::max(most, std::abs(result.values.at(i) - solution[i]));
    }
    return most;
  };
  for (int run = 1; run < kMostRuns && deviation() > kTolerance; ++run) {
    result = search.run(game, {.iterations = 20'000});
  }
  EXPECT_LE(deviation(), kTolerance);
  EXPECT_EQ(result.iterations, 20'000u);
  EXPECT_EQ(result.outcome, Outcome::kOpen);
  EXPECT_EQ(result.player, game.to_move());
  EXPECT_EQ(result.values.size(), solution.size());
  check_conservation(search, result, lossless);
  return result.moves[0].move;
}

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_CHECK_PLAYERS_H_
