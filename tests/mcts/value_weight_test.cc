// Games with playouts and value(): the mean of both, its extremes, and a game that misleads each of
// them alone.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using testing::check_conservation;
using testing::local_host;
using testing::TicTacToe;

// Three first moves with eight replies each. All scores prove nothing. Move 0 has one refutation,
// which random playouts overlook and value() knows. value() overrates move 1. Move 2 is the best
// one.
class Misleading {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 8;
  static constexpr Move kBest = 2;

  [[nodiscard]] int to_move() const { return played_ & 1; }
  int moves(std::span<Move> out) const {
    const int count = played_ == 0 ? 3 : kMaxMoves;
    for (int i = 0; i < count; ++i) out[i] = static_cast<Move>(i);
    return count;
  }
  void play(Move move) { (played_++ == 0 ? first_ : reply_) = move; }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < 2) return std::nullopt;
    if (first_ == 0) return reply_ == 3 ? 0.1F : 0.95F;
    return first_ == 1 ? 0.15F : 0.7F;
  }
  [[nodiscard]] float solve() const {
    if (const auto known = result()) return *known;
    float best = to_move() == 0 ? 0 : 1;
    Move all[kMaxMoves];
    const int count = moves(all);
    for (int i = 0; i < count; ++i) {
      Misleading next = *this;
      next.play(all[i]);
      best = to_move() == 0 ? std::max(best, next.solve()) : std::min(best, next.solve());
    }
    return best;
  }
  friend bool operator==(const Misleading&, const Misleading&) = default;

 protected:
  [[nodiscard]] float playout_of(Random& random) const {
    Misleading game = *this;
    while (!game.result()) {
      Move all[kMaxMoves];
      game.play(all[random.below(static_cast<uint32_t>(game.moves(all)))]);
    }
    return *game.result();
  }
  [[nodiscard]] float value_of_move() const {
    if (played_ == 0) return 0.5F;
    return first_ == 0 ? 0.1F : first_ == 1 ? 0.9F : 0.65F;
  }

 private:
  uint8_t played_ = 0;
  uint8_t first_ = 0;
  uint8_t reply_ = 0;
};
struct WithPlayout : Misleading {
  float playout(Random& random) const { return playout_of(random); }
};
struct WithValue : Misleading {
  [[nodiscard]] float value() const { return value_of_move(); }
};
struct WithBoth : Misleading {
  float playout(Random& random) const { return playout_of(random); }
  [[nodiscard]] float value() const { return value_of_move(); }
};
struct WithPlayoutsAndValue : Misleading {
  struct Playouts {
    Playouts(const WithPlayoutsAndValue&, Random&) {}
    float run(const WithPlayoutsAndValue& game, std::optional<Move>, Random& random) {
      return game.playout_of(random);
    }
  };
  [[nodiscard]] float value() const { return value_of_move(); }
};
static_assert(Game<WithPlayout> && Game<WithValue> && Game<WithBoth> && Game<WithPlayoutsAndValue>);

// Searches without nodes below the root: only the evaluations decide.
template <Game G>
SearchResult<uint8_t> evaluate(double weight, uint64_t seed = 1, uint32_t threads = 1) {
  const auto host = local_host(threads);
  Search<G> search(*host);
  search.options().value_weight = weight;
  search.options().seed = seed;
  search.options().expand_visits = 1'000'000;
  const auto result = search.run(G(), {.iterations = 2000});
  check_conservation(search, result);
  return result;
}
using Evaluations = std::vector<std::tuple<uint8_t, uint64_t, double>>;
Evaluations evaluations_of(const SearchResult<uint8_t>& result) {
  Evaluations all;
  for (const auto& move : result.moves) all.emplace_back(move.move, move.visits, move.value);
  return all;
}

template <typename G>
class ValueWeight : public ::testing::Test {};
using Mixed = ::testing::Types<WithBoth, WithPlayoutsAndValue>;
TYPED_TEST_SUITE(ValueWeight, Mixed);

TYPED_TEST(ValueWeight, EachAloneMisleadsAndBothDoNot) {
  Misleading best;
  best.play(Misleading::kBest);
  ASSERT_EQ(best.solve(), Misleading().solve());
  for (const uint32_t threads : {1U, 2U}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(evaluate<TypeParam>(0, seed, threads).moves[0].move, 0);
      EXPECT_EQ(evaluate<TypeParam>(1, seed, threads).moves[0].move, 1);
      EXPECT_EQ(evaluate<TypeParam>(0.5, seed, threads).moves[0].move, Misleading::kBest);
    }
  }
}

