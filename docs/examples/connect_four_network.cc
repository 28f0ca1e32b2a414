// Connect-Four with a small network instead of playouts (mcts/evaluator.h).
//
//   example_connect_four_network                     plays a game against itself
//   example_connect_four_network -n 2 -t 2           the same, on two processes of two threads
//   example_connect_four_network --train > docs/examples/connect_four_weights.inc
//                                                    trains the network, in about half a minute:
//                                                    build again to play with the new weights
//
// The training learns from searches with playouts: the network learns to predict how often the
// search visits each move, and how the game ends.
#include "docs/examples/connect_four_network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "docs/examples/options.h"
#include "mcts/program.h"
#include "mcts/search.h"

namespace {

using example::ConnectFour;
using example::Weights;
namespace mcts = cariama::mcts;

struct Example {
  std::vector<int> inputs;
  std::array<float, 7> policy{};
  float value = 0;  // for the player to move
};

// Plays games of a search with playouts against itself, each from a random opening. Adds each
// position and its mirror image.
std::vector<Example> play_games(mcts::Host& host, int games) {
  mcts::Search<ConnectFour> search(host);
  mcts::Random random(1);
  std::vector<Example> examples;
  for (int number = 0; number < games; ++number) {
    ConnectFour game;
    const uint32_t opening = random.below(13);
    for (uint32_t ply = 0; ply < opening && !game.result(); ++ply) {
      uint8_t moves[7];
      game.play(moves[random.below(static_cast<uint32_t>(game.moves(moves)))]);
    }
    const size_t first = examples.size();
    const int first_player = game.to_move();
    while (!game.result()) {
      search.options().seed = random.next();
      const auto found = search.run(game, {.iterations = 800});
      Example one;
      example::for_each_input(game, [&](int input) { one.inputs.push_back(input); });
      const auto& best = found.moves[0];
      const bool proved = found.outcome != mcts::Outcome::kOpen;
      // The visits of a search with UCB differ little, their third powers differ more.
      double sum = 0;
      for (const auto& move : found.moves) sum += std::pow(static_cast<double>(move.visits), 3);
      for (const auto& move : found.moves) {
        const double share = std::pow(static_cast<double>(move.visits), 3) / sum;
        one.policy[move.move] =
            static_cast<float>(proved ? (move.move == best.move ? 1 : 0) : share);
      }
      one.value = static_cast<float>(best.value);
      examples.push_back(one);
      // A move of the search, sometimes another one, so that the games differ.
      const size_t other = random.below(static_cast<uint32_t>(found.moves.size()));
      game.play(random.below(6) == 0 ? found.moves[other].move : best.move);
    }
    const size_t end = examples.size();
    for (size_t i = first; i < end; ++i) {
      const bool zero = (first_player + static_cast<int>(i - first)) % 2 == 0;
      const float won = zero ? *game.result() : 1 - *game.result();
      examples[i].value = 0.5F * examples[i].value + 0.5F * won;
      Example mirrored = examples[i];
      std::reverse(mirrored.policy.begin(), mirrored.policy.end());
      for (int& input : mirrored.inputs) {
        const int cell = input % 42;
        input += (6 - cell / 6) * 6 + cell % 6 - cell;
      }
      examples.push_back(mirrored);
    }
  }
  return examples;
}

// The network while it is trained. Adam (Kingma, Ba 2015): each step follows the gradient of one
// batch, divided by the size of recent gradients.
class Training {
 public:
  Training() {
    mcts::Random random(2);
    for (size_t i = 0; i < kHiddenBias; ++i) at_[i] = scale(random, 0.15F);
    for (size_t i = kOutput; i < kOutputBias; ++i) at_[i] = scale(random, 0.2F);
  }

