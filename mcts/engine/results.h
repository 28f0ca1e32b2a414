// The result of a search, as far as the root and the nodes below it contain it.
#ifndef CARIAMA_MCTS_ENGINE_RESULTS_H_
#define CARIAMA_MCTS_ENGINE_RESULTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mcts/engine/final_choice.h"
#include "mcts/engine/lines.h"
#include "mcts/engine/node.h"
#include "mcts/host.h"
#include "mcts/options.h"
#include "mcts/outcome.h"
#include "mcts/values.h"

namespace cariama::mcts {

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

// Returns the result without its time and the statistics of the processes. sum: of the values of
// the iterations. Called by worker 0 of rank 0, also during a search. Requires: lines.begin() has
// run for this root.
template <Game G>
[[nodiscard]] SearchResult<typename G::Move> result_of(const Node<G>& root,
                                                       const ChoiceOptions& choice, Lines<G>& lines,
                                                       uint64_t iterations,
                                                       const internal::SumOf<G>& sum) {
  SearchResult<typename G::Move> result;
  result.player = root.player();
  result.iterations = iterations;
  result.outcome = root.outcome();
  if constexpr (!kTwoPlayers<G>) {
    if (result.outcome != Outcome::kOpen) {
      const ValueOf<G> proved = internal::value_with<G>(result.outcome);
      result.values.assign(proved.begin(), proved.end());
    } else {
      for (const double one : sum) {
        // Rollouts may end between the two readings.
        const double mean = iterations == 0 ? 0.5 : one / static_cast<double>(iterations);
        result.values.push_back(std::clamp(mean, 0.0, 1.0));
      }
    }
  }
  std::vector<std::vector<typename G::Move>> by_move = lines.take();
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
    move.line = std::move(by_move[static_cast<size_t>(i)]);
    result.moves.push_back(std::move(move));
  }
  return result;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_RESULTS_H_
