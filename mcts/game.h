// What a user of this layer writes: a sequential game. No message, thread, node or lock is ever
// seen by it; the same type is searched by one thread or by a cluster.
//
//   struct Nim {                                       // two players, 0 and 1
//     using Move = uint8_t;                            // also: any small trivially copyable type
//     static constexpr int kMaxMoves = 3;              // legal moves in any position, at most
//     int to_move() const { return player; }
//     int moves(std::span<Move> out) const;            // writes them, returns how many
//     void play(Move move);                            // of to_move()
//     std::optional<float> result() const;             // for player 0: 1 won, 0 lost, 0.5 drawn
//     float playout(mcts::Random& random) const;       // plays on to the end: its result
//     ...
//   };
//   static_assert(mcts::Game<Nim>);
//
// A state is a trivially copyable value without pointers: it is copied into tree nodes and to other
// processes, byte by byte. A position without result() has at least one move.
//
// Optional members, each found by a concept and used when it is there:
//
//   static constexpr int kAmafIds;                     // AMAF/RAVE statistics: moves have numbers
//   static int amaf_id(Move);                          //   0 .. kAmafIds - 1, and a playout says
//   float playout(Random&, Owned<kAmafIds>&) const;    //   which of them each player got
//   int expand(std::span<Candidate<Move>> out);        // instead of moves(): with priors, without
//                                                      //   what need not be tried, with verdicts;
//                                                      //   may simplify the state, soundly
//   void refine(std::span<Candidate<Move>> inout, int level) const;  // the same later, for nodes
//                                                      //   that are visited often: may cost more
//                                                      //   (level 0), and even more (1)
//   float value() const;                               // instead of playouts: 0 .. 1, player 0's
//   class Playouts;                                    // a thread's scratch memory for playouts:
//                                                      //   Playouts(const G&, Random&); float
//                                                      //   run(const G&, optional<Move> last,
//                                                      //   Random&, Owned<kAmafIds>*)
//   uint64_t key() const;                              // equal for equal positions (with the same
//                                                      //   player to move), else different:
//                                                      //   placement by hash, transpositions
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

// Which ids each player owned at the end of a playout; an id may be nobody's. 16 bytes for each 64
// ids.
template <int kIds>
struct Owned {
  static constexpr int kWords = kIds > 0 ? (kIds + 63) / 64 : 1;
  uint64_t words[2][kWords] = {};

  void set(int player, int id) { words[player][id >> 6] |= uint64_t{1} << (id & 63); }
  [[nodiscard]] bool test(int player, int id) const {
    return (words[player][id >> 6] >> (id & 63) & 1) != 0;
  }
};

// What is known of a move for certain, as seen by the player who makes it.
enum class Verdict : uint8_t {
  kOpen,    // nothing
  kWins,    //
  kLoses,   //
  kDraws,   //
  kPruned,  // another move that is not pruned is at least as good
};

// A move that a node offers.
template <typename Move>
struct Candidate {
  Move move{};
  float prior = 0;  // 0 .. 1: how good it looks at first sight; of all moves together, any sum
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

// The hooks.
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
constexpr int kRefinements = 2;  // of a node
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

// What one playout tells.
template <typename G>
struct Sample {
  Owned<amaf_ids<G>()> owned;
  float value = 0;  // of player 0
};
template <typename G>
requires(!HasAmaf<G>) struct Sample<G> {
  float value = 0;
};

namespace internal {

// A thread's means to play out, whichever hook the game has.
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

// The moves of a new node. `simplify`: whether expand() may change the state and leave moves out.
// If not, nothing but its priors is used.
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
