#include "hex/web/search_queue.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

using testing::FlatEngine;
using SearchPointer = std::shared_ptr<SearchQueue::Search>;

Deadline queue_deadline() { return deadline_after(std::chrono::seconds(60)); }

// A queue whose searches run in a thread.
class RunningQueue {
 public:
  explicit RunningQueue(Engine& engine, const SearchQueueOptions& options = {.slice = 0.02,
                                                                             .interval = 0.005,
                                                                             .turn = 0.05})
      : queue_(
            engine,
            [](double) {
              return std::vector<ProcessLoad>{{}, {false}};
            },
            options),
        thread_([this] { queue_.run(stop_); }) {}
  ~RunningQueue() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  SearchQueue* operator->() { return &queue_; }
  // Blocks until the condition holds for the state of the search. Returns this state.
  template <typename Condition>
  SearchView wait_for(const SearchPointer& search, const Condition& condition) {
    const Deadline deadline = queue_deadline();
    SearchView view;
    do {
      view = queue_.wait(*search, view.version, deadline);
      if (condition(view)) return view;
    } while (std::chrono::steady_clock::now() < deadline);
    ADD_FAILURE() << "the search did not reach the state";
    return view;
  }
  SearchView end_of(const SearchPointer& search) {
    return wait_for(search, [](const SearchView& view) { return view.ended; });
  }

 private:
  std::atomic<bool> stop_{false};
  SearchQueue queue_;
  std::thread thread_;
};

TEST(SearchQueue, ASearchEndsAtItsLimit) {
  FlatEngine engine;
  RunningQueue queue(engine);
  const SearchPointer search = queue->submit({Board(11, 11), 0.05});
  const SearchView end = queue.end_of(search);
  EXPECT_GE(end.report.seconds, 0.05);
  EXPECT_GT(end.report.iterations, 0u);
  EXPECT_EQ(end.report.moves.size(), 121u);
  EXPECT_EQ(end.processes.size(), 2u);
  EXPECT_EQ(end.move, kNoMove);
  EXPECT_GT(engine.searches, 1);  // slices
}

TEST(SearchQueue, AnAnalysisReportsUntilItIsCancelled) {
  FlatEngine engine;
  RunningQueue queue(engine);
  const SearchPointer search = queue->submit({Board(11, 11)});
  double before = 0;
  for (int i = 0; i < 5; ++i) {
    before = queue
                 .wait_for(search,
                           [&](const SearchView& view) {
                             EXPECT_FALSE(view.ended);
                             return view.report.seconds > before;
                           })
                 .report.seconds;
  }
  queue->cancel(*search);
  queue->cancel(*search);
  queue.end_of(search);
}

// Each of two analyses has several turns.
TEST(SearchQueue, AnalysesTakeTurns) {
  FlatEngine engine;
  RunningQueue queue(engine);
  const SearchPointer first = queue->submit({Board(11, 11)});
  const SearchPointer second = queue->submit({Board(9, 9)});
  for (int i = 0; i < 3; ++i) {
    for (const SearchPointer& search : {first, second}) {
      queue.wait_for(search, [](const SearchView& view) { return view.ahead == 1; });
      queue.wait_for(search, [](const SearchView& view) { return view.ahead == 0; });
    }
  }
  queue->cancel(*first);
  queue->cancel(*second);
}

// The state of a search that waits behind an analysis contains the number of searches before it.
// The search runs when the analysis is cancelled.
TEST(SearchQueue, ACancelledSearchMakesRoom) {
  FlatEngine engine;
  RunningQueue queue(engine, {.slice = 0.02, .interval = 0.005, .turn = 1e9});
  const SearchPointer first = queue->submit({Board(11, 11)});
  queue.wait_for(first, [](const SearchView& view) { return !view.report.moves.empty(); });
  const SearchPointer second = queue->submit({Board(11, 11), 0.01});
  const SearchPointer third = queue->submit({Board(11, 11), 0.01});
  EXPECT_EQ(queue.wait_for(third, [](const SearchView&) { return true; }).ahead, 2u);
  queue->cancel(*second);
  queue.wait_for(third, [](const SearchView& view) { return view.ahead == 1; });
  EXPECT_TRUE(queue.end_of(second).report.moves.empty());
  queue->cancel(*first);
  EXPECT_FALSE(queue.end_of(third).report.moves.empty());
}

