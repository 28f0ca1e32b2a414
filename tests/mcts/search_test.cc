// Searches in one process: proofs, conservation of counts, determinism, limits, memory.
#include "mcts/search.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/score_game.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using testing::check_conservation;
using testing::check_nodes;
using testing::check_scores;
using testing::local_host;
using testing::process_of;
using testing::ScoreGame;
using testing::TicTacToe;

template <typename G>
G after(std::initializer_list<int> moves) {
  G game;
  for (const int move : moves) game.play(static_cast<typename G::Move>(move));
  return game;
}

class ByThreads : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Search, ByThreads, ::testing::Values(1, 2, 4));

// The search proves every position of tic-tac-toe after two moves, with the result of exhaustive
// search.
TEST_P(ByThreads, ProvesTicTacToe) {
  const auto host = local_host(GetParam());
  Search<TicTacToe> search(*host);
  for (const int first : TicTacToe::kFirstMoves) {
    for (int second = 0; second < 9; ++second) {
      if (first == second) continue;
      const TicTacToe game = after<TicTacToe>({first, second});
      const auto result = search.run(game, {.iterations = 100000});
      ASSERT_NE(result.outcome, Outcome::kOpen) << first << second;
      EXPECT_EQ(value_of(result.outcome), game.solve()) << first << second;
      TicTacToe next = game;
      next.play(result.moves[0].move);
      EXPECT_EQ(next.solve(), game.solve()) << first << second;
      check_conservation(search, result);
    }
  }
}

// Results between a loss and a win prove nothing: the search neither ends at such a result nor
// prefers it to a better one. With expand_visits = 0, ended games have nodes.
TEST_P(ByThreads, ScoresProveNothing) {
  const auto host = local_host(GetParam());
  Search<ScoreGame> search(*host);
  for (uint32_t number = 0; number < 12; ++number) {
    search.options().expand_visits = number % 2 == 0 ? 0 : 8;
    check_scores(search, ScoreGame(number));
  }
}

// The search finds a win in one move, and a move that prevents one.
TEST_P(ByThreads, SeesWhatIsNear) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  auto result = search.run(after<ConnectFour>({3, 0, 3, 0, 3, 0}), {.iterations = 20000});
  EXPECT_EQ(result.moves[0].move, 3);
  EXPECT_EQ(result.moves[0].verdict, Verdict::kWins);
  EXPECT_EQ(result.outcome, Outcome::kFirstWins);
  result = search.run(after<ConnectFour>({3, 0, 3, 1, 3}), {.iterations = 20000});
  EXPECT_EQ(result.player, 1);
  EXPECT_EQ(result.moves[0].move, 3);
}

TEST_P(ByThreads, CountsAreConserved) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    search.options().seed = seed;
    search.options().expand_visits = static_cast<uint32_t>(4 * (seed - 1));
    search.clear();
    const auto result = search.run(ConnectFour(), {.iterations = 5000});
    EXPECT_EQ(result.iterations, 5000u);
    check_conservation(search, result);
    EXPECT_EQ(result.moves.size(), 7u);
    uint64_t visits = 0;
    for (const auto& move : result.moves) visits += move.visits;
    EXPECT_EQ(visits, 5000u);
    EXPECT_GT(result.processes[0].nodes, 100u);
  }
}

// A search that needs more memory than the limit frees cold nodes and continues.
TEST_P(ByThreads, MemoryIsCollected) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  search.options().memory_bytes = 2 << 20;
  search.options().expand_visits = 0;
  uint64_t collections = 0;
  uint64_t most_left = 0;  // one search may end directly behind a collection that left little
  for (int i = 0; i < 5; ++i) {
    const auto result = search.run(ConnectFour(), {.iterations = 15000});
    EXPECT_EQ(result.iterations, 15000u);
    EXPECT_LE(result.processes[0].node_bytes, 2u << 20);
    check_conservation(search, result);
    collections += result.processes[0].collections;
    most_left = std::max(most_left, result.processes[0].nodes);
  }
  EXPECT_GT(collections, 0u);
  EXPECT_GT(most_left, 250u);  // the collections leave a part of the tree
}

