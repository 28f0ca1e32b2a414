// Selection: the choice of the move of a node that a rollout tries, the one with the highest score.
//
//   score = (1 - b) q + b r + U
//     q  mean value of the move (moves without visits: first_play, if there is no AMAF)
//     r  mean AMAF value, with one added sample of value first_play
//     b  k / (k + visits), where k = amaf_equivalence; 0 in games without AMAF
//     U  UCB:  exploration * sqrt(ln(N) / (1 + visits)) + bias * prior / (1 + visits)
//        PUCT: exploration * prior * sqrt(N) / (1 + visits)
//     N  visits of the node + 1
//
// (UCB: Kocsis, Szepesvári 2006. RAVE: Gelly, Silver 2007. Progressive bias: Chaslot et al. 2008.
// PUCT: Rosin 2011, Silver et al. 2016.)
#ifndef CARIAMA_MCTS_ENGINE_SELECTION_H_
#define CARIAMA_MCTS_ENGINE_SELECTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mcts/engine/node.h"
#include "mcts/engine/select_kernel.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Returns the move with the highest score, the first one of several. Returns -1 if all moves are
// closed. Takes about ten nanoseconds per 16 moves on processors with AVX-512.
template <Game G>
[[nodiscard]] int select_move(const Node<G>& node, const SelectionOptions& options,
                              internal::SelectKernel kernel = internal::select_kernel()) {
  const auto total = static_cast<float>(node.visits() + 1);
  internal::SelectJob job = node.select_job();
  job.first_play = options.first_play;
  job.amaf_equivalence = options.amaf_equivalence;
  if (!(options.amaf_equivalence > 0)) job.amaf_visits = nullptr;
  const bool puct = options.rule == SelectionRule::kPuct;
  job.exploration =
      !puct && options.exploration > 0 ? options.exploration * std::sqrt(std::log(total)) : 0;
  job.prior_weight = puct ? options.exploration * std::sqrt(total) : options.bias;
  return kernel(job);
}

// Returns the value that a rollout in flight has in the mean of a move, for player(). pending: the
// number of visits of the move that have no value yet. Without a virtual loss it is the mean of
// value and AMAF value in the score above, so the first two terms of the score stay the same. The
// value is a multiple of 1/256: adding it and subtracting it later changes no sum of such values.
template <Game G>
[[nodiscard]] float expected_value(const Node<G>& node, int move, uint32_t pending,
                                   const SelectionOptions& options) {
  if (options.virtual_loss >= 1) return 0;
  double weight = static_cast<double>(node.visits(move)) - pending;
  double sum = node.value(move);
  if constexpr (HasAmaf<G>) {
    const double k = options.amaf_equivalence;
    sum += k * (node.amaf_value(move) + options.first_play) / (node.amaf_visits(move) + 1.0);
    weight += k;
  }
  if (!(weight > 0)) return 0;
  const double mean = std::clamp(sum / weight, 0.0, 1.0) * (1 - options.virtual_loss);
  return static_cast<float>(std::floor(mean * 256) / 256);
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_SELECTION_H_
