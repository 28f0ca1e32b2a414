// Searches with one tree in several real processes: proofs, conservation of counts, placement,
// failed processes.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "docs/examples/connect_four.h"
#include "dsfabric/fabric.h"
#include "dtutils/diagnostics.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/prior_game.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using example::ConnectFour;
using testing::check_choice;
using testing::check_conservation;
using testing::check_kept_tree;
using testing::check_nodes;
using testing::PriorGame;
using testing::process_of;
using testing::run_search_job;
using testing::run_with_a_victim;
using testing::Shape;
using testing::TicTacToe;

// Runs `body` in rank 0 of a job of this shape. Checks the nodes of the other processes at the end.
template <typename G>
void run_job(const Shape& shape, const std::function<void(Host&)>& body) {
  run_search_job(shape, body, [](Host& host) { check_nodes(host.local<LocalTree<G>>()); });
}

// SearchOptions::spread_visits of a search in which rank 0 grows the tree alone.
constexpr uint32_t kNever = 1U << 31;

class ByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Distributed, ByShape,
                         ::testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{2, 1}, Shape{2, 2},
                                           Shape{4, 1}),
                         ::testing::PrintToStringParamName());

// The search proves the results that exhaustive search gives.
TEST_P(ByShape, ProvesTicTacToe) {
  run_job<TicTacToe>(GetParam(), [](Host& host) {
    Search<TicTacToe> search(host);
    search.options().expand_visits = 2;
    // The whole proof in the tree of all processes, a part of it, and the proof in rank 0 alone.
    for (const uint32_t spread_visits : {0U, 500U, kNever}) {
      search.options().spread_visits = spread_visits;
      for (const int first : TicTacToe::kFirstMoves) {
        search.options().placement = first % 2 == 0 ? Placement::kRandom : Placement::kLocality;
        search.clear();
        TicTacToe game;
        game.play(static_cast<uint8_t>(first));
        const auto result = search.run(game, {.iterations = 10000000});
        ASSERT_NE(result.outcome, Outcome::kOpen) << first;
        EXPECT_EQ(value_of(result.outcome), game.solve()) << first;
        TicTacToe next = game;
        next.play(result.moves[0].move);
        EXPECT_EQ(next.solve(), game.solve()) << first;
        check_conservation(search, result);
      }
    }
  });
}

// The lower confidence bound is that of the counts of all processes. The prior prefers another move
// than the best one. Moves that lead to a process without a core get few visits, so the last search
// goes on until it has the best move, or has run as often as suffices by far.
TEST_P(ByShape, TheBoundChoosesOfTheResults) {
  run_job<PriorGame>(GetParam(), [](Host& host) {
    constexpr int kMostRuns = 20;
    Search<PriorGame> search(host);
    search.options().choice.rule = FinalChoice::kLowerConfidenceBound;
    search.options().selection.rule = SelectionRule::kPuct;
    search.options().spread_visits = 0;  // short searches, too, have counts of all processes
    const auto run = [&](uint64_t iterations) {
      const auto result = search.run(PriorGame(), {.iterations = iterations});
      EXPECT_EQ(result.iterations, iterations);
      check_choice(result, search.options().choice);
      check_conservation(search, result);
      return result.moves[0].move;
    };
    for (const uint64_t iterations : {50, 200, 800, 5000}) {
      search.clear();
      run(iterations);
    }
    PriorGame::Move best = run(5000);
    for (int i = 1; i < kMostRuns && best != PriorGame::kBest; ++i) best = run(5000);
    EXPECT_EQ(best, PriorGame::kBest);
  });
}

// The copies of the root have the noise of the original. With a large exploration constant the
// values do not matter, so each process makes the visits of a move proportional to its prior.
TEST_P(ByShape, CopiesOfTheRootHaveItsNoise) {
  run_job<PriorGame>(GetParam(), [](Host& host) {
    Search<PriorGame> search(host);
    search.options().selection.rule = SelectionRule::kPuct;
    search.options().selection.exploration = 10000;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      search.options().seed = seed;
      search.options().root_noise = {0.9, 0.3};
      search.clear();
      const auto result =
          search.run(PriorGame(PriorGame::Table::kWithoutPriors), {.iterations = 20000});
      double priors = 0;
      for (const auto& move : result.moves) priors += move.prior;
      EXPECT_NEAR(priors, 1, 1e-5);
      EXPECT_GT(result.moves[0].prior, 0.2);
      for (const auto& move : result.moves) {
        EXPECT_NEAR(static_cast<double>(move.visits) / 20000, move.prior, 0.1) << seed;
      }
      check_conservation(search, result);
    }
  });
}

