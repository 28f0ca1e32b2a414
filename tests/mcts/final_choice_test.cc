// The final choice: the bound, the order of hand-made statistics, and searches whose most visited
// move is not the best one.
#include "mcts/engine/final_choice.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/engine/arena.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/prior_game.h"
#include "tests/mcts/testing/score_game.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_choice;
using testing::check_scores;
using testing::local_host;
using testing::PriorGame;
using testing::ScoreGame;
using testing::TicTacToe;

TEST(LowerConfidenceBound, IsTheWilsonBound) {
  for (const double mean : {0.0, 0.001, 0.3, 0.5, 0.99, 1.0}) {
    for (const double visits : {1.0, 2.0, 30.0, 1e6}) {
      for (const double z : {0.0, 1.0, 3.0, 5.0}) {
        EXPECT_NEAR(lower_confidence_bound(mean, visits, z), testing::wilson_bound(mean, visits, z),
                    1e-9)
            << mean << ' ' << visits << ' ' << z;
      }
    }
  }
  EXPECT_EQ(lower_confidence_bound(0, 0, 3), 0);
}

// Values between 0 and 1: the true expectation is below the bound about as rarely as the number of
// deviations says, also for means near 1, where mean - z * deviation / sqrt(visits) of the sample
// would often be too high.
TEST(LowerConfidenceBound, IsRarelyAboveTheExpectation) {
  Random random(1);
  for (const uint32_t percent : {50U, 90U, 98U}) {
    int above = 0;
    for (int i = 0; i < 10000; ++i) {
      double sum = 0;
      for (int k = 0; k < 40; ++k) sum += random.below(100) < percent ? 1 : 0;
      if (lower_confidence_bound(sum / 40, 40, 2) > percent / 100.0) ++above;
    }
    EXPECT_LT(above, 500) << percent;  // 2.3 % in the normal approximation
  }
}

// A node of Connect-Four whose move i has statistics[i]. The moves are its columns.
struct Statistic {
  uint32_t visits;
  double mean;
  Verdict verdict = Verdict::kOpen;
};
std::vector<int> columns(const std::vector<Statistic>& statistics, const ChoiceOptions& options) {
  ArenaBudget budget(1 << 20);
  Arena arena(budget);
  std::vector<MoveRecord<ConnectFour>> records;
  for (const Statistic& one : statistics) {
    MoveRecord<ConnectFour>& record = records.emplace_back();
    record.move = static_cast<ConnectFour::Move>(records.size() - 1);
    record.visits = one.visits;
    record.value = one.mean * one.visits;
    record.verdict = one.verdict;
  }
  Node<ConnectFour>* node = Node<ConnectFour>::create(
      ConnectFour(), std::span<const MoveRecord<ConnectFour>>(records), arena, 0);
  std::vector<int> order;
  for (const int i : ordered_moves(*node, options)) order.push_back(node->move(i));
  node->destroy(arena);
  return order;
}
using Order = std::vector<int>;
constexpr ChoiceOptions kVisits{};
constexpr ChoiceOptions kBound{.rule = FinalChoice::kLowerConfidenceBound};

TEST(OrderedMoves, TheBoundMayChooseAnotherMoveThanTheMostVisited) {
  const std::vector<Statistic> dropped{{900, 0.40}, {1000, 0.50}, {800, 0.60}, {100, 0.90}};
  EXPECT_EQ(columns(dropped, kVisits), (Order{1, 0, 2, 3}));
  EXPECT_EQ(columns(dropped, kBound), (Order{2, 1, 0, 3}));
  // Column 3 has too few visits, unless its share of the most visits is enough.
  EXPECT_EQ(columns(dropped, {FinalChoice::kLowerConfidenceBound, 3, 0.09}), (Order{3, 1, 0, 2}));
  EXPECT_EQ(columns(dropped, {FinalChoice::kLowerConfidenceBound, 3, 0.11}), (Order{2, 1, 0, 3}));
  // A higher mean of few visits is less certain.
  const std::vector<Statistic> uncertain{{1000, 0.60}, {200, 0.65}};
  EXPECT_EQ(columns(uncertain, kBound), (Order{0, 1}));
  EXPECT_EQ(columns(uncertain, {FinalChoice::kLowerConfidenceBound, 0.5, 0.15}), (Order{1, 0}));
  EXPECT_EQ(columns({{0, 0}, {0, 0}}, kBound), (Order{0, 1}));
  EXPECT_EQ(columns({}, kBound), Order());
}

