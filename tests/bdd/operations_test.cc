// Every operation against truth tables, in one process and in jobs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bdd/bdd.h"
#include "tests/bdd/bdd_test_support.h"

namespace cariama::bdd {
namespace {

using testing::JobKind;
using testing::kJobKinds;
using testing::Known;
using testing::kShort;
using testing::large_function;
using testing::random_function;
using testing::small;
using testing::Truth;
using testing::truth_of;
using testing::with_job;
using testing::with_manager;

// The value of the truth table with variable v set to `value`.
bool at(const Truth& truth, size_t i, uint32_t v, bool value) {
  const size_t bit = size_t{1} << v;
  return truth[value ? i | bit : i & ~bit];
}

Truth exists_in(Truth truth, const std::vector<uint32_t>& variables) {
  for (const uint32_t v : variables) {
    Truth next(truth.size());
    for (size_t i = 0; i < truth.size(); ++i)
      next[i] = at(truth, i, v, false) || at(truth, i, v, true);
    truth = next;
  }
  return truth;
}

std::vector<uint32_t> random_variables(uint32_t count, uint32_t step, std::mt19937_64& random) {
  std::vector<uint32_t> variables;
  for (uint32_t v = 0; v < count; v += step) {
    if (random() % 2 == 0) variables.push_back(v);
  }
  return variables;
}

void check_logic(Manager& manager, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto count = static_cast<uint32_t>(3 + random() % 8);
  const Known a = random_function(manager, count, 20, random);
  const Known b = random_function(manager, count, 20, random);
  const Known c = random_function(manager, count, 20, random);
  const size_t size = a.truth.size();
  ASSERT_EQ(truth_of(a.function, count), a.truth) << "seed " << seed;
  const std::vector<uint32_t> quantified = random_variables(count, 1, random);
  const Bdd cube = manager.cube(quantified);
  const auto v = static_cast<uint32_t>(random() % count);
  Truth ite(size), both(size), either(size), differs(size), composed(size);
  for (size_t i = 0; i < size; ++i) {
    ite[i] = a.truth[i] ? b.truth[i] : c.truth[i];
    both[i] = a.truth[i] && b.truth[i];
    either[i] = a.truth[i] || b.truth[i];
    differs[i] = a.truth[i] != b.truth[i];
    composed[i] = at(a.truth, i, v, b.truth[i]);
  }
  EXPECT_EQ(truth_of(a.function.ite(b.function, c.function), count), ite) << "seed " << seed;
  EXPECT_EQ(truth_of(a.function & b.function, count), both) << "seed " << seed;
  EXPECT_EQ(truth_of(a.function | b.function, count), either) << "seed " << seed;
  EXPECT_EQ(truth_of(a.function ^ b.function, count), differs) << "seed " << seed;
  EXPECT_EQ(truth_of(a.function.compose(v, b.function), count), composed) << "seed " << seed;
  EXPECT_EQ(truth_of(a.function.exists(cube), count), exists_in(a.truth, quantified));
  EXPECT_EQ(truth_of(a.function.and_exists(b.function, cube), count), exists_in(both, quantified));

  // Equal functions have equal edges, however they were computed.
  EXPECT_EQ(a.function | b.function, ~(~a.function & ~b.function));
  EXPECT_EQ(a.function ^ b.function, a.function.ite(~b.function, b.function));
  EXPECT_EQ(a.function.minus(b.function), a.function & ~b.function);
  EXPECT_EQ(a.function.and_exists(b.function, cube), (a.function & b.function).exists(cube));
  EXPECT_TRUE((a.function ^ a.function).is_false());
  EXPECT_TRUE((a.function | ~a.function).is_true());

  // Counts and picks.
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < count; ++i) all.push_back(i);
  const Bdd all_cube = manager.cube(all);
  const auto expected = static_cast<uint64_t>(std::count(a.truth.begin(), a.truth.end(), true));
  EXPECT_EQ(a.function.count(all_cube), expected) << "seed " << seed;
  EXPECT_EQ((~a.function).count(all_cube), size - expected);
  const Bdd picked = a.function.pick(all_cube);
  EXPECT_EQ(picked.is_false(), expected == 0);
  if (expected != 0) {
    EXPECT_EQ(picked.count(all_cube), 1u);
    EXPECT_EQ(picked & a.function, picked);
  }
  // A function depends on the variables whose values make a difference.
  std::vector<uint32_t> support;
  for (const uint32_t variable : all) {
    bool depends = false;
    for (size_t i = 0; i < size; ++i)
      depends |= at(a.truth, i, variable, false) != at(a.truth, i, variable, true);
    if (depends) support.push_back(variable);
  }
  EXPECT_EQ(a.function.support(), manager.cube(support));
}

// States over even variables below `count`, a relation over all variables.
void check_relations(Manager& manager, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint32_t bits = 4;
  const uint32_t count = 2 * bits;
  // Compared on the even variables only: a function of them does not depend on the others.
  const auto random_states = [&] {
    std::vector<uint32_t> odd;
    for (uint32_t v = 1; v < count; v += 2) odd.push_back(v);
    Known states = random_function(manager, count, 15, random);
    return Known{states.function.exists(manager.cube(odd)), exists_in(states.truth, odd)};
  };
  const Known states = random_states();
  const Known relation = random_function(manager, count, 25, random);
  const std::vector<uint32_t> variables = random_variables(count, 2, random);
  std::vector<uint32_t> outside;
  for (uint32_t v = 0; v < count; v += 2) {
    if (std::find(variables.begin(), variables.end(), v) != variables.end()) continue;
    outside.push_back(v);
    outside.push_back(v + 1);
  }
  const Truth inside = exists_in(relation.truth, outside);
  // Enumerates all pairs of states that agree outside of `variables`.
  Truth next(relation.truth.size()), previous(relation.truth.size());
  for (size_t from = 0; from < size_t{1} << bits; ++from) {
    for (size_t to = 0; to < size_t{1} << bits; ++to) {
      size_t even_from = 0, even_to = 0, pair = 0;
      bool agree = true;
      for (uint32_t b = 0; b < bits; ++b) {
        const bool f = (from >> b & 1) != 0;
        const bool t = (to >> b & 1) != 0;
        even_from |= size_t{f} << 2 * b;
        even_to |= size_t{t} << 2 * b;
        pair |= size_t{f} << 2 * b | size_t{t} << (2 * b + 1);
        const bool changes =
            std::find(variables.begin(), variables.end(), 2 * b) != variables.end();
        agree = agree && (changes || f == t);
      }
      if (!agree || !inside[pair]) continue;
      if (states.truth[even_from]) next[even_to] = true;
      if (states.truth[even_to]) previous[even_from] = true;
    }
  }
  const auto only_even = [&](const Bdd& function) {
    Truth truth = truth_of(function, count);
    for (size_t i = 0; i < truth.size(); ++i) {
      if ((i & 0xaa) != 0) {
        EXPECT_EQ(truth[i], truth[i & 0x55]);
        truth[i] = false;
      }
    }
    return truth;
  };
  const Bdd cube = manager.cube(variables);
  EXPECT_EQ(only_even(states.function.relnext(relation.function, cube)), next) << "seed " << seed;
  EXPECT_EQ(only_even(states.function.relprev(relation.function, cube)), previous)
      << "seed " << seed;
}

TEST(Operations, AgreeWithTruthTables) {
  with_manager(1, small(), [](Manager& manager) {
    for (uint64_t seed = 1; seed <= 150; ++seed) check_logic(manager, seed);
  });
}

TEST(Operations, TwelveVariables) {
  with_manager(1, small(), [](Manager& manager) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 10; ++i) {
      const Known one = random_function(manager, 12, 60, random);
      EXPECT_EQ(truth_of(one.function, 12), one.truth);
    }
  });
}

