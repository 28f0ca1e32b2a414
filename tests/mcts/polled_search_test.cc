// Searches in a program with an event loop of its own (start, poll, stop, finish), several Search
// objects in one host, and what a program gets to see while a search runs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "docs/examples/connect_four.h"
#include "dtutils/diagnostics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using example::ConnectFour;
using std::chrono::microseconds;
using testing::check_conservation;
using testing::check_nodes;
using ::testing::HasSubstr;
using testing::local_host;
using testing::run_search_job;
using testing::Shape;
using testing::TicTacToe;

bool passed(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

// The event loop: polls until the search has ended.
template <typename G>
void poll_to_the_end(Search<G>& search, microseconds most = std::chrono::milliseconds(1)) {
  const Deadline deadline = soon();
  for (;;) {
    const absl::StatusOr<bool> ended = search.poll(most);
    ASSERT_TRUE(ended.ok()) << ended.status();
    if (*ended) return;
    ASSERT_FALSE(passed(deadline));
  }
}

template <typename G>
typename Search<G>::Result polled(Search<G>& search, const G& position,
                                  const SearchLimits& limits) {
  const absl::Status started = search.start(position, limits);
  EXPECT_TRUE(started.ok()) << started;
  EXPECT_TRUE(search.running());
  poll_to_the_end(search);
  auto result = search.finish();
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(search.running());
  return result.ok() ? *std::move(result) : typename Search<G>::Result();
}

void expect_refused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

std::function<void(Host&)> checked_nodes() {
  return [](Host& host) { check_nodes(host.local<LocalTree<ConnectFour>>()); };
}

class PolledInShapes : public ::testing::TestWithParam<Shape> {
 protected:
  static void run(const std::function<void(Host&)>& body) {
    run_search_job(GetParam(), body, checked_nodes());
  }
};
INSTANTIATE_TEST_SUITE_P(Polled, PolledInShapes,
                         ::testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

TEST_P(PolledInShapes, EndsByItsIterations) {
  run([](Host& host) {
    Search<ConnectFour> search(host);
    search.options().expand_visits = 2;
    for (const Placement placement : {Placement::kRandom, Placement::kLocality}) {
      search.options().placement = placement;
      search.options().spread_visits = placement == Placement::kRandom ? 0 : 1000;
      const auto result = polled(search, ConnectFour(), {.iterations = 5000});
      EXPECT_EQ(result.iterations, 5000u);
      EXPECT_EQ(result.moves.size(), 7u);
      check_conservation(search, result);
    }
  });
}

// stop() comes from another thread, and finish() without an earlier stop().
TEST_P(PolledInShapes, EndsWhenTold) {
  run([](Host& host) {
    Search<ConnectFour> search(host);
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(search.start(ConnectFour(), {}), absl::OkStatus());
      if (i % 2 == 0) {
        std::thread other([&] { search.stop(); });
        poll_to_the_end(search, microseconds(0));
        other.join();
      } else {
        EXPECT_TRUE(search.poll().ok());
      }
      const auto result = search.finish();
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->moves.size(), 7u);
      EXPECT_TRUE(result->late.empty());
      check_conservation(search, *result);
    }
  });
}

// finish() directly after start(): the other processes may not have begun yet.
TEST_P(PolledInShapes, EndsBeforeItsFirstPoll) {
  run([](Host& host) {
    for (int i = 0; i < 10; ++i) {
      Search<ConnectFour> search(host);
      ASSERT_EQ(search.start(ConnectFour(), {.iterations = 100000}), absl::OkStatus());
      const auto result = search.finish();
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->moves.size(), 7u);
      check_conservation(search, *result);
    }
  });
}

// The next search of the host is complete, and its tree is its own.
TEST_P(PolledInShapes, DestructionEndsTheSearch) {
  run([](Host& host) {
    for (const int polls : {0, 1, 20}) {
      {
        Search<ConnectFour> search(host);
        ASSERT_EQ(search.start(ConnectFour(), {}), absl::OkStatus());
        for (int i = 0; i < polls; ++i) EXPECT_TRUE(search.poll().ok());
      }
      Search<ConnectFour> next(host);
      const auto result = next.run(ConnectFour(), {.iterations = 3000});
      EXPECT_EQ(result.iterations, 3000u);
      uint64_t visits = 0;
      for (const auto& move : result.moves) visits += move.visits;
      EXPECT_EQ(visits, 3000u);
      check_conservation(next, result);
    }
  });
}

