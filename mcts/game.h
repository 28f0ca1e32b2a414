// The interface that a user of this layer implements: a sequential game, for two players or another
// number (More than two players). The game type deals with no message, thread, tree node or lock.
// The same type is searched by one thread or by a cluster.
//
//   struct Nim {                                       // two players, 0 and 1
//     using Move = uint8_t;                            // any small trivially copyable type
//     static constexpr int kMaxMoves = 3;              // most legal moves, or outcomes of chance,
//                                                      //   that a position has: at most 65520. A
//                                                      //   node is sent to other
//                                                      //   processes only if it fits into a call:
//                                                      //   about 40 bytes and a Move for each of
//                                                      //   its moves, up to 31 KiB. The first
//                                                      //   node that does not fit is reported
//     int to_move() const { return player; }
//     int moves(std::span<Move> out) const;            // writes the legal moves, returns the count
//     void play(Move move);                            // makes a move of to_move()
//     std::optional<float> result() const;             // for player 0: 1 won, 0 lost, 0.5 drawn,
//                                                      //   or another value between 0 and 1;
//                                                      //   nullopt if the game has not ended
//     float playout(mcts::Random& random) const;       // plays to the end, returns the result
//     ...
//   };
//   static_assert(mcts::Game<Nim>);                    // one error for each member that is missing
//
// A state is a trivially copyable value without pointers. The framework copies it byte by byte into
// tree nodes and to other processes. Requires: a position without result() has at least one move.
// After expand() it has at least one move that is not kPruned. The search does not check this: it
// takes a position without moves for a proved draw, and one with pruned moves only for a loss of
// the player to move; with kPlayers both for a draw, with the value 0.5 for each player. A chance
// position without outcomes is an error, as wrong probabilities. `out` has kMaxMoves elements;
// moves() and expand() must not write more.
//
// A node that does not fit into a call gets no copy. If it is the root, the other processes get no
// shares of its rollouts. The search needs up to kMaxMoves * (sizeof(Move) + 2 *
// sizeof(Candidate<Move>)) bytes of stack.
//
// More than two players. With kPlayers = N the players are 0 to N - 1, and each value is a
// std::array<float, N> with the value for each player: that of result(), playout(), Playouts::run()
// and value(), and Evaluation::value. In each position the search chooses the move with the best
// value for to_move() (max^n: Luckhardt, Irani 1986). to_move() alone says whose turn it is, so an
// eliminated player has no more turns. The search proves only the wins of the player to move. A win
// is a result that is 1 for one player and 0 for all others; a position is won if a move leads to a
// win, or to a position that the same player has to move in and wins. So the search uses only the
// verdicts kWins and kPruned. kPlayers = 1 is a puzzle.
//
// Chance. A game with dice or cards has chance positions: nature makes the next move, not a player.
// The moves() of a chance position are its outcomes. The search chooses them by probability(): the
// value of the position is the expected one (expectimax). At a chance position the search calls
// is_chance(), moves(), probability(), play(), result(), key() and playouts, and no other function:
// to_move() may return any number there, expand(), refine() and value() are not called, and an
// evaluator gets no such position. expand() must not change another position into a chance
// position. A search cannot begin at a chance position. A playout draws the outcomes that it meets
// itself, from `random`, by their probabilities; the search does not check these draws. Chance
// positions may follow each other.
//
// What the game guarantees:
//  - Threads. The workers of all processes call the functions at the same time, each on an object
//    of its own or on a const object that several threads share. So const functions, static
//    functions and constructors write no memory that threads share. Only `random` makes results
//    differ.
//  - Determinism. For equal states, all functions but the playouts return the same in all
//    processes: the same moves in the same order, the same priors, the same verdicts of expand().
//    refine() may prove more at another time, but verdicts never contradict each other. A prior
//    that it writes depends only on the state, the move, the level and the prior before.
//  - Order of moves. The result of a search for one seed depends on it. A move appears at most
//    once.
//  - Cost. A new node takes one play(), and one call of moves() or expand() (the root, and every
//    node of the paper's design, of both). A rollout takes one play(), and a playout, a call of
//    value(), or both, whatever the depth of the tree. A new node of a chance position takes one
//    probability() for each outcome. With value() or an evaluator, a rollout that ends at a chance
//    position takes these and a play() for each chance position until a player moves. No function
//    blocks. A worker runs no calls during a function: other processes wait for it, and the search
//    ends only after it.
//  - Values. result(), playout() and value() return numbers from 0 to 1, within 0.00001. In a
//    position with moves to_move() returns 0 or 1, with kPlayers 0 to kPlayers - 1. Priors are
//    finite, 0 or more. The probabilities of the outcomes of a chance position add up to 1, within
//    0.001. Any other number, and a NaN, is an error: the search ends with an exception that names
//    the function and the number. The values of a position with kPlayers need not add up to 1.
//  - No function throws. An exception ends the search (Search::run(), Host::serve()).
//
// Optional members. A concept detects each of them; the search uses it if the game has it:
//
//   static constexpr int kPlayers;                     // 1 to 16, 2 without this member; see More
//                                                      //   than two players. Not with PaperSearch
//   static constexpr int kAmafIds;                     // AMAF/RAVE statistics: each move has an id
//   static int amaf_id(Move);                          //   0 .. kAmafIds - 1; a playout returns
//   float playout(Random&, Owned<kAmafIds>&) const;    //   the ids that each player owned at the
//                                                      //   end. With kPlayers:
//                                                      //   Owned<kAmafIds, kPlayers>
//   int expand(std::span<Candidate<Move>> out);        // replaces moves(): adds priors, verdicts;
//                                                      //   omits moves that need not be tried; may
//                                                      //   replace the state by a simpler one with
//                                                      //   the same game-theoretic value
//   void refine(std::span<Candidate<Move>> moves, std::span<Verdict> verdicts,
//               int level) const;                      // adds verdicts to the moves of a node with
//                                                      //   many visits, and may change their
//                                                      //   `prior`: the other members of `moves`
//                                                      //   are only read. May take longer than
//                                                      //   expand() (level 0), or much longer
//                                                      //   (level 1). A game that changes no
//                                                      //   priors takes const candidates
//   float value() const;                               // the estimated result for player 0,
//                                                      //   0 .. 1. A game with value() needs no
//                                                      //   playouts. If it has playouts, too,
//                                                      //   the result of a rollout is their mean,
//                                                      //   weighted by SearchOptions::value_weight
//   class Playouts;                                    // playouts with scratch memory, one object
//                                                      //   per thread:
//                                                      //   Playouts(const G&, Random&); float
//                                                      //   run(const G&, optional<Move> last,
//                                                      //   Random&), with AMAF also
//                                                      //   Owned<kAmafIds>*. `last` is the move
//                                                      //   or outcome before the position
//   using Evaluator = ...;                             // a class that computes values and priors
//                                                      //   of batches of positions, for example
//                                                      //   a network (evaluator.h). It replaces
//                                                      //   the playouts, value(), and the priors
//                                                      //   of expand(). Not with AMAF
//   bool is_chance() const;                            // true: nature makes the next move; see
//                                                      //   Chance. Not with AMAF or PaperSearch
//   float probability(Move outcome) const;             // of an outcome of moves(), 0 .. 1
//   uint64_t key() const;                              // equal for equal positions with the same
//                                                      //   player to move; of a chance position
//                                                      //   another one than of all positions in
//                                                      //   which a player moves. A good 64-bit
//                                                      //   hash: with transpositions, two
//                                                      //   positions with one key share a node, so
//                                                      //   the search may be wrong. Also for
//                                                      //   placement by hash
#ifndef CARIAMA_MCTS_GAME_H_
#define CARIAMA_MCTS_GAME_H_

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include "mcts/export.h"
#include "mcts/random.h"
#include "mcts/values.h"