// With transpositions, a position that several orders of moves reach has one node. The proof is the
// same and needs fewer nodes.
TEST_P(ByThreads, TranspositionsShareNodes) {
  const auto host = local_host(GetParam());
  uint64_t nodes[2];
  for (const bool shared : {false, true}) {
    Search<TicTacToe> search(*host);
    search.clear();
    search.options().expand_visits = 0;
    search.options().transpositions = shared;
    const auto result = search.run(TicTacToe(), {.iterations = 10000000});
    EXPECT_EQ(result.outcome, Outcome::kDraw);
    check_conservation(search, result);
    nodes[shared ? 1 : 0] = result.processes[0].nodes;
    EXPECT_EQ(result.processes[0].transpositions > 0, shared);
    std::set<uint64_t> keys;
    process_of(search).tree().for_each_node([&](const auto& node) { keys.insert(node.key()); });
    if (shared) {
      EXPECT_EQ(keys.size(), nodes[1]);
    }
  }
  EXPECT_LT(nodes[1], nodes[0]);
}

// Creates the nodes of a sequence of moves from the root on that do not exist, and returns the last
// node. Requires: no search is running.
Node<ConnectFour>* grow_line(LocalTree<ConnectFour>& tree, std::initializer_list<int> moves) {
  Node<ConnectFour>* node = tree.root();
  ConnectFour game = node->state();
  for (const int move : moves) {
    const int at = node->find(static_cast<ConnectFour::Move>(move));
    game.play(static_cast<ConnectFour::Move>(move));
    const auto child = node->child(at);
    node = child.is_local() ? child.local() : tree.create_child(*node, at, game, 0);
    if (node == nullptr) return nullptr;
  }
  return node;
}

// A node with several parents is freed when its last parent is freed.
TEST_P(ByThreads, TranspositionsAreFreedWithTheTree) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  LocalTree<ConnectFour>& tree = process_of(search).tree();
  search.options().memory_bytes = 2 << 20;
  search.options().expand_visits = 0;
  search.options().transpositions = true;
  ConnectFour game;
  const auto advance = [&](ConnectFour::Move move) {
    game.play(move);
    search.advance(move);
  };
  // Runs a search, and compares the nodes that exist with those that the root reaches.
  const auto run = [&](uint64_t iterations) {
    const auto result = search.run(game, {.iterations = iterations});
    check_conservation(search, result);
    uint64_t nodes = 0;
    tree.for_each_node([&](const auto&) { ++nodes; });
    EXPECT_EQ(nodes, result.processes[0].nodes);
    return result;
  };
  run(1);  // makes the root
  // Two orders of the same moves lead to one node. The first advance frees one of its parents.
  Node<ConnectFour>* node = grow_line(tree, {3, 0, 2});
  ASSERT_NE(node, nullptr);
  ASSERT_EQ(grow_line(tree, {2, 0, 3}), node);
  EXPECT_TRUE(node->shared());
  advance(3);
  EXPECT_EQ(grow_line(tree, {0, 2}), node);
  EXPECT_FALSE(node->shared());
  run(1);
  // Both parents are freed.
  node = grow_line(tree, {0, 1, 2});
  ASSERT_EQ(grow_line(tree, {2, 1, 0}), node);
  EXPECT_TRUE(node->shared());
  ASSERT_NE(grow_line(tree, {5}), nullptr);
  advance(5);
  run(1);
  // The collection of cold nodes frees nodes with several parents, too.
  node = grow_line(tree, {0, 1, 2});
  ASSERT_EQ(grow_line(tree, {2, 1, 0}), node);
  auto result = run(15000);
  EXPECT_GT(result.processes[0].collections, 0u);
  for (int i = 0; i < 6; ++i) {
    advance(result.moves[0].move);
    result = run(1000);
  }
}

