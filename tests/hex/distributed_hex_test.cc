// Searches of Hex in jobs of one to four processes and over all transports. The proofs do not
// depend on the job, and every rollout is counted once.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "dtutils/wait.h"
#include "gtest/gtest.h"
#include "hex/hex_game.h"
#include "hex/search_engine.h"
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
using mcts::testing::local_host;
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
    search.options().spread_visits = 0;  // all processes take part in the proofs
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
    search.options().spread_visits = 0;  // with the default rank 0 owns the whole tree
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
    search.options().spread_visits = 0;  // otherwise the begin of the line is in rank 0
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

// Hex whose playouts give the turn to another process, in a job that runs in steps (local_job.h):
// so the processes run their playouts at about the same rate.
class SteppedGame : public Game {
 public:
  using Game::Game;

  class Playouts : public Game::Playouts {
   public:
    using Game::Playouts::Playouts;
    float run(const SteppedGame& game, std::optional<Move> last, mcts::Random& random,
              mcts::Owned<kAmafIds>* owned) {
      constexpr int kLooks = 16;  // one of 16 changes the turn, on average
      for (int i = 0; i < kLooks; ++i) static_cast<void>(this_thread_wait_hook().pause(0));
      return Game::Playouts::run(game, last, random, owned);
    }
  };
};
static_assert(mcts::HasPlayouts<SteppedGame>);

// Returns the share of the root's visits that the most visited move gets, as the mean of short
// searches of several positions.
double share_of_best_move(mcts::Host& host, uint32_t spread_visits) {
  constexpr int kPositions = 10;
  constexpr uint64_t kIterations = 3000;
  mcts::Search<SteppedGame> search(host, SearchEngineOptions::default_search());
  search.options().spread_visits = spread_visits;
  mcts::Random random(7);
  double sum = 0;
  for (int i = 0; i < kPositions; ++i) {
    SteppedGame game(Board(9, 9));
    for (int stone = 0; stone < 4; ++stone) {
      Move moves[SteppedGame::kMaxMoves];
      const int count = game.moves(moves);
      game.play(moves[random.below(static_cast<uint32_t>(count))]);
    }
    search.clear();
    search.options().seed = random.next();
    const auto result = search.run(game, {.iterations = kIterations});
    uint64_t most = 0;
    for (const auto& move : result.moves) most = std::max(most, move.visits);
    sum += static_cast<double>(most) / kIterations / kPositions;
  }
  return sum;
}

// A short search of eight processes chooses as decidedly as one process with as many iterations.
// If all eight select moves from the begin on, the share of the best move is about 0.6 of that of
// one process.
TEST(DistributedHex, EightProcessesChooseAsDecidedlyAsOne) {
  const double expected = share_of_best_move(*local_host(1), mcts::SearchOptions().spread_visits);
  EXPECT_GT(expected, 0.2);
  const auto body = [expected](mcts::Host& host) {
    EXPECT_GT(share_of_best_move(host, mcts::SearchOptions().spread_visits), 0.75 * expected);
  };
  run_transport_job("sim", 1, body, nullptr, 8);
}

}  // namespace
}  // namespace cariama::hex
