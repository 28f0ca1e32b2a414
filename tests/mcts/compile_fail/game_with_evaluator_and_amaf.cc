// error: cariama: a game with an Evaluator runs no playouts, so it has no AMAF ids
#include "mcts/game.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {

struct Network;
struct Example : testing::TicTacToe {
#ifdef CARIAMA_MUST_NOT_COMPILE
  using Evaluator = Network;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