TEST(Search, OneWorkerAndASeedRepeatTheSearch) {
  const auto run = [](uint64_t seed) {
    const auto host = local_host(1);
    Search<ConnectFour> search(*host);
    search.options().seed = seed;
    std::vector<uint64_t> visits;
    for (const auto& move : search.run(ConnectFour(), {.iterations = 5000}).moves) {
      visits.push_back(move.visits * 8 + move.move);
    }
    return visits;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Search, TheTreeIsKept) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  search.options().expand_visits = 1;
  const auto first = search.run(ConnectFour(), {.iterations = 10000});
  const ConnectFour next = after<ConnectFour>({first.moves[0].move});
  search.advance(first.moves[0].move);
  const auto second = search.run(next, {.iterations = 1});
  uint64_t visits = 0;
  for (const auto& move : second.moves) visits += move.visits;
  // The visits of the move are kept, except those before it had a node.
  EXPECT_GE(visits + 3, first.moves[0].visits);
  EXPECT_EQ(second.player, 1);
  check_conservation(search, second);
  // A search of another position does not use the tree.
  const auto third = search.run(after<ConnectFour>({0, 0, 0}), {.iterations = 1});
  visits = 0;
  for (const auto& move : third.moves) visits += move.visits;
  EXPECT_EQ(visits, 1u);
}

// Pondering: a search of the position after the program's move, until the opponent has moved. The
// next search keeps the visits that pondering gave to the opponent's move.
TEST_P(ByThreads, WhatWasPonderedIsKept) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  search.options().expand_visits = 1;
  ConnectFour game;
  auto result = search.run(game, {.iterations = 5000});
  game.play(result.moves[0].move);
  search.advance(result.moves[0].move);
  const uint64_t known = result.moves[0].visits;
  std::atomic<bool> stop{false};
  const auto pondered = search.run(
      game, {}, &stop, [&](const auto& so_far) { stop = so_far.iterations >= 5000; }, 0.001);
  EXPECT_GE(pondered.iterations, 5000u);
  uint64_t visits = 0;
  for (const auto& move : pondered.moves) visits += move.visits;
  EXPECT_GE(visits + 1, known + pondered.iterations);
  const auto reply = pondered.moves[0];
  game.play(reply.move);
  search.advance(reply.move);
  const auto answer = search.run(game, {.iterations = 1});
  visits = 0;
  for (const auto& move : answer.moves) visits += move.visits;
  // The visit of the move from before it had a node is not in its node; this search adds one visit.
  EXPECT_EQ(visits, reply.visits);
}

TEST(Search, StopsWhenTold) {
  const auto host = local_host(2);
  Search<ConnectFour> search(*host);
  std::atomic<bool> stop{true};
  auto result = search.run(ConnectFour(), {}, &stop);
  EXPECT_FALSE(result.moves.empty());
  // The progress callback stops the search at its second report.
  stop = false;
  int reports = 0;
  result = search.run(
      ConnectFour(), {}, &stop,
      [&](const SearchResult<ConnectFour::Move>& so_far) {
        EXPECT_EQ(so_far.moves.size(), 7u);
        if (++reports == 2) stop = true;
      },
      0.001);
  EXPECT_EQ(reports, 2);
  check_conservation(search, result);
}

// A game whose playouts request the end of the search.
class Stopping : public ConnectFour {
 public:
  float playout(Random& random) const {
    if (++playouts == 1000) stop = true;
    return ConnectFour::playout(random);
  }
  static inline std::atomic<bool> stop{false};
  static inline int playouts = 0;
};

// After a stop request, one worker completes at most the rest of its slice of rollouts, on a tree
// of any size.
TEST(Search, FewRolloutsFollowAStop) {
  const auto host = local_host(1);
  Search<Stopping> search(*host);
  for (int i = 0; i < 20; ++i) {
    Stopping::stop = false;
    Stopping::playouts = 0;
    const auto result = search.run(Stopping(), {}, &Stopping::stop);
    EXPECT_GE(Stopping::playouts, 1000);
    EXPECT_LT(Stopping::playouts, 1000 + 8);
    EXPECT_EQ(result.iterations, result.processes[0].completions);
  }
}

