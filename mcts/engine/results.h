// The result of a search, as far as the root and the nodes below it contain it.
#ifndef CARIAMA_MCTS_ENGINE_RESULTS_H_
#define CARIAMA_MCTS_ENGINE_RESULTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mcts/engine/copy_exchange.h"
#include "mcts/engine/final_choice.h"
#include "mcts/engine/node.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Returns the principal variation that begins with a move of this node (MoveResult::line). It leads
// on through nodes of other processes of which this process has a copy.
template <Game G>
[[nodiscard]] std::vector<typename G::Move> line_from(const Node<G>& from, int move,
                                                      CopyExchange<G>& exchange) {
  constexpr size_t kMostMoves = 64;
  // Returns the child of a node, or its copy, or nullptr if this process has neither.
  const auto known_child = [&](const Node<G>& node, int at) -> const Node<G>* {
    const auto child = node.child(at);
    return child.is_local()    ? child.local()
           : child.is_remote() ? exchange.copied(child.remote())
                               : nullptr;
  };
  std::vector<typename G::Move> line{from.move(move)};
  const Node<G>* node = known_child(from, move);
  while (node != nullptr && node->size() != 0 && !node->is_chance() && line.size() < kMostMoves) {
    const auto key = [&](int at) {
      return std::pair(node->verdict(at) == Verdict::kWins, node->visits(at));
    };
    int best = 0;
    for (int i = 1; i < node->size(); ++i) {
      if (key(i) > key(best)) best = i;
    }
    if (node->visits(best) == 0) break;
    line.push_back(node->move(best));
    node = known_child(*node, best);
  }
  return line;
}

// Reports each living process that has completed no rollout of a search, once the search has lasted
// for a second and has 100 iterations for each process. Before that, a process may have had nothing
// to do. Called by worker 0 of rank 0.
inline void report_idle_processes(const Host& host, std::span<const Statistics> processes,
                                  double seconds, uint64_t iterations) {
  if (seconds < 1 || iterations < uint64_t{100} * host.size()) return;
  for (uint32_t rank = 1; rank < host.size(); ++rank) {
    if (host.alive(rank) && processes[rank].completions == 0) host.report_no_part(rank, seconds);
  }
}

// Returns the result without its iterations, its time and the statistics of the processes. Called
// by worker 0 of rank 0, also during a search.
template <Game G>
[[nodiscard]] SearchResult<typename G::Move> result_of(const Node<G>& root,
                                                       const ChoiceOptions& choice,
                                                       CopyExchange<G>& exchange) {
  SearchResult<typename G::Move> result;
  result.player = root.player();
  result.outcome = root.outcome();
  for (const int i : ordered_moves(root, choice)) {
    MoveResult<typename G::Move> move;
    move.move = root.move(i);
    move.visits = root.visits(i);
    move.verdict = root.verdict(i);
    move.prior = root.prior(i);
    if (move.verdict == Verdict::kWins || move.verdict == Verdict::kLoses) {
      move.value = move.verdict == Verdict::kWins ? 1 : 0;
    } else if (move.verdict == Verdict::kDraws) {
      move.value = 0.5;
    } else if (move.visits != 0) {
      move.value = std::clamp(root.value(i) / static_cast<double>(move.visits), 0.0, 1.0);
    }
    move.line = line_from(root, i, exchange);
    result.moves.push_back(std::move(move));
  }
  return result;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_RESULTS_H_
