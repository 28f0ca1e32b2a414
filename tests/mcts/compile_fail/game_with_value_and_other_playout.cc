// error: cariama: the game's playout is not: float playout(Random&) const (with AMAF: float
// playout(Random&, Owned<kAmafIds>&) const)
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  float playout() const { return 0.5F; }
#endif
  float value() const { return 0.5F; }
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
