// The example of a game of three players: searches with threads, with several processes, and with
// one that dies, compared with exhaustive search, which is compared with the known rule.
#include "docs/examples/nim_for_three.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "dsfabric/fabric.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/check_players.h"
#include "tests/mcts/testing/players_games.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using example::NimForThree;
using testing::check_conservation;
using testing::check_kept_tree;
using testing::check_nodes;
using testing::check_solution;
using testing::run_search_job;
using testing::run_with_a_victim;
using testing::Shape;
using testing::solve_for_all;

// Returns whether the player to move is last, by the rule of Li: N-person Nim and N-person Moore's
// games, 1978.
bool is_last_by_rule(const NimForThree::Heaps& heaps) {
  for (int digit = 0; digit < 8; ++digit) {
    int ones = 0;
    for (const uint8_t heap : heaps) ones += heap >> digit & 1;
    if (ones % NimForThree::kPlayers != 0) return false;
  }
  return true;
}

TEST(NimForThree, ExhaustiveSearchFollowsTheRule) {
  int last = 0;
  for (uint8_t a = 0; a <= 3; ++a) {
    for (uint8_t b = 0; b <= 3; ++b) {
      for (uint8_t c = 0; c <= 3; ++c) {
        const auto values = solve_for_all(NimForThree({a, b, c}));
        EXPECT_EQ(values[0] == 0, is_last_by_rule({a, b, c}))
            << int{a} << " " << int{b} << " " << int{c};
        EXPECT_EQ(values[0] + values[1] + values[2], 1.5);
        last += values[0] == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(last, 1);
}

// Each rollout adds 1.5 to the sum of the values of all players, so a rollout that is lost, or
// counted twice, for one of them is seen.
void check_sum(const Search<NimForThree>::Result& result) {
  ASSERT_EQ(result.values.size(), size_t{NimForThree::kPlayers});
  EXPECT_NEAR(result.values[0] + result.values[1] + result.values[2], 1.5, 1e-9);
}

class NimByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, NimByShape,
                         ::testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{2, 1}, Shape{2, 2},
                                           Shape{4, 1}),
                         ::testing::PrintToStringParamName());

// Runs `body` in rank 0 of a job of this shape. Checks the nodes of the other processes at the end.
void run_nim(const Shape& shape, const std::function<void(Host&)>& body) {
  run_search_job(shape, body,
                 [](Host& host) { check_nodes(host.local<LocalTree<NimForThree>>()); });
}

TEST_P(NimByShape, AGameIsPlayedByTheSolution) {
  run_nim(GetParam(), [](Host& host) {
    for (const Placement placement : {Placement::kLocality, Placement::kRandom}) {
      for (const NimForThree::Heaps& heaps :
           {NimForThree::Heaps{1, 3, 5}, NimForThree::Heaps{2, 2, 3},
            NimForThree::Heaps{2, 2, 2}}) {
        Search<NimForThree> search(host);
        search.options().selection.exploration = 0.35F;
        search.options().placement = placement;
        search.options().expand_visits = 2;
        NimForThree game(heaps);
        const auto solution = solve_for_all(game);
        while (!game.result()) {
          const NimForThree::Move move = check_solution(search, game);
          game.play(move);
          search.advance(move);
        }
        const NimForThree::Values values = *game.result();
        for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(double{values[i]}, solution[i]);
      }
    }
  });
}

TEST_P(NimByShape, EachRolloutCountsForAllPlayers) {
  run_nim(GetParam(), [](Host& host) {
    // Without copies, all rollouts at nodes of other processes are jobs.
    for (const uint32_t copy_visits : {16U, 1U << 30}) {
      for (const float virtual_loss : {1.0F, 0.0F}) {
        Search<NimForThree> search(host);
        search.options().placement = Placement::kRandom;
        search.options().copy_visits = copy_visits;
        search.options().selection.virtual_loss = virtual_loss;
        search.options().expand_visits = 1;
        const NimForThree game({3, 4, 5});
        for (const uint64_t iterations : {1, 100, 10'000}) {
          const auto result = search.run(game, {.iterations = iterations});
          EXPECT_EQ(result.iterations, iterations);
          check_sum(result);
          check_conservation(search, result);
        }
      }
    }
  });
}

TEST_P(NimByShape, TheTreeIsKept) {
  run_nim(GetParam(), [](Host& host) { check_kept_tree(host, NimForThree({3, 4, 5})); });
}

// Its playouts kill the process after a number of playouts.
class DeadlyNim : public NimForThree {
 public:
  using NimForThree::NimForThree;
  Values playout(Random& random) const {
    if (playouts_left > 0 && --playouts_left == 0) ::kill(::getpid(), SIGKILL);
    return NimForThree::playout(random);
  }
  static inline int playouts_left = 0;
};

// Rank 2 of 3 dies during a search. The other ranks continue, and find the solution.
TEST(NimForThree, ASearchSurvivesADeath) {
  const auto before = [](Host& host) {
    if (host.rank() == 2) DeadlyNim::playouts_left = 20;
  };
  const auto after = [](Host& host) {
    check_nodes(host.local<LocalTree<DeadlyNim>>(), /*lossless=*/false);
  };
  const auto body = [](Host& host) {
    Search<DeadlyNim> search(host);
    search.options().placement = Placement::kRandom;
    search.options().expand_visits = 1;
    // Repeat the search until rank 2 is dead: the time that its playouts take is not known.
    const DeadlyNim large({5, 5, 5});
    const Deadline deadline = soon();
    while (host.alive(2) && std::chrono::steady_clock::now() < deadline) {
      const auto result = search.run(large, {.iterations = 20000});
      EXPECT_EQ(result.iterations, 20000u);
      EXPECT_EQ(result.moves.size(), 15u);
      check_sum(result);
      check_conservation(search, result, /*lossless=*/false);
    }
    EXPECT_FALSE(host.alive(2));
    search.options().selection.exploration = 0.35F;
    DeadlyNim game({1, 3, 5});
    while (!game.result()) {
      const NimForThree::Move move = check_solution(search, game, /*lossless=*/false);
      game.play(move);
      search.advance(move);
    }
  };
  run_with_a_victim({3, 1}, body, after, before);
}

}  // namespace
}  // namespace cariama::mcts
