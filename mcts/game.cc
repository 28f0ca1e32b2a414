#include "mcts/game.h"

#include <stdexcept>

#include "absl/strings/str_format.h"

namespace cariama::mcts::internal {

void refuse_value(const char* function, float value) {
  throw std::runtime_error(
      absl::StrFormat("the game's %s returned %.9g: return a number from 0 to 1", function, value));
}

void refuse_prior(const char* function, float prior, int move, int moves) {
  throw std::runtime_error(absl::StrFormat(
      "the game's %s wrote the prior %.9g for move %d of %d: write finite priors of 0 "
      "or more",
      function, prior, move, moves));
}

void refuse_probabilities(int outcomes, double sum) {
  throw std::runtime_error(absl::StrFormat(
      "the game's probability() returned numbers with the sum %.9g for the %d outcomes "
      "of a chance position: their sum must be 1",
      sum, outcomes));
}

void refuse_player(int player, int players) {
  throw std::runtime_error(absl::StrFormat(
      "the game's to_move() returned %d: return the player to move, 0 to %d", player, players - 1));
}

void refuse_count(const char* function, int count, int most) {
  throw std::runtime_error(
      absl::StrFormat("the game's %s returned %d moves: it may return 0 to kMaxMoves, which is %d; "
                      "if it wrote that many, it has overwritten memory",
                      function, count, most));
}

void refuse_expansion() {
  throw std::runtime_error(
      "the game's expand() changed a position into a chance position: keep the player to move");
}

}  // namespace cariama::mcts::internal
