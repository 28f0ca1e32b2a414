// Games of other than two players: the search finds the solution by max^n, with threads, processes,
// eliminated players, chance, evaluators and AMAF, and proves only wins of the player to move.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/job.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/node.h"
#include "mcts/evaluator.h"
#include "mcts/game.h"
#include "mcts/host.h"
#include "mcts/options.h"
#include "mcts/outcome.h"
#include "mcts/random.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/check_players.h"
#include "tests/mcts/testing/players_games.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using testing::check_conservation;
using testing::check_nodes;
using testing::check_solution;
using testing::DieForThree;
using ::testing::HasSubstr;
using testing::Heap;
using testing::local_host;
using testing::OwnedHeap;
using testing::PayoffTree;
using testing::run_search_job;
using testing::Shape;
using testing::solve_for_all;

class MaxnByThreads : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, MaxnByThreads, ::testing::Values(1, 2, 4));

TEST_P(MaxnByThreads, ThreePlayersChooseTheMovesOfTheSolution) {
  for (uint32_t number = 1; number <= 3; ++number) {
    const auto host = local_host(GetParam());
    Search<PayoffTree<3>> search(*host);
    search.options().selection.exploration = 0.35F;
    const PayoffTree<3> game(number);
    const auto solution = solve_for_all(game);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(solution[i], double{game.solution()[i]});
    EXPECT_EQ(check_solution(search, game), game.best_move());
  }
}

TEST_P(MaxnByThreads, TheTurnSkipsEliminatedPlayers) {
  int skipped = 0;
  for (uint32_t number = 1; number <= 6; ++number) {
    const auto host = local_host(GetParam());
    Search<PayoffTree<3>> search(*host);
    search.options().selection.exploration = 0.35F;
    PayoffTree<3> game(number, 4, true);
    while (!game.result()) {
      const auto move = check_solution(search, game);
      EXPECT_EQ(move, game.best_move());
      const int next = (game.to_move() + 1) % 3;
      game.play(move);
      search.advance(move);
      skipped += !game.result() && game.to_move() != next ? 1 : 0;
    }
  }
  EXPECT_GT(skipped, 0);
}

TEST_P(MaxnByThreads, APuzzleHasOnePlayer) {
  const auto host = local_host(GetParam());
  Search<PayoffTree<1>> search(*host);
  const PayoffTree<1> game(3);
  EXPECT_EQ(check_solution(search, game), game.best_move());
}

// Returns games without positions in which two moves are about as good.
std::vector<DieForThree> clear_dice(size_t count) {
  std::vector<DieForThree> games;
  for (uint32_t number = 0; games.size() < count; ++number) {
    bool clear = true;
    std::vector<double> first;
    for (uint8_t move = 0; move < 3; ++move) {
      DieForThree thrown(number);
      thrown.play(move);
      first.push_back(solve_for_all(thrown)[1]);
      for (uint8_t face = 0; face < 3; ++face) {
        std::array<float, 2> last{};
        for (uint8_t choice = 0; choice < 2; ++choice) {
          DieForThree end = thrown;
          end.play(face);
          end.play(choice);
          last[choice] = (*end.result())[2];
        }
        clear &= std::abs(last[0] - last[1]) > 0.1F;
      }
    }
    std::ranges::sort(first);
    if (clear && first[2] - first[1] > 0.1) games.emplace_back(number);
  }
  return games;
}
TEST_P(MaxnByThreads, ChanceHasItsExpectedValueForEachPlayer) {
  for (const DieForThree& game : clear_dice(3)) {
    const auto host = local_host(GetParam());
    Search<DieForThree> search(*host);
    search.options().selection.exploration = 0.35F;
    check_solution(search, game);
  }
}

class SolutionOfThree;
struct EvaluatedPayoff : PayoffTree<3> {
  using Evaluator = SolutionOfThree;
  using PayoffTree<3>::PayoffTree;
};
class SolutionOfThree {
 public:
  void evaluate(std::span<Evaluation<EvaluatedPayoff>> batch) const {
    for (auto& one : batch) {
      EXPECT_TRUE(std::isnan(one.value[0]) && std::isnan(one.value[2]));
      one.value = one.position.solution();
      if (wrong_) one.value[2] = std::numeric_limits<float>::quiet_NaN();
      for (float& prior : one.priors) prior = 1.0F / 3;
    }
  }
  explicit SolutionOfThree(bool wrong = false) : wrong_(wrong) {}