// The search pauses to free nodes, and continues.
TEST_P(PolledInShapes, FreesColdNodes) {
  run([](Host& host) {
    Search<ConnectFour> search(host);
    search.options().expand_visits = 0;
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 0;  // all processes free nodes
    search.options().memory_bytes = uint64_t{2} << 20;
    const auto result = polled(search, ConnectFour(), {.iterations = 15000});
    EXPECT_EQ(result.iterations, 15000u);
    uint64_t collections = 0;
    for (const Statistics& process : result.processes) collections += process.collections;
    EXPECT_TRUE(collections > 0 || host.size() * host.threads() > 1);
    check_conservation(search, result);
  });
}

// Reports come from poll(), in its thread, and have the statistics of all processes, which all take
// part. How soon each process does depends on the load of the machine.
TEST_P(PolledInShapes, ProgressShowsAllProcesses) {
  run([](Host& host) {
    Search<ConnectFour> search(host);
    search.options().placement = Placement::kRandom;
    const std::thread::id here = std::this_thread::get_id();
    const Deadline deadline = soon();
    bool all = false;
    const auto progress = [&](const SearchResult<ConnectFour::Move>& so_far) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      EXPECT_EQ(so_far.moves.size(), 7u);
      ASSERT_EQ(so_far.processes.size(), host.size());
      all = std::ranges::all_of(so_far.processes,
                                [](const Statistics& one) { return one.completions > 0; });
      if (all || passed(deadline)) search.stop();
    };
    ASSERT_EQ(search.start(ConnectFour(), {}, progress, 0.001), absl::OkStatus());
    while (true) {
      const absl::StatusOr<bool> ended = search.poll();
      ASSERT_TRUE(ended.ok()) << ended.status();
      if (*ended) break;
    }
    EXPECT_TRUE(all);
    const auto result = search.finish();
    ASSERT_TRUE(result.ok()) << result.status();
    check_conservation(search, *result);
    // run() gives the same reports.
    all = false;
    static_cast<void>(search.run(ConnectFour(), {}, nullptr, progress, 0.001));
    EXPECT_TRUE(all);
  });
}

// Two players of a match in one program, each with a Search, and both alive all the time. One of
// them polls. Each result is that of the position that was asked.
TEST_P(PolledInShapes, TwoPlayersOfAMatch) {
  run([](Host& host) {
    Search<ConnectFour> first(host);
    Search<ConnectFour> second(host);
    first.options().placement = Placement::kRandom;
    second.options().expand_visits = 2;
    // Both searches have their trees in all processes after some hundred iterations.
    first.options().spread_visits = second.options().spread_visits = 200;
    ConnectFour game;
    for (int ply = 0; ply < 12 && !game.result(); ++ply) {
      Search<ConnectFour>& own = ply % 2 == 0 ? first : second;
      const auto result = ply % 2 == 0 ? own.run(game, {.iterations = 1000})
                                       : polled(own, game, {.iterations = 1000});
      EXPECT_EQ(result.player, game.to_move());
      EXPECT_EQ(own.position(), game);
      ConnectFour::Move moves[ConnectFour::kMaxMoves];
      EXPECT_EQ(static_cast<int>(result.moves.size()), game.moves(moves));
      if (result.outcome == Outcome::kOpen) {
        EXPECT_EQ(result.iterations, 1000u);
      }
      check_conservation(own, result);
      game.play(result.moves[0].move);
      first.advance(result.moves[0].move);
      second.advance(result.moves[0].move);
    }
  });
}

