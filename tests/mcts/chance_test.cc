// Games with chance: the search computes expectimax, also if outcomes of a chance position are in
// other processes, and proves only what no throw of a die can change.
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/chance.h"
#include "mcts/engine/node.h"
#include "mcts/evaluator.h"
#include "mcts/random.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/dice_game.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using testing::check_conservation;
using testing::check_nodes;
using testing::Dice;
using testing::DiceGame;
using ::testing::HasSubstr;
using testing::local_host;
using testing::process_of;
using testing::run_search_job;
using testing::Shape;

// Returns the value of a position for the player to move in the position before it.
double value_for(int player, const DiceGame& after) {
  return player == 0 ? after.solve() : 1 - after.solve();
}

// Returns games in which the best first move is better than the others by at least 0.1.
std::vector<DiceGame> clear_games(size_t count) {
  std::vector<DiceGame> games;
  for (uint32_t number = 0; games.size() < count; ++number) {
    const DiceGame game(number);
    int near = 0;
    for (uint8_t move = 0; move < DiceGame::kMoves; ++move) {
      near += game.after(move).solve() > game.solve() - 0.1 ? 1 : 0;
    }
    if (near == 1) games.push_back(game);
  }
  return games;
}

// Checks that the best move of a search is that of the exhaustive search, with about its value.
template <typename G>
void check_expectimax(const typename Search<G>::Result& result, const G& game, double tolerance) {
  const auto& best = result.moves[0];
  const double reached = value_for(result.player, game.after(best.move));
  for (uint8_t move = 0; move < DiceGame::kMoves; ++move) {
    EXPECT_GE(reached, value_for(result.player, game.after(move)) - tolerance);
  }
  EXPECT_NEAR(best.value, reached, tolerance);
  EXPECT_LE(best.line.size(), 1u);  // it ends at the die
}

// Checks that the visits of each outcome are near their expectation. share: of the visits by which
// they may differ, in addition to `least`. Returns the number of chance nodes of this process.
template <typename G>
int check_outcomes(LocalTree<G>& tree, double least, double share) {
  int nodes = 0;
  tree.for_each_node([&](const Node<G>& node) {
    if (!node.is_chance()) return;
    ++nodes;
    const auto visits = static_cast<double>(node.visits());
    for (int i = 0; i < node.size(); ++i) {
      EXPECT_NEAR(node.prior(i), node.state().probability(node.move(i)), 1e-6);
      EXPECT_NEAR(node.visits(i), visits * double{node.prior(i)}, least + share * visits);
      if (node.prior(i) == 0) {
        EXPECT_EQ(node.visits(i), 0u);
      }
    }
  });
  return nodes;
}

class ChanceByThreads : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, ChanceByThreads, ::testing::Values(1, 2));

TEST_P(ChanceByThreads, TheSearchComputesExpectimax) {
  for (const DiceGame& first : clear_games(3)) {
    for (const SelectionRule rule : {SelectionRule::kUcb, SelectionRule::kPuct}) {
      const auto host = local_host(GetParam());
      Search<DiceGame> search(*host);
      search.options().selection.rule = rule;
      search.options().refine_visits = 16;
      DiceGame game = first;
      for (const uint8_t face : {1, 3}) {
        const auto result = search.run(game, {.iterations = 50000});
        EXPECT_EQ(result.iterations, 50000u);
        EXPECT_EQ(result.outcome, Outcome::kOpen);
        check_expectimax<DiceGame>(result, game, 0.04);
        // The standard deviation is at most sqrt(64 / 8), with one worker: 20 is seven times that.
        // Several workers may choose the same outcome at the same time.
        EXPECT_GT(check_outcomes(process_of(search).tree(), GetParam() == 1 ? 20 : 50, 0), 0);
        check_conservation(search, result);
        const uint8_t move = result.moves[0].move;
        search.advance(move);
        ASSERT_EQ(search.position(), game.after(move));
        search.advance(face);
        game = game.after(move).after(face);
        ASSERT_TRUE(game.result() || search.position() == game);
      }
      EXPECT_TRUE(game.result());
    }
  }
}

