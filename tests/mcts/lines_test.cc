// Principal variations (MoveResult::line) through the nodes of several processes. A process that
// gets no processor time for 50 ms ends a line, so the tests repeat what a loaded machine may cut.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/game.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/mcts/testing/search_job.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using testing::run_search_job;
using testing::run_with_a_victim;
using testing::Shape;

// The first move chooses a corridor, in which each position has one move. At the end of each
// corridor player 0 has lost; until then the playouts are wins. With kOpen, another first move ends
// the game with a result that proves nothing, so the search of the root has no end.
class Corridors {
 public:
  using Move = uint8_t;
  static constexpr int kDoors = 3;    // number of corridors
  static constexpr int kLength = 16;  // number of moves to the end of a corridor
  static constexpr int kMaxMoves = kDoors + 1;
  enum class Kind : uint8_t { kClosed, kOpen };

  explicit Corridors(Kind kind = Kind::kClosed) : kind_(kind) {}

  // Returns the only line that begins with the move.
  [[nodiscard]] static std::vector<Move> line(Move door) {
    std::vector<Move> line{door};
    while (line.size() < kLength) line.push_back(step(door, static_cast<int>(line.size())));
    return line;
  }

  [[nodiscard]] int to_move() const { return played_ & 1; }
  int moves(std::span<Move> out) const {
    if (played_ != 0) {
      out[0] = step(door_, played_);
      return 1;
    }
    const int count = kind_ == Kind::kOpen ? kDoors + 1 : kDoors;
    for (int i = 0; i < count; ++i) out[i] = static_cast<Move>(i);
    return count;
  }
  void play(Move move) {
    if (played_++ == 0) door_ = move;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ != 0 && door_ == kDoors) return 0.4F;
    return played_ == kLength ? std::optional(0.0F) : std::nullopt;
  }
  float playout(Random&) const { return door_ == kDoors ? 0.4F : 1; }
  friend bool operator==(const Corridors&, const Corridors&) = default;

 private:
  // Returns the move of a corridor's position after this number of moves.
  [[nodiscard]] static Move step(Move door, int played) {
    return static_cast<Move>(50 * door + played);
  }

  Kind kind_;
  uint8_t played_ = 0;
  uint8_t door_ = 0;
};
static_assert(Game<Corridors>);

using CorridorsResult = Search<Corridors>::Result;

// Returns true if each line leads to the end of its corridor.
bool are_whole(const CorridorsResult& result) {
  return !result.moves.empty() && std::ranges::all_of(result.moves, [](const auto& move) {
    return move.move >= Corridors::kDoors || move.line.size() == Corridors::kLength;
  });
}
// The lines contain only moves of their corridors, beginning with the first one.
void check_lines(const CorridorsResult& result) {
  for (const auto& move : result.moves) {
    ASSERT_FALSE(move.line.empty());
    EXPECT_EQ(move.line[0], move.move);
    if (move.move >= Corridors::kDoors) continue;
    std::vector<Corridors::Move> begin = Corridors::line(move.move);
    ASSERT_LE(move.line.size(), begin.size());
    begin.resize(move.line.size());
    EXPECT_EQ(move.line, begin);
  }
}
bool is_over(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

void spread(SearchOptions& options, Placement placement) {
  options.expand_visits = 0;
  options.placement = placement;
  options.spread_visits = 0;  // otherwise the begin of each line is in rank 0
}

class LinesInShapes : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Lines, LinesInShapes,
                         ::testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{2, 2}, Shape{3, 1}),
                         ::testing::PrintToStringParamName());

// With random placement nearly every line leads through all processes, and from one process that is
// not rank 0 to another.
TEST_P(LinesInShapes, ALineOfAResultLeadsToTheEnd) {
  run_search_job(GetParam(), [](Host& host) {
    for (const Placement placement : {Placement::kRandom, Placement::kLocality}) {
      Search<Corridors> search(host);
      search.clear();
      spread(search.options(), placement);
      const Deadline deadline = soon();
      CorridorsResult result;
      do {
        result = search.run(Corridors(), {.iterations = 100000});
      } while (!are_whole(result) && !is_over(deadline));
      EXPECT_EQ(result.outcome, win_of(1));
      EXPECT_EQ(result.moves.size(), static_cast<size_t>(Corridors::kDoors));
      EXPECT_TRUE(are_whole(result));
      check_lines(result);
    }
  });
}

