// Games with an evaluator: each node is evaluated once, values and priors arrive where they belong,
// batches follow the load, and errors of evaluators have a text.
#include "mcts/evaluator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/evaluated_game.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using testing::check_conservation;
using testing::check_nodes;
using testing::evaluate_exactly;
using testing::EvaluatedGame;
using ::testing::HasSubstr;
using testing::local_host;
using testing::process_of;
using testing::run_search_job;
using testing::run_with_a_victim;
using testing::ServedGame;
using testing::Shape;
using testing::TestEvaluator;
using testing::TestServer;
using Batch = std::span<Evaluation<EvaluatedGame>>;

// Counts the positions and batches of all evaluators of a process.
struct Log {
  std::mutex mutex;
  std::unordered_map<uint64_t, uint32_t> times;  // by key()
  std::vector<size_t> sizes;                     // of the batches

  void add(Batch batch) {
    const std::lock_guard lock(mutex);
    for (const auto& one : batch) ++times[one.position.key()];
    sizes.push_back(batch.size());
  }
  [[nodiscard]] uint32_t most_times() const {
    uint32_t most = 0;
    for (const auto& [key, count] : times) most = std::max(most, count);
    return most;
  }
};

void provide(Host& host, const TestEvaluator::Function& function) {
  provide_evaluator<EvaluatedGame>(host, [=] { return std::make_unique<TestEvaluator>(function); });
}
void provide_logged(Host& host, Log& log) {
  provide(host, [&log](Batch batch) {
    log.add(batch);
    evaluate_exactly(batch);
  });
}

// Checks that no evaluation is pending, and that each node with visits has the priors of its
// evaluator.
template <typename G>
void check_priors(LocalTree<G>& tree, const Node<G>* root = nullptr) {
  tree.for_each_node([&](const Node<G>& node) {
    EXPECT_FALSE(node.evaluation_pending());
    if (node.visits() != 0) {
      EXPECT_TRUE(node.evaluated());
    }
    if (!node.evaluated() || &node == root) return;
    for (int i = 0; i < node.size(); ++i) {
      EXPECT_EQ(node.prior(i), node.state().prior(node.move(i)));
    }
  });
}

// Checks the best move of a search by so many workers. With several workers, moves whose evaluation
// waits for a worker without a core get no visits meanwhile: then a move counts that is about as
// good. At the root the best move is 0.1 better than the next one.
template <typename G>
void check_best(const SearchResult<uint8_t>& result, const G& position, uint32_t workers) {
  const float reached = position.after(result.moves[0].move).solve();
  EXPECT_NEAR(reached, position.solve(), workers == 1 ? 0 : 0.15);
  const float own = position.to_move() == 0 ? position.solve() : 1 - position.solve();
  EXPECT_NEAR(result.moves[0].value, own, workers == 1 ? 0.1 : 0.2);
}

uint64_t sum_of(const SearchResult<uint8_t>& result, uint64_t Statistics::*member) {
  uint64_t sum = 0;
  for (const Statistics& process : result.processes) sum += process.*member;
  return sum;
}

class EvaluatorByThreads : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Shapes, EvaluatorByThreads, ::testing::Values(1, 2, 4));

TEST_P(EvaluatorByThreads, EachPositionIsEvaluatedOnce) {
  Log log;
  const auto host = local_host(GetParam());
  provide_logged(*host, log);
  Search<EvaluatedGame> search(*host);
  EvaluatedGame game;
  uint64_t evaluations = 0;
  for (int ply = 0; ply < 3; ++ply) {
    const auto result = search.run(game, {.iterations = 3000});
    EXPECT_EQ(result.iterations, 3000u);
    check_conservation(search, result);
    check_priors(process_of(search).tree());
    check_best(result, game, GetParam());
    EXPECT_EQ(sum_of(result, &Statistics::playouts), 0u);
    evaluations += sum_of(result, &Statistics::evaluations);
    EXPECT_EQ(log.times.size(), evaluations);
    EXPECT_EQ(log.most_times(), 1u);
    game.play(result.moves[0].move);
    search.advance(result.moves[0].move);
  }
  EXPECT_GT(evaluations, 100u);
}

TEST_P(EvaluatorByThreads, BatchesAreLargeUpToTheirLimit) {
  for (const uint32_t most : {1U, 3U, 64U}) {
    Log log;
    const auto host = local_host(GetParam());
    provide_logged(*host, log);
    Search<EvaluatedGame> search(*host);
    search.options().evaluation.batch = most;
    const auto result = search.run(EvaluatedGame(), {.iterations = 2000});
    check_conservation(search, result);
    EXPECT_EQ(sum_of(result, &Statistics::evaluation_batches), log.sizes.size());
    size_t positions = 0;
    for (const size_t size : log.sizes) {
      positions += size;
      EXPECT_GE(size, 1u);
      EXPECT_LE(size, most);
    }
    EXPECT_EQ(sum_of(result, &Statistics::evaluations), positions);
    if (most == 64) {
      EXPECT_GT(positions, 4 * log.sizes.size());
    }
  }
}

