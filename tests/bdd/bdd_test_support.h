// Helpers for tests of bdd: managers of one process and of jobs, truth tables, model files.
#ifndef CARIAMA_TESTS_BDD_BDD_TEST_SUPPORT_H_
#define CARIAMA_TESTS_BDD_BDD_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/job.h"
#include "bdd/model_file.h"
#include "dsfabric/collectives.h"
#include "dtutils/internal/shared_copy.h"
#include "tasks/pool.h"
#include "tasks/runtime.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::bdd::testing {

// ThreadSanitizer multiplies the time of a job by 20: such a build runs the shortest searches only.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kShort = true;
#else
inline constexpr bool kShort = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitizerMaps = true;
#else
inline constexpr bool kSanitizerMaps = cariama::internal::kUnderThreadSanitizer;
#endif

// Runs body(manager) in a job of `processes` processes, whose tasks are of `model`.
inline void with_job(int processes, TaskModel model, const ManagerOptions& options,
                     const std::function<void(Manager&)>& body) {
  cariama::testing::run_process_job(processes, {}, [&](Fabric& fabric) {
    Collectives all(fabric);
    if (model == TaskModel::kPool) {
      auto pool = TaskPool::create(fabric);
      ASSERT_TRUE(pool.ok()) << pool.status();
      auto manager = Manager::create(**pool, all, options);
      ASSERT_TRUE(manager.ok()) << manager.status();
      return body(**manager);
    }
    auto runtime = TaskRuntime::create(fabric, {});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    auto manager = Manager::create(**runtime, all, options);
    ASSERT_TRUE(manager.ok()) << manager.status();
    body(**manager);
  });
}

// Runs body(manager) in `processes` processes, or in this process if it is 1.
inline void with_manager(int processes, const ManagerOptions& options,
                         const std::function<void(Manager&)>& body) {
  if (processes != 1) return with_job(processes, TaskModel::kMigrating, options, body);
  auto manager = Manager::create(options);
  ASSERT_TRUE(manager.ok()) << manager.status();
  body(**manager);
}

// The ways in which a job computes operations: both task models, each with steps that wait for
// their look-ups and with many look-ups in flight.
struct JobKind {
  TaskModel model;
  bool remote;
  uint32_t in_flight;
  OperationsBy look_ups = OperationsBy::kAutomatic;

  void set(ManagerOptions& options) const {
    options.remote = remote;
    options.in_flight = in_flight;
    options.look_ups = look_ups;
  }
};
inline constexpr std::array<JobKind, 7> kJobKinds{
    {{TaskModel::kMigrating, false, 64},
     {TaskModel::kMigrating, true, 1},
     {TaskModel::kMigrating, true, 64},
     {TaskModel::kMigrating, true, 64, OperationsBy::kOwner},
     {TaskModel::kPool, false, 64},
     {TaskModel::kPool, true, 1},
     {TaskModel::kPool, true, 3, OperationsBy::kOwner}}};
inline std::ostream& operator<<(std::ostream& out, const JobKind& kind) {
  return out << (kind.model == TaskModel::kPool ? "pool" : "migrating")
             << (kind.remote ? ", remote, " : ", mapped, ") << kind.in_flight << " in flight"
             << (kind.look_ups == OperationsBy::kOwner ? ", by owners" : "");
}

// Small sizes, so that tests are fast with sanitizers, too.
inline ManagerOptions small() {
  ManagerOptions options;
  options.table_bytes = uint64_t{4} << 20;
  options.cache_bytes = uint64_t{4} << 20;
  return options;
}

// Returns a function of the `count` variables from `first` on, with more than 2^(count / 4) nodes.
inline Bdd large_function(Manager& manager, uint32_t count, uint32_t first = 0) {
  Bdd all = manager.constant(true);
  for (uint32_t v = 0; v < count / 2; v += 2) {
    all = all & (manager.variable(first + v) ^ manager.variable(first + count - 1 - v));
  }
  return all;
}

inline std::string model_path(const std::string& name) {
  return CARIAMA_SOURCE_DIR "/tests/bdd/models/" + name + ".bdd";
}

// The values of a function for all assignments of the variables 0 .. count-1. Bit v of an index is
// the value of variable v.
using Truth = std::vector<bool>;

inline Truth truth_of(const Bdd& function, uint32_t count) {
  Truth truth(size_t{1} << count);
  std::vector<bool> assignment(count);
  for (size_t i = 0; i < truth.size(); ++i) {
    for (uint32_t v = 0; v < count; ++v) assignment[v] = (i >> v & 1) != 0;
    truth[i] = function.evaluate(assignment);
  }
  return truth;
}

// A function with its truth table.
struct Known {
  Bdd function;
  Truth truth;
};

// Returns a random function of the variables 0 .. count-1 whose truth table is computed without
// diagrams.
inline Known random_function(Manager& manager, uint32_t count, int operations,
                             std::mt19937_64& random) {
  const auto variable = [&] {
    const auto v = static_cast<uint32_t>(random() % count);
    Known one{manager.variable(v), Truth(size_t{1} << count)};
    for (size_t i = 0; i < one.truth.size(); ++i) one.truth[i] = (i >> v & 1) != 0;
    return one;
  };
  Known result = variable();
  for (int n = 0; n < operations; ++n) {
    const Known other = variable();
    const uint64_t operation = random() % 4;
    if (operation == 0) {
      result.function = result.function & other.function;
    } else if (operation == 1) {
      result.function = result.function | other.function;
    } else if (operation == 2) {
      result.function = result.function ^ other.function;
    } else {
      result.function = ~result.function;
    }
    for (size_t i = 0; i < result.truth.size(); ++i) {
      const bool a = result.truth[i];
      const bool b = other.truth[i];
      result.truth[i] = operation == 0   ? a && b
                        : operation == 1 ? a || b
                        : operation == 2 ? a != b
                                         : !a;
    }
  }
  return result;
}

}  // namespace cariama::bdd::testing

#endif  // CARIAMA_TESTS_BDD_BDD_TEST_SUPPORT_H_