namespace cariama::mcts {

// The AMAF ids that each player owned at the end of a playout. An id may belong to no player. Takes
// 8 bytes per player and 64 ids.
template <int kIds, int kOwners = 2>
struct Owned {
  static constexpr int kWords = kIds > 0 ? (kIds + 63) / 64 : 1;
  uint64_t words[kOwners][kWords] = {};

  void set(int player, int id) { words[player][id >> 6] |= uint64_t{1} << (id & 63); }
  [[nodiscard]] bool test(int player, int id) const {
    return (words[player][id >> 6] >> (id & 63) & 1) != 0;
  }
};

// The proved result of a move, from the view of the player that makes the move. With kPlayers the
// search takes kLoses and kDraws for kOpen.
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

// Limit of Game::kMaxMoves. A node counts its moves, padded to a multiple of 16, in 16 bits.
constexpr int kMostMoves = 65520;

// Number of refinement levels. refine() runs once per node and level.
constexpr int kRefinements = 2;

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
concept HasRefine = requires(const G& game, std::span<Candidate<typename G::Move>> moves,
                             std::span<Verdict> verdicts) {
  game.refine(moves, verdicts, 0);
};
// The game's refine() may change priors: its moves are not const.
template <typename G>
concept RefinesPriors =
    HasRefine<G> && !requires(const G& game, std::span<const Candidate<typename G::Move>> moves,
                              std::span<Verdict> verdicts) {
  game.refine(moves, verdicts, 0);
};
template <typename G>
concept HasValue = requires(const G& game) {
  { game.value() } -> std::convertible_to<ValueOf<G>>;
};
template <typename G>
concept HasKey = requires(const G& game) {
  { game.key() } -> std::convertible_to<uint64_t>;
};
template <typename G>
concept HasChance = requires(const G& game, typename G::Move outcome) {
  { game.is_chance() } -> std::convertible_to<bool>;
  { game.probability(outcome) } -> std::convertible_to<float>;
};
template <typename G>
concept HasEvaluator = requires {
  typename G::Evaluator;
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
  Owned<amaf_ids<G>(), players<G>()> owned;
  ValueOf<G> value{};
};
template <typename G>
requires(!HasAmaf<G>) struct Sample<G> {
  ValueOf<G> value{};
};

namespace internal {

// Returns true if nature makes the next move: false in games without chance.
template <typename G>
[[nodiscard]] constexpr bool is_chance(const G& position) {
  if constexpr (HasChance<G>) {
    return position.is_chance();
  } else {
    return false;
  }
}

template <typename G>
concept HasMove = requires(typename G::Move move) {
  requires std::is_trivially_copyable_v<typename G::Move>;
  requires std::default_initializable<typename G::Move>;
  requires std::equality_comparable<typename G::Move>;
};
template <typename G>
concept HasMaxMoves = requires {
  requires std::bool_constant<(G::kMaxMoves > 0)>::value;  // a value that is no constant is none
};
template <typename G>
concept HasToMove = requires(const G& position) {
  { position.to_move() } -> std::convertible_to<int>;
};
template <typename G>
concept HasMoves = requires(const G& position, std::span<typename G::Move> out) {
  { position.moves(out) } -> std::convertible_to<int>;
};
template <typename G>
concept HasPlay = requires(G position, typename G::Move move) {
  position.play(move);
};
template <typename G>
concept HasResult = requires(const G& position) {
  { position.result() } -> std::convertible_to<std::optional<ValueOf<G>>>;
};
template <typename G>
concept HasPlayout = requires(const G& position, Random& random) {
  { position.playout(random) } -> std::convertible_to<ValueOf<G>>;
};
template <typename G>
concept HasAmafPlayout = requires(const G& position, Random& random,
                                  Owned<G::kAmafIds, players<G>()>& owned) {
  { position.playout(random, owned) } -> std::convertible_to<ValueOf<G>>;
};
template <typename G>
concept MakesPlayouts = std::constructible_from<typename G::Playouts, const G&, Random&>;
template <typename G>
concept RunsPlayouts = requires(typename G::Playouts& playouts, const G& position,
                                std::optional<typename G::Move> last, Random& random) {
  { playouts.run(position, last, random) } -> std::convertible_to<ValueOf<G>>;
};
template <typename G>
concept RunsAmafPlayouts = requires(typename G::Playouts& playouts, const G& position,
                                    std::optional<typename G::Move> last, Random& random,
                                    Owned<G::kAmafIds, players<G>()>* owned) {
  { playouts.run(position, last, random, owned) } -> std::convertible_to<ValueOf<G>>;
};

// Detects a member by its name alone, whatever its type: if G has a member of this name, the name
// is ambiguous in the class that also derives from Names. G must not be final.
struct Names {
  void playout();
  void expand();
  void refine();
  void value();
  void is_chance();
  void probability();
  void key();
  void amaf_id();
  void kAmafIds();  // NOLINT(readability-identifier-naming): the name of a member of G
  void kPlayers();  // NOLINT(readability-identifier-naming): the name of a member of G
};
template <typename G>
struct BothNames : G, Names {};
template <typename G>
concept NamesPlayout = !requires {
  &BothNames<G>::playout;
};
template <typename G>
concept NamesExpand = !requires {
  &BothNames<G>::expand;
};
template <typename G>
concept NamesRefine = !requires {
  &BothNames<G>::refine;
};
template <typename G>
concept NamesValue = !requires {
  &BothNames<G>::value;
};
template <typename G>
concept NamesChance = !requires {
  &BothNames<G>::is_chance;
}
|| !requires { &BothNames<G>::probability; };
template <typename G>
concept NamesKey = !requires {
  &BothNames<G>::key;
};
template <typename G>
concept NamesAmaf = !requires {
  &BothNames<G>::amaf_id;
}
|| !requires { &BothNames<G>::kAmafIds; };
template <typename G>
concept NamesPlayers = !requires {
  &BothNames<G>::kPlayers;
};

// Returns true if the game has playouts that a search can call.
template <typename G>
consteval bool has_some_playout() {
  if constexpr (HasPlayouts<G>) {
    return true;
  } else if constexpr (HasAmaf<G>) {
    return HasAmafPlayout<G>;
  } else {
    return HasPlayout<G>;
  }
}

// Returns true if each function of the game that returns a value returns a ValueOf<G>.
template <typename G>
consteval bool returns_values() {
  if constexpr (!HasResult<G> || (NamesValue<G> && !HasValue<G>)) {
    return false;
  } else if constexpr (HasPlayouts<G>) {
    if constexpr (HasAmaf<G>) {
      return RunsAmafPlayouts<G>;
    } else {
      return RunsPlayouts<G>;
    }
  } else {
    return !NamesPlayout<G> || has_some_playout<G>();
  }
}

// Checks the optional members: one that the search would ignore, since its signature is another
// one, is an error.
template <typename G>
consteval bool check_hooks() {
  static_assert(!NamesAmaf<G> || HasAmaf<G>,
                "cariama: a game with AMAF needs: static constexpr int kAmafIds and static int "
                "amaf_id(Move)");
  static_assert(!NamesExpand<G> || HasExpand<G>,
                "cariama: the game's expand is not: int expand(std::span<Candidate<Move>> out)");
  static_assert(!NamesRefine<G> || HasRefine<G>,
                "cariama: the game's refine is not: void refine(std::span<Candidate<Move>> moves, "
                "std::span<Verdict> verdicts, int level) const");
  static_assert(!NamesValue<G> || HasValue<G>,
                "cariama: the game's value is not: float value() const");
  static_assert(!NamesChance<G> || HasChance<G>,
                "cariama: a game with chance needs: bool is_chance() const and float "
                "probability(Move outcome) const");
  static_assert(!HasChance<G> || !HasAmaf<G>,
                "cariama: a game with chance has no AMAF ids, since no player owns an outcome: "
                "remove kAmafIds and amaf_id");
  static_assert(!NamesKey<G> || HasKey<G>, "cariama: the game's key is not: uint64_t key() const");
  static_assert(
      !HasValue<G> || !NamesPlayout<G> || has_some_playout<G>(),
      "cariama: the game's playout is not: float playout(Random&) const (with AMAF: float "
      "playout(Random&, Owned<kAmafIds>&) const)");
  static_assert(!HasEvaluator<G> || !HasAmaf<G>,
                "cariama: a game with an Evaluator runs no playouts, so it has no AMAF ids: remove "
                "kAmafIds and amaf_id");
  if constexpr (HasPlayouts<G>) {
    static_assert(MakesPlayouts<G>,
                  "cariama: the game's Playouts lacks: Playouts(const G&, Random&)");
    if constexpr (HasAmaf<G>) {
      static_assert(RunsAmafPlayouts<G>,
                    "cariama: the game's Playouts lacks: float run(const G&, std::optional<Move> "
                    "last, Random&, Owned<kAmafIds>*)");
    } else {
      static_assert(RunsPlayouts<G>,
                    "cariama: the game's Playouts lacks: float run(const G&, std::optional<Move> "
                    "last, Random&)");
    }
  } else if constexpr (HasAmaf<G>) {
    static_assert(HasValue<G> || HasAmafPlayout<G>,
                  "cariama: a game with AMAF needs: float playout(Random&, Owned<kAmafIds>&) "
                  "const (or Playouts, or value())");
  } else {
    static_assert(HasValue<G> || HasPlayout<G> || HasEvaluator<G>,
                  "cariama: a game needs: float playout(Random&) const (or Playouts, value() or "
                  "Evaluator)");
  }
  return true;
}
// Checks all members that a search calls. Each one that is missing, or that has another signature,
// is one error, which names it. Always returns true: otherwise the caller would add an error that
// names nothing.
template <typename G>
consteval bool check_game() {
  constexpr bool kState =
      std::is_class_v<G> && std::is_trivially_copyable_v<G> && !std::is_final_v<G>;
  static_assert(kState, "cariama: a game is a trivially copyable class that is not final");
  static_assert(HasMove<G>,
                "cariama: a game needs: using Move = ..., a trivially copyable type with == and a "
                "default constructor");
  if constexpr (kState && HasMove<G>) {
    static_assert(HasMaxMoves<G>, "cariama: a game needs: static constexpr int kMaxMoves, above 0");
    if constexpr (HasMaxMoves<G>) {
      static_assert(G::kMaxMoves <= kMostMoves,
                    "cariama: the game's kMaxMoves is above 65520, the most moves of a node");
    }
    static_assert(HasToMove<G>, "cariama: a game needs: int to_move() const");
    static_assert(HasMoves<G>, "cariama: a game needs: int moves(std::span<Move> out) const");
    static_assert(HasPlay<G>, "cariama: a game needs: void play(Move move)");
    static_assert(!NamesPlayers<G> || HasPlayers<G>,
                  "cariama: the game's kPlayers is not: static constexpr int kPlayers, 1 to 16");
    if constexpr (NamesPlayers<G> && !HasPlayers<G>) {
      return true;  // the values may be right for the number that is meant
    } else if constexpr (kTwoPlayers<G>) {
      static_assert(HasResult<G>, "cariama: a game needs: std::optional<float> result() const");
      return check_hooks<G>();
    } else {
      static_assert(returns_values<G>(),
                    "cariama: in a game with kPlayers the values of result() (std::optional), "
                    "playout(), Playouts::run() and value() are std::array<float, kPlayers>, and "
                    "the ids that players own are Owned<kAmafIds, kPlayers>");
      if constexpr (returns_values<G>()) return check_hooks<G>();
    }
  }
  return true;
}

}  // namespace internal

// A type that can be searched. If it lacks a member, the compiler's first error names the member
// and its signature.
template <typename G>
concept Game = internal::check_game<G>();

namespace internal {

// Throw std::runtime_error: a function of the game, `function`, returned or wrote a number out of
// range.
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_value(const char* function, float value);
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_prior(const char* function, float prior, int move,
                                                   int moves);
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_probabilities(int outcomes, double sum);
// Throw std::runtime_error: to_move() has returned that player; `function` of the game has returned
// that number of moves.
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_player(int player, int players);
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_count(const char* function, int count, int most);
// Throws std::runtime_error: expand() has changed a position into a chance position.
[[noreturn]] CARIAMA_MCTS_EXPORT void refuse_expansion();

// Returns a value that a function of the game has returned, and the nearest number from 0 to 1 if
// the difference is a rounding error. Throws std::runtime_error if it is not from 0 to 1.
[[nodiscard]] inline float checked_value(const char* function, float value) {
  constexpr float kRounding = 1e-5F;
  if (!(value >= 0 && value <= 1)) [[unlikely]] {  // a NaN fulfils no condition
    if (!(value >= -kRounding && value <= 1 + kRounding)) refuse_value(function, value);
    return value < 0 ? 0.0F : 1.0F;
  }
  return value;
}
// As checked_value(), for the value for each player.
template <typename G>
[[nodiscard]] ValueOf<G> checked_values(const char* function, ValueOf<G> value) {
  for (float& one : numbers_of(value)) one = checked_value(function, one);
  return value;
}
// Returns result() of the position. Throws std::runtime_error if it is not from 0 to 1.
template <typename G>
[[nodiscard]] std::optional<ValueOf<G>> checked_result(const G& position) {
  std::optional<ValueOf<G>> result = position.result();
  if (result) result = checked_values<G>("result()", *result);
  return result;
}
// Returns true if to_move() may return this number.
template <typename G>
[[nodiscard]] constexpr bool is_player(int player) {
  return player >= 0 && player < players<G>();
}
// Returns the player to move, or 0 if to_move() returns no player in a position without moves.
// Throws std::runtime_error if it does so in a position with moves.
template <typename G>
[[nodiscard]] uint8_t checked_player(const G& position, bool has_moves) {
  const auto player = static_cast<int>(position.to_move());
  if (is_player<G>(player)) [[likely]]
    return static_cast<uint8_t>(player);
  if (has_moves) refuse_player(player, players<G>());
  return 0;
}
// Throws std::runtime_error if a prior is not a finite number of 0 or more.
template <typename Move>
void check_priors(const char* function, std::span<const Candidate<Move>> moves) {
  for (size_t i = 0; i < moves.size(); ++i) {
    const float prior = moves[i].prior;
    if (!(prior >= 0 && prior <= std::numeric_limits<float>::max())) [[unlikely]]
      refuse_prior(function, prior, static_cast<int>(i), static_cast<int>(moves.size()));
  }
}

// Runs playouts for one thread by the member that the game has: playout() or Playouts.
template <typename G>
class PlayoutRunner {
 public:
  PlayoutRunner(const G&, Random&) {}
  Sample<G> run(const G& position, std::optional<typename G::Move>, Random& random) {
    Sample<G> sample;
    if constexpr (HasAmaf<G>) {
      sample.value = position.playout(random, sample.owned);
    } else {
      sample.value = position.playout(random);
    }
    sample.value = checked_values<G>("playout()", sample.value);
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
    sample.value = checked_values<G>("Playouts::run()", sample.value);
    return sample;
  }

