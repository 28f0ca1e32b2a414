// While the tree is small, rank 0 alone grows it, and the other processes run playouts for it.
#include "mcts/engine/remote_playouts.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/even_plies.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_conservation;
using testing::check_nodes;
using testing::EvenPlies;
using testing::process_of;
using testing::run_search_job;
using testing::Shape;

class RemotePlayoutsByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(RemotePlayouts, RemotePlayoutsByShape,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{4, 1}),
                         ::testing::PrintToStringParamName());

// Checks a search in which the tree has not spread: all nodes are in rank 0, and each other process
// has completed rollouts for it, and nothing else.
void expect_small_tree(const std::vector<Statistics>& processes) {
  uint64_t elsewhere = 0;
  for (size_t rank = 1; rank < processes.size(); ++rank) {
    const Statistics& one = processes[rank];
    EXPECT_EQ(one.nodes, 0u);
    EXPECT_EQ(one.nodes_created, 0u);
    EXPECT_EQ(one.remote_selections, 0u);
    EXPECT_GT(one.completions, 0u);
    EXPECT_EQ(one.visits, one.completions);
    EXPECT_EQ(one.playouts, one.completions);
    elsewhere += one.completions;
  }
  EXPECT_EQ(processes[0].handed_over, elsewhere);
  EXPECT_EQ(processes[0].remote_selections, 0u);
}

uint64_t created_elsewhere(const std::vector<Statistics>& processes) {
  uint64_t created = 0;
  for (size_t rank = 1; rank < processes.size(); ++rank) created += processes[rank].nodes_created;
  return created;
}

TEST_P(RemotePlayoutsByShape, TheTreeSpreadsWhenItsRootHasEnoughVisits) {
  const auto after = [](Host& host) { check_nodes(host.local<LocalTree<ConnectFour>>()); };
  run_search_job(
      GetParam(),
      [](Host& host) {
        Search<ConnectFour> search(host);
        search.options().expand_visits = 2;
        search.options().spread_visits = 2500;
        ConnectFour game;
        const auto run = [&](uint64_t iterations) {
          const auto result = search.run(game, {.iterations = iterations});
          if (result.outcome == Outcome::kOpen) {
            EXPECT_EQ(result.iterations, iterations);
          }
          check_conservation(search, result);
          return result;
        };
        for (const Placement placement :
             {Placement::kRandom, Placement::kHash, Placement::kLocality}) {
          SCOPED_TRACE(placement_name(placement));
          game = ConnectFour();
          search.clear();
          search.options().placement = placement;
          search.options().transpositions = placement == Placement::kHash;
          expect_small_tree(run(500).processes);
          expect_small_tree(run(1500).processes);
          EXPECT_GT(created_elsewhere(run(8000).processes), 0u);
          // The root has enough visits from the begin on.
          EXPECT_GT(created_elsewhere(run(3000).processes), 0u);
          // The kept trees have more visits, and later fewer ones.
          for (int ply = 0; ply < 4; ++ply) {
            const auto move = run(200).moves[0].move;
            game.play(move);
            search.advance(move);
          }
        }
      },
      after);
}

// By default only a search with enough iterations for each worker spreads, and one without a limit.
TEST_P(RemotePlayoutsByShape, AShortSearchDoesNotSpread) {
  run_search_job(GetParam(), [](Host& host) {
    Search<ConnectFour> search(host);
    search.options().placement = Placement::kRandom;
    const uint64_t workers = uint64_t{host.size()} * host.threads();
    expect_small_tree(
        search.run(ConnectFour(), {.iterations = SearchOptions::kShortSearch * workers - 1})
            .processes);
    search.clear();
    const auto longer =
        search.run(ConnectFour(), {.iterations = SearchOptions::kShortSearch * workers});
    EXPECT_GT(created_elsewhere(longer.processes), 0u);
    check_conservation(search, longer);
  });
}

// The processes have no part in a small tree. Later they have.
TEST_P(RemotePlayoutsByShape, NoneInFlight) {
  run_search_job(GetParam(), [](Host& host) {
    Search<ConnectFour> search(host);
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 2500;
    search.options().playouts_in_flight = 0;
    auto result = search.run(ConnectFour(), {.iterations = 2000});
    EXPECT_EQ(result.processes[0].completions, 2000u);
    check_conservation(search, result);
    result = search.run(ConnectFour(), {.iterations = 8000});
    EXPECT_LT(result.processes[0].completions, 8000u);
    check_conservation(search, result);
  });
}

