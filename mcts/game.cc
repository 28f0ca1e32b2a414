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

}  // namespace cariama::mcts::internal