TEST_P(ChanceByThreads, OnlyWhatHoldsForEachThrowIsProved) {
  int proved = 0;
  int open = 0;
  for (uint32_t number = 0; number < 40; ++number) {
    const DiceGame game(number, Dice::kOutcomes);
    const auto host = local_host(GetParam());
    Search<DiceGame> search(*host);
    search.options().selection.exploration = 1;
    const auto result = search.run(game, {.iterations = 20000});
    // A draw may need more rollouts: the search has to prove all moves that are worse.
    if (result.outcome != Outcome::kOpen || game.prove() != Outcome::kDraw) {
      EXPECT_EQ(result.outcome, game.prove()) << number;
    }
    (result.outcome == Outcome::kOpen ? open : proved) += 1;
    for (const auto& move : result.moves) {
      if (move.verdict == Verdict::kOpen) continue;
      EXPECT_EQ(move.value, game.after(move.move).prove() == Outcome::kDraw        ? 0.5
                            : game.after(move.move).prove() == Outcome::kFirstWins ? 1
                                                                                   : 0);
      EXPECT_NE(game.after(move.move).prove(), Outcome::kOpen);
    }
    // Proved outcomes of a chance position count in its value.
    if (result.outcome == Outcome::kOpen) check_expectimax<DiceGame>(result, game, 0.05);
    check_conservation(search, result);
  }
  EXPECT_GT(proved, 3);
  EXPECT_GT(open, 3);
}

