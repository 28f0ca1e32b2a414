// Values, priors and players of a game that are out of range, or NaN, end the search with an error
// that names the function and the number.
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"

namespace cariama::mcts {
namespace {

using ::testing::HasSubstr;
using testing::local_host;

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

enum class Function : uint8_t {
  kNone,
  kResult,
  kPlayout,
  kValue,
  kExpand,
  kRefine,
  kExpandCount,
  kToMove
};

// A game of four plies with three moves each. From the second ply on, one of its functions returns
// or writes a wrong number.
struct WrongGame {
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;

  [[nodiscard]] int to_move() const {
    return static_cast<int>(number(Function::kToMove, static_cast<float>(played % 2)));
  }
  int moves(std::span<Move> out) const {
    for (size_t i = 0; i < kMaxMoves; ++i) out[i] = static_cast<Move>(i);
    return kMaxMoves;
  }
  void play(Move) { ++played; }
  [[nodiscard]] std::optional<float> result() const {
    if (played < 4) return std::nullopt;
    return number(Function::kResult, 0.4F);
  }
  float playout(Random&) const { return number(Function::kPlayout, 0.4F); }
  [[nodiscard]] float value() const { return number(Function::kValue, 0.4F); }
  int expand(std::span<Candidate<Move>> out) const {
    for (Move i = 0; i < kMaxMoves; ++i) out[i] = {i, 0.3F};
    out[1].prior = number(Function::kExpand, 0.3F);
    return static_cast<int>(number(Function::kExpandCount, kMaxMoves));
  }
  void refine(std::span<Candidate<Move>> moves, std::span<Verdict>, int) const {
    moves[2].prior = number(Function::kRefine, 0.3F);
  }

  [[nodiscard]] float number(Function function, float right) const {
    return function == wrong_function && played >= 2 ? wrong_number : right;
  }
  friend bool operator==(const WrongGame&, const WrongGame&) = default;

  Function wrong_function = Function::kNone;
  float wrong_number = 0;
  int played = 0;
};

template <typename SearchType>
std::string error_of(Host& host, const WrongGame& game) {
  SearchType search(host);
  search.options().selection.rule = SelectionRule::kPuct;
  search.options().expand_visits = 2;
  search.options().refine_visits = 4;
  try {
    static_cast<void>(search.run(game, {.iterations = 5000}));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

class OutOfRange : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, OutOfRange, ::testing::Values(1, 2));

TEST_P(OutOfRange, EndsTheSearchWithTheFunctionAndTheNumber) {
  const struct {
    Function function;
    float number;
    const char* text;
  } cases[] = {
      {Function::kNone, kNotANumber, ""},
      // Rounding errors.
      {Function::kResult, 1.0000001F, ""},
      {Function::kPlayout, -1e-7F, ""},
      {Function::kResult, kNotANumber, "the game's result() returned nan"},
      {Function::kResult, 1.5F, "the game's result() returned 1.5"},
      {Function::kPlayout, kNotANumber, "the game's playout() returned nan"},
      {Function::kPlayout, -0.5F, "the game's playout() returned -0.5"},
      {Function::kValue, kNotANumber, "the game's value() returned nan"},
      {Function::kValue, kInfinite, "the game's value() returned inf"},
      {Function::kExpand, kNotANumber, "the game's expand() wrote the prior nan for move 1 of 3"},
      {Function::kExpand, -1, "the game's expand() wrote the prior -1"},
      {Function::kRefine, kNotANumber, "the game's refine() wrote the prior nan for move 2 of 3"},
      {Function::kRefine, kInfinite, "the game's refine() wrote the prior inf"},
      {Function::kExpandCount, 4, "the game's expand() returned 4 moves: it may return 0 to "},
      {Function::kExpandCount, -1, "the game's expand() returned -1 moves"},
      {Function::kToMove, 2, "the game's to_move() returned 2: return the player to move, 0 to 1"},
      {Function::kToMove, -1, "the game's to_move() returned -1"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    for (const int played : {0, 2}) {  // 2: also at the root
      const auto host = local_host(GetParam());
      const std::string error =
          error_of<Search<WrongGame>>(*host, {one.function, one.number, played});
      EXPECT_EQ(error.empty(), *one.text == '\0') << error;
      EXPECT_THAT(error, HasSubstr(one.text));
    }
  }
}

TEST_P(OutOfRange, EndsThePapersSearch) {
  for (const auto& [function, text] : {std::pair(Function::kResult, "the game's result()"),
                                       {Function::kPlayout, "the game's playout()"},
                                       {Function::kValue, "the game's value()"},
                                       {Function::kExpand, "the game's expand()"}}) {
    const auto host = local_host(GetParam());
    EXPECT_THAT(error_of<PaperSearch<WrongGame>>(*host, {function, kNotANumber}), HasSubstr(text));
  }
  const auto host = local_host(GetParam());
  EXPECT_THAT(error_of<PaperSearch<WrongGame>>(*host, {Function::kToMove, 2}),
              HasSubstr("the game's to_move() returned 2"));
}

}  // namespace
}  // namespace cariama::mcts
