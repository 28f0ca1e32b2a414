// The final choice: the order in which the result of a search lists the moves of the root.
#ifndef CARIAMA_MCTS_ENGINE_FINAL_CHOICE_H_
#define CARIAMA_MCTS_ENGINE_FINAL_CHOICE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "mcts/engine/node.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Returns the lower end of the Wilson score interval (Wilson 1927) of an expected value: the
// smallest p with mean - p <= z * sqrt(p (1 - p) / visits). It needs only the number of the values
// and their mean. The interval assumes the variance p (1 - p), that of values 0 and 1. Other values
// between 0 and 1 with the expectation p have at most this variance, so their bound is not too
// high. Returns 0 if visits is 0. Requires: 0 <= mean <= 1, z >= 0.
[[nodiscard]] inline double lower_confidence_bound(double mean, double visits, double z) {
  if (!(visits > 0)) return 0;
  const double share = z * z / visits;
  const double deviation = z * std::sqrt(mean * (1 - mean) / visits + share / (4 * visits));
  return std::max(0.0, (mean + share / 2 - deviation) / (1 + share));
}

// Returns the rank of a verdict in the final choice. A move with a higher rank is better than each
// move with a lower one.
[[nodiscard]] constexpr int rank_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWins:
      return 3;
    case Verdict::kOpen:
    case Verdict::kDraws:
      return 2;
    case Verdict::kPruned:
      return 1;
    case Verdict::kLoses:
      break;
  }
  return 0;
}

// Returns the indices of the node's moves: the best move first, the others by verdict and visits.
template <Game G>
[[nodiscard]] std::vector<int> ordered_moves(const Node<G>& node, const ChoiceOptions& options) {
  std::vector<int> moves(static_cast<size_t>(node.size()));
  std::iota(moves.begin(), moves.end(), 0);
  std::stable_sort(moves.begin(), moves.end(), [&](int a, int b) {
    const int left = rank_of(node.verdict(a));
    const int right = rank_of(node.verdict(b));
    return left != right ? left > right : node.visits(a) > node.visits(b);
  });
  if (moves.empty() || rank_of(node.verdict(moves[0])) != rank_of(Verdict::kOpen)) return moves;
  const auto is_draw = [&](int i) { return node.verdict(i) == Verdict::kDraws; };
  auto best = moves.begin();
  if (options.rule == FinalChoice::kMostVisits) {
    // A proved draw is better than an open move with an expected value below that of a draw.
    const auto draw = std::find_if(moves.begin(), moves.end(), is_draw);
    if (draw != moves.end() && !is_draw(moves[0]) &&
        node.value(moves[0]) < 0.5 * node.visits(moves[0])) {
      best = draw;
    }
  } else {
    const auto open = std::find_if_not(moves.begin(), moves.end(), is_draw);
    const double least = open == moves.end() ? 0 : options.least_share * node.visits(*open);
    double highest = -1;
    for (auto at = moves.begin(); at != moves.end(); ++at) {
      if (rank_of(node.verdict(*at)) != rank_of(Verdict::kOpen)) break;
      const double visits = node.visits(*at);
      double bound = 0.5;  // the value of a draw, without uncertainty
      if (!is_draw(*at)) {
        if (visits < least) continue;
        const double mean = visits > 0 ? std::clamp(node.value(*at) / visits, 0.0, 1.0) : 0;
        bound = lower_confidence_bound(mean, visits, options.deviations);
      }
      if (bound <= highest) continue;
      highest = bound;
      best = at;
    }
  }
  std::rotate(moves.begin(), best, best + 1);
  return moves;
}

// Returns true if no other move of a node can get more visits than the most visited one by
// `rollouts` more rollouts. Moves that are proved losses, or pruned, do not count: rollouts choose
// them no more.
template <Game G>
[[nodiscard]] bool most_visits_are_safe(const Node<G>& node, double rollouts) {
  uint64_t best = 0;
  uint64_t second = 0;
  for (int i = 0; i < node.size(); ++i) {
    if (rank_of(node.verdict(i)) < rank_of(Verdict::kOpen)) continue;
    const uint64_t visits = node.visits(i);
    if (visits > best) {
      second = std::exchange(best, visits);
    } else {
      second = std::max(second, visits);
    }
  }
  return static_cast<double>(best - second) > rollouts;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_FINAL_CHOICE_H_