 private:
  typename G::Playouts playouts_;
};

// Evaluates positions for one thread: by playouts, by value(), or by the weighted mean of both.
template <typename G>
class Evaluator {
 public:
  // value_weight: SearchOptions::value_weight. No effect in games that have only one of both.
  Evaluator(const G& position, Random& random, double value_weight)
      : playouts_(position, random),
        value_weight_(!HasValue<G>            ? 0
                      : has_some_playout<G>() ? static_cast<float>(value_weight)
                                              : 1) {}

  // Calls add(const Sample<G>&) for `count` evaluations of a position. value() is called once,
  // since it always returns the same. With the weight 1 of value() the samples own no AMAF ids.
  template <typename Add>
  void run(const G& position, std::optional<typename G::Move> last, Random& random, uint32_t count,
           Add&& add) {
    [[maybe_unused]] ValueOf<G> value{};
    if constexpr (HasValue<G>) {
      if (value_weight_ > 0) value = checked_values<G>("value()", position.value());
    }
    for (uint32_t i = 0; i < count; ++i) {
      Sample<G> sample;
      if constexpr (!has_some_playout<G>()) {
        sample.value = value;
      } else if constexpr (!HasValue<G>) {
        sample = playouts_.run(position, last, random);
      } else {
        if (value_weight_ < 1) sample = playouts_.run(position, last, random);
        const auto to = numbers_of(sample.value);
        const auto from = numbers_of(value);
        for (size_t k = 0; k < to.size(); ++k) {
          to[k] = (1 - value_weight_) * to[k] + value_weight_ * from[k];
        }
      }
      add(sample);
    }
  }

