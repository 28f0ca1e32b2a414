// Searches in a job of which a process is stopped (SIGSTOP), without a lease.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>

#include "docs/examples/connect_four.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using example::ConnectFour;
using std::chrono::milliseconds;
using ::testing::IsEmpty;
using testing::run_with_a_victim;

// Longer than a living process of a busy machine takes to answer.
constexpr milliseconds kPatience{3000};

struct StopBoard {
  std::atomic<pid_t> victim{0};
  std::atomic<int> playouts_left{0};  // of the victim, until it stops; 0: it does not stop
  std::atomic<bool> ended{false};     // serve() has returned in the victim
};

// A game whose playouts stop the victim after a number of playouts.
class StopsItself : public ConnectFour {
 public:
  float playout(Random& random) const {
    if (board != nullptr && board->playouts_left > 0 && --board->playouts_left == 0) {
      ::kill(::getpid(), SIGSTOP);
    }
    return ConnectFour::playout(random);
  }
  static inline StopBoard* board = nullptr;  // in the victim
};

// A job of three processes, of which rank 2 stops in a search.
class StoppedProcess : public ::testing::Test {
 protected:
  // Runs `body` in rank 0, after a search in which all processes have taken part. The victim stops
  // in the first search of `body`.
  void run(milliseconds patience, const std::function<void(Search<StopsItself>&, Host&)>& body) {
    run_unconnected(patience, [&](Search<StopsItself>& search, Host& host) {
      // All workers have channels to each other before one stops: to open a channel takes the other
      // process.
      static_cast<void>(search.run(StopsItself(), {.iterations = 20000}));
      board_->playouts_left = 50;
      body(search, host);
    });
  }
  // Runs `body` in rank 0, before any search.
  void run_unconnected(milliseconds patience,
                       const std::function<void(Search<StopsItself>&, Host&)>& body) {
    const auto before = [&](Host& host) {
      if (host.rank() != 2) return;
      board_->victim = ::getpid();
      StopsItself::board = board_.get();
    };
    const auto after = [&](Host& host) {
      if (host.rank() == 2) board_->ended = true;
    };
    const auto in_rank_0 = [&](Host& host) {
      Search<StopsItself> search(host);
      search.options().placement = Placement::kRandom;
      search.options().expand_visits = 1;
      body(search, host);
    };
    run_with_a_victim({3, 1}, in_rank_0, after, before, {.patience = patience});
  }
  // Runs searches until the victim is stopped: the time that its 50 playouts take is not known.
  // Returns the result of the search that the victim did not end.
  static Search<StopsItself>::Result search_until_late(Search<StopsItself>& search) {
    const Deadline deadline = soon();
    Search<StopsItself>::Result result;
    const auto is_late = [&] { return std::ranges::count(result.late, 2u) != 0; };
    while (!is_late() && std::chrono::steady_clock::now() < deadline) {
      const auto begin = std::chrono::steady_clock::now();
      result = search.run(StopsItself(), {.seconds = 0.2});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(7));
    }
    EXPECT_TRUE(is_late());
    EXPECT_EQ(result.moves.size(), 7u);
    EXPECT_EQ(result.processes.size(), 3u);
    EXPECT_GT(result.iterations, 0u);
    return result;
  }
  void continue_victim() { ::kill(board_->victim, SIGCONT); }

  cariama::testing::Shared<StopBoard> board_;
};

TEST_F(StoppedProcess, DoesNotDelayTheResult) {
  run(kPatience, [&](Search<StopsItself>& search, Host& host) {
    search_until_late(search);
    EXPECT_EQ(host.living(), 3u);
    // The next search goes on without the process.
    const auto result = search.run(StopsItself(), {.iterations = 5000});
    EXPECT_EQ(result.iterations, 5000u);
    EXPECT_THAT(result.late, IsEmpty());
    EXPECT_EQ(host.living(), 2u);
    testing::check_conservation(search, result, /*lossless=*/false);
    EXPECT_GT(result.processes[1].completions, 0u);
    continue_victim();
    EXPECT_TRUE(wait_until([&] { return board_->ended.load(); }, soon()));
  });
}

TEST_F(StoppedProcess, TakesPartAgainIfItContinues) {
  run(HostOptions().patience, [&](Search<StopsItself>& search, Host& host) {
    search_until_late(search);
    continue_victim();
    const auto result = search.run(StopsItself(), {.iterations = 5000});
    EXPECT_EQ(result.iterations, 5000u);
    EXPECT_EQ(host.living(), 3u);
    testing::check_conservation(search, result);
    EXPECT_GT(result.processes[2].completions, 0u);
  });
}

