// error: cariama: a game is a trivially copyable class that is not final
#include <string>

#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  std::string name;
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
