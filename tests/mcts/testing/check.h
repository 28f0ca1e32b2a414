// Checks of the invariants that hold after any search, and a host for tests.
#ifndef CARIAMA_TESTS_MCTS_TESTING_CHECK_H_
#define CARIAMA_TESTS_MCTS_TESTING_CHECK_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "mcts/engine/search_process.h"
#include "mcts/host.h"
#include "mcts/search.h"
#include "tests/mcts/testing/score_game.h"

namespace cariama::mcts::testing {

inline std::unique_ptr<Host> local_host(uint32_t threads) {
  return *Host::create(nullptr, {.threads = threads});
}

// Returns this process's part of the search. Requires: the calling thread created the host.
template <Game G>
SearchProcess<G>& process_of(const Search<G>&) {
  return Host::local_here<SearchProcess<G>>();
}

// Checks the nodes of this process: the visits of a node are the sum of those of its moves, no
// child is being created, values are between 0 and the visits, and no child has more visits than
// its move. The proof of a child is in its parent, if a verdict can say it. lossless: no process
// died. The counts of a dead process are lost; then a child may have visits that its parent never
// received.
template <Game G>
void check_nodes(LocalTree<G>& tree, bool lossless = true) {
  uint64_t nodes = 0;
  tree.for_each_node([&](const Node<G>& node) {
    ++nodes;
    uint64_t visits = 0;
    for (int i = 0; i < node.size(); ++i) {
      visits += node.visits(i);
      EXPECT_GE(node.value(i), -1e-6);
      EXPECT_LE(node.value(i), node.visits(i) + 1e-6);
      const auto child = node.child(i);
      EXPECT_FALSE(child.is_creating());
      if (child.is_local()) {
        if (tree.options().transpositions) continue;  // the child may have other parents, too
        if (lossless) {
          EXPECT_LE(child.local()->visits(), node.visits(i));
        }
        // If another process has proved an outcome at its copy of the child, the exchange sets it
        // in the child, not in the parent. The next rollout sets it in the parent.
        if (tree.host().size() == 1) {
          const Outcome known = child.local()->outcome();
          const bool has_verdict = kTwoPlayers<G>
                                       ? known != Outcome::kOpen
                                       : known == win_of(node.player()) && !node.is_chance();
          EXPECT_TRUE(!has_verdict || node.closed(i));
        }
      }
    }
    EXPECT_EQ(visits, node.visits());
  });
  uint64_t bytes = 0;
  tree.for_each_node([&](const Node<G>& node) { bytes += (node.bytes() + 63) / 64 * 64; });
  EXPECT_EQ(bytes, tree.live_bytes());
}

// Checks that in each process visits = completions + handed_over + cancelled + deferred_selections,
// and that the completions of all processes add up to the iterations. lossless: no process died.
template <Game G>
void check_conservation(Search<G>& search, const typename Search<G>::Result& result,
                        bool lossless = true) {
  uint64_t completions = 0;
  for (const Statistics& process : result.processes) {
    EXPECT_EQ(process.visits, process.completions + process.handed_over + process.cancelled +
                                  process.deferred_selections);
    completions += process.completions;
  }
  if (lossless) {
    EXPECT_EQ(completions, result.iterations);
  }
  check_nodes(process_of(search).tree(), lossless);
}

// Checks that advance() keeps the visits of the move's child, in whichever process the child is,
// for six moves from a position. The move has more visits than its child: those that sampled its
// position. In one process a rollout creates the child at once. Otherwise each process samples
// while another process creates the child or as long as it does not know the child yet, up to
// SearchOptions::sample_limit() visits of the move. The statistics count the samples for which a
// process had too many requests in flight.
template <Game G>
void check_kept_tree(Host& host, const G& first) {
  for (const Placement placement : {Placement::kRandom, Placement::kLocality}) {
    Search<G> search(host);
    search.clear();
    search.options().expand_visits = 1;
    search.options().placement = placement;
    search.options().spread_visits = 0;  // the child of the move is in any process
    uint64_t sampled =
        host.size() == 1 ? 1 : host.size() * (uint64_t{search.options().sample_limit()} + 1);
    G game = first;
    const auto run = [&](uint64_t iterations) {
      auto result = search.run(game, {.iterations = iterations});
      check_conservation(search, result);
      for (const Statistics& process : result.processes) sampled += process.sampled_instead;
      return result;
    };
    auto result = run(5000);
    for (int i = 0; i < 6 && result.outcome == Outcome::kOpen; ++i) {
      const uint64_t before = result.moves[0].visits;
      game.play(result.moves[0].move);
      if (game.result()) break;
      search.advance(result.moves[0].move);
      const auto next = run(1);
      uint64_t visits = 0;
      for (const auto& move : next.moves) visits += move.visits;
      EXPECT_GE(visits + sampled, before + 1) << placement_name(placement) << " " << i;
      EXPECT_LE(visits, before + 1) << placement_name(placement) << " " << i;
      result = run(5000);
    }
  }
}

// Returns the lowest expected value p from which the mean of `visits` values 0 and 1 deviates by at
// most z deviations: the root of (mean - p)^2 = z^2 p (1 - p) / visits, by bisection.
inline double wilson_bound(double mean, double visits, double z) {
  double low = 0;
  double high = mean;
  for (int i = 0; i < 100; ++i) {
    const double p = (low + high) / 2;
    ((mean - p) * (mean - p) > z * z * p * (1 - p) / visits ? low : high) = p;
  }
  return high;
}

// Checks that the first move of a result has the highest bound of the moves with enough visits, if
// no move is proved.
template <typename Move>
void check_choice(const SearchResult<Move>& result, const ChoiceOptions& choice) {
  uint64_t most = 0;
  for (const auto& move : result.moves) {
    if (move.verdict != Verdict::kOpen) return;
    most = std::max(most, move.visits);
  }
  const auto bound = [&](const MoveResult<Move>& move) {
    return wilson_bound(move.value, static_cast<double>(move.visits), choice.deviations);
  };
  const double least = choice.least_share * static_cast<double>(most);
  EXPECT_GE(static_cast<double>(result.moves[0].visits), least);
  for (const auto& move : result.moves) {
    if (static_cast<double>(move.visits) < least) continue;
    EXPECT_LE(bound(move), bound(result.moves[0]) + 1e-9);
  }
}

// Checks a search of a ScoreGame against exhaustive search: only wins and losses are proved, and
// the best move gets about the value of perfect play. A core may run other programs for the time of
// a search: moves that lead to a process without a core get no visits then. So the search continues
// until it has the value, or has run as often as suffices by far.
inline void check_scores(Search<ScoreGame>& search, const ScoreGame& game) {
  constexpr int kMostRuns = 20;
  constexpr float kTolerance = 0.11F;
  const float value = game.solve();
  auto result = search.run(game, {.iterations = 100'000});
  const auto deviation = [&] {
    const auto& best = result.moves[0];
    ScoreGame next = game;
    next.play(best.move);
    const float own = game.to_move() == 0 ? next.solve() : 1 - next.solve();
    return std::max(std::abs(next.solve() - value), std::abs(static_cast<float>(best.value) - own));
  };
  for (int run = 1; run < kMostRuns && deviation() > kTolerance; ++run) {
    result = search.run(game, {.iterations = 100'000});
  }
  EXPECT_LE(deviation(), kTolerance);
  if (result.outcome != Outcome::kOpen) {
    EXPECT_EQ(value_of(result.outcome), value);
  }
  for (const auto& move : result.moves) {
    ScoreGame next = game;
    next.play(move.move);
    const float own = game.to_move() == 0 ? next.solve() : 1 - next.solve();
    if (move.verdict != Verdict::kOpen) {
      EXPECT_EQ(own, move.verdict == Verdict::kWins ? 1.0F : 0.0F);
    }
  }
  check_conservation(search, result);
}

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_CHECK_H_
