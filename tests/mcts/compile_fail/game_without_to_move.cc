// error: cariama: a game needs: int to_move() const
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
 private:
  using BasicConnectFour::to_move;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
