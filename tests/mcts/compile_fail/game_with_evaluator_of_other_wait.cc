// error: cariama: the wait of the game's Evaluator is not: void wait(std::chrono::microseconds
// most)
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "docs/examples/connect_four.h"
#include "mcts/engine/evaluations.h"

namespace cariama::mcts {

struct Network;
struct Example : example::ConnectFour {
  using Evaluator = Network;
};
struct Network {
  void submit(uint64_t token, std::span<Evaluation<Example>> batch);
  std::optional<uint64_t> poll();
#ifdef CARIAMA_MUST_NOT_COMPILE
  void wait(const char* most);
#else
  void wait(std::chrono::microseconds most);
#endif
};
static_assert(sizeof(Evaluations<Example>) > 0);

}  // namespace cariama::mcts