TEST(OrderedMoves, VerdictsPrecedeStatistics) {
  for (const ChoiceOptions& options : {kVisits, kBound}) {
    EXPECT_EQ(columns({{1000, 0.9}, {10, 0.1, Verdict::kWins}}, options), (Order{1, 0}));
    EXPECT_EQ(
        columns({{9000, 0.9, Verdict::kLoses}, {8000, 0.9, Verdict::kPruned}, {10, 0.2}}, options),
        (Order{2, 1, 0}));
    EXPECT_EQ(columns({{9, 0.9, Verdict::kLoses}, {8, 0.9, Verdict::kPruned}}, options),
              (Order{1, 0}));
    // A draw is better than a lower mean.
    EXPECT_EQ(columns({{1000, 0.45}, {1, 0.5, Verdict::kDraws}}, options), (Order{1, 0}));
    EXPECT_EQ(columns({{1000, 0.60}, {1, 0.5, Verdict::kDraws}}, options), (Order{0, 1}));
  }
  // The mean is above that of a draw, but its bound is not.
  EXPECT_EQ(columns({{1000, 0.52}, {1, 0.5, Verdict::kDraws}}, kVisits), (Order{0, 1}));
  EXPECT_EQ(columns({{1000, 0.52}, {1, 0.5, Verdict::kDraws}}, kBound), (Order{1, 0}));
}

// The prior leads most rollouts to the wrong move at first, though the means show the best one.
TEST(FinalChoice, TheBoundFindsTheBestMoveEarlier) {
  const auto choose = [](const ChoiceOptions& choice, uint64_t iterations) {
    const auto host = local_host(1);
    Search<PriorGame> search(*host);
    search.options().choice = choice;
    search.options().selection.rule = SelectionRule::kPuct;
    return search.run(PriorGame(), {.iterations = iterations}).moves[0].move;
  };
  int earlier = 0;
  bool found[2] = {false, false};  // by the most visits, by the bound
  for (uint64_t iterations = 10; iterations <= 800; iterations += 10) {
    const bool now[2] = {choose(kVisits, iterations) == PriorGame::kBest,
                         choose(kBound, iterations) == PriorGame::kBest};
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(now[i] || !found[i]) << iterations;  // it stays the choice
      found[i] = now[i];
    }
    EXPECT_TRUE(now[1] || !now[0]) << iterations;
    if (now[1] && !now[0]) ++earlier;
  }
  EXPECT_TRUE(found[0]);
  EXPECT_GE(earlier, 5);
}

TEST(FinalChoice, TheBoundChoosesOfTheResults) {
  for (const uint32_t threads : {1U, 2U}) {
    const auto host = local_host(threads);
    Search<ScoreGame> search(*host);
    search.options().choice = kBound;
    for (uint32_t number = 0; number < 12; ++number) {
      check_scores(search, ScoreGame(number));
      search.clear();
      check_choice(search.run(ScoreGame(number), {.iterations = 200}), search.options().choice);
    }
    Search<TicTacToe> solver(*host);
    solver.options().choice = kBound;
    for (const uint8_t first : TicTacToe::kFirstMoves) {
      TicTacToe game;
      game.play(first);
      const auto result = solver.run(game, {.iterations = 10'000'000});
      ASSERT_EQ(value_of(result.outcome), game.solve());
      game.play(result.moves[0].move);
      EXPECT_EQ(game.solve(), value_of(result.outcome));
    }
  }
}

// The visits decide nothing, so a lead in visits does not end the search.
TEST(FinalChoice, TheBoundEndsNoSearchEarly) {
  const auto host = local_host(1);
  Search<PriorGame> search(*host);
  search.options().choice = kBound;
  search.options().selection.exploration = 0.01F;
  EXPECT_GE(search.run(PriorGame(), {.seconds = 0.1}).seconds, 0.1);
}

TEST(FinalChoice, OptionsAreValidated) {
  const auto host = local_host(1);
  Search<PriorGame> search(*host);
  EXPECT_EQ(SearchOptions().validate(), absl::OkStatus());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [&](const ChoiceOptions& choice, const std::string& name) {
    search.options().choice = choice;
    const absl::Status status = search.options().validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find("SearchOptions::" + name), std::string::npos)
        << status;
    try {
      static_cast<void>(search.run(PriorGame(), {.iterations = 1}));
      ADD_FAILURE() << "no exception for " << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), std::string(status.message()));
    }
  };
  for (const double value : {-1.0, nan, std::numeric_limits<double>::infinity()}) {
    refused({.deviations = value}, "choice.deviations");
  }
  for (const double value : {-0.1, 0.0, 1.1, nan}) {
    refused({.least_share = value}, "choice.least_share");
  }
  search.options().choice = {};
  EXPECT_EQ(search.run(PriorGame(), {.iterations = 10}).iterations, 10u);
}

}  // namespace
}  // namespace cariama::mcts
