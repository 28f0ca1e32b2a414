// Games of other than two players, and their solution by exhaustive search.
#ifndef CARIAMA_TESTS_MCTS_TESTING_PLAYERS_GAMES_H_
#define CARIAMA_TESTS_MCTS_TESTING_PLAYERS_GAMES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

// Returns the value of a position for each player, if each one chooses the move that is best for
// this player (max^n), by exhaustive search. Requires: moves that are equally good for the player
// that makes them have the same values for all players.
template <typename G>
std::array<double, size_t{G::kPlayers}> solve_for_all(const G& position) {
  std::array<double, size_t{G::kPlayers}> solved{};
  if (const auto end = position.result()) {
    for (size_t i = 0; i < solved.size(); ++i) solved[i] = double{(*end)[i]};
    return solved;
  }
  typename G::Move moves[G::kMaxMoves];
  const int count = position.moves(moves);
  for (int k = 0; k < count; ++k) {
    G next = position;
    next.play(moves[k]);
    const auto below = solve_for_all(next);
    if constexpr (HasChance<G>) {
      if (position.is_chance()) {
        const double share{position.probability(moves[k])};
        for (size_t i = 0; i < solved.size(); ++i) solved[i] += share * below[i];
        continue;
      }
    }
    const auto mover = static_cast<size_t>(position.to_move());
    if (k == 0 || below[mover] > solved[mover]) solved = below;
  }
  return solved;
}

// Four or more plies of three moves each, without a win. The solution is constructed from the root
// down: one move of each position keeps the values of the position. The other two reduce the value
// for the player to move to three fifths, and give new values to the other players. After some
// moves the next player is eliminated, if two are left then.
template <int kN>
class PayoffTree {
 public:
  using Move = uint8_t;
  static constexpr int kPlayers = kN;
  static constexpr int kMaxMoves = 3;
  using Values = std::array<float, size_t{kN}>;

  explicit PayoffTree(uint32_t number = 0, uint32_t plies = 6, bool eliminates = false)
      : number_(number), plies_(plies), player_(number % kN), eliminates_(eliminates ? 1 : 0) {
    for (uint32_t i = 0; i < kN; ++i) values_[i] = some_value(i);
  }

  [[nodiscard]] int to_move() const { return static_cast<int>(player_); }
  int moves(std::span<Move> out) const {
    for (Move move = 0; move < kMaxMoves; ++move) out[move] = move;
    return kMaxMoves;
  }
  void play(Move move) {
    const bool best = move == best_move();
    path_ = 4 * path_ + move;
    ++played_;
    for (uint32_t i = 0; i < kN && !best; ++i) {
      values_[i] = i == player_ ? 0.6F * values_[i] : some_value(i);
    }
    const uint32_t next = (player_ + 1) % kN;
    if (eliminates_ != 0 && hash(100) % 3 == 0 &&
        std::popcount(eliminated_ | 1U << next) < kN - 1) {
      eliminated_ |= 1U << next;
    }
    do {
      player_ = (player_ + 1) % kN;
    } while ((eliminated_ >> player_ & 1) != 0);
  }
  [[nodiscard]] std::optional<Values> result() const {
    return played_ < plies_ ? std::nullopt : std::optional(values_);
  }
  Values playout(Random& random) const {
    PayoffTree game = *this;
    while (!game.result()) game.play(static_cast<Move>(random.below(kMaxMoves)));
    return game.values_;
  }

  [[nodiscard]] Move best_move() const { return static_cast<Move>(hash(101) % kMaxMoves); }
  // The values with perfect play.
  [[nodiscard]] const Values& solution() const { return values_; }
  [[nodiscard]] uint32_t eliminated() const { return eliminated_; }

  friend bool operator==(const PayoffTree&, const PayoffTree&) = default;

 private:
  [[nodiscard]] uint64_t hash(uint64_t part) const {
    return Random::mix(Random::mix(uint64_t{number_} << 32 | part) ^ path_);
  }
  // Returns a number from 0.55 to 0.95.
  [[nodiscard]] float some_value(uint64_t player) const {
    return 0.55F + static_cast<float>(hash(player) % 1000) * 0.0004F;
  }

