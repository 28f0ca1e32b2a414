// Selection: compares every select kernel with the formula, and checks the selection rules in a
// node.
#include "mcts/engine/selection.h"

#include <cmath>
#include <memory>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/internal/select_kernels.h"
#include "mcts/random.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using internal::SelectJob;
using internal::SelectKernel;

struct Arrays {
  explicit Arrays(int padded, Random& random) {
    for (int i = 0; i < padded; ++i) {
      const auto n = static_cast<int32_t>(random.below(3) == 0 ? 0 : random.below(1000));
      visits.push_back(n);
      value.push_back(n * (random.below(1001) / 1000.0));
      amaf_visits.push_back(static_cast<float>(random.below(500)));
      amaf_value.push_back(amaf_visits.back() * static_cast<float>(random.below(1001)) / 1000);
      prior.push_back(static_cast<float>(random.below(1001)) / 1000);
      bias.push_back(random.below(5) == 0 ? -1e30F : 0);
    }
  }
  [[nodiscard]] SelectJob job(int padded) const {
    SelectJob job{};
    job.visits = visits.data();
    job.value = value.data();
    job.amaf_visits = amaf_visits.data();
    job.amaf_value = amaf_value.data();
    job.prior = prior.data();
    job.bias = bias.data();
    job.padded = padded;
    job.first_play = 0.5F;
    return job;
  }

  std::vector<int32_t> visits;
  std::vector<double> value;
  std::vector<float> amaf_visits, amaf_value, prior, bias;
};

// The formula of selection.h, in double precision.
double score(const SelectJob& job, int i) {
  const double n = job.visits[i];
  double q = n > 0 ? job.value[i] / n : job.first_play;
  if (job.amaf_visits != nullptr) {
    const double mean = (job.amaf_value[i] + job.first_play) / (job.amaf_visits[i] + 1);
    const double weight = job.amaf_equivalence / (job.amaf_equivalence + n);
    q = (1 - weight) * (n > 0 ? q : 0) + weight * mean;
  }
  if (job.exploration > 0) q += job.exploration / std::sqrt(n + 1);
  if (job.prior_weight > 0) q += job.prior_weight * job.prior[i] / (n + 1);
  return q + job.bias[i];
}

TEST(Selection, AllKernelsFollowTheFormula) {
  int count = 0;
  const SelectKernel* kernels = internal::available_select_kernels(&count);
  ASSERT_GE(count, 1);
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const int padded = 16 * static_cast<int>(1 + random.below(8));
    const Arrays arrays(padded, random);
    SelectJob job = arrays.job(padded);
    if (random.below(2) == 0) {
      job.amaf_equivalence = 500;
    } else {
      job.amaf_visits = nullptr;
    }
    job.exploration = random.below(2) == 0 ? 0 : 0.7F;
    job.prior_weight = random.below(2) == 0 ? 0 : 2.0F;
    double best = -1e29;
    for (int i = 0; i < padded; ++i) best = std::max(best, score(job, i));
    for (int k = 0; k < count; ++k) {
      const int chosen = kernels[k](job);
      ASSERT_GE(chosen, 0);
      ASSERT_LT(chosen, padded);
      EXPECT_NEAR(score(job, chosen), best, 1e-5) << "kernel " << k << " round " << round;
    }
  }
}

TEST(Selection, ClosedMovesAreNotChosen) {
  int count = 0;
  const SelectKernel* kernels = internal::available_select_kernels(&count);
  Random random(2);
  Arrays arrays(32, random);
  for (int k = 0; k < count; ++k) {
    for (int open = 0; open < 32; ++open) {
      for (float& bias : arrays.bias) bias = -1e30F;
      arrays.bias[static_cast<size_t>(open)] = 0;
      SelectJob job = arrays.job(32);
      job.amaf_equivalence = 500;
      EXPECT_EQ(kernels[k](job), open);
    }
    for (float& bias : arrays.bias) bias = -1e30F;
    SelectJob job = arrays.job(32);
    job.amaf_equivalence = 500;
    EXPECT_EQ(kernels[k](job), -1);
  }
}

// Of moves with equal scores the kernel returns the first one, in whichever vector lane it is.
TEST(Selection, TiesGoToTheFirst) {
  int count = 0;
  const SelectKernel* kernels = internal::available_select_kernels(&count);
  Random random(3);
  Arrays arrays(64, random);
  for (size_t i = 0; i < 64; ++i) {
    arrays.visits[i] = 10;
    arrays.value[i] = 5;
    arrays.bias[i] = i < 7 ? -1e30F : 0;
  }
  SelectJob job = arrays.job(64);
  job.amaf_visits = nullptr;
  for (int k = 0; k < count; ++k) EXPECT_EQ(kernels[k](job), 7);
}

TEST(Arena, OneThreadMayUseMoreThanItsPart) {
  ArenaBudget budget(1000 * 64);
  Arena one(budget);
  Arena other(budget);
  std::vector<void*> blocks;
  while (void* const block = one.allocate(64)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 1000u);
  EXPECT_EQ(other.allocate(64), nullptr);
  one.free(blocks.back(), 64);
  EXPECT_NE(other.allocate(64), nullptr);
  EXPECT_EQ(budget.live_bytes(), 1000u * 64);
  other.clear();
  one.clear();
  EXPECT_EQ(budget.live_bytes(), 0u);
}