// With the weights 0 and 1 the search is exactly that of the game with one of both. Such a game
// ignores the weight.
TYPED_TEST(ValueWeight, ExtremeWeightsAreTheGamesWithOneOfBoth) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Evaluations playouts = evaluations_of(evaluate<WithPlayout>(0.5, seed));
    const Evaluations values = evaluations_of(evaluate<WithValue>(0.5, seed));
    EXPECT_EQ(evaluations_of(evaluate<TypeParam>(0, seed)), playouts);
    EXPECT_EQ(evaluations_of(evaluate<TypeParam>(1, seed)), values);
    EXPECT_NE(evaluations_of(evaluate<TypeParam>(0.5, seed)), playouts);
    for (const double weight : {0.0, 1.0}) {
      EXPECT_EQ(evaluations_of(evaluate<WithPlayout>(weight, seed)), playouts);
      EXPECT_EQ(evaluations_of(evaluate<WithValue>(weight, seed)), values);
    }
  }
}

// One move, whose playouts and value are constants that floats represent exactly. It is a move of
// player 1.
class Constant {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 1;
  static inline std::atomic<int> playouts;
  static inline std::atomic<int> values;

  [[nodiscard]] int to_move() const { return 1 - (played_ & 1); }
  int moves(std::span<Move> out) const {
    out[0] = 0;
    return 1;
  }
  void play(Move) { ++played_; }
  [[nodiscard]] std::optional<float> result() const {
    return played_ < 3 ? std::nullopt : std::optional(0.125F);
  }
  float playout(Random&) const {
    ++playouts;
    return 0.25F;
  }
  [[nodiscard]] float value() const {
    ++values;
    return 0.75F;
  }
  friend bool operator==(const Constant&, const Constant&) = default;

 private:
  uint8_t played_ = 0;
};

TEST(ValueWeightOfOneGame, IsExact) {
  const auto host = local_host(1);
  for (const double weight : {0.0, 0.25, 0.5, 1.0}) {
    for (const uint32_t playouts : {1U, 4U}) {
      Constant::playouts = 0;
      Constant::values = 0;
      Search<Constant> search(*host);
      search.options().value_weight = weight;
      search.options().playouts_per_leaf = playouts;
      search.options().expand_visits = 100;
      const auto result = search.run(Constant(), {.iterations = 16});
      EXPECT_EQ(result.moves[0].value, 1 - ((1 - weight) * 0.25 + weight * 0.75));
      // One call of value() serves all playouts of a leaf.
      EXPECT_EQ(Constant::values, weight == 0 ? 0 : 16);
      EXPECT_EQ(Constant::playouts, weight == 1 ? 0 : static_cast<int>(16 * playouts));
      search.clear();
    }
    PaperSearch<Constant> paper(*host);
    paper.options().value_weight = weight;
    const double value = paper.run(Constant(), {.iterations = 1}).moves[0].value;
    EXPECT_EQ(value, 1 - ((1 - weight) * 0.25 + weight * 0.75));
  }
}

// A game with AMAF: its statistics count the same mean, and the search proves the same results.
struct ValuedTicTacToe : TicTacToe {
  [[nodiscard]] float value() const { return 0.5F; }
};
TEST(ValueWeightWithAmaf, KnownSolutionsAreFound) {
  const auto host = local_host(2);
  Search<ValuedTicTacToe> search(*host);
  for (const double weight : {0.0, 0.5, 1.0}) {
    search.options().value_weight = weight;
    for (const uint8_t first : TicTacToe::kFirstMoves) {
      search.clear();
      ValuedTicTacToe game;
      game.play(first);
      const auto result = search.run(game, {.iterations = 10'000'000});
      ASSERT_EQ(value_of(result.outcome), game.solve());
      check_conservation(search, result);
    }
  }
}

TEST(ValueWeightOfOneGame, IsValidated) {
  const auto host = local_host(1);
  Search<Constant> search(*host);
  PaperSearch<Constant> paper(*host);
  for (const double weight : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    search.options().value_weight = weight;
    paper.options().value_weight = weight;
    EXPECT_NE(std::string(search.options().validate().message()).find("value_weight"),
              std::string::npos);
    EXPECT_THROW(static_cast<void>(search.run(Constant(), {.iterations = 1})),
                 std::invalid_argument);
    EXPECT_THROW(static_cast<void>(paper.run(Constant(), {.iterations = 1})),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace cariama::mcts
