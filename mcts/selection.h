// Which move of a node a rollout tries.
//
//   score = (1 - b) q + b r + U
//     q  mean value of the move (moves without visits: first_play, if there is no AMAF)
//     r  mean AMAF value; b = k / (k + visits), k = amaf_equivalence, 0 in games without AMAF
//     U  UCB:  exploration * sqrt(ln(N) / (1 + visits)) + bias * prior / (1 + visits)
//        PUCT: exploration * prior * sqrt(N) / (1 + visits)
//
// (UCB: Kocsis, Szepesvári 2006. RAVE: Gelly, Silver 2007. Progressive bias: Chaslot et al. 2008.
// PUCT: Rosin 2011, Silver et al. 2016.)
#ifndef CARIAMA_MCTS_SELECTION_H_
#define CARIAMA_MCTS_SELECTION_H_

#include <cmath>
#include <cstdint>

#include "mcts/node.h"
#include "mcts/select_kernel.h"

namespace cariama::mcts {

enum class SelectionRule : uint8_t { kUcb, kPuct };

struct SelectionOptions {
  SelectionRule rule = SelectionRule::kUcb;
  float exploration = 0.7F;
  float first_play = 1.0F;  // the value of what was never tried
  // Visits at which a move's own mean weighs as much as its AMAF mean.
  float amaf_equivalence = 0;
  float bias = 0;  // of priors, with kUcb
};

// The move with the best score, the first one of several; -1: all are closed. Some ten nanoseconds
// for each 16 moves, where the processor has AVX-512.
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

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SELECTION_H_
