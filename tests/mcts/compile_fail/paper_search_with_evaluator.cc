// error: cariama: PaperSearch runs playouts, so its game has no Evaluator: use Search
#include <span>

#include "docs/examples/connect_four.h"
#include "mcts/evaluator.h"
#include "mcts/paper/paper_search.h"

namespace cariama::mcts {

struct Network;
struct Example : example::ConnectFour {
#ifdef CARIAMA_MUST_NOT_COMPILE
  using Evaluator = Network;
#endif
};
struct Network {
  void evaluate(std::span<Evaluation<Example>> batch);
};
static_assert(sizeof(PaperSearch<Example>) > 0);

}  // namespace cariama::mcts