  uint32_t number_;
  uint32_t plies_;
  uint32_t path_ = 1;
  uint32_t played_ = 0;
  uint32_t player_;
  uint32_t eliminated_ = 0;  // a bit for each player
  uint32_t eliminates_;
  Values values_{};
};
static_assert(Game<PayoffTree<3>> && Game<PayoffTree<1>>);

// Five players take one or two stones from a heap in turn. The one that takes the last stone wins.
struct Heap {
  using Move = uint8_t;
  static constexpr int kPlayers = 5;
  static constexpr int kMaxMoves = 2;
  using Values = std::array<float, size_t{kPlayers}>;

  [[nodiscard]] int to_move() const { return player; }
  int moves(std::span<Move> out) const {
    out[0] = 1;
    if (stones > 1) out[1] = 2;
    return stones > 1 ? 2 : 1;
  }
  void play(Move move) {
    stones -= move;
    player = (player + 1) % kPlayers;
  }
  [[nodiscard]] std::optional<Values> result() const {
    if (stones > 0) return std::nullopt;
    Values values{};
    values[static_cast<size_t>((player + kPlayers - 1) % kPlayers)] = 1;
    return values;
  }
  Values playout(Random& random) const {
    Heap game = *this;
    while (!game.result()) {
      Move all[kMaxMoves];
      const int count = game.moves(all);
      game.play(all[random.below(static_cast<uint32_t>(count))]);
    }
    return *game.result();
  }
  friend bool operator==(const Heap&, const Heap&) = default;

  int stones = 0;
  int player = 0;
};
static_assert(Game<Heap>);

// With AMAF ids. Its playouts own none.
struct OwnedHeap : Heap {
  static constexpr int kAmafIds = 2;
  static int amaf_id(Move move) { return move - 1; }
  Values playout(Random& random, Owned<kAmafIds, kPlayers>&) const { return Heap::playout(random); }
};
static_assert(Game<OwnedHeap>);

// Three players: one chooses one of three moves, a die with three faces is thrown, and another one
// chooses one of two moves. There are no playouts: value() is the solution.
class DieForThree {
 public:
  using Move = uint8_t;
  static constexpr int kPlayers = 3;
  static constexpr int kMaxMoves = 3;
  using Values = std::array<float, size_t{kPlayers}>;

  explicit DieForThree(uint32_t number = 0) : number_(number) {}

  [[nodiscard]] bool is_chance() const { return played_ == 1; }
  [[nodiscard]] float probability(Move face) const {
    constexpr float kShares[] = {0.5F, 0.3F, 0.2F};
    return kShares[face];
  }
  [[nodiscard]] int to_move() const { return played_ == 0 ? 1 : 2; }
  int moves(std::span<Move> out) const {
    const Move count = played_ == 2 ? 2 : 3;
    for (Move move = 0; move < count; ++move) out[move] = move;
    return count;
  }
  void play(Move move) {
    path_ = 4 * path_ + move;
    ++played_;
  }
  [[nodiscard]] std::optional<Values> result() const {
    if (played_ < 3) return std::nullopt;
    Values values{};
    for (uint64_t i = 0; i < values.size(); ++i) {
      const uint64_t hash = Random::mix(Random::mix(uint64_t{number_} << 32 | i) ^ path_);
      values[i] = 0.05F + static_cast<float>(hash % 1000) * 0.0009F;
    }
    return values;
  }
  [[nodiscard]] Values value() const {
    const auto solved = solve_for_all(*this);
    Values values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(solved[i]);
    return values;
  }
  friend bool operator==(const DieForThree&, const DieForThree&) = default;

 private:
  uint32_t number_;
  uint32_t path_ = 1;
  uint32_t played_ = 0;
};
static_assert(Game<DieForThree> && HasChance<DieForThree>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_PLAYERS_GAMES_H_