TEST(Operations, RelationsAgreeWithTruthTables) {
  with_manager(1, small(), [](Manager& manager) {
    for (uint64_t seed = 1; seed <= 300; ++seed) check_relations(manager, seed);
  });
}

TEST(Operations, AgreeInAJob) {
  for (const JobKind& kind : kJobKinds) {
    SCOPED_TRACE(kind);
    ManagerOptions options = small();
    kind.set(options);
    with_job(2, kind.model, options, [](Manager& manager) {
      for (uint64_t seed = 1; seed <= 4; ++seed) check_logic(manager, seed);
      for (uint64_t seed = 1; seed <= 4; ++seed) check_relations(manager, seed);
    });
  }
}

// One worker computes everything in its batch.
TEST(Operations, AgreeInABatch) {
  for (const uint32_t in_flight : {2u, 64u}) {
    ManagerOptions options = small();
    options.remote = true;
    options.in_flight = in_flight;
    options.look_ups = in_flight == 2 ? OperationsBy::kInitiator : OperationsBy::kOwner;
    with_job(1, TaskModel::kMigrating, options, [](Manager& manager) {
      for (uint64_t seed = 1; seed <= (kShort ? 10 : 60); ++seed) check_logic(manager, seed);
      for (uint64_t seed = 1; seed <= (kShort ? 10 : 60); ++seed) check_relations(manager, seed);
    });
  }
}

