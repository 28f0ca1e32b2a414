// Which move of a node a rollout tries.
//
//   score = (1 - b) q + b r + U
//     q  mean value of the move (moves without visits: first_play)
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

// The move with the best score, or -1: all are closed. Costs about a nanosecond a move.
template <Game G>
[[nodiscard]] int select_move(const Node<G>& node, const SelectionOptions& options) {
  using N = Node<G>;
  constexpr int kGroup = N::kGroup;
  constexpr bool kAmaf = N::kAmaf;
  const auto total = static_cast<float>(node.visits() + 1);
  const bool puct = options.rule == SelectionRule::kPuct;
  const bool explores = !puct && options.exploration > 0;
  const float root_log = explores ? std::sqrt(std::log(total)) * options.exploration : 0;
  const float prior_weight = puct ? options.exploration * std::sqrt(total) : options.bias;
  const float equivalence = kAmaf ? options.amaf_equivalence : 0;
  const std::atomic<float>* biases = node.biases();

  float best = N::kClosed / 2;
  int chosen = -1;
  for (int base = 0; base < node.padded(); base += kGroup) {
    // Relaxed loads first, one by one; then arithmetic on plain arrays of fixed length, which
    // compilers turn into vector instructions.
    alignas(64) float visits[kGroup];
    alignas(64) float value[kGroup];
    alignas(64) float score[kGroup];
    for (int j = 0; j < kGroup; ++j) {
      visits[j] = static_cast<float>(node.visits(base + j));
    }
    for (int j = 0; j < kGroup; ++j) value[j] = node.fast_value(base + j);
    for (int j = 0; j < kGroup; ++j) {
      score[j] = visits[j] > 0 ? value[j] / (visits[j] + 1e-9F) : options.first_play;
    }
    if (kAmaf && equivalence > 0) {
      alignas(64) float amaf_visits[kGroup];
      alignas(64) float amaf_value[kGroup];
      for (int j = 0; j < kGroup; ++j) {
        amaf_visits[j] = node.amaf_visits(base + j);
        amaf_value[j] = node.amaf_value(base + j);
      }
      // One imagined AMAF sample of first_play, so that unknown moves are comparable.
      for (int j = 0; j < kGroup; ++j) {
        const float mean = (amaf_value[j] + options.first_play) / (amaf_visits[j] + 1);
        const float weight = equivalence / (equivalence + visits[j]);
        const float own = visits[j] > 0 ? score[j] : mean;
        score[j] = own + weight * (mean - own);
      }
    }
    if (explores) {
      for (int j = 0; j < kGroup; ++j) score[j] += root_log / std::sqrt(visits[j] + 1);
    }
    if (prior_weight > 0) {
      alignas(64) float prior[kGroup];
      for (int j = 0; j < kGroup; ++j) prior[j] = node.prior(base + j);
      for (int j = 0; j < kGroup; ++j) score[j] += prior_weight * prior[j] / (visits[j] + 1);
    }
    for (int j = 0; j < kGroup; ++j) {
      score[j] += biases[base + j].load(std::memory_order_relaxed);
    }
    for (int j = 0; j < kGroup; ++j) {
      if (score[j] > best) {
        best = score[j];
        chosen = base + j;
      }
    }
  }
  return chosen;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SELECTION_H_
