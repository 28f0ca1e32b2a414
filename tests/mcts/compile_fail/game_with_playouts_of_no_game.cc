// error: cariama: the game's Playouts lacks: Playouts(const G&, Random&)
#include "mcts/game.h"
#include "docs/examples/connect_four.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
  struct Playouts {
#ifdef CARIAMA_MUST_NOT_COMPILE
    explicit Playouts(Random&) {}
#else
    Playouts(const Example&, Random&) {}
#endif
    float run(const Example&, std::optional<Move>, Random&) { return 0.5F; }
  };
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
