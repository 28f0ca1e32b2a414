// Tree search in one thread, with the nodes and the arithmetic of mcts only: no jobs, processes,
// tickets, counters, limits or time control. The additional cost of a real search is the overhead
// of the framework.
#ifndef CARIAMA_BENCH_SUPPORT_PLAIN_SEARCH_H_
#define CARIAMA_BENCH_SUPPORT_PLAIN_SEARCH_H_

#include <ctime>

#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "mcts/engine/arena.h"
#include "mcts/engine/node.h"
#include "mcts/engine/selection.h"
#include "mcts/options.h"

namespace cariama::bench {

// Returns the processor time of the calling thread in seconds.
inline double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The result of plain_search(): the best move, and the processor time of the search.
template <mcts::Game G>
struct PlainResult {
  typename G::Move move{};
  double seconds = 0;
};

// Searches `game` for `iterations` iterations, fewer if the outcome is proved. Uses these options:
// selection, expand_visits, refine_visits, refine_again_visits, value_weight, seed, memory_bytes.
// When the memory is full, no more nodes are created. Requires: the game has a move and no result.
template <mcts::Game G>
PlainResult<G> plain_search(const G& game, const mcts::SearchOptions& options,
                            uint64_t iterations) {
  using Node = mcts::Node<G>;
  using mcts::Outcome;
  mcts::ArenaBudget budget(options.memory_bytes);
  mcts::Arena arena(budget);
  mcts::Random random(options.seed);
  mcts::internal::Evaluator<G> evaluator(game, random, options.value_weight);
  Node* root = Node::create(game, arena, 0, random, false);
  if (root == nullptr) throw std::bad_alloc();
  struct Step {
    Node* node;
    int move;
  };
  std::vector<Step> path;
  const double start = thread_cpu_seconds();
  for (uint64_t i = 0; i < iterations && root->outcome() == Outcome::kOpen; ++i) {
    path.clear();
    Node* node = root;
    Outcome known = Outcome::kOpen;
    mcts::Sample<G> sample;
    bool played = false;
    while (known == Outcome::kOpen && !played) {
      if constexpr (mcts::HasRefine<G>) {
        const int level = node->refinements();
        if (level < mcts::kRefinements &&
            node->visits() >= (level == 0 ? options.refine_visits : options.refine_again_visits) &&
            node->claim_refinement(level)) {
          node->refine(level, /*sets_priors=*/true);
          known = node->outcome();
          if (known != Outcome::kOpen) break;
        }
      }
      const int move = mcts::select_move(*node, options.selection);
      if (move < 0) {  // the outcome of every move is known, or the game has ended
        known = node->resolve();
        if (known == Outcome::kOpen) sample.value = *node->state().result();
        break;
      }
      const uint32_t before = node->enter(move);
      path.push_back({node, move});
      const auto child = node->child(move);
      if (child.is_local()) {
        node = child.local();
        known = node->outcome();
        continue;
      }
      G position = node->state();
      position.play(node->move(move));
      if (const std::optional<float> result = position.result()) {
        known = mcts::outcome_of(*result);
        sample.value = *result;
        break;
      }
      if (before >= options.expand_visits) {
        if (Node* made = Node::create(position, arena, 0, random, true); made != nullptr) {
          static_cast<void>(node->publish_child(move, typename Node::Ref(made)));
          node = made;
          known = made->outcome();
          continue;
        }
      }
      evaluator.run(position, node->move(move), random, 1,
                    [&](const mcts::Sample<G>& one) { sample = one; });
      played = true;
    }
    const float value = known == Outcome::kOpen ? sample.value : mcts::value_of(known);
    for (size_t k = path.size(); k-- > 0;) {
      Node& at = *path[k].node;
      at.leave(path[k].move, 1, value);
      if (played) at.count_amaf(sample);
      if (known != Outcome::kOpen) {
        at.prove(path[k].move, known);
        known = at.resolve();
      }
    }
  }
  PlainResult<G> result{root->move(0), thread_cpu_seconds() - start};
  std::pair<bool, uint32_t> most{false, 0};
  for (int i = 0; i < root->size(); ++i) {
    if (root->verdict(i) == mcts::Verdict::kLoses) continue;
    const std::pair<bool, uint32_t> own{root->verdict(i) == mcts::Verdict::kWins, root->visits(i)};
    if (own < most) continue;
    most = own;
    result.move = root->move(i);
  }
  return result;
}

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_PLAIN_SEARCH_H_