// Twelve plies of three moves each. The AMAF statistics of one playout have 1 KiB, so those of the
// playouts of a request do not all fit into its answer.
class WideGame {
 public:
  using Move = uint16_t;
  static constexpr int kMaxMoves = 3;
  static constexpr int kAmafIds = 4096;
  static int amaf_id(Move move) { return move; }

  [[nodiscard]] int to_move() const { return static_cast<int>(played_ & 1); }
  int moves(std::span<Move> out) const {
    for (int i = 0; i < 3; ++i) out[i] = static_cast<Move>(300 * played_ + i);
    return 3;
  }
  void play(Move move) {
    path_ = Random::mix(path_ + move);
    ++played_;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < 12) return std::nullopt;
    return static_cast<float>(path_ % 16) / 16 + 1.0F / 32;  // proves nothing
  }
  float playout(Random& random, Owned<kAmafIds>& owned) const {
    WideGame game = *this;
    while (!game.result()) {
      const auto move = static_cast<Move>(300 * game.played_ + random.below(3));
      owned.set(game.to_move(), move);
      game.play(move);
    }
    return *game.result();
  }
  friend bool operator==(const WideGame&, const WideGame&) = default;

 private:
  uint64_t path_ = 0;
  uint64_t played_ = 0;
};

TEST(Distributed, AnswersWithManyAmafIdsArrive) {
  run_search_job({2, 1}, [](Host& host) {
    Search<WideGame> search(host);
    search.options().expand_visits = 2;
    search.options().placement = Placement::kRandom;
    search.options().batch_divisor = 1;
    const auto result = search.run(WideGame(), {.iterations = 20000});
    EXPECT_EQ(result.iterations, 20000u);
    for (const Statistics& process : result.processes) EXPECT_GT(process.remote_selections, 0u);
  });
}

// Six plies of 1000 moves each: the root does not fit into a call.
struct ManyMoves {
  using Move = uint16_t;
  static constexpr int kMaxMoves = 1000;
  [[nodiscard]] int to_move() const { return played & 1; }
  int moves(std::span<Move> out) const {
    for (int i = 0; i < kMaxMoves; ++i) out[static_cast<size_t>(i)] = static_cast<Move>(i);
    return kMaxMoves;
  }
  void play(Move move) {
    sum += move;
    ++played;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played < 6) return std::nullopt;
    return static_cast<float>(sum % 16) / 16 + 1.0F / 32;  // proves nothing
  }
  float playout(Random& random) const {
    ManyMoves game = *this;
    while (!game.result()) game.play(static_cast<Move>(random.below(kMaxMoves)));
    return *game.result();
  }
  friend bool operator==(const ManyMoves&, const ManyMoves&) = default;

  uint32_t sum = 0;
  int played = 0;
};

TEST(Distributed, ANodeThatDoesNotFitIntoACallIsReported) {
  run_search_job({2, 1}, [](Host& host) {
    Search<ManyMoves> search(host);
    search.options().spread_visits = 0;  // the root is sent when the tree spreads
    EXPECT_EQ(search.run(ManyMoves(), {.iterations = 5000}).iterations, 5000u);
    const std::vector<Diagnostic> reported = reported_diagnostics();
    const auto found = std::find_if(reported.begin(), reported.end(), [](const Diagnostic& one) {
      return one.key == "mcts.large_node";
    });
    ASSERT_NE(found, reported.end());
    EXPECT_EQ(found->what.rfind("a node with 1000 moves", 0), 0u) << found->what;
  });
}

// Options that would divide by 0.
TEST(Distributed, OptionsThatAreTooSmallCountAsTheSmallest) {
  run_job<ConnectFour>({2, 1}, [](Host& host) {
    Search<ConnectFour> search(host);
    SearchOptions& options = search.options();
    options.expand_visits = options.copy_visits = options.playouts_per_leaf = 0;
    options.max_batch = options.batch_divisor = options.exchange_divisor = 0;
    options.queue_target = 8;
    options.queue_limit = options.queue_share = 0;
    options.spread_visits = 0;  // these options are about a tree in several processes
    const auto result = search.run(ConnectFour(), {.iterations = 3000});
    EXPECT_EQ(result.iterations, 3000u);
    check_conservation(search, result);
    for (const auto& move : result.moves) EXPECT_TRUE(move.value >= 0 && move.value <= 1);
  });
}