std::string error_of(uint32_t threads, const DiceGame& game) {
  const auto host = local_host(threads);
  Search<DiceGame> search(*host);
  try {
    static_cast<void>(search.run(game, {.iterations = 1000}));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_P(ChanceByThreads, WrongProbabilitiesAreRefused) {
  const auto error = [](Dice dice) { return error_of(GetParam(), DiceGame(0, dice)); };
  EXPECT_EQ(error(Dice::kScores), "");
  EXPECT_THAT(error(Dice::kNaN), HasSubstr("the game's probability() returned nan"));
  EXPECT_THAT(error(Dice::kNegative), HasSubstr("the game's probability() returned -0.15"));
  EXPECT_THAT(error(Dice::kLowSum), HasSubstr("numbers with the sum 0.95"));
  EXPECT_THAT(error(Dice::kNone), HasSubstr("for the 0 outcomes of a chance position"));
}

// Most chance nodes of a tree have few visits, and their values go up with these weights.
TEST(Chance, ANodeWithFewVisitsHasNoPreferenceForRareOutcomes) {
  constexpr int kNodes = 20000;
  constexpr int kVisits = 12;
  Random random(1);
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Node<DiceGame>* const node = Node<DiceGame>::create(DiceGame().after(0), arena, 0, random, true);
  ASSERT_NE(node, nullptr);
  std::vector<double> visits(DiceGame::kFaces);
  for (int round = 0; round < kNodes; ++round) {
    for (int i = 0; i < kVisits; ++i) node->enter(choose_outcome(*node, random));
    for (int i = 0; i < node->size(); ++i) {
      visits[node->move(i)] += node->visits(i);
      node->remove_visits(i, node->visits(i));
    }
  }
  for (uint8_t face = 0; face < DiceGame::kFaces; ++face) {
    const double probability = node->state().probability(face);
    // The standard deviation of the mean is at most 0.012.
    EXPECT_NEAR(visits[face] / kNodes, probability * kVisits, 0.06) << int{face};
  }
}

TEST(Chance, ASearchDoesNotBeginAtAChancePosition) {
  EXPECT_THAT(error_of(1, DiceGame().after(1)), HasSubstr("is a chance position"));
}

TEST(Chance, OneWorkerRepeatsASearchExactly) {
  const auto visits = [](uint64_t seed) {
    const auto host = local_host(1);
    Search<DiceGame> search(*host);
    search.options().seed = seed;
    std::vector<uint64_t> all;
    static_cast<void>(search.run(DiceGame(), {.iterations = 3000}));
    process_of(search).tree().for_each_node(
        [&](const Node<DiceGame>& node) { all.push_back(node.visits()); });
    return all;
  };
  EXPECT_EQ(visits(1), visits(1));
  EXPECT_NE(visits(1), visits(2));
}

// ---- Evaluators

class Exact;
struct EvaluatedDice : DiceGame {
  using Evaluator = Exact;
  using DiceGame::DiceGame;
  explicit EvaluatedDice(const DiceGame& game) : DiceGame(game) {}
};
// Writes the values of exhaustive search. It must see no chance position.
class Exact {
 public:
  void evaluate(std::span<Evaluation<EvaluatedDice>> batch) const {
    for (auto& one : batch) {
      EXPECT_FALSE(one.position.is_chance());
      one.value = static_cast<float>(one.position.solve());
      for (float& prior : one.priors) prior = 1.0F / 3;
    }
  }
};

void search_evaluated(Host& host, double tolerance) {
  for (const uint32_t expand_visits : {0U, 3U}) {
    for (const DiceGame& game : clear_games(2)) {
      Search<EvaluatedDice> search(host);
      search.options().expand_visits = expand_visits;
      const auto result = search.run(EvaluatedDice(game), {.iterations = 10000});
      EXPECT_EQ(result.iterations, 10000u);
      const double reached = game.after(result.moves[0].move).solve();
      EXPECT_NEAR(reached, game.solve(), tolerance);
      EXPECT_NEAR(result.moves[0].value, reached, tolerance);
      check_outcomes(process_of(search).tree(), 100, host.size() == 1 ? 0.02 : 0.1);
      check_conservation(search, result);
    }
  }
}
TEST_P(ChanceByThreads, EvaluatorsSeeNoChancePosition) {
  search_evaluated(*local_host(GetParam()), 0.06);
}

// ---- Several processes

class ChanceByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ChanceByShape,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

TEST_P(ChanceByShape, OutcomesInOtherProcesses) {
  run_search_job(
      GetParam(),
      [](Host& host) {
        for (const Placement placement :
             {Placement::kLocality, Placement::kHash, Placement::kRandom}) {
          // Without copies, all rollouts at nodes of other processes are jobs.
          for (const uint32_t copy_visits : {16U, 1U << 30}) {
            Search<DiceGame> search(host);
            search.options().placement = placement;
            search.options().copy_visits = copy_visits;
            search.options().spread_expansions = 1;
            search.options().spread_visits = copy_visits == 16 ? 0 : 4096;
            search.options().transpositions = copy_visits == 16;
            DiceGame game = clear_games(1)[0];
            for (const uint8_t face : {1, 3}) {
              const auto result = search.run(game, {.iterations = 50000});
              EXPECT_EQ(result.iterations, 50000u);
              check_expectimax<DiceGame>(result, game, 0.08);
              check_outcomes(process_of(search).tree(), 200, 0.05);
              check_conservation(search, result);
              const uint8_t move = result.moves[0].move;
              search.advance(move);
              search.advance(face);
              game = game.after(move).after(face);
            }
          }
        }
      },
      [](Host& host) {
        check_nodes(host.local<LocalTree<DiceGame>>());
        check_outcomes(host.local<LocalTree<DiceGame>>(), 200, 0.05);
      });
}

// Rank 0 grows the whole tree. The other processes run playouts for it, from chance positions, too.
TEST_P(ChanceByShape, PlayoutsInOtherProcesses) {
  run_search_job(GetParam(), [](Host& host) {
    Search<DiceGame> search(host);
    search.options().spread_visits = 1U << 31;  // never
    const DiceGame game = clear_games(1)[0];
    const auto result = search.run(game, {.iterations = 50000});
    EXPECT_EQ(result.iterations, 50000u);
    check_expectimax<DiceGame>(result, game, 0.08);
    EXPECT_GT(check_outcomes(process_of(search).tree(), 200, 0.05), 0);
    check_conservation(search, result);
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      EXPECT_EQ(result.processes[rank].nodes, 0u);
      EXPECT_GT(result.processes[rank].playouts, 0u);
    }
  });
}

TEST_P(ChanceByShape, Proofs) {
  run_search_job(GetParam(), [](Host& host) {
    for (uint32_t number = 0; number < 12; ++number) {
      for (const Placement placement : {Placement::kLocality, Placement::kRandom}) {
        const DiceGame game(number, Dice::kOutcomes);
        Search<DiceGame> search(host);
        search.options().placement = placement;
        search.options().spread_expansions = 1;
        search.options().spread_visits = placement == Placement::kLocality ? 500 : 0;
        const auto result = search.run(game, {.iterations = 20000});
        if (result.outcome != Outcome::kOpen) {
          EXPECT_EQ(result.outcome, game.prove());
        } else {
          check_expectimax<DiceGame>(result, game, 0.1);
        }
        check_conservation(search, result);
      }
    }
  });
}

TEST_P(ChanceByShape, Evaluators) {
  run_search_job(GetParam(), [](Host& host) { search_evaluated(host, 0.1); });
}

}  // namespace
}  // namespace cariama::mcts
