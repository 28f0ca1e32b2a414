// error: cariama: the game's kMaxMoves is above 65520, the most moves of a node
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static constexpr int kMaxMoves = 65521;
#else
  static constexpr int kMaxMoves = 65520;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
