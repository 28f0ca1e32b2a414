// The texts that show a search to users.
#include "mcts/progress.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cariama::mcts {
namespace {

TEST(ProgressText, ShowsTheBestMoveAndEveryProcess) {
  SearchResult<int> result;
  result.iterations = 400;
  result.seconds = 2;
  MoveResult<int> best;
  best.value = 0.25;
  best.line = {3, 1, 2};
  result.moves = {best, {}};
  result.processes.resize(3);
  result.processes[0].completions = 100;
  result.processes[0].messages = 50;
  result.processes[0].nodes = 7;
  result.processes[1].completions = 300;
  result.processes[1].idle_seconds = 1;
  result.processes[2].idle_seconds = 4;
  const auto name = [](int move) { return "m" + std::to_string(move); };
  EXPECT_EQ(progress_text(result, 2, name),
            "2 s, 400 iterations, 25 %: m3 m1 m2\n"
            "rank 0: 100 iterations (25 %), 50/s, idle 0 %, 25 messages/s, 7 nodes\n"
            "rank 1: 300 iterations (75 %), 150/s, idle 25 %, 0 messages/s, 0 nodes\n"
            "rank 2: 0 iterations (0 %), 0/s, idle 100 %, 0 messages/s, 0 nodes: takes no part\n");
}

// At the begin of a search no process has an iteration, and no time has passed.
TEST(ProgressText, ShowsASearchWithoutIterations) {
  const SearchResult<int> empty;
  EXPECT_EQ(progress_text(empty, 1, [](int) { return std::string(); }),
            "0 s, 0 iterations, 50 %: \n");
  const std::vector<Statistics> one(1);
  EXPECT_EQ(processes_text(one, 0, 1),
            "rank 0: 0 iterations (0 %), 0/s, idle 0 %, 0 messages/s, 0 nodes\n");
}

}  // namespace
}  // namespace cariama::mcts