 private:
  bool wrong_;
};
TEST_P(MaxnByThreads, EvaluatorsWriteTheValueForEachPlayer) {
  const auto host = local_host(GetParam());
  Search<EvaluatedPayoff> search(*host);
  const EvaluatedPayoff game(2);
  EXPECT_EQ(check_solution(search, game), game.best_move());
}
TEST(Maxn, AnEvaluatorThatLeavesOutAPlayerIsRefused) {
  const auto host = local_host(1);
  provide_evaluator<EvaluatedPayoff>(*host, [] { return std::make_unique<SolutionOfThree>(true); });
  Search<EvaluatedPayoff> search(*host);
  std::string error;
  try {
    static_cast<void>(search.run(EvaluatedPayoff(1), {.iterations = 100}));
  } catch (const std::runtime_error& refused) {
    error = refused.what();
  }
  EXPECT_THAT(error, HasSubstr("the evaluator returned the value nan"));
}

TEST_P(MaxnByThreads, OnlyWinsOfThePlayerToMoveAreProved) {
  const auto host = local_host(GetParam());
  Search<Heap> search(*host);
  search.options().expand_visits = 1;
  for (int player = 0; player < Heap::kPlayers; ++player) {
    const auto won = search.run(Heap{2, player}, {.iterations = 5000});
    EXPECT_EQ(won.outcome, win_of(player));
    EXPECT_LT(won.iterations, 5000u);
    EXPECT_EQ(won.moves[0].move, 2);
    EXPECT_EQ(won.moves[0].verdict, Verdict::kWins);
    EXPECT_EQ(won.moves[0].value, 1);
    for (int i = 0; i < Heap::kPlayers; ++i) {
      EXPECT_EQ(won.values[static_cast<size_t>(i)], i == player ? 1 : 0);
    }
    // The next player wins after each move.
    const auto lost = search.run(Heap{3, player}, {.iterations = 5000});
    EXPECT_EQ(lost.outcome, Outcome::kOpen);
    EXPECT_EQ(lost.iterations, 5000u);
    for (const auto& move : lost.moves) EXPECT_EQ(move.verdict, Verdict::kOpen);
    EXPECT_GT(lost.values[static_cast<size_t>((player + 1) % Heap::kPlayers)], 0.9);
    check_conservation(search, lost);
  }
}

// ---- Several processes

class MaxnByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, MaxnByShape,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

TEST_P(MaxnByShape, ThreePlayersChooseTheMovesOfTheSolution) {
  run_search_job(
      GetParam(),
      [](Host& host) {
        for (const Placement placement : {Placement::kLocality, Placement::kRandom}) {
          // Without copies, all rollouts at nodes of other processes are jobs.
          for (const uint32_t copy_visits : {16U, 1U << 30}) {
            Search<PayoffTree<3>> search(host);
            search.options().selection.exploration = 0.35F;
            search.options().selection.virtual_loss = copy_visits == 16 ? 1.0F : 0.0F;
            search.options().placement = placement;
            search.options().copy_visits = copy_visits;
            search.options().spread_expansions = 1;
            search.options().spread_visits = copy_visits == 16 ? 0 : 1000;
            search.options().expand_visits = 2;
            const PayoffTree<3> game(4);
            EXPECT_EQ(check_solution(search, game), game.best_move());
            PayoffTree<3> shorter(5, 4, true);
            while (!shorter.result()) {
              const auto move = check_solution(search, shorter);
              shorter.play(move);
              search.advance(move);
            }
          }
        }
      },
      [](Host& host) { check_nodes(host.local<LocalTree<PayoffTree<3>>>()); });
}

TEST_P(MaxnByShape, ChanceHasItsExpectedValueForEachPlayer) {
  run_search_job(
      GetParam(),
      [](Host& host) {
        const DieForThree first = clear_dice(1)[0];
        for (const Placement placement : {Placement::kLocality, Placement::kRandom}) {
          // Without copies, all rollouts at nodes of other processes are jobs.
          for (const uint32_t copy_visits : {16U, 1U << 30}) {
            Search<DieForThree> search(host);
            search.options().selection.exploration = 0.35F;
            search.options().placement = placement;
            search.options().copy_visits = copy_visits;
            search.options().spread_expansions = 1;
            search.options().expand_visits = 2;
            DieForThree game = first;
            const auto move = check_solution(search, game);
            for (const uint8_t next : {move, DieForThree::Move{2}}) {  // the third face of the die
              game.play(next);
              search.advance(next);
            }
            ASSERT_TRUE(search.position() == game);
            check_solution(search, game);
          }
        }
      },
      [](Host& host) { check_nodes(host.local<LocalTree<DieForThree>>()); });
}

