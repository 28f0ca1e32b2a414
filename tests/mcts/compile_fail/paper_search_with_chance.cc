// error: cariama: PaperSearch has no chance positions: use Search for a game with chance
#include "docs/examples/connect_four.h"
#include "mcts/paper/paper_search.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  [[nodiscard]] bool is_chance() const { return false; }
  [[nodiscard]] float probability(Move) const { return 1; }
#endif
};
static_assert(sizeof(PaperSearch<Example>) > 0);

}  // namespace cariama::mcts
