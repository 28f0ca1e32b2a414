// error: cariama: a game with chance has no AMAF ids, since no player owns an outcome: remove
// kAmafIds and amaf_id
#include "docs/examples/connect_four.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
  [[nodiscard]] bool is_chance() const { return false; }
  [[nodiscard]] float probability(Move) const { return 1; }
#ifdef CARIAMA_MUST_NOT_COMPILE
  static constexpr int kAmafIds = 7;
  static int amaf_id(Move column) { return column; }
  float playout(Random& random, Owned<7>&) const { return example::ConnectFour::playout(random); }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