// Rank 0 grows the whole tree, and the other processes run playouts for it.
TEST_P(MaxnByShape, PlayoutsOfOtherProcessesHaveAValueForEachPlayer) {
  run_search_job(GetParam(), [](Host& host) {
    Search<PayoffTree<3>> search(host);
    search.options().selection.exploration = 0.35F;
    search.options().spread_visits = 1U << 31;  // never
    const PayoffTree<3> game(4);
    EXPECT_EQ(check_solution(search, game), game.best_move());
    const auto result = search.run(PayoffTree<3>(5), {.iterations = 1000});
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      EXPECT_EQ(result.processes[rank].nodes, 0u);
      EXPECT_GT(result.processes[rank].playouts, 0u);
    }
    check_conservation(search, result);
  });
}

// A proof at a node of another process, which the verdicts of its parent do not contain, neither
// ends the search nor keeps it from its end.
TEST_P(MaxnByShape, Proofs) {
  run_search_job(
      GetParam(),
      [](Host& host) {
        for (const uint32_t copy_visits : {16U, 1U << 30}) {
          Search<Heap> search(host);
          search.options().placement = Placement::kRandom;
          search.options().copy_visits = copy_visits;
          search.options().spread_visits = copy_visits == 16 ? 0 : 1000;
          search.options().expand_visits = 1;
          EXPECT_EQ(search.run(Heap{1, 3}, {.iterations = 5000}).outcome, win_of(3));
          for (const int stones : {3, 12}) {
            const auto result = search.run(Heap{stones, 4}, {.iterations = 5000});
            EXPECT_EQ(result.outcome, Outcome::kOpen);
            EXPECT_EQ(result.iterations, 5000u);
            if (stones == 3) {
              EXPECT_GT(result.values[0], 0.8);
            }
            check_conservation(search, result);
          }
        }
      },
      [](Host& host) { check_nodes(host.local<LocalTree<Heap>>()); });
}

// ---- Nodes, outcomes and messages

TEST(Maxn, OutcomesOfResults) {
  for (int player = 0; player < Heap::kPlayers; ++player) {
    Heap::Values won{};
    won[static_cast<size_t>(player)] = 1;
    EXPECT_EQ(outcome_of(won), win_of(player));
    EXPECT_EQ(internal::value_with<Heap>(win_of(player)), won);
    EXPECT_NE(win_of(player), Outcome::kOpen);
    EXPECT_NE(win_of(player), Outcome::kDraw);
  }
  EXPECT_EQ(outcome_of(std::array{0.0F, 0.0F, 0.0F}), Outcome::kOpen);
  EXPECT_EQ(outcome_of(std::array{1.0F, 1.0F, 0.0F}), Outcome::kOpen);
  EXPECT_EQ(outcome_of(std::array{1.0F, 0.1F, 0.0F}), Outcome::kOpen);
  EXPECT_EQ(outcome_of(std::array{0.5F, 0.5F, 0.5F}), Outcome::kOpen);
}

TEST(Maxn, AmafCountsTheMovesAndTheValueOfThePlayer) {
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Random random(1);
  OwnedHeap position;
  position.stones = 9;
  position.player = 3;
  Node<OwnedHeap>* const node = Node<OwnedHeap>::create(position, arena, 0, random, true);
  ASSERT_NE(node, nullptr);
  Sample<OwnedHeap> sample;
  sample.owned.set(3, OwnedHeap::amaf_id(2));
  sample.owned.set(1, OwnedHeap::amaf_id(1));
  sample.value = {0.1F, 0.2F, 0.3F, 0.4F, 0.5F};
  node->count_amaf(sample);
  const int one = node->find(1);
  const int two = node->find(2);
  EXPECT_EQ(node->amaf_visits(one), 0);
  EXPECT_EQ(node->amaf_visits(two), 1);
  EXPECT_EQ(node->amaf_value(two), 0.4F);
  node->leave(one, 2, {1, 2, 0.5, 0.25, 0});
  EXPECT_EQ(node->value(one), 0.25);
  node->destroy(arena);
}

// Its expand() writes verdicts.
struct HeapWithVerdicts : Heap {
  int expand(std::span<Candidate<Move>> out) const {
    out[0] = {1, 0, Verdict::kLoses};
    out[1] = {2, 0, stones == 8 ? Verdict::kWins : Verdict::kDraws};
    return 2;
  }
};