// Every rollout is counted once, in the process where it ended, with every placement. Every process
// owns a part of the tree. With Placement::kLocality its size depends on how many rollouts the
// process has run, and so on the load of the machine.
TEST_P(ByShape, CountsAreConserved) {
  const Shape shape = GetParam();
  run_job<ConnectFour>(shape, [&](Host& host) {
    Search<ConnectFour> search(host);
    search.options().expand_visits = 2;
    search.options().spread_visits = 0;  // with the default rank 0 owns the top of the tree
    for (const Placement placement : {Placement::kRandom, Placement::kHash, Placement::kLocality}) {
      search.options().placement = placement;
      search.clear();
      const auto result = search.run(ConnectFour(), {.iterations = 10000});
      EXPECT_EQ(result.iterations, 10000u);
      check_conservation(search, result);
      uint64_t nodes = 0;
      uint64_t selections = 0;
      for (const Statistics& process : result.processes) {
        nodes += process.nodes;
        selections += process.remote_selections;
      }
      if (shape.processes == 1) {
        EXPECT_EQ(selections, 0u);
        continue;
      }
      EXPECT_GT(selections, 0u);
      for (const Statistics& process : result.processes) {
        if (placement == Placement::kLocality) {
          EXPECT_GT(process.nodes, 0u);
        } else {
          EXPECT_GE(process.nodes * 2 * host.size(), nodes) << placement_name(placement);
        }
      }
    }
  });
}

// A limit of memory that has room for few nodes counts as the smallest possible one. Otherwise the
// search would collect nodes after every few rollouts, or could not create the root.
TEST_P(ByShape, AMemoryLimitThatIsTooSmallCountsAsTheSmallest) {
  run_job<ConnectFour>(GetParam(), [](Host& host) {
    for (const uint64_t bytes : {0, 1000}) {
      Search<ConnectFour> search(host);
      search.clear();
      search.options().expand_visits = 1;
      search.options().memory_bytes = bytes;
      auto result = search.run(ConnectFour(), {.iterations = 10});
      EXPECT_EQ(result.iterations, 10u);
      check_conservation(search, result);
      for (const Statistics& process : result.processes) EXPECT_EQ(process.collections, 0u);
      result = search.run(ConnectFour(), {.iterations = 5000});
      EXPECT_EQ(result.iterations, 5000u);
      check_conservation(search, result);
    }
  });
}

// Cold nodes are freed in all processes, advance() keeps the subtree of the move, and clear() frees
// all nodes.
TEST_P(ByShape, NodesAreFreedEverywhere) {
  run_job<ConnectFour>(GetParam(), [](Host& host) {
    Search<ConnectFour> search(host);
    search.options().expand_visits = 0;
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 0;  // nodes that are freed are in all processes
    search.options().memory_bytes = uint64_t{2} << 20;
    auto result = search.run(ConnectFour(), {.iterations = 12000});
    uint64_t collections = 0;
    for (const Statistics& process : result.processes) {
      collections += process.collections;
      EXPECT_LE(process.node_bytes, uint64_t{2} << 20);
    }
    EXPECT_TRUE(collections > 0 || host.size() * host.threads() > 1);
    ConnectFour game;
    for (int i = 0; i < 6; ++i) {
      const auto move = result.moves[0].move;
      game.play(move);
      search.advance(move);
      result = search.run(game, {.iterations = 2000});
      check_conservation(search, result);
    }
    search.clear();
    for (const CommandAnswer& answer :
         process_of(search).command(CommandKind::kInform, search.options())) {
      EXPECT_EQ(answer.statistics.nodes, 0u);
    }
  });
}

TEST_P(ByShape, TheTreeIsKept) {
  run_job<ConnectFour>(GetParam(), [](Host& host) { check_kept_tree(host, ConnectFour()); });
}

TEST(Distributed, StopsWhileOthersWork) {
  run_job<ConnectFour>({2, 1}, [](Host& host) {
    Search<ConnectFour> search(host);
    search.options().placement = Placement::kRandom;
    std::atomic<bool> stop{false};
    for (int i = 0; i < 20; ++i) {
      stop = false;
      const auto result = search.run(
          ConnectFour(), {}, &stop, [&](const auto&) { stop = true; }, 0.001);
      check_conservation(search, result);
    }
  });
}

