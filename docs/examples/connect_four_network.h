// A small network for Connect-Four: an evaluator (mcts/evaluator.h) with one hidden layer. Its
// inputs are the stones of the player to move and those of the opponent; its outputs are a policy
// and a value. The arithmetic is that of integers, so that all machines compute the same but for
// the last bits of exp(). connect_four_network.cc plays with it and trains it.
#ifndef CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_NETWORK_H_
#define CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_NETWORK_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "docs/examples/connect_four.h"
#include "mcts/evaluator.h"

namespace example {

// Weights times kOne. The network with all weights 0 has uniform priors and the value 0.5.
struct Weights {
  static constexpr int kInputs = 84;
  static constexpr int kHidden = 32;
  static constexpr int kOutputs = 8;  // the logits of the seven columns, and of the value
  static constexpr int kOne = 256;

  std::array<std::array<int16_t, kHidden>, kInputs> input{};
  std::array<int16_t, kHidden> hidden_bias{};
  std::array<std::array<int16_t, kHidden>, kOutputs> output{};
  std::array<int16_t, kOutputs> output_bias{};
};

// Calls use(input) for each input of the network that is 1: the others are 0.
template <typename Use>
void for_each_input(const ConnectFour& game, Use&& use) {
  for (int side = 0; side < 2; ++side) {
    const uint64_t stones = game.stones(side == 0 ? game.to_move() : 1 - game.to_move());
    for (int cell = 0; cell < 42; ++cell) {
      if ((stones >> (cell / 6 * 7 + cell % 6) & 1) != 0) use(42 * side + cell);
    }
  }
}

// Returns the outputs of the network for a position.
inline std::array<float, Weights::kOutputs> outputs_of(const Weights& weights,
                                                       const ConnectFour& game) {
  constexpr int64_t kSquare = int64_t{Weights::kOne} * Weights::kOne;
  std::array<int32_t, Weights::kHidden> hidden;
  std::copy(weights.hidden_bias.begin(), weights.hidden_bias.end(), hidden.begin());
  for_each_input(game, [&](int input) {
    for (size_t h = 0; h < hidden.size(); ++h) {
      hidden[h] += weights.input[static_cast<size_t>(input)][h];
    }
  });
  std::array<float, Weights::kOutputs> outputs{};
  for (size_t o = 0; o < outputs.size(); ++o) {
    int64_t sum = int64_t{weights.output_bias[o]} * Weights::kOne;
    for (size_t h = 0; h < hidden.size(); ++h) {
      sum += int64_t{std::max(hidden[h], 0)} * weights.output[o][h];
    }
    outputs[o] = static_cast<float>(sum) / static_cast<float>(kSquare);
  }
  return outputs;
}

// [connect_four_evaluator]
class Network;
struct NetworkConnectFour : ConnectFour {
  using Evaluator = Network;
};

class Network {
 public:
  explicit Network(std::shared_ptr<const Weights> weights) : weights_(std::move(weights)) {}

  void evaluate(std::span<cariama::mcts::Evaluation<NetworkConnectFour>> batch) {
    for (auto& one : batch) {
      const auto logits = outputs_of(*weights_, one.position);
      float most = logits[one.moves[0]];
      for (const auto move : one.moves) most = std::max(most, logits[move]);
      float sum = 0;
      for (size_t i = 0; i < one.moves.size(); ++i) {
        one.priors[i] = std::exp(logits[one.moves[i]] - most);
        sum += one.priors[i];
      }
      for (float& prior : one.priors) prior /= sum;
      const float own = 1 / (1 + std::exp(-logits[7]));  // of the player to move
      one.value = one.position.to_move() == 0 ? own : 1 - own;
    }
  }

 private:
  std::shared_ptr<const Weights> weights_;
};
// [connect_four_evaluator]

// Returns the weights that example_connect_four_network --train has printed.
inline std::shared_ptr<const Weights> trained_weights() {
  static constexpr int16_t kNumbers[] = {
#include "docs/examples/connect_four_weights.inc"
  };
  auto weights = std::make_shared<Weights>();
  const int16_t* from = kNumbers;
  const auto read = [&](std::span<int16_t> to) {
    std::copy_n(from, to.size(), to.begin());
    from += to.size();
  };
  for (auto& row : weights->input) read(row);
  read(weights->hidden_bias);
  for (auto& row : weights->output) read(row);
  read(weights->output_bias);
  static_assert(std::size(kNumbers) * sizeof(int16_t) == sizeof(Weights));
  return weights;
}

}  // namespace example

#endif  // CARIAMA_DOCS_EXAMPLES_CONNECT_FOUR_NETWORK_H_
