// The interface that a user of this layer implements: a sequential game for two players. The game
// type deals with no message, thread, tree node or lock. The same type is searched by one thread
// or by a cluster.
//
//   struct Nim {                                       // two players, 0 and 1
//     using Move = uint8_t;                            // any small trivially copyable type
//     static constexpr int kMaxMoves = 3;              // most legal moves that a position has
//     int to_move() const { return player; }
//     int moves(std::span<Move> out) const;            // writes the legal moves, returns the count
//     void play(Move move);                            // makes a move of to_move()
//     std::optional<float> result() const;             // for player 0: 1 won, 0 lost, 0.5 drawn;
//                                                      //   nullopt if the game has not ended
//     float playout(mcts::Random& random) const;       // plays to the end, returns the result
//     ...
//   };
//   static_assert(mcts::Game<Nim>);
//
// A state is a trivially copyable value without pointers. The framework copies it byte by byte into
// tree nodes and to other processes. Requires: a position without result() has at least one move.
//
// Optional members. A concept detects each of them; the search uses it if the game has it:
//
//   static constexpr int kAmafIds;                     // AMAF/RAVE statistics: each move has an id
//   static int amaf_id(Move);                          //   0 .. kAmafIds - 1; a playout returns
//   float playout(Random&, Owned<kAmafIds>&) const;    //   the ids that each player owned at the
//                                                      //   end
//   int expand(std::span<Candidate<Move>> out);        // replaces moves(): adds priors, verdicts;
//                                                      //   omits moves that need not be tried; may
//                                                      //   replace the state by a simpler one with
//                                                      //   the same game-theoretic value
//   void refine(std::span<Candidate<Move>> inout, int level) const;
//                                                      // adds verdicts to the moves of a node with
//                                                      //   many visits. May take longer than
//                                                      //   expand() (level 0), or much longer
//                                                      //   (level 1)
//   float value() const;                               // replaces playouts: the estimated result
//                                                      //   for player 0, 0 .. 1
//   class Playouts;                                    // playouts with scratch memory, one object
//                                                      //   per thread:
//                                                      //   Playouts(const G&, Random&); float
//                                                      //   run(const G&, optional<Move> last,
//                                                      //   Random&, Owned<kAmafIds>*)
//   uint64_t key() const;                              // equal for equal positions with the same
//                                                      //   player to move, different for different
//                                                      //   positions. Used for placement by hash
//                                                      //   and for transpositions
#ifndef CARIAMA_MCTS_GAME_H_
#define CARIAMA_MCTS_GAME_H_

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "mcts/random.h"

namespace cariama::mcts {

// The AMAF ids that each player owned at the end of a playout. An id may belong to neither player.
// Takes 16 bytes per 64 ids.
template <int kIds>
struct Owned {
  static constexpr int kWords = kIds > 0 ? (kIds + 63) / 64 : 1;
  uint64_t words[2][kWords] = {};

