// error: cariama: the game's value is not: float value() const
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  float value = 0;
#else
  float value() const { return 0.5F; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
