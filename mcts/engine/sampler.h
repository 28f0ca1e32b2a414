// Sampler: the value of a position without a node, by playouts, value(), or the mean of both.
#ifndef CARIAMA_MCTS_ENGINE_SAMPLER_H_
#define CARIAMA_MCTS_ENGINE_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mcts/game.h"
#include "mcts/options.h"
#include "mcts/random.h"
#include "mcts/values.h"

namespace cariama::mcts {

// Not thread-safe: only its worker uses it.
template <Game G>
class Sampler {
 public:
  // Frees the scratch memory of the playouts.
  void reset() { evaluator_.reset(); }

  // Returns the mean value of options.playouts_per_leaf samples of a position. last: the move or
  // outcome before the position. before: the position of the node in which the rollout has ended;
  // the first one after reset() initializes the scratch memory.
  [[nodiscard]] internal::SumOf<G> run(const G& position, typename G::Move last, const G& before,
                                       Random& random, const SearchOptions& options) {
    if (!evaluator_) evaluator_.emplace(before, random, options.value_weight);
    samples_.clear();
    internal::SumOf<G> sum{};
    const uint32_t count = options.playouts_per_leaf;
    evaluator_->run(position, last, random, count, [&](const Sample<G>& sample) {
      samples_.push_back(sample);
      internal::add_value<G>(sum, sample.value);
    });
    for (double& one : internal::numbers_of(sum)) one /= count;
    return sum;
  }
  // Returns the samples of the last run().
  [[nodiscard]] std::span<const Sample<G>> samples() const { return samples_; }

 private:
  std::optional<internal::Evaluator<G>> evaluator_;
  std::vector<Sample<G>> samples_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_SAMPLER_H_
