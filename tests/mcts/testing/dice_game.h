// A game with two throws of a die. Player 0 chooses one of three moves, a die is thrown, player 1
// chooses one of three moves, and a die is thrown again. The result is a table of the path. solve()
// and prove() compute the value and the outcome of a position by exhaustive search.
#ifndef CARIAMA_TESTS_MCTS_TESTING_DICE_GAME_H_
#define CARIAMA_TESTS_MCTS_TESTING_DICE_GAME_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/game.h"
#include "mcts/outcome.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

// The results, or what is wrong with the die.
enum class Dice : uint8_t {
  kScores,    // no win, no loss, no draw: nothing can be proved
  kOutcomes,  // wins, losses and draws; equal for all paths after some first moves
  kNaN,
  kNegative,
  kLowSum,
  kNone  // a die without faces
};

class DiceGame {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 5;
  static constexpr int kMoves = 3;
  static constexpr int kFaces = 5;
  static constexpr int kPlies = 4;

  explicit DiceGame(uint32_t number = 0, Dice dice = Dice::kScores)
      : number_(number), dice_(dice) {}

  [[nodiscard]] bool is_chance() const { return played_ < kPlies && played_ % 2 == 1; }
  [[nodiscard]] int to_move() const { return is_chance() ? 200 : played_ / 2 % 2; }
  int moves(std::span<Move> out) const {
    const int count = is_chance() ? (dice_ == Dice::kNone ? 0 : kFaces) : kMoves;
    for (int i = 0; i < count; ++i) out[static_cast<size_t>(i)] = static_cast<Move>(i);
    return count;
  }
  // The last face never occurs.
  [[nodiscard]] float probability(Move face) const {
    constexpr float kShares[kFaces] = {0.05F, 0.5F, 0.15F, 0.3F, 0};
    if (face == 2 && dice_ == Dice::kNaN) return std::numeric_limits<float>::quiet_NaN();
    if (face == 2 && dice_ == Dice::kNegative) return -0.15F;
    if (face == 2 && dice_ == Dice::kLowSum) return 0.1F;
    return kShares[face];
  }
  void play(Move move) {
    path_ = path_ * kMaxMoves + move;
    ++played_;
  }
  int expand(std::span<Candidate<Move>> out) const {
    EXPECT_FALSE(is_chance());
    for (Move i = 0; i < kMoves; ++i) out[i] = {i, 0.5F};
    return kMoves;
  }
  void refine(std::span<Candidate<Move>> moves, std::span<Verdict>, int) const {
    EXPECT_FALSE(is_chance());
    for (auto& one : moves) one.prior = 0.25F;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < kPlies) return std::nullopt;
    if (dice_ == Dice::kOutcomes) {
      const uint64_t first = path_ / (kMaxMoves * kMaxMoves * kMaxMoves);
      const bool equal = table(first, 1) % 3 == 0;
      // An outcome that never occurs differs from the others.
      if (path_ % kMaxMoves == kFaces - 1) return table(path_, 2) % 2 == 0 ? 0.3F : 0.0F;
      constexpr float kResults[] = {0, 1, 1, 0, 0.5F};
      return kResults[table(equal ? first : path_, 3) % 5];
    }
    constexpr float kScores[] = {0.05F, 0.1F, 0.3F, 0.45F, 0.6F, 0.8F, 0.9F, 0.95F};
    return kScores[table(path_, 4) % 8];
  }
  float playout(Random& random) const {
    DiceGame game = *this;
    while (!game.result()) {
      Move move = static_cast<Move>(random.below(kMoves));
      if (game.is_chance()) {
        constexpr Move kTwenty[] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3};
        move = kTwenty[random.below(20)];
      }
      game.play(move);
    }
    return *game.result();
  }
  [[nodiscard]] uint64_t key() const {
    return Random::mix(Random::mix(number_) ^ (uint64_t{played_} << 32 | path_));
  }

  [[nodiscard]] DiceGame after(Move move) const {
    DiceGame next = *this;
    next.play(move);
    return next;
  }
  // Returns the value for player 0 with perfect play.
  [[nodiscard]] double solve() const {
    if (const auto end = result()) return *end;
    if (is_chance()) {
      double sum = 0;
      for (Move face = 0; face < kFaces; ++face) sum += probability(face) * after(face).solve();
      return sum;
    }
    double best = after(0).solve();
    for (Move move = 1; move < kMoves; ++move) {
      const double other = after(move).solve();
      best = to_move() == 0 ? std::max(best, other) : std::min(best, other);
    }
    return best;
  }
  // Returns the outcome that every throw of the dice leads to with perfect play, or kOpen.
  [[nodiscard]] Outcome prove() const {
    if (const auto end = result()) return outcome_of(*end);
    std::vector<Outcome> below;
    for (Move move = 0; move < (is_chance() ? kFaces : kMoves); ++move) {
      if (!is_chance() || probability(move) > 0) below.push_back(after(move).prove());
    }
    const auto all = [&](auto condition) {
      return std::all_of(below.begin(), below.end(), condition);
    };
    if (all([&](Outcome one) { return one == below[0]; })) return below[0];
    if (is_chance()) return Outcome::kOpen;
    const Outcome win = win_of(to_move());
    if (!all([&](Outcome one) { return one != win; })) return win;
    return all([](Outcome one) { return one != Outcome::kOpen; }) ? Outcome::kDraw : Outcome::kOpen;
  }
  friend bool operator==(const DiceGame&, const DiceGame&) = default;

 private:
  [[nodiscard]] uint64_t table(uint64_t path, uint64_t part) const {
    return Random::mix(uint64_t{number_} << 40 | part << 32 | path);
  }

  uint32_t number_;
  uint32_t path_ = 0;
  uint8_t played_ = 0;
  Dice dice_;
  uint16_t unused_ = 0;  // no padding
};
static_assert(Game<DiceGame> && HasChance<DiceGame>);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_DICE_GAME_H_
