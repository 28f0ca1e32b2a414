// error: cariama: the game's Evaluator needs: void evaluate(std::span<Evaluation<G>>)
#include <span>

#include "docs/examples/connect_four.h"
#include "mcts/engine/evaluations.h"

namespace cariama::mcts {

struct Network;
struct Example : example::ConnectFour {
  using Evaluator = Network;
};
struct Network {
#ifdef CARIAMA_MUST_NOT_COMPILE
  void evaluate(const Example& position);
#else
  void evaluate(std::span<Evaluation<Example>> batch);
#endif
};
static_assert(sizeof(Evaluations<Example>) > 0);

}  // namespace cariama::mcts
