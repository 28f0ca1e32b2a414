// error: cariama: a game needs: using Move = ..., a trivially copyable type with == and a default
// constructor
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  struct Move {};
#else
  using Move = example::ConnectFour::Move;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