TEST_P(EvaluatorByThreads, NoisyValuesStillFindAGoodMove) {
  const auto host = local_host(GetParam());
  provide(*host, [](Batch batch) {
    for (auto& one : batch) {
      const float noise = static_cast<float>(one.position.key() % 1000) / 2500 - 0.2F;
      one.value = std::clamp(one.position.solve() + noise, 0.0F, 1.0F);
      std::ranges::fill(one.priors, 0.25F);
    }
  });
  Search<EvaluatedGame> search(*host);
  const auto result = search.run(EvaluatedGame(), {.iterations = 60000});
  EXPECT_NEAR(EvaluatedGame().after(result.moves[0].move).solve(), EvaluatedGame().solve(),
              GetParam() == 1 ? 0 : 0.15);
  check_conservation(search, result);
}

TEST_P(EvaluatorByThreads, FullMemoryIsCollected) {
  const auto host = local_host(GetParam());
  Search<EvaluatedGame> search(*host);
  search.options().memory_bytes = 1;  // the least possible one
  const auto result = search.run(EvaluatedGame(), {.iterations = 20000});
  EXPECT_EQ(result.iterations, 20000u);
  EXPECT_GT(sum_of(result, &Statistics::collections), 0u);
  check_conservation(search, result);
  check_priors(process_of(search).tree());
}

TEST_P(EvaluatorByThreads, AStopEndsPendingEvaluations) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> batches{0};
  const auto host = local_host(GetParam());
  provide(*host, [&](Batch batch) {
    evaluate_exactly(batch);
    if (++batches % 10 == 0) stop = true;
  });
  Search<EvaluatedGame> search(*host);
  for (int i = 0; i < 20; ++i) {
    stop = false;
    if (i % 2 == 0) search.clear();
    const auto result = search.run(EvaluatedGame(), {.seconds = 5}, &stop);
    check_conservation(search, result);
    check_priors(process_of(search).tree());
  }
}

TEST_P(EvaluatorByThreads, ServersAnswerWhileTheSearchGoesOn) {
  TestServer::Record record;
  const auto host = local_host(GetParam());
  provide_evaluator<ServedGame>(
      *host, [&] { return std::make_unique<TestServer>(~uint64_t{0}, &record); });
  Search<ServedGame> search(*host);
  search.options().evaluation.batch = 4;
  search.options().evaluation.in_flight = 3;
  ServedGame game;
  for (int i = 0; i < 3; ++i) {
    const auto result = search.run(game, {.iterations = 2000});
    EXPECT_EQ(result.iterations, 2000u);
    check_conservation(search, result);
    check_priors(process_of(search).tree());
    check_best(result, game, GetParam());
    EXPECT_GT(sum_of(result, &Statistics::evaluations),
              sum_of(result, &Statistics::evaluation_batches));
    game.play(result.moves[0].move);
    search.advance(result.moves[0].move);
  }
  EXPECT_LE(record.most_in_flight, 3u);
  EXPECT_GE(record.most_in_flight, 2u);
}

// The search ends at its limit although the evaluator owes answers, and the next one goes on with
// another evaluator.
TEST_P(EvaluatorByThreads, AServerThatStopsAnsweringDelaysNoEnd) {
  const auto host = local_host(GetParam());
  Search<ServedGame> search(*host);
  for (const uint64_t answers : {0, 1, 20}) {
    search.clear();
    provide_evaluator<ServedGame>(*host, [=] { return std::make_unique<TestServer>(answers); });
    const auto silent = search.run(ServedGame(), {.seconds = 0.05});
    check_conservation(search, silent);
    check_priors(process_of(search).tree());
    if (answers == 0) {
      EXPECT_EQ(silent.iterations, 0u);
    }
    EXPECT_EQ(silent.moves.size(), 4u);
    provide_evaluator<ServedGame>(*host, [] { return std::make_unique<TestServer>(); });
    const auto result = search.run(ServedGame(), {.iterations = 2000});
    EXPECT_EQ(result.iterations, 2000u);
    check_conservation(search, result);
    check_best(result, ServedGame(), GetParam());
  }
}

