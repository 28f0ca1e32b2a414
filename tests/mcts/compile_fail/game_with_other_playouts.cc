// error: cariama: the game's Playouts lacks: float run(const G&, std::optional<Move> last, Random&)
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  struct Playouts {
    Playouts(const Example&, Random&) {}
    float run(const Example&, Random&) { return 0.5F; }
  };
#else
  struct Playouts {
    Playouts(const Example&, Random&) {}
    float run(const Example&, std::optional<Move>, Random&) { return 0.5F; }
  };
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
