// Noise in the priors of the root, so that searches with different seeds try different moves
// (Silver et al. 2017).
#ifndef CARIAMA_MCTS_ENGINE_ROOT_NOISE_H_
#define CARIAMA_MCTS_ENGINE_ROOT_NOISE_H_

#include <span>

#include "mcts/export.h"
#include "mcts/options.h"
#include "mcts/random.h"

namespace cariama::mcts {

// Fills `out` with a sample of the symmetric Dirichlet distribution: random numbers from 0 to 1
// with the sum 1. Requires: concentration is in the range of RootNoise.
void sample_dirichlet(std::span<double> out, double concentration, Random& random);

// Mixes a sample of the Dirichlet distribution into the priors of a node, as RootNoise states.
CARIAMA_MCTS_EXPORT void mix_noise(std::span<float> priors, const RootNoise& noise, Random& random);

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_ROOT_NOISE_H_