TEST(SearchQueue, TheNumberOfSearchesIsLimited) {
  FlatEngine engine;
  RunningQueue queue(engine, {.slice = 0.02, .interval = 0.005, .turn = 1e9, .most = 3});
  std::vector<SearchPointer> searches(3);
  for (SearchPointer& search : searches) search = queue->submit({Board(5, 5)});
  EXPECT_EQ(queue->submit({Board(5, 5)}), nullptr);
  queue->cancel(*searches[2]);
  const SearchPointer next = queue->submit({Board(5, 5)});
  ASSERT_NE(next, nullptr);
  for (const SearchPointer& search : {searches[0], searches[1], next}) queue->cancel(*search);
  for (const SearchPointer& search : searches) queue.end_of(search);
}

TEST(SearchQueue, StopEndsAllSearches) {
  FlatEngine engine;
  RunningQueue queue(engine);
  const SearchPointer running = queue->submit({Board(11, 11)});
  const SearchPointer waiting = queue->submit({Board(11, 11)});
  queue.wait_for(running, [](const SearchView& view) { return view.report.iterations > 0; });
  queue.stop();
  queue.end_of(running);
  queue.end_of(waiting);
  queue.end_of(queue->submit({Board(11, 11)}));
}

TEST(SearchQueue, AnAnalysisEndsWithAProof) {
  FlatEngine engine;
  RunningQueue queue(engine);
  Board board(3, 3);
  for (const char* move : {"b1", "a1", "b2", "a2"}) board.play(*board.parse(move));
  const SearchView end = queue.end_of(queue->submit({board}));
  EXPECT_EQ(end.report.moves[0].proven_win, true);
}

TEST(SearchQueue, ChoosesMovesUnderTheSwapRule) {
  FlatEngine engine;
  RunningQueue queue(engine);
  const auto chosen = [&](const Board& board) {
    return board.name(queue.end_of(queue->submit({board, 1, true})).move);
  };
  Board board(5, 5, SwapRule::kOn);
  EXPECT_EQ(chosen(board), "a2");  // the convention, without a search
  EXPECT_EQ(engine.searches, 0);
  Board strong = board;
  strong.play(*board.parse("c3"));
  EXPECT_EQ(chosen(strong), "swap-pieces");
  Board weak = board;
  weak.play(*board.parse("a1"));
  EXPECT_NE(chosen(weak), "swap-pieces");
}

// An engine that reports one move with a given line in each search.
class ScriptedEngine final : public FlatEngine {
 public:
  SearchReport search(const Board& board, const SearchLimits&, const std::atomic<bool>&,
                      const std::function<void(const SearchReport&)>&, double) override {
    SearchReport report;
    report.color = board.to_move();
    report.seconds = next_ < lines.size() ? 1 : 0;
    report.iterations = next_ < lines.size() ? iterations : 0;
    report.moves = {{0, 1, 0.5, 0, std::nullopt, lines[std::min(next_++, lines.size() - 1)]}};
    return report;
  }
  std::vector<std::vector<Move>> lines;
  uint64_t iterations = 1;  // of each search with a line

 private:
  size_t next_ = 0;
};

// On a busy machine a slice may end before the first iteration.
TEST(SearchQueue, ASliceWithoutAnIterationDoesNotEndAnAnalysis) {
  ScriptedEngine engine;
  engine.lines = {{0}, {0}, {0, 1}};
  engine.iterations = 0;
  RunningQueue queue(engine);
  EXPECT_EQ(queue.end_of(queue->submit({Board(3, 3)})).report.moves[0].line,
            (std::vector<Move>{0, 1}));
}

// The view has the lines of the last report, as GTP and `analyze` have: no part of an earlier one.
// The engine ends without an iteration after its last line. The search ends instead of repeating
// this without end.
TEST(SearchQueue, TheViewHasTheLinesOfTheLastReport) {
  const std::vector<std::vector<Move>> lasts = {{0, 1}, {0, 2}, {0, 1, 2, 3, 4}};
  for (const std::vector<Move>& last : lasts) {
    ScriptedEngine engine;
    engine.lines = {{0, 1, 2, 3}, last};
    RunningQueue queue(engine);
    EXPECT_EQ(queue.end_of(queue->submit({Board(3, 3)})).report.moves[0].line, last);
  }
}

}  // namespace
}  // namespace cariama::hex