// Two games at the same time, of the same type and of another one.
TEST_P(PolledInShapes, TwoGamesAlternate) {
  run([](Host& host) {
    Search<TicTacToe> one(host);
    Search<TicTacToe> two(host);
    Search<ConnectFour> other(host);
    TicTacToe games[2];
    for (const int cell : {4, 8}) games[0].play(static_cast<uint8_t>(cell));
    for (const int cell : {1, 0, 4}) games[1].play(static_cast<uint8_t>(cell));
    for (int round = 0; round < 3; ++round) {
      for (const int at : {0, 1}) {
        Search<TicTacToe>& search = at == 0 ? one : two;
        const auto result = polled(search, games[at], {.iterations = 10'000'000});
        ASSERT_NE(result.outcome, Outcome::kOpen);
        EXPECT_EQ(value_of(result.outcome), games[at].solve());
        EXPECT_EQ(result.player, games[at].to_move());
        TicTacToe next = games[at];
        next.play(result.moves[0].move);
        EXPECT_EQ(next.solve(), games[at].solve());
        check_conservation(search, result);
        const auto between = other.run(ConnectFour(), {.iterations = 500});
        EXPECT_EQ(between.iterations, 500u);
        check_conservation(other, between);
      }
    }
  });
}

// Also with the smallest steps.
TEST(Polled, OneWorkerRepeatsRun) {
  const auto visits_of = [](const auto& search_it) {
    const auto host = local_host(1);
    Search<ConnectFour> search(*host);
    std::vector<uint64_t> visits;
    for (const auto& move : search_it(search).moves) visits.push_back(move.visits * 8 + move.move);
    return visits;
  };
  const auto blocking = visits_of(
      [](Search<ConnectFour>& search) { return search.run(ConnectFour(), {.iterations = 5000}); });
  const auto in_steps = visits_of([](Search<ConnectFour>& search) {
    EXPECT_EQ(search.start(ConnectFour(), {.iterations = 5000}), absl::OkStatus());
    poll_to_the_end(search, microseconds(0));
    return *search.finish();
  });
  EXPECT_EQ(blocking, in_steps);
}

TEST(Polled, MisuseIsRefused) {
  const auto host = local_host(2);
  Search<ConnectFour> search(*host);
  Search<ConnectFour> second(*host);
  Search<TicTacToe> other(*host);
  PaperSearch<ConnectFour> paper(*host);
  expect_refused(search.poll().status(), "call start() first");
  expect_refused(search.finish().status(), "call start() first");
  search.stop();  // no effect

  ASSERT_EQ(search.start(ConnectFour(), {}), absl::OkStatus());
  const std::string running = "a search of this host is running";
  expect_refused(search.start(ConnectFour(), {}), running);
  expect_refused(second.start(ConnectFour(), {}), running);
  expect_refused(other.start(TicTacToe(), {}), running);
  expect_refused(second.poll().status(), "call start() first");
  EXPECT_THROW(static_cast<void>(search.run(ConnectFour())), std::logic_error);
  EXPECT_THROW(static_cast<void>(other.run(TicTacToe())), std::logic_error);
  EXPECT_THROW(static_cast<void>(paper.run(ConnectFour(), {.iterations = 1})), std::logic_error);
  EXPECT_THROW(search.advance(3), std::logic_error);
  EXPECT_THROW(second.clear(), std::logic_error);
  absl::Status elsewhere;
  std::thread([&] { elsewhere = search.poll().status(); }).join();
  expect_refused(elsewhere, "the calling thread is not worker 0");
  const auto result = search.finish();
  ASSERT_TRUE(result.ok()) << result.status();
  check_conservation(search, *result);

  search.options().value_weight = 2;
  EXPECT_EQ(search.start(ConnectFour(), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(search.running());
  search.options() = SearchOptions::of<ConnectFour>();
  EXPECT_EQ(polled(search, ConnectFour(), {.iterations = 1000}).iterations, 1000u);
  EXPECT_EQ(paper.run(ConnectFour(), {.iterations = 100}).iterations, 100u);
  host->end();
  expect_refused(search.start(ConnectFour(), {}), "the host has ended");
}

// The progress function may stop its search, and nothing else.
TEST(Polled, ProgressMustNotUseItsSearch) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  Search<ConnectFour> second(*host);
  int reports = 0;
  const auto progress = [&](const auto&) {
    ++reports;
    expect_refused(search.poll().status(), "called by a function of its own search");
    expect_refused(search.finish().status(), "called by a function of its own search");
    expect_refused(second.start(ConnectFour(), {}), "a search of this host is running");
    search.stop();
  };
  ASSERT_EQ(search.start(ConnectFour(), {}, progress, 0.001), absl::OkStatus());
  poll_to_the_end(search);
  EXPECT_TRUE(search.finish().ok());
  static_cast<void>(search.run(ConnectFour(), {}, nullptr, progress, 0.001));
  EXPECT_EQ(reports, 2);
}

TEST(Polled, AProgressThatThrowsEndsTheSearch) {
  const auto host = local_host(2);
  Search<ConnectFour> search(*host);
  const auto fail = [](const auto&) { throw std::runtime_error("no window"); };
  ASSERT_EQ(search.start(ConnectFour(), {}, fail, 0.001), absl::OkStatus());
  absl::StatusOr<bool> ended = false;
  for (const Deadline deadline = soon(); ended.ok() && !passed(deadline);) ended = search.poll();
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(ended.status().message()), HasSubstr("no window"));
  EXPECT_FALSE(search.running());
  const auto result = polled(search, ConnectFour(), {.iterations = 1000});
  EXPECT_EQ(result.iterations, 1000u);
  check_conservation(search, result);
}

