// error: cariama: a game with AMAF needs: float playout(Random&, Owned<kAmafIds>&) const (or
// Playouts, or value())
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static constexpr int kAmafIds = 1;
  static int amaf_id(Move) { return 0; }
#else
  static constexpr int kAmafIds = 1;
  static int amaf_id(Move) { return 0; }
  float playout(Random&, Owned<kAmafIds>&) const { return 0.5F; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
