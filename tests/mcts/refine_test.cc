// refine() changes priors: they steer the selection in all processes, and stay with their node.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/refined_game.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using testing::check_conservation;
using testing::local_host;
using testing::process_of;
using testing::RefinedGame;
using testing::run_search_job;
using testing::Shape;

void set_options(SearchOptions& options) {
  options.selection.rule = SelectionRule::kPuct;
  options.refine_visits = 16;
  options.refine_again_visits = 64;
}

// Checks that each node has the priors of its number of refinements. Returns the number of nodes
// that are completely refined.
int check_priors(LocalTree<RefinedGame>& tree) {
  int complete = 0;
  tree.for_each_node([&](const Node<RefinedGame>& node) {
    if (node.refinements() == kRefinements) ++complete;
    for (int i = 0; i < node.size(); ++i) {
      EXPECT_EQ(node.prior(i), node.state().prior(node.move(i), node.refinements()));
    }
  });
  return complete;
}

// Returns the visits of a move, as a share of those of all moves.
double share(const Search<RefinedGame>::Result& result, size_t index) {
  uint64_t all = 0;
  for (const auto& move : result.moves) all += move.visits;
  return static_cast<double>(result.moves[index].visits) / static_cast<double>(all);
}

// With a large exploration constant the values do not matter, so the visits of a move are
// proportional to its prior, at each copy of the root. A thread that is preempted while it refines
// the root leaves the former priors to the others meanwhile, so the search is continued.
Search<RefinedGame>::Result run_until_visited(Search<RefinedGame>& search,
                                              const RefinedGame& game) {
  constexpr double kTolerance = 0.1;
  auto result = search.run(game, {.iterations = 20000});
  const auto is_visited = [&] {
    for (size_t i = 0; i < result.moves.size(); ++i) {
      const double prior = game.prior(result.moves[i].move, kRefinements);
      if (std::abs(share(result, i) - prior) > kTolerance) return false;
    }
    return true;
  };
  for (int again = 0; again < 20 && !is_visited(); ++again) {
    result = search.run(game, {.iterations = 20000});
  }
  for (size_t i = 0; i < result.moves.size(); ++i) {
    EXPECT_EQ(result.moves[i].prior, game.prior(result.moves[i].move, kRefinements));
    EXPECT_NEAR(share(result, i), game.prior(result.moves[i].move, kRefinements), kTolerance);
  }
  return result;
}

TEST(Refine, PriorsOfEachLevel) {
  for (const uint32_t threads : {1u, 2u}) {
    const auto host = local_host(threads);
    Search<RefinedGame> search(*host);
    set_options(search.options());
    const auto result = search.run(RefinedGame(), {.iterations = 20000});
    EXPECT_GT(check_priors(process_of(search).tree()), 3);
    EXPECT_EQ(RefinedGame().after(result.moves[0].move).solve(), RefinedGame().solve());
    search.options().selection.exploration = 10000;
    search.clear();
    run_until_visited(search, RefinedGame());
  }
}

// A refinement does not replace noise, and noise does not replace a refinement.
TEST(Refine, TheRootWithNoise) {
  const auto host = local_host(1);
  Search<RefinedGame> search(*host);
  set_options(search.options());
  const RefinedGame game;
  const auto expect_priors = [&](int refinements, bool noise) {
    const auto result = search.run(game, {.iterations = 1000});
    bool equal = true;
    for (const auto& move : result.moves) {
      equal &= move.prior == double{game.prior(move.move, refinements)};
    }
    EXPECT_EQ(equal, !noise);
  };
  expect_priors(2, false);
  search.options().root_noise = {0.5, 0.3};
  expect_priors(2, true);
  search.options().root_noise = {};
  expect_priors(2, false);
  search.clear();
  search.options().root_noise = {0.5, 0.3};
  search.options().refine_again_visits = 1500;
  expect_priors(0, true);
  // The search without noise refines the restored priors.
  search.options().root_noise = {};
  expect_priors(2, false);
  search.options().root_noise = {0.5, 0.3};
  expect_priors(2, true);
  search.options().root_noise = {};
  expect_priors(2, false);
}

class RefineByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RefineByShape,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

TEST_P(RefineByShape, CopiesAndFetchedNodesHaveThePriors) {
  run_search_job(
      GetParam(),
      [](Host& host) {
        for (const bool transpositions : {false, true}) {
          for (const Placement placement :
               {Placement::kLocality, Placement::kHash, Placement::kRandom}) {
            Search<RefinedGame> search(host);
            set_options(search.options());
            search.options().placement = placement;
            search.options().spread_expansions = 2;
            search.options().spread_visits = 0;  // the next root may be in another process
            search.options().transpositions = transpositions;
            search.options().selection.exploration = 10000;
            RefinedGame game;
            for (int ply = 0; ply < 2; ++ply) {
              const auto result = ply == 0 ? run_until_visited(search, game)
                                           : search.run(game, {.iterations = 20000});
              check_conservation(search, result);
              EXPECT_GT(check_priors(process_of(search).tree()), 0);
              EXPECT_EQ(game.after(result.moves[0].move).solve(), game.solve());
              game.play(result.moves[0].move);
              search.advance(result.moves[0].move);
              // The new root, which another process may have owned, keeps its refinements.
              check_priors(process_of(search).tree());
            }
          }
        }
      },
      [](Host& host) { check_priors(host.local<LocalTree<RefinedGame>>()); });
}

}  // namespace
}  // namespace cariama::mcts