TEST_P(EvaluatorByThreads, AServerThatStopsAnsweringIsAnErrorAfterTheTimeout) {
  for (const uint64_t answers : {0, 5}) {
    const auto host = local_host(GetParam());
    provide_evaluator<ServedGame>(*host, [=] { return std::make_unique<TestServer>(answers); });
    Search<ServedGame> search(*host);
    search.options().evaluation.timeout_seconds = 0.05;
    try {
      static_cast<void>(search.run(ServedGame(), {.iterations = 2000}));
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the evaluator has not answered a batch of"));
      EXPECT_THAT(error.what(), HasSubstr("evaluation.timeout_seconds"));
    }
  }
}

TEST_P(EvaluatorByThreads, ErrorsOfEvaluatorsEndTheSearchWithTheirText) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  const std::pair<TestEvaluator::Function, std::string> cases[] = {
      {[](Batch) { throw std::runtime_error("no such layer"); }, "no such layer"},
      {[](Batch) {}, "the evaluator returned the value nan"},
      {[](Batch batch) { batch[0].value = 1.5F; }, "the evaluator returned the value 1.5"},
      {[](Batch batch) { batch.back().value = 0.5F; }, "the evaluator returned"},
      {[](Batch batch) {
         for (auto& one : batch) one.value = 0.5F;
       },
       "the evaluator returned the prior nan for move 0 of 4"},
      {[=](Batch batch) { batch.back().priors.back() = nan; }, "the prior nan for move 3 of 4"},
      {[=](Batch batch) { batch.back().priors[1] = infinite; }, "the prior inf for move 1 of 4"},
      {[=](Batch batch) { batch.back().priors[2] = -0.5F; }, "the prior -0.5"},
  };
  for (const auto& [function, text] : cases) {
    for (const bool late : {false, true}) {
      std::atomic<uint32_t> batches{0};  // outlives the host, whose other workers may be evaluating
      const auto host = local_host(GetParam());
      provide(*host, [&, bad = function, said = text](Batch batch) {
        const bool complete = said.find("for move 0") == std::string::npos;
        if (late && ++batches < 10) return evaluate_exactly(batch);
        if (complete && said.find("the prior") != std::string::npos) evaluate_exactly(batch);
        bad(batch);
      });
      Search<EvaluatedGame> search(*host);
      try {
        static_cast<void>(search.run(EvaluatedGame(), {.iterations = 5000}));
        ADD_FAILURE() << "no exception: " << text;
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    }
  }
}

TEST(Evaluator, OneWorkerRepeatsASearchExactly) {
  using Moves = std::vector<std::tuple<uint8_t, uint64_t, double, double>>;
  const auto moves = [](uint64_t seed) {
    const auto host = local_host(1);
    Search<EvaluatedGame> search(*host);
    search.options().seed = seed;
    search.options().root_noise = {0.25, 1};
    Moves all;
    for (const auto& move : search.run(EvaluatedGame(), {.iterations = 3000}).moves) {
      all.emplace_back(move.move, move.visits, move.value, move.prior);
    }
    return all;
  };
  EXPECT_EQ(moves(1), moves(1));
  EXPECT_NE(moves(1), moves(2));
}

// Without visits, that is with a large exploration constant, the priors decide.
TEST(Evaluator, VisitsFollowThePriors) {
  const auto host = local_host(1);
  provide(*host, [](Batch batch) {
    for (auto& one : batch) {
      one.value = 0.5F;
      for (size_t i = 0; i < one.moves.size(); ++i) {
        one.priors[i] = 0.1F * static_cast<float>(1 + one.moves[i]);
      }
    }
  });
  Search<EvaluatedGame> search(*host);
  search.options().selection.exploration = 1000;
  const auto result = search.run(EvaluatedGame(), {.iterations = 10000});
  for (const auto& move : result.moves) {
    EXPECT_NEAR(static_cast<double>(move.visits) / 10000, 0.1 * (1 + move.move), 0.02);
    EXPECT_NEAR(move.prior, 0.1 * (1 + move.move), 1e-6);
  }
}

TEST(Evaluator, ALaterFactoryReplacesTheEvaluators) {
  const auto host = local_host(2);
  Log first;
  Log second;
  provide_logged(*host, first);
  Search<EvaluatedGame> search(*host);
  static_cast<void>(search.run(EvaluatedGame(), {.iterations = 500}));
  const size_t batches = first.sizes.size();
  provide_logged(*host, second);
  search.clear();
  const auto result = search.run(EvaluatedGame(), {.iterations = 500});
  EXPECT_EQ(first.sizes.size(), batches);
  EXPECT_EQ(sum_of(result, &Statistics::evaluation_batches), second.sizes.size());
}

class Weighted;
struct WeightedGame : testing::ScoreTree {
  using Evaluator = Weighted;
};
class Weighted {
 public:
  explicit Weighted(float value) : value_(value) {}
  void evaluate(std::span<Evaluation<WeightedGame>> batch) const {
    for (auto& one : batch) {
      one.value = value_;
      std::ranges::fill(one.priors, 1.0F);
    }
  }