TEST(Operations, LabelsAreQuantified) {
  with_manager(1, small(), [](Manager& manager) {
    const Bdd x = manager.variable(0);
    const Bdd next = manager.variable(1);
    const Bdd label = manager.variable(1'000'000);
    // With label 0 from 0 to 1; with label 1 from 1 to 0.
    const Bdd relation = label.ite(x & ~next, ~x & next);
    const Bdd variables = manager.cube({0});
    EXPECT_EQ((~x).relnext(relation, variables), x);
    EXPECT_EQ(x.relnext(relation, variables), ~x);
    EXPECT_EQ(x.relprev(relation, variables), ~x);
    EXPECT_TRUE(manager.constant(true).relnext(relation, variables).is_true());
  });
}

TEST(Operations, CountsBeyond64Bits) {
  with_manager(1, small(), [](Manager& manager) {
    std::vector<uint32_t> all;
    for (uint32_t v = 0; v < 200; ++v) all.push_back(v);
    const Bdd cube = manager.cube(all);
    EXPECT_EQ(manager.constant(true).count(cube).to_string(),
              "1606938044258990275541962092341162602522202993782792835301376");
    EXPECT_EQ(manager.constant(false).count(cube), 0u);
    EXPECT_EQ(cube.count(cube), 1u);
    EXPECT_EQ(manager.variable(199).count(cube) << 1, manager.constant(true).count(cube));
    EXPECT_THROW((void)manager.variable(200).count(cube), std::invalid_argument);
  });
}

TEST(Operations, RefuseVariablesThatAreNoCube) {
  with_manager(1, small(), [](Manager& manager) {
    const Bdd x = manager.variable(0);
    const Bdd y = manager.variable(2);
    const Bdd t = manager.constant(true);
    for (const Bdd& cube : {t, x, x & y, manager.cube({0, 2, 4}), (x & y).support()}) {
      EXPECT_TRUE(cube.is_cube());
      EXPECT_TRUE(cube.is_cube()) << "and still";
      EXPECT_EQ(t.exists(cube), t);
      EXPECT_EQ(t.count(cube | cube), t.count(cube));
      EXPECT_EQ(x.relnext(t, cube), cube == t ? x : t);
    }
    for (const Bdd& other : {~t, ~x, x | y, x ^ y, x & ~y, ~x & y, ~(x & y), x.ite(y, ~y)}) {
      EXPECT_FALSE(other.is_cube());
      EXPECT_THROW((void)x.exists(other), std::invalid_argument);
      EXPECT_THROW((void)x.and_exists(y, other), std::invalid_argument);
      EXPECT_THROW((void)x.relnext(t, other), std::invalid_argument);
      EXPECT_THROW((void)x.relprev(t, other), std::invalid_argument);
      EXPECT_THROW((void)t.count(other), std::invalid_argument);
      EXPECT_THROW((void)t.pick(other), std::invalid_argument);
      const std::vector<Transition> transitions{{t, other}};
      EXPECT_THROW((void)manager.image(x, transitions), std::invalid_argument);
      EXPECT_THROW((void)manager.preimage(x, transitions), std::invalid_argument);
    }
  });
}

TEST(Operations, ComplementsShareNodes) {
  with_manager(1, small(), [](Manager& manager) {
    const Bdd f = manager.variable(3) ^ manager.variable(5);
    EXPECT_EQ(f.nodes(), 3u);  // one per variable, and the constant
    const std::array<Bdd, 2> both{f, ~f};
    EXPECT_EQ(manager.nodes(both), 3u);
    EXPECT_EQ(manager.constant(true).nodes(), 1u);
  });
}

