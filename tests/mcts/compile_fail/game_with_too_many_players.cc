// error: cariama: the game's kPlayers is not: static constexpr int kPlayers, 1 to 16
#include <array>
#include <optional>

#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static constexpr int kPlayers = 17;
#else
  static constexpr int kPlayers = 16;
#endif
  using Values = std::array<float, kPlayers>;
  std::optional<Values> result() const { return std::nullopt; }
  Values playout(Random&) const { return {}; }
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
