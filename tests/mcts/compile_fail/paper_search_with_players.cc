// error: cariama: PaperSearch has two players: use Search for a game with kPlayers
#include <array>
#include <optional>

#include "docs/examples/connect_four.h"
#include "mcts/paper/paper_search.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static constexpr int kPlayers = 3;
  std::optional<std::array<float, 3>> result() const { return std::nullopt; }
  std::array<float, 3> playout(Random&) const { return {}; }
#endif
};
static_assert(sizeof(PaperSearch<Example>) > 0);

}  // namespace cariama::mcts