// The tree spreads when rank 0 has no more memory, however many visits its root has.
TEST_P(RemotePlayoutsByShape, TheTreeSpreadsWhenTheMemoryIsFull) {
  const auto after = [](Host& host) { check_nodes(host.local<LocalTree<ConnectFour>>()); };
  run_search_job(
      GetParam(),
      [](Host& host) {
        Search<ConnectFour> search(host);
        search.options().expand_visits = 0;
        search.options().placement = Placement::kRandom;
        search.options().spread_visits = 1U << 31;  // never
        search.options().memory_bytes = 0;          // counts as the smallest possible limit
        const auto result = search.run(ConnectFour(), {.iterations = 10000});
        EXPECT_EQ(result.iterations, 10000u);
        EXPECT_GT(result.processes[0].collections, 0u);
        EXPECT_GT(created_elsewhere(result.processes), 0u);
        check_conservation(search, result);
      },
      after);
}

// ---- Values. All positions of each game have the same value, so that the means are exact.

class ValuedGame : public EvenPlies<20> {
 public:
  [[nodiscard]] float value() const { return kValue; }
};

// After the search, no node has an expected value of a rollout in flight.
TEST_P(RemotePlayoutsByShape, ValuesOfTwoPlayers) {
  run_search_job(GetParam(), [](Host& host) {
    Search<ValuedGame> search(host);
    search.options().expand_visits = 1;
    for (const float loss : {0.0F, 1.0F}) {
      search.options().selection.virtual_loss = loss;
      search.clear();
      const auto result = search.run(ValuedGame(), {.iterations = 2000});
      EXPECT_EQ(result.iterations, 2000u);
      expect_small_tree(result.processes);
      check_conservation(search, result);
      process_of(search).tree().for_each_node([](const Node<ValuedGame>& node) {
        const double value =
            node.player() == 0 ? ValuedGame::kValue : 1 - double{ValuedGame::kValue};
        for (int i = 0; i < node.size(); ++i) EXPECT_EQ(node.value(i), node.visits(i) * value);
      });
    }
  });
}

class ThreePlayerGame {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;
  static constexpr int kPlayers = 3;
  using Values = std::array<float, kPlayers>;
  static constexpr Values kValues{0.5F, 0.125F, 0.75F};

  [[nodiscard]] int to_move() const { return played_ % kPlayers; }
  int moves(std::span<Move> out) const {
    for (Move move = 0; move < kMaxMoves; ++move) out[move] = move;
    return kMaxMoves;
  }
  void play(Move) { ++played_; }
  [[nodiscard]] std::optional<Values> result() const {
    return played_ < 20 ? std::nullopt : std::optional(kValues);
  }
  Values playout(Random&) const { return kValues; }
  friend bool operator==(const ThreePlayerGame&, const ThreePlayerGame&) = default;

 private:
  uint8_t played_ = 0;
};

TEST_P(RemotePlayoutsByShape, ValuesOfThreePlayers) {
  run_search_job(GetParam(), [](Host& host) {
    Search<ThreePlayerGame> search(host);
    search.options().expand_visits = 1;
    const auto result = search.run(ThreePlayerGame(), {.iterations = 2000});
    EXPECT_EQ(result.iterations, 2000u);
    for (size_t i = 0; i < ThreePlayerGame::kValues.size(); ++i) {
      EXPECT_EQ(result.values.at(i), double{ThreePlayerGame::kValues[i]});
    }
    expect_small_tree(result.processes);
    check_conservation(search, result);
    process_of(search).tree().for_each_node([](const Node<ThreePlayerGame>& node) {
      const double value{ThreePlayerGame::kValues[static_cast<size_t>(node.player())]};
      for (int i = 0; i < node.size(); ++i) EXPECT_EQ(node.value(i), node.visits(i) * value);
    });
  });
}

// In each playout both players own all ids.
class OwnedGame : public EvenPlies<20> {
 public:
  static constexpr int kAmafIds = kMaxMoves;
  static int amaf_id(Move move) { return move; }
  float playout(Random&, Owned<kAmafIds>& owned) const {
    for (int id = 0; id < kAmafIds; ++id) {
      for (const int player : {0, 1}) owned.set(player, id);
    }
    return kValue;
  }
};

// The answers contain the playouts: each one counts in the AMAF statistics of each move.
TEST(RemotePlayouts, AnswersHaveTheirPlayouts) {
  run_search_job({3, 1}, [](Host& host) {
    Search<OwnedGame> search(host);
    // All values are equal: without exploration the rollouts would follow one line, to its end.
    search.options().selection.exploration = 1;
    const auto result = search.run(OwnedGame(), {.iterations = 1000});
    EXPECT_EQ(result.iterations, 1000u);
    expect_small_tree(result.processes);
    const Node<OwnedGame>& root = *process_of(search).tree().root();
    for (int i = 0; i < root.size(); ++i) {
      EXPECT_EQ(root.amaf_visits(i), 1000.0F);
      EXPECT_EQ(root.amaf_value(i), 1000 * OwnedGame::kValue);
    }
  });
}

}  // namespace
}  // namespace cariama::mcts
