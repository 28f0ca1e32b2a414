// error: cariama: a game with chance needs: bool is_chance() const and float
// probability(Move outcome) const
#include "docs/examples/connect_four.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
  [[nodiscard]] bool is_chance() const { return false; }
#ifndef CARIAMA_MUST_NOT_COMPILE
  [[nodiscard]] float probability(Move) const { return 1; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
