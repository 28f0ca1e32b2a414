// error: cariama: the game's Playouts lacks: float run(const G&, std::optional<Move> last, Random&,
// Owned<kAmafIds>*)
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
  static constexpr int kAmafIds = 14;
  static int amaf_id(Move move) { return move; }
  struct Playouts {
    Playouts(const Example&, Random&) {}
#ifdef CARIAMA_MUST_NOT_COMPILE
    float run(const Example&, std::optional<Move>, Random&) { return 0.5F; }
#else
    float run(const Example&, std::optional<Move>, Random&, Owned<kAmafIds>*) { return 0.5F; }
#endif
  };
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