// At their limit, AMAF counters stay as they are: their mean does not rise to that of the last
// playouts, of which the visits, a float, would not count one by one.
TEST(Node, AmafCountersKeepTheirMeanAtTheirLimit) {
  using testing::TicTacToe;
  using TicTacToeNode = Node<TicTacToe>;
  constexpr float kMost = TicTacToeNode::kMaxAmafVisits;
  ArenaBudget budget(1 << 20);
  Arena arena(budget);
  Random random(6);
  auto* node = TicTacToeNode::create(TicTacToe(), arena, 0, random, true);
  ASSERT_NE(node, nullptr);
  const int full = node->find(0);
  const int nearly = node->find(1);
  MoveCounts counts;
  counts.amaf_visits = kMost;
  counts.amaf_value = kMost / 4;
  node->add_counts(full, counts, {});
  counts.amaf_visits = kMost - 1;
  node->add_counts(nearly, counts, {});
  Sample<TicTacToe> win;
  win.owned.words[0][0] = 0b11;  // the cells 0 and 1
  win.value = 1;
  for (int i = 0; i < 1000; ++i) node->count_amaf(win);
  EXPECT_EQ(node->amaf_visits(full), kMost);
  EXPECT_EQ(node->amaf_value(full), kMost / 4);
  EXPECT_EQ(node->amaf_visits(nearly), kMost);
  EXPECT_EQ(node->amaf_value(nearly), kMost / 4 + 1);
  // Nor do the counts of a copy change them.
  counts.amaf_visits = 1000;
  counts.amaf_value = 1000;
  node->add_counts(full, counts, {});
  EXPECT_EQ(node->amaf_visits(full), kMost);
  EXPECT_EQ(node->amaf_value(full), kMost / 4);
  node->destroy(arena);
}

// In a node, UCB first selects each move once, then the move with the higher value.
TEST(Selection, UcbTriesAllMovesFirst) {
  ArenaBudget budget(1 << 20);
  Arena arena(budget);
  Random random(4);
  auto* node = Node<example::ConnectFour>::create(example::ConnectFour(), arena, 0, random, true);
  ASSERT_NE(node, nullptr);
  ASSERT_EQ(node->size(), 7);
  const SelectionOptions options;
  std::vector<int> tried(7);
  for (int i = 0; i < 7; ++i) {
    const int move = select_move(*node, options);
    ++tried[static_cast<size_t>(move)];
    node->enter(move);
    node->leave(move, 1, move == 3 ? 1 : 0);
  }
  EXPECT_EQ(tried, std::vector<int>(7, 1));
  EXPECT_EQ(select_move(*node, options), 3);
  // Virtual loss: rollouts in flight lower the score of a move.
  for (int i = 0; i < 20; ++i) node->enter(3);
  EXPECT_NE(select_move(*node, options), 3);
  node->remove_visits(3, 20);
  EXPECT_EQ(select_move(*node, options), 3);
  node->set_verdict(3, Verdict::kLoses);
  EXPECT_NE(select_move(*node, options), 3);
  node->destroy(arena);
  EXPECT_EQ(arena.live_bytes(), 0u);
}

// A rollout in flight takes from the mean of its move what virtual_loss says: nothing, half of it,
// or all of its value. With its value taken back, the sum is the same as before.
TEST(Selection, RolloutsInFlightHaveTheirExpectedValue) {
  ArenaBudget budget(1 << 20);
  Arena arena(budget);
  Random random(5);
  auto* node = Node<example::ConnectFour>::create(example::ConnectFour(), arena, 0, random, true);
  ASSERT_NE(node, nullptr);
  for (int move = 0; move < 3; ++move) {
    const int wins = 1 + 3 * move;  // of 8 rollouts
    node->enter(move, 8);
    node->leave(move, 8, wins);
    node->enter(move, 24);
    for (const float loss : {0.0F, 0.5F, 1.0F}) {
      SelectionOptions options;
      options.virtual_loss = loss;
      const double expected = expected_value(*node, move, 24, options);
      EXPECT_EQ(expected, (1 - loss) * wins / 8);
      node->add_value(move, 24 * expected);
      EXPECT_EQ(node->value(move) / node->visits(move), (wins + 24 * (1 - loss) * wins / 8) / 32);
      // Further rollouts are expected to have the mean that the first ones have left.
      if (loss == 0) {
        EXPECT_EQ(expected_value(*node, move, 0, options), wins / 8.0);
      }
      node->add_value(move, -24 * expected);
      EXPECT_EQ(node->value(move), wins);
    }
  }
  SelectionOptions options;
  options.virtual_loss = 0;
  EXPECT_EQ(expected_value(*node, 6, 0, options), 0);  // no visits
  node->destroy(arena);
}

}  // namespace
}  // namespace cariama::mcts
