// error: cariama: the game's key is not: uint64_t key() const
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  uint64_t key(int) const { return 0; }
#else
  uint64_t key() const { return 0; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