// A handler of a call cannot search: no other call would run before it has ended.
TEST(Polled, AHandlerIsRefused) {
  static Search<ConnectFour>* used = nullptr;
  static absl::Status refused;
  static std::atomic<bool> ran{false};
  run_search_job(
      {2, 1},
      [](Host& host) {
        Search<ConnectFour> search(host);
        used = &search;
        PeerAggregators& aggregators = *Host::here().aggregators;
        const ThreadId origin = host.id(0, 0);
        ASSERT_TRUE(aggregators.call(host.id(1, 0), [origin] {
          PeerAggregators& back = *Host::here().aggregators;
          back.call(origin, [] {
            refused = used->start(ConnectFour(), {.iterations = 100});
            EXPECT_THROW(used->clear(), std::logic_error);
            ran = true;
          });
          back.flush();
        }));
        aggregators.flush();
        ASSERT_TRUE(host.work_until([] { return ran.load(); }, soon()));
        expect_refused(refused, "a handler of a call cannot search");
        EXPECT_FALSE(search.running());
        EXPECT_EQ(polled(search, ConnectFour(), {.iterations = 1000}).iterations, 1000u);
      },
      checked_nodes());
}

// A game whose playouts wait in rank 1 until rank 0 has seen that the process takes no part.
struct WaitBoard {
  std::atomic<bool> waits{false};
  std::atomic<bool> seen{false};
};
class WaitsInRank1 : public ConnectFour {
 public:
  float playout(Random& random) const {
    if (board->waits && Host::here().host->rank() == 1) {
      const Deadline deadline = soon();
      while (!board->seen && !passed(deadline)) std::this_thread::yield();
    }
    return ConnectFour::playout(random);
  }
  static inline WaitBoard* board = nullptr;
};

TEST(Polled, AProcessThatTakesNoPartIsReported) {
  const cariama::testing::Shared<WaitBoard> board;
  WaitsInRank1::board = board.get();
  const auto body = [](Host& host) {
    Search<WaitsInRank1> search(host);
    const auto is_reported = [] {
      const std::vector<Diagnostic> all = reported_diagnostics();
      return std::ranges::any_of(all,
                                 [](const Diagnostic& one) { return one.key == "mcts.no_part.1"; });
    };
    // Opens the channels between the workers, which takes both processes.
    static_cast<void>(search.run(WaitsInRank1(), {.iterations = 5000}));
    EXPECT_FALSE(is_reported());
    search.clear();  // rank 0 has all nodes of the first iterations of a new tree
    WaitsInRank1::board->waits = true;
    std::atomic<bool> stop{false};
    const Deadline deadline = soon();
    const auto progress = [&](const auto& so_far) {
      if (!is_reported() && !passed(deadline)) return;
      EXPECT_EQ(so_far.processes[1].completions, 0u);
      WaitsInRank1::board->seen = true;
      stop = true;
    };
    static_cast<void>(search.run(WaitsInRank1(), {}, &stop, progress, 0.05));
    EXPECT_TRUE(is_reported());
  };
  run_search_job({2, 1}, body, nullptr, {.patience = std::chrono::minutes(10)});
  WaitsInRank1::board = nullptr;
}

}  // namespace
}  // namespace cariama::mcts
