// error: cariama: the game's refine is not: void refine(std::span<Candidate<Move>> moves,
// std::span<Verdict> verdicts, int level) const
#include "docs/examples/connect_four.h"
#include "mcts/game.h"

namespace cariama::mcts {

struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  void refine(std::span<Candidate<Move>>, int) const {}
#else
  void refine(std::span<const Candidate<Move>>, std::span<Verdict>, int) const {}
#endif
};
static_assert(Game<Example>);

}  // namespace cariama::mcts
