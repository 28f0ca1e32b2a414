// Noise at the root: the distribution, its mixture with the priors, and its effect on searches.
#include "mcts/engine/root_noise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/prior_game.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_conservation;
using testing::local_host;
using testing::PriorGame;
using testing::process_of;
using testing::TicTacToe;

// The mean of each component is 1 / k, its variance (k - 1) / (k^2 (k c + 1)).
TEST(SampleDirichlet, HasTheMeanAndVarianceOfTheDistribution) {
  constexpr int kMoves = 5;
  constexpr int kSamples = 20000;
  for (const double concentration : {0.02, 0.3, 1.0, 2.5, 40.0}) {
    Random random(17);
    double sum[kMoves] = {};
    double squares[kMoves] = {};
    for (int i = 0; i < kSamples; ++i) {
      double sample[kMoves];
      sample_dirichlet(sample, concentration, random);
      double total = 0;
      for (int k = 0; k < kMoves; ++k) {
        ASSERT_GE(sample[k], 0);
        total += sample[k];
        sum[k] += sample[k];
        squares[k] += sample[k] * sample[k];
      }
      ASSERT_NEAR(total, 1, 1e-12);
    }
    const double variance = (kMoves - 1) / (kMoves * kMoves * (kMoves * concentration + 1));
    for (int k = 0; k < kMoves; ++k) {
      const double mean = sum[k] / kSamples;
      EXPECT_NEAR(mean, 1.0 / kMoves, 6 * std::sqrt(variance / kSamples)) << concentration;
      EXPECT_NEAR(squares[k] / kSamples - mean * mean, variance, variance / 10) << concentration;
    }
  }
}

TEST(SampleDirichlet, ExtremeConcentrationsGiveNumbers) {
  Random random(1);
  std::vector<double> sample(300);
  for (int i = 0; i < 100; ++i) {
    sample_dirichlet(sample, 1e-4, random);  // one move gets nearly all
    EXPECT_GT(*std::max_element(sample.begin(), sample.end()), 0.5);
    EXPECT_NEAR(std::accumulate(sample.begin(), sample.end(), 0.0), 1, 1e-9);
    sample_dirichlet(sample, 1e6, random);  // all get the same
    for (const double one : sample) EXPECT_NEAR(one, 1.0 / 300, 1e-4);
  }
  sample_dirichlet({}, 1, random);
  double one[1];
  sample_dirichlet(one, 0.3, random);
  EXPECT_EQ(one[0], 1);
}

TEST(MixNoise, MixesAndKeepsTheSum) {
  const std::vector<float> priors{0.5F, 0.25F, 0, 1};
  for (const double fraction : {0.0, 0.25, 1.0}) {
    std::vector<float> mixed = priors;
    Random random(3);
    mix_noise(mixed, {fraction, 0.3}, random);
    double sample[4];
    Random same(3);
    sample_dirichlet(sample, 0.3, same);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(mixed[i], (1 - fraction) * priors[i] + fraction * 1.75 * sample[i], 1e-6);
    }
  }
  // Priors that are all 0 count as uniform ones.
  std::vector<float> none(4, 0);
  Random random(3);
  mix_noise(none, {0.5, 1e6}, random);
  for (const float prior : none) EXPECT_NEAR(prior, 0.25, 1e-3);
}

// Returns the results of a search for each move, to compare two searches exactly.
template <typename Move>
using Details = std::vector<std::tuple<Move, uint64_t, double, double>>;
template <typename Move>
Details<Move> details_of(const SearchResult<Move>& result) {
  Details<Move> all;
  for (const auto& move : result.moves) {
    all.emplace_back(move.move, move.visits, move.value, move.prior);
  }
  return all;
}
template <Game G>
Details<typename G::Move> details(const G& game, const SearchOptions& options) {
  const auto host = local_host(1);
  Search<G> search(*host, options);
  const auto result = search.run(game, {.iterations = 2000});
  check_conservation(search, result);
  return details_of(result);
}
SearchOptions with_noise(double fraction, double concentration, uint64_t seed = 1) {
  SearchOptions options;
  options.selection.rule = SelectionRule::kPuct;
  options.root_noise = {fraction, concentration};
  options.seed = seed;
  return options;
}

TEST(RootNoise, FractionZeroChangesNothing) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SearchOptions options = SearchOptions::of<ConnectFour>();
    options.seed = seed;
    const auto plain = details(ConnectFour(), options);
    options.root_noise = {0, 0.03};
    EXPECT_EQ(details(ConnectFour(), options), plain);
    EXPECT_EQ(details(PriorGame(), with_noise(0, 0.03, seed)),
              details(PriorGame(), with_noise(0, 10, seed)));
  }
}

