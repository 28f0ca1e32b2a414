// mcts::Random: the random numbers that a search gives to the functions of a game.
#ifndef CARIAMA_MCTS_RANDOM_H_
#define CARIAMA_MCTS_RANDOM_H_

#include "dtutils/random.h"  // IWYU pragma: export

namespace cariama::mcts {

using cariama::Random;

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_RANDOM_H_