// A collection runs in small steps, and a search may end between two of them. The nodes that were
// freed by then stay free, and the tree is consistent.
TEST(Search, ACollectionCanBeInterrupted) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  search.options().expand_visits = 0;
  search.options().memory_bytes = uint64_t{1} << 30;
  static_cast<void>(search.run(ConnectFour(), {.iterations = 8000}));
  SearchProcess<ConnectFour>& process = process_of(search);
  LocalTree<ConnectFour>& tree = process.tree();
  SearchOptions options = search.options();
  options.memory_bytes = tree.live_bytes();
  static_cast<void>(process.command(CommandKind::kBegin, options));
  const auto nodes = [&] {
    uint64_t count = 0;
    tree.for_each_node([&](const auto&) { ++count; });
    return count;
  };
  const uint64_t before = nodes();
  ASSERT_TRUE(process.command(CommandKind::kCollect, options)[0].collecting);
  EXPECT_LT(nodes(), before);
  EXPECT_GT(nodes(), before / 2);
  static_cast<void>(process.command(CommandKind::kCollected, options));
  check_nodes(tree);
  check_conservation(search, search.run(ConnectFour(), {.iterations = 1000}));
  static_cast<void>(process.command(CommandKind::kBegin, options));
  while (process.command(CommandKind::kCollect, options)[0].collecting) {
  }
  static_cast<void>(process.command(CommandKind::kCollected, options));
  EXPECT_LE(tree.live_bytes(), options.memory_bytes / 2);
  EXPECT_GT(nodes(), 1000u);
  check_nodes(tree);
}

TEST(Search, TimeIsALimit) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  search.options().stop_when_safe = false;
  const auto result = search.run(ConnectFour(), {.seconds = 0.02});
  EXPECT_GE(result.seconds, 0.02);
  EXPECT_EQ(result.moves.size(), 7u);  // even if no rollout completed in time
}

// Limits beyond the range of a signed number do not prevent the search from running.
TEST(Search, HugeLimitsOfIterations) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  for (const uint64_t limit : {uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX}) {
    std::atomic<bool> stop{false};
    // The limit of the time ends a search that begins no rollout.
    const auto result = search.run(
        ConnectFour(), {.seconds = 60, .iterations = limit}, &stop,
        [&](const auto& so_far) { stop = so_far.iterations > 0; }, 0.001);
    EXPECT_GT(result.iterations, 0u) << limit;
    check_conservation(search, result);
  }
}

// As the time that is left of a budget may be.
TEST(Search, NegativeTimeEndsAtOnce) {
  const auto host = local_host(1);
  Search<ConnectFour> search(*host);
  const auto result = search.run(ConnectFour(), {.seconds = -1, .iterations = 100'000'000});
  EXPECT_LT(result.iterations, 1'000'000u);
  EXPECT_EQ(result.moves.size(), 7u);
}

// Two searches of one host have one tree at a time, that of the last run.
TEST(Search, AnotherSearchOfTheHostReplacesTheTree) {
  const auto host = local_host(1);
  Search<TicTacToe> first(*host);
  Search<TicTacToe> second(*host);
  const auto game = after<TicTacToe>({0});
  const auto other = after<TicTacToe>({4, 0, 8});
  static_cast<void>(first.run(game, {.iterations = 500}));
  EXPECT_EQ(first.position(), game);
  static_cast<void>(second.run(other, {.iterations = 500}));
  EXPECT_EQ(second.position(), other);
  EXPECT_EQ(first.position(), std::nullopt);
  first.advance(1);  // has no tree: does nothing
  EXPECT_EQ(second.position(), other);
  const auto again = first.run(game, {.iterations = 500});
  EXPECT_EQ(again.moves.size(), 8u);
  for (const auto& move : again.moves) EXPECT_NE(move.move, 0);
  EXPECT_EQ(second.position(), std::nullopt);
}

// Players of a match with a type each, so that they keep their trees (docs/mcts.md).
template <int kPlayer>
struct PlayersGame : ConnectFour {};

