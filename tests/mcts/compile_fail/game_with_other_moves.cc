// error: cariama: a game needs: int moves(std::span<Move> out) const
#include <vector>

#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  std::vector<Move> moves() const { return {}; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
