#include "mcts/engine/root_noise.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

namespace cariama::mcts {
namespace {

// Returns a number above 0, at most 1.
double uniform(Random& random) { return static_cast<double>((random.next() >> 11) + 1) * 0x1p-53; }

// Box and Muller 1958.
double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// Returns the logarithm of a sample of the gamma distribution with this shape (Marsaglia and Tsang
// 2000). The samples of small shapes are below the smallest double, their logarithms are not.
double log_gamma_sample(double shape, Random& random) {
  if (shape < 1) {
    const double larger = log_gamma_sample(shape + 1, random);
    return larger + std::log(uniform(random)) / shape;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(uniform(random)) < x * x / 2 + d * (1 - v + std::log(v))) return std::log(d * v);
  }
}

}  // namespace

void sample_dirichlet(std::span<double> out, double concentration, Random& random) {
  if (out.empty()) return;
  for (double& one : out) one = log_gamma_sample(concentration, random);
  const double most = *std::max_element(out.begin(), out.end());
  for (double& one : out) one = std::exp(one - most);
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& one : out) one /= sum;
}

void mix_noise(std::span<float> priors, const RootNoise& noise, Random& random) {
  if (noise.fraction == 0) return;
  double sum = std::accumulate(priors.begin(), priors.end(), 0.0);
  if (sum == 0) {
    sum = 1;
    std::fill(priors.begin(), priors.end(), 1.0F / static_cast<float>(priors.size()));
  }
  std::vector<double> sample(priors.size());
  sample_dirichlet(sample, noise.concentration, random);
  for (size_t i = 0; i < priors.size(); ++i) {
    priors[i] = static_cast<float>((1 - noise.fraction) * double{priors[i]} +
                                   noise.fraction * sum * sample[i]);
  }
}

}  // namespace cariama::mcts
