#include "mcts/game.h"

#include <stdexcept>
#include <string>

namespace cariama::mcts::internal {

void refuse_value(const char* function, float value) {
  throw std::runtime_error(std::string("the game's ") + function + " returned " +
                           std::to_string(value) + ": return a number from 0 to 1");
}

void refuse_prior(const char* function, float prior, int move, int moves) {
  throw std::runtime_error(std::string("the game's ") + function + " wrote the prior " +
                           std::to_string(prior) + " for move " + std::to_string(move) + " of " +
                           std::to_string(moves) + ": write finite priors of 0 or more");
}

void refuse_probabilities(int outcomes, double sum) {
  throw std::runtime_error("the game's probability() returned numbers with the sum " +
                           std::to_string(sum) + " for the " + std::to_string(outcomes) +
                           " outcomes of a chance position: their sum must be 1");
}

void refuse_expansion() {
  throw std::runtime_error(
      "the game's expand() changed a position into a chance position: keep the player to move");
}

}  // namespace cariama::mcts::internal