TEST(Files, FunctionsSurviveSaveAndLoad) {
  const std::string path = ::testing::TempDir() + "functions" + std::to_string(getpid()) + ".bdd";
  with_manager(1, small(), [&](Manager& manager) {
    std::mt19937_64 random(3);
    std::vector<Bdd> functions{manager.constant(true), manager.constant(false)};
    for (int i = 0; i < 20; ++i)
      functions.push_back(random_function(manager, 8, 30, random).function);
    ASSERT_TRUE(manager.save_file(functions, path).ok());
    const auto loaded = manager.load_file(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(*loaded, functions);
    with_manager(1, small(), [&](Manager& other) {
      const auto again = other.load_file(path);
      ASSERT_TRUE(again.ok()) << again.status();
      for (size_t i = 0; i < functions.size(); ++i) {
        EXPECT_EQ(truth_of((*again)[i], 8), truth_of(functions[i], 8));
      }
    });
  });
  std::ofstream(path, std::ios::app) << 'x';
  with_manager(1, small(), [&](Manager& manager) {
    EXPECT_FALSE(manager.load_file(path).ok());
    EXPECT_FALSE(manager.load_file("/no/such/file").ok());
  });
  std::remove(path.c_str());
}

TEST(Files, DotShowsMarksAtTheConstantOne) {
  with_manager(1, small(), [](Manager& manager) {
    const std::array<Bdd, 1> functions{manager.variable(4)};
    const std::array<std::string, 1> names{"\"f\""};
    const std::string dot = to_dot(manager.store(functions), names);
    EXPECT_NE(dot.find("n1 [label=\"4\"]"), std::string::npos) << dot;
    EXPECT_NE(dot.find("n1 -> n0 [style=dashed, arrowhead=normaldot]"), std::string::npos) << dot;
    EXPECT_NE(dot.find("n1 -> n0 [style=solid]"), std::string::npos) << dot;
    EXPECT_NE(dot.find("label=\"\\\"f\\\"\""), std::string::npos) << dot;
  });
}

TEST(Collection, KeepsWhatIsNeeded) {
  for (const int processes : {1, 2}) {
    ManagerOptions options = small();
    options.table_bytes = 16 << 10;  // 1024 buckets: queens needs several tables
    with_manager(processes, options, [](Manager& manager) {
      std::mt19937_64 random(11);
      const Known before = random_function(manager, 8, 40, random);
      const Known other = random_function(manager, 8, 40, random);
      const Bdd all = large_function(manager, 52);
      manager.collect();
      EXPECT_GT(manager.statistics().collections, 1u);
      EXPECT_GT(manager.statistics().table_bytes, uint64_t{16} << 10);
      EXPECT_EQ(truth_of(before.function, 8), before.truth);
      EXPECT_EQ(truth_of(other.function, 8), other.truth);
      EXPECT_EQ(truth_of(before.function & other.function, 8),
                truth_of(~(~before.function | ~other.function), 8));
    });
  }
}

TEST(Collection, AFullTableNamesTheOption) {
  for (const int processes : {1, 2}) {
    ManagerOptions options = small();
    options.table_bytes = options.max_table_bytes = 16 << 10;
    with_manager(processes, options, [](Manager& manager) {
      const Bdd before = manager.variable(1) & manager.variable(2);
      std::string message;
      try {
        (void)large_function(manager, 52);
      } catch (const TableFull& full) {
        message = full.what();
      }
      EXPECT_NE(message.find("max_table_bytes"), std::string::npos) << message;
      EXPECT_EQ(before, manager.variable(1) & manager.variable(2));
    });
  }
}

TEST(Options, AreChecked) {
  EXPECT_FALSE(Manager::create({.table_bytes = 100}).ok());
  EXPECT_FALSE(Manager::create({.table_bytes = 1 << 20, .max_table_bytes = 1 << 19}).ok());
}

TEST(Diagrams, AnOffsetBehindTheEndIsAnError) {
  size_t offset = 100;
  EXPECT_EQ(parse_diagrams("short", offset).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ExactCounts, Arithmetic) {
  ExactCount count = 1;
  for (int i = 0; i < 5; ++i) count <<= 37;
  EXPECT_EQ(count.to_string(), "49039857307708443467467104868809893875799651909875269632");
  EXPECT_EQ(count + 0u, count);
  const ExactCount less = ~uint64_t{0};
  EXPECT_EQ((less + 1u).to_string(), "18446744073709551616");
  EXPECT_LT(less, less + 1u);
  EXPECT_GT(count, less);
  EXPECT_EQ(ExactCount(0).to_string(), "0");
  EXPECT_EQ(ExactCount(0) << 100, 0u);
  EXPECT_EQ((less + 1u).to_double(), 18446744073709551616.0);
  // The nearest double is 2^117 + 2^65: the bits below it are more than half of the distance.
  const ExactCount above_half = (ExactCount(1) << 117) + (ExactCount(1) << 64) + 1u;
  EXPECT_EQ(above_half.to_double(), std::ldexp(1, 117) + std::ldexp(1, 65));
  EXPECT_EQ(((ExactCount(1) << 117) + (ExactCount(1) << 64)).to_double(), std::ldexp(1, 117));
  // The highest bit of a word is set, and the bit that decides is in the lowest of three words.
  const ExactCount tie = (ExactCount(1) << 191) + (ExactCount(1) << 138);
  EXPECT_EQ(tie.to_double(), std::ldexp(1, 191));
  EXPECT_EQ((tie + 1u).to_double(), std::ldexp(1, 191) + std::ldexp(1, 139));
  EXPECT_EQ((ExactCount(1) << 1023).to_double(), std::ldexp(1, 1023));
  EXPECT_EQ((ExactCount(1) << 1024).to_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ((ExactCount(1) << 5000).to_double(), std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(ExactCount(1000).log10(), 3.0);
  EXPECT_DOUBLE_EQ((less + 1u).log10(), 64 * std::log10(2.0));
  EXPECT_DOUBLE_EQ((ExactCount(1) << 5000).log10(), 5000 * std::log10(2.0));
  EXPECT_LT(ExactCount(0).log10(), 0);
}

}  // namespace
}  // namespace cariama::bdd
