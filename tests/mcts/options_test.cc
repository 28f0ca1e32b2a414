// SearchOptions::validate(): each selection value that the formulas cannot use is refused by name.
#include "mcts/options.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using testing::local_host;
using testing::TicTacToe;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SearchOptions, SelectionValuesAreValidated) {
  const auto check = [](auto member, const std::string& name, const std::vector<float>& good,
                        const std::vector<float>& bad) {
    SearchOptions options;
    for (const float value : good) {
      member(options) = value;
      EXPECT_TRUE(options.validate().ok()) << name << ' ' << value;
    }
    for (const float value : bad) {
      member(options) = value;
      const std::string message(options.validate().message());
      EXPECT_EQ(message.find("SearchOptions::" + name + " is "), 0) << value << ": " << message;
    }
  };
  const std::vector<float> negative = {-0.1F, -kInfinity, kInfinity, kNaN};
  check([](SearchOptions& o) -> float& { return o.selection.exploration; }, "selection.exploration",
        {0, 1e6F}, negative);
  check([](SearchOptions& o) -> float& { return o.selection.amaf_equivalence; },
        "selection.amaf_equivalence", {0, 1e6F}, negative);
  check([](SearchOptions& o) -> float& { return o.selection.bias; }, "selection.bias", {0, 1e6F},
        negative);
  check([](SearchOptions& o) -> float& { return o.paper.exploration; }, "paper.exploration",
        {0, 1e6F}, negative);
  check([](SearchOptions& o) -> float& { return o.selection.first_play; }, "selection.first_play",
        {0, 0.5F, 1}, {-0.1F, 1.1F, kInfinity, kNaN});
  check([](SearchOptions& o) -> float& { return o.selection.virtual_loss; },
        "selection.virtual_loss", {0, 0.5F, 1}, {-0.1F, 1.1F, kInfinity, kNaN});
}

TEST(SearchOptions, ShortSearchesDoNotSpread) {
  SearchOptions options;
  EXPECT_EQ(options.spread_visits_of(0, 64), 0u);
  EXPECT_EQ(options.spread_visits_of(8192, 8), 0u);
  EXPECT_EQ(options.spread_visits_of(8191, 8), SearchOptions::kByLength);
  EXPECT_EQ(options.spread_visits_of(1, 1), SearchOptions::kByLength);
  for (const uint32_t visits : {0U, 500U}) {
    options.spread_visits = visits;
    EXPECT_EQ(options.spread_visits_of(0, 64), visits);
    EXPECT_EQ(options.spread_visits_of(1, 1), visits);
  }
}

TEST(SearchOptions, PlayoutsInFlightAreValidated) {
  SearchOptions options;
  for (const uint32_t good : {0U, 1U, 1024U}) {
    options.playouts_in_flight = good;
    EXPECT_TRUE(options.validate().ok()) << good;
  }
  options.playouts_in_flight = 1025;
  const std::string message(options.validate().message());
  EXPECT_EQ(message.find("SearchOptions::playouts_in_flight is 1025"), 0) << message;
}

TEST(SearchOptions, ASearchRefusesValuesThatItCannotUse) {
  const auto host = local_host(1);
  Search<TicTacToe> search(*host);
  search.options().selection.first_play = kNaN;
  EXPECT_THROW(search.run(TicTacToe(), {.iterations = 10}), std::invalid_argument);
  search.options().selection.first_play = 1;
  EXPECT_EQ(search.run(TicTacToe(), {.iterations = 10}).iterations, 10U);
}

// The values of proved moves are exact. Their playouts may have had another mean.
TEST(SearchResult, AProvedDrawHasTheValueOfADraw) {
  const auto host = local_host(1);
  Search<TicTacToe> search(*host);
  const auto result = search.run(TicTacToe(), {.iterations = 10'000'000});
  ASSERT_EQ(result.outcome, Outcome::kDraw);
  int draws = 0;
  for (const auto& move : result.moves) {
    if (move.verdict != Verdict::kDraws) continue;
    ++draws;
    EXPECT_EQ(move.value, 0.5);
  }
  EXPECT_GT(draws, 0);
}

}  // namespace
}  // namespace cariama::mcts