TEST(Maxn, OnlyTheVerdictsOfWinsAreUsed) {
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Random random(1);
  for (const int stones : {8, 9}) {
    HeapWithVerdicts position;
    position.stones = stones;
    position.player = 2;
    auto* const node = Node<HeapWithVerdicts>::create(position, arena, 0, random, true);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->verdict(node->find(1)), Verdict::kOpen);
    EXPECT_EQ(node->verdict(node->find(2)), stones == 8 ? Verdict::kWins : Verdict::kOpen);
    EXPECT_EQ(node->outcome(), stones == 8 ? win_of(2) : Outcome::kOpen);
    node->prove(node->find(1), win_of(1));
    node->set_verdict(node->find(1), Verdict::kLoses);
    EXPECT_EQ(node->verdict(node->find(1)), Verdict::kOpen);
    node->prove(node->find(1), win_of(2));
    EXPECT_EQ(node->resolve(), win_of(2));
    node->destroy(arena);
  }
}

TEST(Maxn, ANumberOfNoPlayerIsRefused) {
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Random random(1);
  for (const int player : {-1, 5}) {
    std::string error;
    try {
      static_cast<void>(Node<Heap>::create(Heap{4, player}, arena, 0, random, true));
    } catch (const std::runtime_error& refused) {
      error = refused.what();
    }
    EXPECT_THAT(error, HasSubstr("the game's to_move() returned " + std::to_string(player)));
  }
}

// The fifth player has the number of no player.
struct HeapWithWrongTurn : Heap {
  [[nodiscard]] int to_move() const { return player == 4 ? kPlayers : player; }
};

TEST_P(MaxnByThreads, ANumberOfNoPlayerEndsTheSearch) {
  const auto host = local_host(GetParam());
  Search<HeapWithWrongTurn> search(*host);
  HeapWithWrongTurn game;
  game.stones = 20;
  std::string error;
  try {
    static_cast<void>(search.run(game, {.iterations = 5000}));
  } catch (const std::runtime_error& refused) {
    error = refused.what();
  }
  EXPECT_THAT(error,
              HasSubstr("the game's to_move() returned 5: return the player to move, 0 to 4"));
}

// Its positions name the player that they are made with.
struct NamesItsPlayer {
  using Move = uint8_t;
  static constexpr int kMaxMoves = 2;

  [[nodiscard]] int to_move() const { return player; }
  int moves(std::span<Move> out) const {
    out[0] = 0;
    out[1] = 1;
    return played == 4 ? 0 : 2;
  }
  void play(Move) { ++played; }
  [[nodiscard]] std::optional<float> result() const {
    return played == 3 ? std::optional(0.5F) : std::nullopt;
  }
  float playout(Random&) const { return 0.5F; }

  int player = 0;
  int played = 0;
};

TEST(Maxn, ANumberOfNoPlayerIsRefusedWithTwoPlayers) {
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Random random(1);
  for (const int player : {-1, 2, 256}) {
    EXPECT_THROW(static_cast<void>(
                     Node<NamesItsPlayer>::create(NamesItsPlayer{player}, arena, 0, random, true)),
                 std::runtime_error);
  }
  for (const int played : {3, 4}) {  // without moves
    auto* const node =
        Node<NamesItsPlayer>::create(NamesItsPlayer{7, played}, arena, 0, random, true);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->size(), 0);
    node->destroy(arena);
  }
}

template <typename G>
bool creates_requested(Host& host, const G& position) {
  return host.local<LocalTree<G>>().create_requested(&position, sizeof position, 0).has_value();
}

// The process that receives it goes on.
TEST(Maxn, APositionOfAMessageWithoutAPlayerIsIgnored) {
  const auto host = local_host(1);
  EXPECT_TRUE(creates_requested(*host, Heap{4, 4}));
  EXPECT_TRUE(creates_requested(*host, NamesItsPlayer{1}));
  for (const int player : {-1, 5, 256}) {
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(creates_requested(*host, Heap{4, player}));
    EXPECT_FALSE(creates_requested(*host, NamesItsPlayer{player}));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("ignored a malformed message of a search: no player is to move"));
    EXPECT_TRUE(creates_requested(*host, NamesItsPlayer{player, 3}));  // the game has ended
    EXPECT_TRUE(creates_requested(*host, NamesItsPlayer{player, 4}));
  }
}

TEST(Maxn, AMessageWithANumberOutOfRangeForAnyPlayerIsRejected) {
  for (size_t i = 0; i < Heap::kPlayers; ++i) {
    std::vector<Sample<Heap>> sent(2);
    std::vector<Sample<Heap>> playouts;
    EXPECT_TRUE(decode_samples<Heap>(sent.data(), 2 * sizeof(Sample<Heap>), playouts));
    sent[1].value[i] = 1.5F;
    EXPECT_FALSE(decode_samples<Heap>(sent.data(), 2 * sizeof(Sample<Heap>), playouts));
    JobAnswer<Heap> answer;
    EXPECT_TRUE(answer.is_possible(1));
    answer.value[i] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(answer.is_possible(1));
  }
}

}  // namespace
}  // namespace cariama::mcts