 private:
  float value_;
};

TEST(Evaluator, AMissingFactoryIsAnError) {
  for (const bool empty : {false, true}) {
    const auto host = local_host(1);
    if (empty) provide_evaluator<WeightedGame>(*host, [] { return std::unique_ptr<Weighted>(); });
    Search<WeightedGame> search(*host);
    try {
      static_cast<void>(search.run(WeightedGame(), {.iterations = 10}));
      ADD_FAILURE() << "no exception";
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("call mcts::provide_evaluator()"));
    }
  }
}

TEST(Evaluator, OptionsWithoutAValidValueAreRefused) {
  const auto refused = [](auto change) {
    SearchOptions options = SearchOptions::of<EvaluatedGame>();
    EXPECT_TRUE(options.validate().ok());
    change(options.evaluation);
    return std::string(options.validate().message());
  };
  EXPECT_THAT(refused([](auto& all) { all.batch = 0; }), HasSubstr("evaluation.batch is 0"));
  EXPECT_THAT(refused([](auto& all) { all.batch = 65537; }), HasSubstr("from 1 to 65536"));
  EXPECT_THAT(refused([](auto& all) { all.in_flight = 0; }), HasSubstr("evaluation.in_flight is"));
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refused([=](auto& all) { all.timeout_seconds = seconds; }),
                HasSubstr("evaluation.timeout_seconds"));
  }
}

// ---- Several processes

class EvaluatorByShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, EvaluatorByShape,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

template <typename G>
void search_with_each_placement(const Shape& shape) {
  const auto after = [](Host& host) {
    check_nodes(host.local<LocalTree<G>>());
    check_priors(host.local<LocalTree<G>>());
  };
  run_search_job(
      shape,
      [](Host& host) {
        for (const Placement placement :
             {Placement::kLocality, Placement::kHash, Placement::kRandom}) {
          Search<G> search(host);
          search.options().placement = placement;
          search.options().spread_expansions = 2;
          G game;
          for (int ply = 0; ply < 2; ++ply) {
            const auto result = search.run(game, {.iterations = 10000});
            EXPECT_EQ(result.iterations, 10000u);
            check_conservation(search, result);
            check_priors(process_of(search).tree());
            check_best(result, game, host.size() * host.threads());
            EXPECT_GT(sum_of(result, &Statistics::evaluations),
                      sum_of(result, &Statistics::evaluation_batches));
            if (ply == 0) {
              for (const Statistics& process : result.processes) {
                EXPECT_GT(process.evaluations, 0u) << placement_name(placement);
              }
            }
            game.play(result.moves[0].move);
            search.advance(result.moves[0].move);
          }
        }
      },
      after);
}
TEST_P(EvaluatorByShape, OwnersEvaluateTheirNodes) {
  search_with_each_placement<EvaluatedGame>(GetParam());
}
TEST_P(EvaluatorByShape, ServersOfAllProcesses) {
  search_with_each_placement<ServedGame>(GetParam());
}

TEST_P(EvaluatorByShape, CopiesOfTheRootHaveItsNoise) {
  run_search_job(GetParam(), [](Host& host) {
    Search<EvaluatedGame> search(host);
    search.options().selection.exploration = 10000;
    search.options().root_noise = {0.9, 0.3};
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      search.options().seed = seed;
      search.clear();
      const auto result = search.run(EvaluatedGame(), {.iterations = 20000});
      double sum = 0;
      for (const auto& move : result.moves) sum += move.prior;
      EXPECT_NEAR(sum, 0.9, 1e-5);  // as the priors of the evaluator
      for (const auto& move : result.moves) {
        EXPECT_NEAR(static_cast<double>(move.visits) / 20000, move.prior / sum, 0.1) << seed;
      }
      check_conservation(search, result);
    }
  });
}

TEST(Evaluator, AProcessThatDiesInItsEvaluatorLeavesTheSearch) {
  run_with_a_victim(
      {2, 1},
      [](Host& host) {
        Search<EvaluatedGame> search(host);
        while (host.living() == 2) {
          static_cast<void>(search.run(EvaluatedGame(), {.iterations = 20000}));
          search.clear();
        }
        const auto result = search.run(EvaluatedGame(), {.iterations = 2000});
        EXPECT_EQ(result.iterations, 2000u);
        check_conservation(search, result, /*lossless=*/false);
        check_best(result, EvaluatedGame(), 1);
      },
      nullptr,
      [](Host& host) {
        if (host.rank() != 1) return;
        provide(host, [batches = 0](Batch batch) mutable {
          if (++batches == 100) ::_exit(0);
          evaluate_exactly(batch);
        });
      });
}

}  // namespace
}  // namespace cariama::mcts