TEST_F(StoppedProcess, DoesNotHoldUpASearchThatEndsByItsIterations) {
  run(kPatience, [&](Search<StopsItself>& search, Host& host) {
    const Deadline deadline = soon();
    while (host.alive(2) && std::chrono::steady_clock::now() < deadline) {
      EXPECT_EQ(search.run(StopsItself(), {.iterations = 5000}).iterations, 5000u);
    }
    EXPECT_EQ(host.living(), 2u);
    continue_victim();
  });
}

// The process stops while it runs playouts for rank 0, which alone grows the tree.
TEST_F(StoppedProcess, DoesNotDelayTheResultOfASmallTree) {
  run(HostOptions().patience, [&](Search<StopsItself>& search, Host& host) {
    search.clear();
    search.options().spread_visits = 1U << 31;  // never
    search_until_late(search);
    continue_victim();
    const auto result = search.run(StopsItself(), {.iterations = 5000});
    EXPECT_EQ(result.iterations, 5000u);
    EXPECT_EQ(host.living(), 3u);
    testing::check_conservation(search, result);
    EXPECT_GT(result.processes[2].playouts, 0u);
    EXPECT_EQ(result.processes[2].nodes, 0u);
  });
}

// The search leaves out the process and repeats the rollouts whose playouts it was running: those
// of the other processes go on meanwhile.
TEST_F(StoppedProcess, DoesNotHoldUpASmallTree) {
  run(kPatience, [&](Search<StopsItself>& search, Host& host) {
    search.clear();
    search.options().spread_visits = 1U << 31;  // never
    const Deadline deadline = soon();
    uint64_t iterations = 0;
    Search<StopsItself>::Result result;
    while (host.alive(2) && std::chrono::steady_clock::now() < deadline) {
      result = search.run(StopsItself(), {.iterations = 5000});
      EXPECT_EQ(result.iterations, 5000u);
      iterations += result.iterations;
    }
    EXPECT_EQ(host.living(), 2u);
    EXPECT_GT(result.processes[1].playouts, 0u);
    uint64_t visits = 0;
    for (const auto& move : result.moves) visits += move.visits;
    EXPECT_EQ(visits, iterations);
    continue_victim();
  });
}

// No call of a search has reached the process, and it has granted no chunk for one. The patience
// of the searches is longer than a search may take.
TEST_F(StoppedProcess, DoesNotDelayTheResultOfTheFirstSearch) {
  run_unconnected(HostOptions().patience, [&](Search<StopsItself>& search, Host& host) {
    EXPECT_TRUE(wait_until([&] { return board_->victim != 0; }, soon()));
    ASSERT_TRUE(cariama::testing::stop_process(board_->victim, soon()));
    const auto begin = std::chrono::steady_clock::now();
    const auto result = search.run(StopsItself(), {.seconds = 0.2});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(7));
    EXPECT_NE(std::ranges::count(result.late, 2u), 0);
    EXPECT_EQ(result.moves.size(), 7u);
    EXPECT_EQ(host.living(), 3u);
    continue_victim();
    EXPECT_EQ(search.run(StopsItself(), {.iterations = 5000}).iterations, 5000u);
    EXPECT_EQ(host.living(), 3u);
  });
}

TEST_F(StoppedProcess, IsLeftOutByASearchThatHasNotReachedIt) {
  run_unconnected(kPatience, [&](Search<StopsItself>& search, Host& host) {
    EXPECT_TRUE(wait_until([&] { return board_->victim != 0; }, soon()));
    ASSERT_TRUE(cariama::testing::stop_process(board_->victim, soon()));
    EXPECT_EQ(search.run(StopsItself(), {.iterations = 5000}).iterations, 5000u);
    EXPECT_FALSE(host.alive(2));
    continue_victim();
    EXPECT_TRUE(wait_until([&] { return board_->ended.load(); }, soon()));
  });
}

// The tree has to be moved or freed although a part of it is in the stopped process.
TEST_F(StoppedProcess, DoesNotHoldUpAMove) {
  run(kPatience, [&](Search<StopsItself>& search, Host& host) {
    const auto first = search_until_late(search);
    StopsItself next;
    next.play(first.moves[0].move);
    search.advance(first.moves[0].move);
    EXPECT_EQ(host.living(), 2u);
    EXPECT_EQ(search.run(next, {.iterations = 5000}).iterations, 5000u);
    search.clear();
    continue_victim();
  });
}

}  // namespace
}  // namespace cariama::mcts