  // Adds the gradient of one example. Returns the loss.
  float add(const Example& one) {
    std::array<float, Weights::kHidden> hidden;
    for (size_t h = 0; h < kHidden; ++h) hidden[h] = at_[kHiddenBias + h];
    for (const int input : one.inputs) {
      const float* row = &at_[static_cast<size_t>(input) * kHidden];
      for (size_t h = 0; h < kHidden; ++h) hidden[h] += row[h];
    }
    for (float& h : hidden) h = std::max(h, 0.0F);
    std::array<float, 8> logits;
    for (size_t o = 0; o < 8; ++o) {
      logits[o] = at_[kOutputBias + o];
      for (size_t h = 0; h < kHidden; ++h) logits[o] += hidden[h] * at_[kOutput + o * kHidden + h];
    }
    const float most = *std::max_element(logits.begin(), logits.begin() + 7);
    float sum = 0;
    for (size_t o = 0; o < 7; ++o) sum += std::exp(logits[o] - most);
    float loss = 0;
    std::array<float, 8> errors;  // the gradient for the logits
    for (size_t o = 0; o < 7; ++o) {
      const float share = std::exp(logits[o] - most) / sum;
      errors[o] = share - one.policy[o];
      loss -= one.policy[o] * std::log(share + 1e-9F);
    }
    const float value = 1 / (1 + std::exp(-logits[7]));
    errors[7] = 2 * (value - one.value);
    loss += 2 * (value - one.value) * (value - one.value);
    std::array<float, Weights::kHidden> back{};
    for (size_t o = 0; o < 8; ++o) {
      gradient_[kOutputBias + o] += errors[o];
      for (size_t h = 0; h < kHidden; ++h) {
        gradient_[kOutput + o * kHidden + h] += errors[o] * hidden[h];
        if (hidden[h] > 0) back[h] += errors[o] * at_[kOutput + o * kHidden + h];
      }
    }
    for (size_t h = 0; h < kHidden; ++h) gradient_[kHiddenBias + h] += back[h];
    for (const int input : one.inputs) {
      float* row = &gradient_[static_cast<size_t>(input) * kHidden];
      for (size_t h = 0; h < kHidden; ++h) row[h] += back[h];
    }
    return loss;
  }
  void step(float rate, float batch) {
    ++steps_;
    const auto steps = static_cast<float>(steps_);
    const float correction = std::sqrt(1 - std::pow(0.999F, steps)) / (1 - std::pow(0.9F, steps));
    for (size_t i = 0; i < at_.size(); ++i) {
      const float slope = gradient_[i] / batch;
      gradient_[i] = 0;
      mean_[i] = 0.9F * mean_[i] + 0.1F * slope;
      square_[i] = 0.999F * square_[i] + 0.001F * slope * slope;
      at_[i] -= rate * correction * mean_[i] / (std::sqrt(square_[i]) + 1e-8F);
    }
  }
  // Prints the weights for connect_four_weights.inc.
  void print() const {
    std::printf("// Printed by example_connect_four_network --train.\n");
    for (size_t i = 0; i < at_.size(); ++i) {
      const float rounded = std::round(at_[i] * Weights::kOne);
      std::printf("%d,%s", static_cast<int>(std::clamp(rounded, -32767.0F, 32767.0F)),
                  i % 16 == 15 ? "\n" : "");
    }
    std::printf("\n");
  }

 private:
  static constexpr size_t kHidden = Weights::kHidden;
  static constexpr size_t kHiddenBias = Weights::kInputs * kHidden;
  static constexpr size_t kOutput = kHiddenBias + kHidden;
  static constexpr size_t kOutputBias = kOutput + Weights::kOutputs * kHidden;
  static constexpr size_t kAll = kOutputBias + Weights::kOutputs;

  static float scale(mcts::Random& random, float most) {
    return most * (static_cast<float>(random.below(2001)) / 1000 - 1);
  }

  std::vector<float> at_ = std::vector<float>(kAll);
  std::vector<float> gradient_ = std::vector<float>(kAll);
  std::vector<float> mean_ = std::vector<float>(kAll);
  std::vector<float> square_ = std::vector<float>(kAll);
  int steps_ = 0;
};

int train(mcts::Host& host) {
  constexpr int kEpochs = 30;
  constexpr size_t kBatch = 64;
  std::vector<Example> examples = play_games(host, 4000);
  std::fprintf(stderr, "%zu positions\n", examples.size());
  Training training;
  mcts::Random random(3);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    random.shuffle(examples);
    const float rate = 0.003F * (1 - static_cast<float>(epoch) / kEpochs);
    double loss = 0;
    for (size_t i = 0; i < examples.size(); ++i) {
      loss += training.add(examples[i]);
      if (i % kBatch == kBatch - 1) training.step(rate, kBatch);
    }
    std::fprintf(stderr, "epoch %d: mean loss %.4f\n", epoch,
                 loss / static_cast<double>(examples.size()));
  }
  training.print();
  return 0;
}

}  // namespace

// [connect_four_network_program]
int main(int argc, char** argv) {
  mcts::Program program(argc, argv);
  if (program.arguments() == std::vector<std::string>{"--train"}) return program.run(train);
  read_arguments(program.arguments(), " [--train] [-n PROCESSES] [-t THREADS]");
  mcts::ProgramOptions options;
  options.prepare = [](mcts::Host& host) {  // in each process
    mcts::provide_evaluator<example::NetworkConnectFour>(
        host, [weights = example::trained_weights()] {
          return std::make_unique<example::Network>(weights);
        });
  };
  const auto play = [](mcts::Host& host) {
    mcts::Search<example::NetworkConnectFour> search(host);
    example::NetworkConnectFour game;
    while (!game.result()) {
      const auto found = search.run(game, {.iterations = 2000});
      uint64_t evaluations = 0;
      uint64_t batches = 0;
      for (const mcts::Statistics& process : found.processes) {
        evaluations += process.evaluations;
        batches += process.evaluation_batches;
      }
      const auto& best = found.moves[0];
      std::printf("player %d: column %d, %.0f%%, %llu evaluations in %llu batches\n", found.player,
                  best.move, 100 * best.value, static_cast<unsigned long long>(evaluations),
                  static_cast<unsigned long long>(batches));
      game.play(best.move);
      search.advance(best.move);
    }
    std::printf("result for player 0: %.1f\n", *game.result());
    return 0;
  };
  return program.run(play, options);
}
// [connect_four_network_program]
