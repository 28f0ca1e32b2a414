// Chance: the choice of the outcome of a chance position that a rollout follows.
//
// A node of a chance position has the outcomes as its moves and their probabilities as its priors.
// The values in it are those for player 0, and no move is chosen by them.
#ifndef CARIAMA_MCTS_ENGINE_CHANCE_H_
#define CARIAMA_MCTS_ENGINE_CHANCE_H_

#include <algorithm>
#include <optional>
#include <span>

#include "mcts/engine/node.h"
#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts {
namespace internal {

// Returns a random number from 0 to 1, without 1.
[[nodiscard]] inline double share_of_one(Random& random) {
  return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

}  // namespace internal

// The weight of an outcome contains the difference between its expected and its actual visits,
// divided by this number.
inline constexpr double kOutcomeDamping = 64;

// Returns an outcome at random. Its weight is its probability, plus a 64th of the difference
// between the visits that it should have, probability * visits of the node, and its visits; 0 if
// that is negative. Without differences the weights are the probabilities.
//
// With the probabilities alone the mean value of the position would be wrong in a job of several
// processes. A rollout that is deferred starts again and would choose another outcome, so outcomes
// in busy processes would get too few visits. An outcome in another process gets a batch of
// rollouts at once, so it would get too many. The visits count rollouts in flight and no deferred
// ones, so the difference corrects both. Divided by less than 64, it would give rare outcomes too
// many visits in nodes with few: an outcome without visits would be chosen as soon as it should
// have one.
//
// Returns -1 if the node has no outcomes: the game has ended. Never returns an outcome with the
// probability 0. Thread-safe. Takes time proportional to the number of outcomes.
template <Game G>
[[nodiscard]] int choose_outcome(const Node<G>& node, Random& random) {
  const auto visits = static_cast<double>(node.visits());
  int chosen = -1;
  int missed = -1;  // the outcome that lacks the most visits
  double most_lacking = 0;
  double sum = 0;
  for (int i = 0; i < node.size(); ++i) {
    const double probability = node.prior(i);
    if (probability <= 0) continue;
    // Other threads change the visits, so each number is read once.
    const double lacking = probability * visits - node.visits(i);
    if (missed < 0 || lacking > most_lacking) {
      missed = i;
      most_lacking = lacking;
    }
    const double weight = probability + lacking / kOutcomeDamping;
    if (weight <= 0) continue;
    sum += weight;
    if (internal::share_of_one(random) * sum < weight) chosen = i;
  }
  // Without a positive weight, other threads have visited all outcomes meanwhile.
  return chosen < 0 ? missed : chosen;
}

// Replaces a chance position by one that follows from it, in which a player moves or the game has
// ended. Returns the last outcome, or nullopt if it played none. For positions without a node: each
// outcome is chosen by its probability alone. Throws std::runtime_error as list_outcomes().
template <Game G>
requires HasChance<G> std::optional<typename G::Move> play_outcomes(G& position, Random& random) {
  std::optional<typename G::Move> last;
  while (!position.result() && position.is_chance()) {
    Candidate<typename G::Move> outcomes[G::kMaxMoves];
    const int count = internal::list_outcomes(position, std::span(outcomes));
    double left = internal::share_of_one(random);
    for (int i = 0; i < count && left >= 0; ++i) {
      if (outcomes[i].prior <= 0) continue;
      last = outcomes[i].move;
      left -= double{outcomes[i].prior};
    }
    position.play(*last);
  }
  return last;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_CHANCE_H_