TEST_P(LinesInShapes, ALineOfAReportLeadsToTheEnd) {
  run_search_job(GetParam(), [](Host& host) {
    Search<Corridors> search(host);
    spread(search.options(), Placement::kRandom);
    const Deadline deadline = soon();
    bool whole = false;
    const auto progress = [&](const CorridorsResult& so_far) {
      check_lines(so_far);
      whole = are_whole(so_far);
      if (whole || is_over(deadline)) search.stop();
    };
    ASSERT_EQ(search.start(Corridors(Corridors::Kind::kOpen), {}, progress, 0.01),
              absl::OkStatus());
    while (true) {
      const absl::StatusOr<bool> ended = search.poll();
      ASSERT_TRUE(ended.ok()) << ended.status();
      if (*ended) break;
    }
    EXPECT_TRUE(whole);
    const absl::StatusOr<CorridorsResult> result = search.finish();
    ASSERT_TRUE(result.ok()) << result.status();
    check_lines(*result);
  });
}

// A job of three processes, of which the test stops and ends rank 2.
class LinesWithAVictim : public ::testing::Test {
 protected:
  void run(const std::function<void(Search<Corridors>&, Host&)>& body) {
    const auto before = [&](Host& host) {
      if (host.rank() == 2) *victim_ = ::getpid();
    };
    const auto in_rank_0 = [&](Host& host) {
      Search<Corridors> search(host);
      spread(search.options(), Placement::kRandom);
      body(search, host);
    };
    run_with_a_victim({3, 1}, in_rank_0, nullptr, before);
  }
  void send(int signal) { ::kill(*victim_, signal); }

 private:
  cariama::testing::Shared<std::atomic<pid_t>> victim_;
};

// A stopped process and a dead one end the lines, not the reports. The result has the statistics of
// the dead process that the last report of it had.
TEST_F(LinesWithAVictim, ALineEndsAtAProcessThatDoesNotAnswer) {
  run([&](Search<Corridors>& search, Host& host) {
    CorridorsResult last;
    const auto progress = [&](const CorridorsResult& so_far) {
      check_lines(so_far);
      last = so_far;
    };
    const auto poll_until = [&](const std::function<bool()>& condition) {
      const Deadline deadline = soon();
      while (!condition() && !is_over(deadline)) {
        const absl::StatusOr<bool> ended = search.poll();
        ASSERT_TRUE(ended.ok()) << ended.status();
        ASSERT_FALSE(*ended);
      }
      ASSERT_TRUE(condition());
    };
    ASSERT_EQ(search.start(Corridors(Corridors::Kind::kOpen), {}, progress, 0.01),
              absl::OkStatus());
    poll_until([&] { return are_whole(last) && last.processes[2].completions > 0; });
    send(SIGSTOP);
    poll_until([&] { return !are_whole(last); });
    const uint64_t completions = last.processes[2].completions;
    EXPECT_GT(completions, 0u);
    send(SIGKILL);
    poll_until([&] { return !host.alive(2); });
    const absl::StatusOr<CorridorsResult> result = search.finish();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(are_whole(*result));
    check_lines(*result);
    ASSERT_EQ(result->processes.size(), 3u);
    EXPECT_GE(result->processes[2].completions, completions);
  });
}

// A result that does not wait for a late process does not wait for its lines either. They are whole
// again when the process takes part again.
TEST_F(LinesWithAVictim, ALineEndsAtALateProcess) {
  run([&](Search<Corridors>& search, Host& host) {
    const auto run_until_whole = [&] {
      const Deadline deadline = soon();
      CorridorsResult result;
      do {
        result = search.run(Corridors(), {.iterations = 100000});
      } while (!are_whole(result) && !is_over(deadline));
      EXPECT_TRUE(are_whole(result));
      EXPECT_EQ(host.living(), 3u);
    };
    run_until_whole();
    send(SIGSTOP);
    // The first searches may still have its answers.
    const Deadline deadline = soon();
    CorridorsResult result;
    do {
      result = search.run(Corridors(), {.seconds = 0.1});
      check_lines(result);
    } while (result.late.empty() && !is_over(deadline));
    EXPECT_EQ(result.late, std::vector<uint32_t>{2});
    EXPECT_FALSE(are_whole(result));
    send(SIGCONT);
    run_until_whole();
  });
}

}  // namespace
}  // namespace cariama::mcts
