// error: cariama: the game's expand is not: int expand(std::span<Candidate<Move>> out)
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  int expand(std::span<Move>) { return 0; }
#else
  int expand(std::span<Candidate<Move>>) { return 0; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