TEST(RootNoise, SeedsTryDifferentMovesAndRepeat) {
  const PriorGame game(PriorGame::Table::kEven);
  std::set<PriorGame::Move> best;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto found = details(game, with_noise(0.5, 0.1, seed));
    EXPECT_EQ(details(game, with_noise(0.5, 0.1, seed)), found);
    best.insert(std::get<0>(found[0]));
    // Without noise, all moves get about the same number of visits.
    EXPECT_GT(std::get<1>(found[0]), 400u);
    EXPECT_LT(std::get<1>(details(game, with_noise(0, 0.1, seed))[0]), 300u);
  }
  EXPECT_GE(best.size(), 4u);
}

// Several workers have the noise of one.
TEST(RootNoise, DependsOnNoThread) {
  std::vector<float> priors[2];
  for (const uint32_t threads : {1U, 4U}) {
    const auto host = local_host(threads);
    Search<PriorGame> search(*host, with_noise(0.5, 0.1));
    static_cast<void>(search.run(PriorGame(), {.iterations = 500}));
    const Node<PriorGame>& root = *process_of(search).tree().root();
    for (int i = 0; i < root.size(); ++i) priors[threads == 1 ? 0 : 1].push_back(root.prior(i));
  }
  EXPECT_EQ(priors[0], priors[1]);
}

// The noise belongs to one search: a later one of the same tree replaces it, and without noise has
// the priors of the game again.
TEST(RootNoise, EachSearchHasItsOwnNoise) {
  const auto host = local_host(1);
  Search<PriorGame> search(*host, with_noise(0.4, 0.3, 1));
  const auto priors = [&](const PriorGame& game) {
    std::vector<double> all(PriorGame::kMaxMoves);
    const auto result = search.run(game, {.iterations = 10});
    for (const auto& move : result.moves) all[move.move] = move.prior;
    all.resize(result.moves.size());
    return all;
  };
  const auto distance = [](const std::vector<double>& a, const PriorGame& game) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::abs(a[i] - game.prior(static_cast<PriorGame::Move>(i))));
    }
    return most;
  };
  const PriorGame game;
  const auto first = priors(game);
  EXPECT_GT(distance(first, game), 0.01);
  EXPECT_NEAR(std::accumulate(first.begin(), first.end(), 0.0), 1, 1e-5);
  EXPECT_EQ(priors(game), first);
  search.options().seed = 2;
  const auto second = priors(game);
  EXPECT_NE(second, first);
  EXPECT_NEAR(std::accumulate(second.begin(), second.end(), 0.0), 1, 1e-5);
  search.options().root_noise.fraction = 0;
  EXPECT_EQ(distance(priors(game), game), 0);
  search.options() = with_noise(0.4, 0.3, 1);
  EXPECT_EQ(priors(game), first);
  // The new root has its own priors, and noise.
  search.options().expand_visits = 1;
  static_cast<void>(search.run(game, {.iterations = 500}));
  PriorGame next = game;
  next.play(PriorGame::kBest);
  search.advance(PriorGame::kBest);
  EXPECT_EQ(search.position(), next);
  EXPECT_EQ(priors(next), std::vector<double>{1});
  // A new tree of the first position has the same noise.
  EXPECT_EQ(priors(game), first);
}

// Noise delays the proof or the best move, but does not change it. Tic-tac-toe has no priors.
TEST(RootNoise, KnownSolutionsAreFound) {
  const auto host = local_host(2);
  Search<TicTacToe> solver(*host);
  solver.options().selection.bias = 1;
  solver.options().root_noise = {0.5, 0.1};
  for (const uint8_t first : TicTacToe::kFirstMoves) {
    solver.options().seed = first;
    TicTacToe game;
    game.play(first);
    const auto result = solver.run(game, {.iterations = 10'000'000});
    ASSERT_EQ(value_of(result.outcome), game.solve());
    check_conservation(solver, result);
  }
  Search<PriorGame> search(*host, with_noise(0.25, 0.3));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    search.options().seed = seed;
    EXPECT_EQ(search.run(PriorGame(), {.iterations = 5000}).moves[0].move, PriorGame::kBest);
  }
}

TEST(RootNoise, OptionsAreValidated) {
  const auto message = [](const SearchOptions& options) {
    return std::string(options.validate().message());
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double fraction : {-0.1, 1.1, nan}) {
    EXPECT_NE(message(with_noise(fraction, 0.3)).find("SearchOptions::root_noise.fraction"),
              std::string::npos);
  }
  for (const double concentration : {-1.0, 0.0, 1e-5, 1e7, nan}) {
    EXPECT_NE(message(with_noise(0, concentration)).find("SearchOptions::root_noise.concentration"),
              std::string::npos);
  }
  EXPECT_EQ(message(with_noise(1, 0.3)), "");
  // A selection that ignores priors.
  SearchOptions options = with_noise(0.25, 0.3);
  options.selection.exploration = 0;
  EXPECT_NE(message(options).find("selection.exploration"), std::string::npos);
  options.selection.rule = SelectionRule::kUcb;
  EXPECT_NE(message(options).find("selection.bias"), std::string::npos);
  options.selection.bias = 0.1F;
  EXPECT_EQ(message(options), "");
}

}  // namespace
}  // namespace cariama::mcts