TEST(Search, TypesOfAGameHaveATreeEach) {
  const auto host = local_host(1);
  Search<PlayersGame<0>> first(*host);
  Search<PlayersGame<1>> second(*host);
  first.options().expand_visits = 1;
  second.options().expand_visits = 1;
  ConnectFour game;
  const auto opening = first.run(PlayersGame<0>{game}, {.iterations = 10000});
  game.play(opening.moves[0].move);
  first.advance(opening.moves[0].move);
  const auto answer = second.run(PlayersGame<1>{game}, {.iterations = 10000});
  EXPECT_EQ(answer.iterations, 10000u);
  EXPECT_EQ(first.position(), PlayersGame<0>{game});
  EXPECT_EQ(second.position(), PlayersGame<1>{game});
  game.play(answer.moves[0].move);
  first.advance(answer.moves[0].move);
  EXPECT_EQ(first.position(), PlayersGame<0>{game});
  const auto next = first.run(PlayersGame<0>{game}, {.iterations = 1});
  uint64_t visits = 0;
  for (const auto& move : next.moves) visits += move.visits;
  EXPECT_GT(visits, 1u) << "the visits of its first search are kept";
  check_conservation(first, next);
}

TEST_P(ByThreads, AProgressThatThrowsEndsTheSearch) {
  const auto host = local_host(GetParam());
  Search<ConnectFour> search(*host);
  const auto fail = [](const auto&) { throw std::runtime_error("no terminal"); };
  // The next position is another one, so the nodes of the search that ended are freed.
  for (const int column : {0, 1, 2, 3, 4, 5}) {
    const auto game = after<ConnectFour>({column});
    EXPECT_THROW(static_cast<void>(search.run(game, {}, nullptr, fail, 0.01)), std::runtime_error);
    const auto result = search.run(after<ConnectFour>({column, 6}), {.iterations = 1000});
    EXPECT_EQ(result.iterations, 1000u);
    check_conservation(search, result);
  }
}

// Move 0 wins in each playout, but leads to a forced loss, which shows when `refuted` is set. The
// other two moves are equal.
class LateRefutation {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;
  static inline std::atomic<bool> refuted;

  [[nodiscard]] int to_move() const { return static_cast<int>(played_ & 1); }
  int moves(std::span<Move> out) const {
    const int count = played_ == 0 ? 3 : 1;
    for (int i = 0; i < count; ++i) out[i] = static_cast<Move>(i);
    return count;
  }
  void play(Move move) {
    if (played_++ == 0) first_ = move;
  }
  [[nodiscard]] std::optional<float> result() const {
    return played_ > 1 && first_ == 0 && refuted ? std::optional(0.0F) : std::nullopt;
  }
  float playout(Random&) const { return first_ == 0 ? 1.0F : 0.5F; }
  friend bool operator==(const LateRefutation&, const LateRefutation&) = default;

 private:
  uint32_t played_ = 0;
  uint32_t first_ = 0;
};

// The refuted move has most of the visits, but no rollout will choose it any more: the choice
// between the others is not safe before the end of the time.
TEST(Search, ARefutedMoveDoesNotEndTheSearch) {
  const auto host = local_host(1);
  Search<LateRefutation> search(*host);
  search.options().expand_visits = 1000;
  LateRefutation::refuted = false;
  // Shortly before the lead of move 0 is safe. On a busy machine the search may end before: then it
  // is repeated.
  const auto refute = [&](const auto& report) {
    const auto lead = static_cast<double>(report.moves[0].visits - report.moves[1].visits);
    const double rate = static_cast<double>(report.iterations) / report.seconds;
    if (lead < rate * (1 - report.seconds) || LateRefutation::refuted) return;
    LateRefutation::refuted = true;
  };
  SearchResult<uint8_t> result;
  for (int attempt = 0; attempt < 20 && !LateRefutation::refuted; ++attempt) {
    search.clear();
    result = search.run(LateRefutation(), {.seconds = 1}, nullptr, refute, 0.01);
  }
  ASSERT_TRUE(LateRefutation::refuted);
  EXPECT_EQ(result.moves.back().verdict, Verdict::kLoses);
  EXPECT_GT(result.seconds, 0.9);
}

}  // namespace
}  // namespace cariama::mcts