 private:
  PlayoutRunner<G> playouts_;
  float value_weight_;
};

// Returns `count`, the number of moves that `function` of the game has returned. Throws
// std::runtime_error if it is not from 0 to `most`.
[[nodiscard]] inline int checked_count(const char* function, int count, int most) {
  if (count < 0 || count > most) [[unlikely]]
    refuse_count(function, count, most);
  return count;
}

// Writes the moves of a position to `out` and returns their number. Throws std::runtime_error if
// the game returned another number than it can.
template <typename G>
int checked_moves(const G& position, std::span<typename G::Move> out) {
  return checked_count("moves()", position.moves(out), G::kMaxMoves);
}

// Calls expand(). Throws std::runtime_error if it writes a prior out of range that the search uses.
template <typename G>
requires HasExpand<G>
int checked_expand(G& position, std::span<Candidate<typename G::Move>> out) {
  const int count = checked_count("expand()", position.expand(out), static_cast<int>(out.size()));
  if (is_chance(position) && !position.result()) refuse_expansion();
  if constexpr (!HasEvaluator<G>) {  // the evaluator replaces the priors
    check_priors<typename G::Move>("expand()", out.first(static_cast<size_t>(count)));
  }
  return count;
}

// Writes the outcomes of a chance position to `out`, with their probabilities as priors. Returns
// their number. Throws std::runtime_error if these are no probabilities.
template <typename G>
requires HasChance<G>
int list_outcomes(const G& position, std::span<Candidate<typename G::Move>> out) {
  typename G::Move moves[G::kMaxMoves];
  const int count = checked_moves(position, std::span(moves));
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    out[i] = {moves[i], checked_value("probability()", position.probability(moves[i]))};
    sum += double{out[i].prior};
  }
  if (!(sum >= 1 - 1e-3 && sum <= 1 + 1e-3)) refuse_probabilities(count, sum);
  for (int i = 0; i < count; ++i) out[i].prior = static_cast<float>(out[i].prior / sum);
  return count;
}

// Writes the moves of a new node to `out` and returns their number. simplify: expand() may change
// `position` and omit moves. If simplify is false, all legal moves are listed, `position` keeps its
// value, and only the priors of expand() are used. The moves of a chance position are its outcomes.
template <typename G>
int list_moves(G& position, std::span<Candidate<typename G::Move>> out, bool simplify) {
  if constexpr (HasChance<G>) {
    if (position.is_chance()) return list_outcomes(position, out);
  }
  if constexpr (HasExpand<G>) {
    if (simplify) return checked_expand(position, out);
  }
  typename G::Move moves[G::kMaxMoves];
  const int count = checked_moves(position, std::span(moves));
  for (int i = 0; i < count; ++i) out[i] = {moves[i]};
  if constexpr (HasExpand<G>) {
    G simplified = position;
    Candidate<typename G::Move> known[G::kMaxMoves];
    const int kept = checked_expand(simplified, std::span(known));
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
