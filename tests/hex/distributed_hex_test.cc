// Searches of Hex in jobs of one to four processes and over all transports. The proofs do not
// depend on the job, and every rollout is counted once.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "hex/hex_game.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/hex/testing/cases.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::hex {
namespace {

using Game = HexGame<2>;
using mcts::testing::check_conservation;
using mcts::testing::check_nodes;
using mcts::testing::run_search_job;
using mcts::testing::run_transport_job;
using testing::solved_cases;
using testing::SolvedCase;

// processes: number of real processes with one worker each. 0: three processes within one process
// of the operating system, over the transport `name`.
struct Job {
  std::string name;
  int processes = 0;
};
void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

class ByJob : public ::testing::TestWithParam<Job> {
 protected:
  static void run(const std::function<void(mcts::Host&)>& body) {
    const auto after = [](mcts::Host& host) { check_nodes(host.local<mcts::LocalTree<Game>>()); };
    if (GetParam().processes == 0) {
      run_transport_job(GetParam().name, 1, body, after);
    } else {
      run_search_job({GetParam().processes, 1}, body, after);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(DistributedHex, ByJob,
                         ::testing::Values(Job{"one", 1}, Job{"two", 2}, Job{"four", 4}, Job{"shm"},
                                           Job{"fault_shm"}, Job{"sim"}, Job{"fault_sim"}),
                         [](const auto& info) { return info.param.name; });

// The search proves the solved positions of 3x3 and 4x4, with the results in tests/hex/data.
TEST_P(ByJob, ProvesTheSolvedPositions) {
  run([](mcts::Host& host) {
    mcts::Search<Game> search(host);
    search.options().expand_visits = 2;
    search.options().placement = mcts::Placement::kRandom;
    int cases = 0;
    for (const SolvedCase& one : solved_cases()) {
      if (!one.complete || one.board.cells() > 16) continue;
      ++cases;
      const auto result = search.run(Game(one.board), {.iterations = 1000000});
      ASSERT_NE(result.outcome, mcts::Outcome::kOpen) << one.id;
      EXPECT_EQ(result.outcome, mcts::win_of(static_cast<int>(one.winner))) << one.id;
      for (const auto& move : result.moves) {
        if (move.verdict != mcts::Verdict::kWins && move.verdict != mcts::Verdict::kLoses) continue;
        const bool wins = std::find(one.winning_moves.begin(), one.winning_moves.end(),
                                    move.move) != one.winning_moves.end();
        EXPECT_EQ(move.verdict == mcts::Verdict::kWins, wins)
            << one.id << " " << one.board.name(move.move);
      }
      check_conservation(search, result);
    }
    EXPECT_GE(cases, 15);
  });
}

// On a board of a size at which no position is proved soon: each process has a part of the tree,
// and no rollout is lost or counted twice, from move to move of a game.
TEST_P(ByJob, EveryRolloutIsCountedOnce) {
  run([](mcts::Host& host) {
    mcts::Search<Game> search(host);
    search.options().expand_visits = 2;
    Board board(11, 11);
    for (int i = 0; i < 3; ++i) {
      const auto result = search.run(Game(board), {.iterations = 1000});
      EXPECT_EQ(result.iterations, 1000u);
      check_conservation(search, result);
      for (const mcts::Statistics& process : result.processes) EXPECT_GT(process.nodes, 0u);
      board.play(result.moves[0].move);
      search.advance(result.moves[0].move);
    }
  });
}

// The line of the best move leads on, whichever processes own its nodes. Its length depends on the
// load of the machine, so the search continues until the line is long enough.
TEST_P(ByJob, LinesLeadThroughAllProcesses) {
  run([](mcts::Host& host) {
    mcts::Search<Game> search(host);
    search.options().expand_visits = 1;
    search.options().placement = mcts::Placement::kRandom;
    const Board board(7, 7);
    const Deadline deadline = cariama::testing::soon();
    size_t length = 0;
    while (length < 6 && std::chrono::steady_clock::now() < deadline) {
      const auto result = search.run(Game(board), {.iterations = 2000});
      Board after = board;
      for (const Move move : result.moves[0].line) {
        ASSERT_TRUE(after.is_legal(move));
        after.play(move);
      }
      length = result.moves[0].line.size();
    }
    EXPECT_GE(length, 6u);
  });
}

}  // namespace
}  // namespace cariama::hex
