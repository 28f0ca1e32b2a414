// The example of an evaluator: the trained network plays better than one with uniform priors and
// the value 0.5 for all positions.
#include "docs/examples/connect_four_network.h"

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/mcts/testing/check.h"

namespace cariama::mcts {
namespace {

using example::Network;
using example::NetworkConnectFour;
using example::Weights;
using testing::local_host;

// Returns different positions after four random plies.
std::vector<NetworkConnectFour> openings(size_t count) {
  std::vector<NetworkConnectFour> all;
  std::set<uint64_t> keys;
  Random random(7);
  while (all.size() < count) {
    NetworkConnectFour game;
    for (int ply = 0; ply < 4; ++ply) {
      game.play(static_cast<uint8_t>(random.below(7)));
    }
    if (keys.insert(game.key()).second) all.push_back(game);
  }
  return all;
}

// Plays a game between two networks. Returns the result for player 0.
float play(Search<NetworkConnectFour>& search, Host& host, NetworkConnectFour game,
           const std::shared_ptr<const Weights> (&weights)[2], uint64_t iterations) {
  while (!game.result()) {
    provide_evaluator<NetworkConnectFour>(
        host, [own = weights[game.to_move()]] { return std::make_unique<Network>(own); });
    search.clear();
    game.play(search.run(game, {.iterations = iterations}).moves[0].move);
  }
  return *game.result();
}

// A program that plays as well as its opponent gets 64 points or more of 100 with a probability
// below 0.4 % (each point has a standard deviation of at most 0.5).
TEST(ConnectFourNetwork, TheTrainedOneBeatsTheUntrainedOne) {
  const auto host = local_host(1);
  Search<NetworkConnectFour> search(*host);
  const std::shared_ptr<const Weights> trained = example::trained_weights();
  const auto untrained = std::make_shared<const Weights>();
  double points = 0;
  for (const NetworkConnectFour& opening : openings(50)) {
    points += play(search, *host, opening, {trained, untrained}, 100);
    points += 1 - play(search, *host, opening, {untrained, trained}, 100);
  }
  EXPECT_GE(points, 75);
  RecordProperty("points", std::to_string(points));
}

TEST(ConnectFourNetwork, TheUntrainedOneIsUniform) {
  Network network(std::make_shared<const Weights>());
  const NetworkConnectFour::Move moves[] = {0, 1, 2, 3, 4, 5, 6};
  float priors[7] = {};
  Evaluation<NetworkConnectFour> one{{}, moves, priors};
  network.evaluate(std::span(&one, 1));
  EXPECT_EQ(one.value, 0.5F);
  for (const float prior : priors) EXPECT_FLOAT_EQ(prior, 1.0F / 7);
}

}  // namespace
}  // namespace cariama::mcts
