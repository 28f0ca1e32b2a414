// error: cariama: a game needs: std::optional<float> result() const
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  void result() const {}
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
