// error: cariama: in a game with kPlayers the values of result() (std::optional), playout(),
// Playouts::run() and value() are std::array<float, kPlayers>, and the ids that players own are
// Owned<kAmafIds, kPlayers>
#include <array>
#include <optional>

#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
  static constexpr int kPlayers = 3;
  std::optional<std::array<float, 3>> result() const { return std::nullopt; }
#ifdef CARIAMA_MUST_NOT_COMPILE
  std::array<float, 2> playout(Random&) const { return {}; }
#else
  std::array<float, 3> playout(Random&) const { return {}; }
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
