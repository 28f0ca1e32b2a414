// Learns the weights of hex/priors.h from the output of bench_hex_games, and prints them in the
// format of hex/internal/prior_weights.inc. Prints on stderr how well the weights predict the
// search's visits on games that are not used for learning (every tenth).
//
// Maximizes the likelihood of the search's visits under the softmax by stochastic gradient ascent
// with a step size per weight (AdaGrad: Duchi et al. 2011).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/support/flags.h"
#include "hex/patterns.h"
#include "hex/priors.h"
#include "mcts/random.h"

namespace cariama::bench {
namespace {

constexpr char kHelp[] =
    "bench_hex_priors [--rounds N] FILE...\n"
    "  Learns the engine's priors from FILEs of bench_hex_games; prints the weights.\n"
    "  --rounds N   passes over all positions (12)\n"
    "  --help       this text\n"
    "  --version    prints the version of Cariama\n";

struct Example {
  std::vector<hex::PriorFeatures::Indices> moves;
  std::vector<float> share;  // each move's share of the visits
  bool held_out = false;
};

// Appends the example in `line`. Returns false if the line is no output of bench_hex_games.
bool read(const std::string& line, bool held_out, std::vector<Example>& examples) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  int size = 0;
  if (words.size() < 3 || !absl::SimpleAtoi(words[0], &size) || size < hex::kMinSide ||
      size > hex::kMaxSide || words[2] != "|") {
    return false;
  }
  hex::Board board(size, size);
  hex::Move last = hex::kNoMove;
  if (words[1] != "-") {
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(words[1], ','))) {
      const auto move = board.parse(name);
      if (!move || !board.is_legal(*move)) return false;
      board.play(*move);
      last = *move;
    }
  }
  board = hex::filled(board, hex::fill_in(board));
  const hex::PriorFeatures features(board, last);
  Example example;
  example.held_out = held_out;
  float sum = 0;
  for (size_t i = 3; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], ':');
    const auto move = board.parse(parts[0]);
    float visits = 0;
    if (!move || parts.size() != 2 || !absl::SimpleAtof(parts[1], &visits)) return false;
    if (board.at(*move)) continue;
    hex::PriorFeatures::Indices indices = features.of(*move);
    for (uint16_t& index : indices) {
      index = static_cast<uint16_t>(hex::PriorFeatures::same_as(index));
    }
    example.moves.push_back(indices);
    example.share.push_back(visits);
    sum += visits;
  }
  if (example.moves.size() < 2 || !(sum > 0)) return true;  // contains no information
  for (float& share : example.share) share /= sum;
  examples.push_back(std::move(example));
  return true;
}

class Learner {
 public:
  // Makes one pass over the training examples in random order.
  void learn(const std::vector<Example>& examples, float step, mcts::Random& random) {
    std::vector<size_t> order;
    for (size_t i = 0; i < examples.size(); ++i) {
      if (!examples[i].held_out) order.push_back(i);
    }
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
    }
    for (const size_t i : order) {
      const Example& example = examples[i];
      probabilities(example);
      changes_.clear();
      for (size_t move = 0; move < example.moves.size(); ++move) {
        const float wrong = example.share[move] - p_[move];
        for (const uint16_t index : example.moves[move]) {
          if (gradient_[index] == 0) changes_.push_back(index);
          gradient_[index] += wrong;
        }
      }
      for (const uint16_t index : changes_) {
        const float g = gradient_[index] - kDecay * weights_[index];
        gradient_[index] = 0;
        squares_[index] += g * g;
        weights_[index] += step * g / std::sqrt(squares_[index] + 1e-3F);
      }
    }
  }

  struct Quality {
    double loss = 0;     // mean over the search's visits of -ln(probability)
    double first = 0;    // share of examples whose most visited move has the highest prior
    double in_five = 0;  // share of examples whose most visited move has one of the five highest
    size_t count = 0;
  };
  [[nodiscard]] Quality quality(const std::vector<Example>& examples, bool held_out) {
    Quality quality;
    for (const Example& example : examples) {
      if (example.held_out != held_out) continue;
      probabilities(example);
      for (size_t i = 0; i < p_.size(); ++i) {
        quality.loss -= example.share[i] * std::log(std::max(p_[i], 1e-9F));
      }
      const auto best = static_cast<size_t>(
          std::max_element(example.share.begin(), example.share.end()) - example.share.begin());
      const auto higher =
          std::count_if(p_.begin(), p_.end(), [&](float p) { return p > p_[best]; });
      quality.first += higher == 0 ? 1 : 0;
      quality.in_five += higher < 5 ? 1 : 0;
      ++quality.count;
    }
    const auto n = static_cast<double>(std::max<size_t>(quality.count, 1));
    quality.loss /= n;
    quality.first /= n;
    quality.in_five /= n;
    return quality;
  }

  void print() const {
    for (int i = 0; i < hex::PriorFeatures::kWeights; ++i) {
      const auto from = static_cast<size_t>(hex::PriorFeatures::same_as(i));
      const long rounded = std::lround(100 * weights_[from]);
      std::printf("%ld,%c", rounded, i % 20 == 19 ? '\n' : ' ');
    }
    std::putchar('\n');
  }

 private:
  static constexpr float kDecay = 1e-4F;

  void probabilities(const Example& example) {
    p_.resize(example.moves.size());
    float highest = -1e30F;
    for (size_t i = 0; i < p_.size(); ++i) {
      p_[i] = hex::prior_logit(example.moves[i], weights_);
      highest = std::max(highest, p_[i]);
    }
    float sum = 0;
    for (float& p : p_) {
      p = std::exp(p - highest);
      sum += p;
    }
    for (float& p : p_) p /= sum;
  }

  std::vector<float> weights_ = std::vector<float>(hex::PriorFeatures::kWeights);
  std::vector<float> gradient_ = weights_;
  std::vector<float> squares_ = weights_;
  std::vector<uint16_t> changes_;
  std::vector<float> p_;
};

int main(int argc, char** argv) {
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "bench_hex_priors: %s\n%s", why.c_str(), kHelp);
    return 2;
  };
  int rounds = 12;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--version") return print_version("bench_hex_priors");
    if (argument == "--rounds") {
      if (++i == argc || !absl::SimpleAtoi(argv[i], &rounds) || rounds < 1) {
        return refuse("--rounds needs a number");
      }
    } else if (argument.starts_with("-")) {
      return refuse("what is " + argument + "?");
    } else {
      files.push_back(argument);
    }
  }
  if (files.empty()) return refuse("no file given");

  std::vector<Example> examples;
  int games = 0;
  for (const std::string& file : files) {
    std::ifstream in(file);
    if (!in) return refuse("cannot read " + file);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      if (line.find(" - ") != std::string::npos) ++games;
      if (!read(line, games % 10 == 0, examples)) {
        std::fprintf(stderr, "bench_hex_priors: %s:%d is no position\n", file.c_str(), number);
        return 1;
      }
    }
  }
  Learner learner;
  mcts::Random random(1);
  for (int round = 0; round < rounds; ++round) {
    learner.learn(examples, 0.1F / std::sqrt(1.0F + static_cast<float>(round)), random);
    for (const bool held_out : {false, true}) {
      const Learner::Quality quality = learner.quality(examples, held_out);
      std::fprintf(stderr, "%2d %-8s %zu positions: loss %.3f, first %.1f %%, in five %.1f %%\n",
                   round + 1, held_out ? "held out" : "learned", quality.count, quality.loss,
                   100 * quality.first, 100 * quality.in_five);
    }
  }
  learner.print();
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) { return cariama::bench::main(argc, argv); }
