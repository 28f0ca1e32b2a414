// error: cariama: a game needs: float playout(Random&) const (or Playouts, value() or Evaluator)
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
 private:
  using BasicConnectFour::playout;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
