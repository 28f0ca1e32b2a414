// error: cariama: a game needs: static constexpr int kMaxMoves, above 0
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  int kMaxMoves = 7;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