// A game whose playouts kill the process after a number of playouts.
class Deadly : public ConnectFour {
 public:
  float playout(Random& random) const {
    if (playouts_left > 0 && --playouts_left == 0) ::kill(::getpid(), SIGKILL);
    return ConnectFour::playout(random);
  }
  static inline int playouts_left = 0;
};

// Rank 2 of 3 dies during a search. The other ranks continue, and the result has all legal moves.
void survive_a_death(uint32_t spread_visits) {
  const auto before = [](Host& host) {
    if (host.rank() == 2) Deadly::playouts_left = 50;
  };
  const auto after = [](Host& host) {
    check_nodes(host.local<LocalTree<Deadly>>(), /*lossless=*/false);
  };
  const auto body = [spread_visits](Host& host) {
    Search<Deadly> search(host);
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = spread_visits;
    search.options().expand_visits = 1;
    // Repeat the search until rank 2 is dead: the time that its 50 playouts take is not known.
    const Deadline deadline = soon();
    uint64_t iterations = 0;
    while (host.alive(2) && std::chrono::steady_clock::now() < deadline) {
      const auto result = search.run(Deadly(), {.iterations = 20000});
      EXPECT_EQ(result.iterations, 20000u);
      iterations += result.iterations;
      EXPECT_EQ(result.moves.size(), 7u);
      check_conservation(search, result, /*lossless=*/false);
    }
    EXPECT_FALSE(host.alive(2));
    EXPECT_EQ(host.living(), 2u);
    const std::vector<Diagnostic> reported = reported_diagnostics();
    const auto lost = std::find_if(reported.begin(), reported.end(),
                                   [](const Diagnostic& one) { return one.key == "mcts.lost.2"; });
    ASSERT_NE(lost, reported.end());
    EXPECT_EQ(lost->what.rfind("rank 2", 0), 0u) << lost->what;
    EXPECT_NE(lost->remedy.find("look at its output"), std::string::npos) << lost->remedy;
    const auto result = search.run(Deadly(), {.iterations = 20000});
    EXPECT_EQ(result.iterations, 20000u);
    EXPECT_GT(result.processes[1].completions, 0u);
    if (spread_visits != kNever) return;
    // No visit is in another process, so that none is lost: the rollouts whose playouts the dead
    // process was running were repeated.
    uint64_t visits = 0;
    for (const auto& move : result.moves) visits += move.visits;
    EXPECT_EQ(visits, iterations + result.iterations);
    EXPECT_EQ(result.processes[1].nodes, 0u);
  };
  run_with_a_victim({3, 1}, body, after, before);
}
TEST(Distributed, ASearchSurvivesADeath) { survive_a_death(0); }
TEST(Distributed, ASearchSurvivesADeathWhileRank0GrowsTheTree) { survive_a_death(kNever); }

// Rank 1 of 2 dies while worker 1 of rank 0 runs a call of it. The search continues when that call
// has ended. Calls of rank 1 that wait behind it do not run any more.
TEST(Distributed, ASearchWaitsForTheCallsOfADeadProcess) {
  static std::atomic<bool> running{false};
  static std::atomic<bool> ended{false};
  static std::atomic<bool> next_ran{false};
  run_with_a_victim({2, 2}, [](Host& host) {
    Search<TicTacToe> search(host);
    EXPECT_EQ(search.run(TicTacToe(), {.iterations = 100}).iterations, 100u);
    PeerAggregators& aggregators = *Host::here().aggregators;
    const ThreadId partner = host.id(0, 1);
    ASSERT_TRUE(aggregators.call(host.id(1, 0), [partner] {
      PeerAggregators& back = *Host::here().aggregators;
      back.post(partner, [] {
        running = true;
        const Host& host = *Host::here().host;
        const Deadline deadline = soon();
        while (host.alive(1) && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::yield();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ended = true;
      });
      back.post(partner, [] { next_ran = true; });
      back.flush();
    }));
    aggregators.flush();
    ASSERT_TRUE(host.work_until([] { return running.load(); }, soon()));
    ASSERT_TRUE(aggregators.call(host.id(1, 0), [] { ::kill(::getpid(), SIGKILL); }));
    aggregators.flush();
    ASSERT_TRUE(host.work_until([&] { return !host.alive(1); }, soon()));
    process_of(search).quiesce(search.options());
    EXPECT_TRUE(ended);
    EXPECT_FALSE(next_ran);
    EXPECT_EQ(search.run(TicTacToe(), {.iterations = 100}).iterations, 100u);
  });
}

}  // namespace
}  // namespace cariama::mcts
