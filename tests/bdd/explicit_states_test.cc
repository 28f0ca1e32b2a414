// Steps of relations and whole searches against sets of states, which are computed without
// diagrams, on random small models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "tests/bdd/bdd_test_support.h"

namespace cariama::bdd {
namespace {

using testing::JobKind;
using testing::kJobKinds;
using testing::kShort;
using testing::small;
using testing::with_job;
using testing::with_manager;

constexpr uint32_t kStateBits = 5;
using States = std::set<uint32_t>;  // bit b of a state is the variable 2b

// A state whose bits `mask` have the values `first` leads to the state in which they have the
// values `second`, for each pair. All other bits keep their values.
struct ExplicitGroup {
  uint32_t mask = 0;
  std::set<std::pair<uint32_t, uint32_t>> pairs;
};
using ExplicitGroups = std::vector<ExplicitGroup>;

States successors(const States& states, const ExplicitGroup& group) {
  States result;
  for (const uint32_t state : states) {
    for (const auto& [from, to] : group.pairs) {
      if ((state & group.mask) == from) result.insert((state & ~group.mask) | to);
    }
  }
  return result;
}
States successors(const States& states, const ExplicitGroups& groups) {
  States result;
  for (const ExplicitGroup& group : groups) result.merge(successors(states, group));
  return result;
}
ExplicitGroup reversed(const ExplicitGroup& group) {
  ExplicitGroup result{group.mask, {}};
  for (const auto& [from, to] : group.pairs) result.pairs.emplace(to, from);
  return result;
}

// Returns each state that the groups reach from `initial`, with its distance.
std::map<uint32_t, uint32_t> distances(const States& initial, const ExplicitGroups& groups) {
  std::map<uint32_t, uint32_t> result;
  States level = initial;
  for (uint32_t distance = 0; !level.empty(); ++distance) {
    States fresh;
    for (const uint32_t state : level) {
      if (result.emplace(state, distance).second) fresh.insert(state);
    }
    level = successors(fresh, groups);
  }
  return result;
}
States reached_states(const States& initial, const ExplicitGroups& groups) {
  States result;
  for (const auto& [state, distance] : distances(initial, groups)) result.insert(state);
  return result;
}

ExplicitGroup random_group(std::mt19937_64& random) {
  ExplicitGroup group;
  while (group.mask == 0 || group.mask == (uint32_t{1} << kStateBits) - 1) {
    group.mask = static_cast<uint32_t>(random() & random()) & ((uint32_t{1} << kStateBits) - 1);
  }
  const auto values = [&] { return static_cast<uint32_t>(random()) & group.mask; };
  for (uint64_t left = random() % 5; left > 0; --left) {
    const uint32_t from = values();
    group.pairs.emplace(from, values());
  }
  return group;
}
States random_states(uint64_t most, std::mt19937_64& random) {
  States states;
  for (uint64_t left = 1 + random() % most; left > 0; --left) {
    states.insert(static_cast<uint32_t>(random() % (uint32_t{1} << kStateBits)));
  }
  return states;
}

// ---- The same as diagrams.

// The bits `mask` have these values before a transition (primed = 0) or after it (primed = 1).
Bdd bits_are(Manager& manager, uint32_t mask, uint32_t values, uint32_t primed) {
  Bdd result = manager.constant(true);
  for (uint32_t bit = kStateBits; bit-- > 0;) {
    if ((mask >> bit & 1) == 0) continue;
    const Bdd variable = manager.variable(2 * bit + primed);
    result = ((values >> bit & 1) != 0 ? variable : ~variable) & result;
  }
  return result;
}
Bdd diagram_of(Manager& manager, const States& states) {
  Bdd result = manager.constant(false);
  for (const uint32_t state : states) result = result | bits_are(manager, ~uint32_t{0}, state, 0);
  return result;
}
Bdd cube_of(Manager& manager, uint32_t mask) {
  std::vector<uint32_t> variables;
  for (uint32_t bit = 0; bit < kStateBits; ++bit) {
    if ((mask >> bit & 1) != 0) variables.push_back(2 * bit);
  }
  return manager.cube(variables);
}
// One of three pairs has a label, whose value the step ignores.
Transition transition_of(Manager& manager, const ExplicitGroup& group, std::mt19937_64& random) {
  Bdd relation = manager.constant(false);
  for (const auto& [from, to] : group.pairs) {
    Bdd pair = bits_are(manager, group.mask, from, 0) & bits_are(manager, group.mask, to, 1);
    const uint64_t label = random() % 6;
    if (label < 2) {
      const Bdd variable = manager.variable(kFirstLabelVariable);
      pair = pair & (label == 0 ? variable : ~variable);
    }
    relation = relation | pair;
  }
  return {relation, cube_of(manager, group.mask)};
}

// Expects that `function` is the set `expected`, and depends on no other variables.
void expect_states(const Bdd& function, const States& expected, const char* what) {
  SCOPED_TRACE(what);
  States found;
  std::vector<bool> assignment(2 * kStateBits);
  for (uint32_t state = 0; state < uint32_t{1} << kStateBits; ++state) {
    for (uint32_t bit = 0; bit < kStateBits; ++bit) assignment[2 * bit] = (state >> bit & 1) != 0;
    if (function.evaluate(assignment)) found.insert(state);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(function.count(cube_of(*function.manager(), ~uint32_t{0})), expected.size());
}

// A random model, as sets and as diagrams.
struct RandomModel {
  States initial;
  ExplicitGroups groups;
  Model model;

  RandomModel(Manager& manager, std::mt19937_64& random) : initial(random_states(2, random)) {
    for (uint64_t left = 1 + random() % 5; left > 0; --left) {
      groups.push_back(random_group(random));
      model.transitions.push_back(transition_of(manager, groups.back(), random));
    }
    model.bits = {2, 3};
    model.first_bit = {0, 2};
    model.state_bits = kStateBits;
    model.variables = cube_of(manager, ~uint32_t{0});
    model.initial = diagram_of(manager, initial);
  }

  // The most significant bit of an integer is that of its smallest variable.
  [[nodiscard]] uint32_t state_of(const std::vector<uint64_t>& values) const {
    uint32_t state = 0;
    for (size_t i = 0; i < model.bits.size(); ++i) {
      for (uint32_t bit = 0; bit < model.bits[i]; ++bit) {
        const auto value = static_cast<uint32_t>(values.at(i) >> (model.bits[i] - 1 - bit) & 1);
        state |= value << (model.first_bit[i] + bit);
      }
    }
    return state;
  }
};

void check_steps(Manager& manager, uint64_t seed) {
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const RandomModel one(manager, random);
  const States from = random_states(6, random);
  const Bdd states = diagram_of(manager, from);
  const std::vector<Transition>& transitions = one.model.transitions;

  States image, preimage;
  States chained = from;
  for (size_t i = 0; i < transitions.size(); ++i) {
    const States next = successors(from, one.groups[i]);
    const States previous = successors(from, reversed(one.groups[i]));
    const auto& [relation, variables] = transitions[i];
    expect_states(states.relnext(relation, variables), next, "relnext");
    expect_states(states.relprev(relation, variables), previous, "relprev");
    image.insert(next.begin(), next.end());
    preimage.insert(previous.begin(), previous.end());
    chained.merge(successors(chained, one.groups[i]));
  }
  expect_states(manager.image(states, transitions), image, "image");
  expect_states(manager.preimage(states, transitions), preimage, "preimage");
  expect_states(manager.chain(states, transitions), chained, "chain");
  for (const uint32_t first_variable : {0u, static_cast<uint32_t>(random() % (2 * kStateBits))}) {
    ExplicitGroups applied;
    for (const ExplicitGroup& group : one.groups) {
      uint32_t smallest = 0;
      while ((group.mask >> smallest & 1) == 0) ++smallest;
      if (2 * smallest >= first_variable) applied.push_back(group);
    }
    expect_states(manager.saturate(states, transitions, first_variable),
                  reached_states(from, applied), "saturate");
  }
}

void check_searches(Manager& manager, uint64_t seed) {
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const RandomModel one(manager, random);
  const auto distance_of = distances(one.initial, one.groups);
  uint32_t depth = 0;
  for (const auto& [state, distance] : distance_of) depth = std::max(depth, distance);
  States stuck;
  for (const auto& [state, distance] : distance_of) {
    if (successors(States{state}, one.groups).empty()) stuck.insert(state);
  }
  auto target = distance_of.begin();
  std::advance(target, random() % distance_of.size());
  const Bdd goal = diagram_of(manager, {target->first});

  for (const Strategy strategy : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
    SCOPED_TRACE(strategy_name(strategy));
    const absl::StatusOr<ReachResult> all =
        reach(one.model, {.strategy = strategy, .deadlocks = true});
    ASSERT_TRUE(all.ok()) << all.status();
    expect_states(all->reached, reached_states(one.initial, one.groups), "reached");
    EXPECT_EQ(all->states, distance_of.size());
    EXPECT_TRUE(all->complete);
    if (strategy == Strategy::kBfs) {
      EXPECT_EQ(all->levels, depth + 1);
    } else if (strategy == Strategy::kChaining) {
      EXPECT_LE(all->levels, depth + 1);
    }
    expect_states(*all->deadlocks, stuck, "deadlocks");
    EXPECT_EQ(all->trace.empty(), stuck.empty());

    const absl::StatusOr<ReachResult> to_goal =
        reach(one.model, {.strategy = strategy, .goal = goal});
    ASSERT_TRUE(to_goal.ok()) << to_goal.status();
    EXPECT_TRUE(to_goal->goal_reached);
    const std::vector<TraceStep>& trace = to_goal->trace;
    ASSERT_FALSE(trace.empty());
    EXPECT_GE(trace.size(), target->second + 1);
    if (strategy == Strategy::kBfs) {
      EXPECT_EQ(trace.size(), target->second + 1);
      EXPECT_EQ(to_goal->levels, target->second);
    }
    EXPECT_TRUE(one.initial.contains(one.state_of(trace.front().values)));
    EXPECT_EQ(one.state_of(trace.back().values), target->first);
    for (size_t i = 1; i < trace.size(); ++i) {
      ASSERT_TRUE(trace[i].group.has_value());
      const States next =
          successors(States{one.state_of(trace[i - 1].values)}, one.groups.at(*trace[i].group));
      EXPECT_TRUE(next.contains(one.state_of(trace[i].values))) << "step " << i;
    }
  }
}

void check_both(Manager& manager, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    check_steps(manager, seed);
    check_searches(manager, seed);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ExplicitStates, AgreeInOneProcess) {
  with_manager(1, small(), [](Manager& manager) { check_both(manager, kShort ? 50 : 400); });
}

TEST(ExplicitStates, AgreeInAJob) {
  for (const JobKind& kind : kJobKinds) {
    SCOPED_TRACE(kind);
    ManagerOptions options = small();
    kind.set(options);
    with_job(2, kind.model, options, [](Manager& manager) { check_both(manager, kShort ? 1 : 2); });
  }
}

// One worker computes everything in its batch.
TEST(ExplicitStates, AgreeInABatch) {
  ManagerOptions options = small();
  options.remote = true;
  with_job(1, TaskModel::kMigrating, options,
           [](Manager& manager) { check_both(manager, kShort ? 5 : 50); });
}

}  // namespace
}  // namespace cariama::bdd