  void set(int player, int id) { words[player][id >> 6] |= uint64_t{1} << (id & 63); }
  [[nodiscard]] bool test(int player, int id) const {
    return (words[player][id >> 6] >> (id & 63) & 1) != 0;
  }
};

// The proved result of a move, from the view of the player that makes the move.
enum class Verdict : uint8_t {
  kOpen,    // nothing is proved
  kWins,    // the player wins with perfect play
  kLoses,   // the opponent wins with perfect play
  kDraws,   // a draw with perfect play
  kPruned,  // not searched: another move, which is not pruned, is at least as good
};

// A move that a node offers to the selection.
template <typename Move>
struct Candidate {
  Move move{};
  float prior = 0;  // estimated quality, 0 .. 1. The priors of a node need not add up to 1.
  Verdict verdict = Verdict::kOpen;
};

template <typename G>
concept Game = std::is_trivially_copyable_v<G> && std::is_trivially_copyable_v<typename G::Move> &&
    std::equality_comparable<typename G::Move> &&
    requires(G game, const G& position, typename G::Move move, std::span<typename G::Move> moves) {
  { G::kMaxMoves } -> std::convertible_to<int>;
  { position.to_move() } -> std::convertible_to<int>;
  { position.moves(moves) } -> std::convertible_to<int>;
  game.play(move);
  { position.result() } -> std::convertible_to<std::optional<float>>;
};

// The concepts that detect the optional members.
template <typename G>
concept HasAmaf = requires(typename G::Move move) {
  { G::kAmafIds } -> std::convertible_to<int>;
  { G::amaf_id(move) } -> std::convertible_to<int>;
};
template <typename G>
concept HasExpand = requires(G game, std::span<Candidate<typename G::Move>> out) {
  { game.expand(out) } -> std::convertible_to<int>;
};
template <typename G>
concept HasRefine = requires(const G& game, std::span<Candidate<typename G::Move>> moves) {
  game.refine(moves, 0);
};
// Number of refinement levels. refine() runs once per node and level.
constexpr int kRefinements = 2;
template <typename G>
concept HasValue = requires(const G& game) {
  { game.value() } -> std::convertible_to<float>;
};
template <typename G>
concept HasKey = requires(const G& game) {
  { game.key() } -> std::convertible_to<uint64_t>;
};
template <typename G>
concept HasPlayouts = requires {
  typename G::Playouts;
};

template <typename G>
constexpr int amaf_ids() {
  if constexpr (HasAmaf<G>) return G::kAmafIds;
  return 0;
}

// The result of one playout.
template <typename G>
struct Sample {
  Owned<amaf_ids<G>()> owned;
  float value = 0;  // for player 0
};
template <typename G>
requires(!HasAmaf<G>) struct Sample<G> {
  float value = 0;  // for player 0
};

namespace internal {

// Runs playouts for one thread by the member that the game has: value(), playout() or Playouts.
template <typename G>
class PlayoutRunner {
 public:
  PlayoutRunner(const G&, Random&) {}
  Sample<G> run(const G& position, std::optional<typename G::Move>, Random& random) {
    Sample<G> sample;
    if constexpr (HasValue<G>) {
      sample.value = position.value();
    } else if constexpr (HasAmaf<G>) {
      sample.value = position.playout(random, sample.owned);
    } else {
      sample.value = position.playout(random);
    }
    return sample;
  }
};
template <typename G>
requires HasPlayouts<G>
class PlayoutRunner<G> {
 public:
  PlayoutRunner(const G& position, Random& random) : playouts_(position, random) {}
  Sample<G> run(const G& position, std::optional<typename G::Move> last, Random& random) {
    Sample<G> sample;
    if constexpr (HasAmaf<G>) {
      sample.value = playouts_.run(position, last, random, &sample.owned);
    } else {
      sample.value = playouts_.run(position, last, random);
    }
    return sample;
  }

 private:
  typename G::Playouts playouts_;
};

// Writes the moves of a new node to `out` and returns their number. simplify: expand() may change
// `position` and omit moves. If simplify is false, all legal moves are listed, `position` keeps its
// value, and only the priors of expand() are used.
template <typename G>
int list_moves(G& position, std::span<Candidate<typename G::Move>> out, bool simplify) {
  if constexpr (HasExpand<G>) {
    if (simplify) return position.expand(out);
  }
  typename G::Move moves[G::kMaxMoves];
  const int count = position.moves(moves);
  for (int i = 0; i < count; ++i) out[i] = {moves[i]};
  if constexpr (HasExpand<G>) {
    G simplified = position;
    Candidate<typename G::Move> known[G::kMaxMoves];
    const int kept = simplified.expand(known);
    for (int i = 0; i < count; ++i) {
      for (int k = 0; k < kept; ++k) {
        if (known[k].move == out[i].move) out[i].prior = known[k].prior;
      }
    }
  }
  return count;
}

}  // namespace internal
}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_GAME_H_
