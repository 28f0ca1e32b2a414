// Failures that leave the diagrams and the other processes intact: no memory to enlarge the table,
// a file that one process cannot read, an exception in one process, wrong operands.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/files.h"
#include "bdd/internal/node_table.h"
#include "bdd/job.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "dtutils/allocators/memory_budget.h"
#include "tests/bdd/bdd_test_support.h"

namespace cariama::bdd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Known;
using testing::kSanitizerMaps;
using testing::large_function;
using testing::model_path;
using testing::random_function;
using testing::small;
using testing::truth_of;
using testing::with_job;
using testing::with_manager;

// Fills the table with nodes that no diagram needs. Returns the message of the TableFull.
std::string fill(Manager& manager) {
  try {
    for (uint32_t first = 0; first < 6000; first += 60) (void)large_function(manager, 60, first);
  } catch (const TableFull& full) {
    return full.what();
  }
  return "";
}

void expect_full_and_intact(Manager& manager, const Known& before, const Known& other) {
  EXPECT_THAT(fill(manager), AllOf(HasSubstr("cannot be enlarged"), HasSubstr("max_table_bytes")));
  EXPECT_EQ(truth_of(before.function, 8), before.truth);
  EXPECT_EQ(truth_of(before.function & other.function, 8),
            truth_of(~(~before.function | ~other.function), 8));
}

// In a job, an operation that finds no room ends in all processes, as fast as with one: it does not
// compute the parts that were not begun, or one failed step again on each path to it.
TEST(Full, EndsAnOperationOfAJob) {
  for (const TaskModel model : {TaskModel::kMigrating, TaskModel::kPool}) {
    ManagerOptions options = small();
    options.table_bytes = options.max_table_bytes = uint64_t{1} << 20;
    with_job(2, model, options, [](Manager& manager) {
      constexpr uint32_t kPairs = 24;
      std::array<Bdd, 2> halves{manager.constant(true), manager.constant(true)};
      for (uint32_t i = 0; i < kPairs; ++i) {
        halves[i % 2] = halves[i % 2] & ~(manager.variable(i) ^ manager.variable(kPairs + i));
      }
      const uint64_t before = manager.statistics().tasks;
      EXPECT_THROW((void)(halves[0] & halves[1]), TableFull);  // 2^24 nodes
      EXPECT_LT(manager.statistics().tasks - before,
                10 * 2 * ((uint64_t{1} << 20) / NodeTable::kBucketBytes));
    });
  }
}

TEST(Growth, WithoutMemoryKeepsTheDiagrams) {
  if (kSanitizerMaps) GTEST_SKIP() << "the sanitizer maps memory, which the limit would forbid";
  cariama::testing::run_process_job(1, {}, [](Fabric&) {
    ManagerOptions options = small();
    options.table_bytes = uint64_t{16} << 20;
    with_manager(1, options, [](Manager& manager) {
      std::mt19937_64 random(11);
      const Known before = random_function(manager, 8, 40, random);
      const Known other = random_function(manager, 8, 40, random);
      uint64_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      // The table of 16 MiB has 8 MiB of nodes. A table of 64 MiB has 32 MiB.
      const rlim_t most = pages * static_cast<uint64_t>(getpagesize()) + (rlim_t{22} << 20);
      const struct rlimit limit { most, most };
      ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
      expect_full_and_intact(manager, before, other);
    });
  });
}

TEST(Files, AFileThatIsLargerThanTheMemoryIsAnError) {
  if (kSanitizerMaps) GTEST_SKIP() << "the sanitizer maps memory, which the limit would forbid";
  const std::string path = ::testing::TempDir() + "sparse" + std::to_string(getpid());
  std::ofstream(path) << "x";
  std::error_code error;
  std::filesystem::resize_file(path, uint64_t{64} << 30, error);
  if (error) GTEST_SKIP() << "no sparse files: " << error.message();
  cariama::testing::run_process_job(1, {}, [&](Fabric&) {
    const struct rlimit limit { rlim_t{32} << 30, rlim_t{32} << 30 };
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const absl::Status read = read_file(path).status();
    EXPECT_EQ(read.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(read.message()), HasSubstr("64 GiB"));
  });
  std::filesystem::remove(path);
}

// A writer that was killed may have left PATH.new. Another writer may have it open.
TEST(Files, WritersDoNotShareTheirNewFile) {
  const std::string path = ::testing::TempDir() + "written" + std::to_string(getpid());
  const std::string fresh = path + ".new";
  std::ofstream(fresh) << "the remains of a longer file";
  ASSERT_TRUE(write_file(path, "first").ok());
  EXPECT_EQ(read_file(path).value(), "first");
  EXPECT_FALSE(std::filesystem::exists(fresh));
  const int other = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, mode_t{0600});
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  const absl::Status second = write_file(path, "second");
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.message()), HasSubstr("another process is writing " + path));
  EXPECT_EQ(read_file(path).value(), "first");
  EXPECT_TRUE(std::filesystem::exists(fresh));
  ::close(other);
  EXPECT_TRUE(write_file(path, "third").ok());
  EXPECT_EQ(read_file(path).value(), "third");
  std::filesystem::remove(path);
}

TEST(Growth, WithoutMemoryInOneProcessKeepsTheDiagramsOfAll) {
  ManagerOptions options = small();
  options.table_bytes = uint64_t{1} << 20;
  with_manager(2, options, [](Manager& manager) {
    std::mt19937_64 random(11);
    const Known before = random_function(manager, 8, 40, random);
    const Known other = random_function(manager, 8, 40, random);
    MemoryBudget& budget = MemoryBudget::process();
    if (manager.rank() == 1) budget.set_limit(budget.used());
    expect_full_and_intact(manager, before, other);
  });
}

// A process with one thread: no other thread allocates below the limit of mappings.
TEST(Growth, WithoutMemoryForTheOldSizeEachOperationThrows) {
  if (kSanitizerMaps) GTEST_SKIP() << "the sanitizer maps memory, which the limit would forbid";
  const pid_t child = fork();
  if (child == 0) {
    with_manager(1, small(), [](Manager& manager) {
      const Bdd before = manager.variable(1);
      struct rlimit old {};
      ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
      // Free memory of the heap, for exceptions and the texts of failed expectations.
      mallopt(M_TRIM_THRESHOLD, 64 << 20);
      std::vector<std::string>(4096, std::string(1000, ' ')).clear();
      const struct rlimit none { 1, old.rlim_max };
      ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
      EXPECT_THROW(manager.collect(), std::runtime_error);
      ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
      EXPECT_THROW((void)(before & before), std::runtime_error);
      EXPECT_THROW((void)manager.variable(2), std::runtime_error);
      EXPECT_THROW((void)before.nodes(), std::runtime_error);
      EXPECT_THROW((void)before.evaluate({}), std::runtime_error);
      EXPECT_THROW((void)before.low(), std::runtime_error);
      EXPECT_THROW((void)manager.store({&before, 1}), std::runtime_error);
      EXPECT_THROW((void)manager.statistics(), std::runtime_error);
    });
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "bdd-failures" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The process without an error returns the error of the other process, with its text.
TEST(Agreement, AnErrorOfOneProcessIsThatOfAll) {
  const Folder folder;
  with_manager(1, small(), [&](Manager& manager) {
    const std::array<Bdd, 1> one{manager.variable(3)};
    ASSERT_TRUE(manager.save_file(one, folder / "good").ok());
    EXPECT_TRUE(manager.agree(absl::OkStatus(), "alone", 7).ok());
    EXPECT_EQ(manager.agree(absl::AbortedError("mine"), "alone"), absl::AbortedError("mine"));
  });
  with_manager(2, small(), [&](Manager& manager) {
    const bool first = manager.rank() == 0;
    const auto loaded = manager.load_file(folder / (first ? "good" : "missing"));
    EXPECT_EQ(loaded.status().code(),
              first ? absl::StatusCode::kUnavailable : absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(folder / "missing"));
    EXPECT_TRUE(manager.load_file(folder / "good").ok());
    // Hosts without a shared file system may have different files of one name.
    const std::string mine = folder / ("of rank " + std::to_string(manager.rank()));
    const std::array<Bdd, 1> one{manager.variable(static_cast<uint32_t>(manager.rank()))};
    EXPECT_TRUE(manager.save_file(one, mine).ok());
    const absl::Status different = manager.load_file(mine).status();
    EXPECT_EQ(different.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(different.message()), HasSubstr("read other data, than rank 0"));
    EXPECT_EQ(manager.agree(absl::OkStatus(), "values", manager.rank()).code(),
              absl::StatusCode::kFailedPrecondition);
  });
}

TEST(Agreement, CheckpointsThatOneProcessCannotReadOrWrite) {
  const Folder folder;
  std::filesystem::create_directories(folder / "good");
  std::filesystem::create_directories(folder / "bad/reach.checkpoint");
  with_manager(2, small(), [&](Manager& manager) {
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    ReachOptions options{.strategy = Strategy::kSaturation};
    options.max_levels = 1;
    const auto code = [&](const std::string& of_first, const std::string& of_second) {
      options.checkpoint = folder / (manager.rank() == 0 ? of_first : of_second);
      return reach(model, options).status().code();
    };
    EXPECT_NE(code("good", "bad"), absl::StatusCode::kOk) << "cannot be read by rank 1";
    options.checkpoint = "/proc/no";
    EXPECT_FALSE(reach(model, options).ok()) << "cannot be written by rank 0";
    EXPECT_EQ(code("good", "good"), absl::StatusCode::kOk);
    EXPECT_EQ(code("good", "empty"), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(code("empty", "good"), absl::StatusCode::kFailedPrecondition);
  });
}

// If the destructor of the manager waited after an exception, the two processes would wait for each
// other. The test's watchdog would end that.
TEST(Agreement, AnExceptionInOneProcessEndsIt) {
  const absl::Status ended = cariama::testing::try_process_job(
      2, {.on_failure = FailurePolicy::kAbort}, [](Fabric& fabric) {
        try {
          Collectives all(fabric);
          auto runtime = TaskRuntime::create(fabric, {});
          ASSERT_TRUE(runtime.ok()) << runtime.status();
          auto manager = Manager::create(**runtime, all, small());
          ASSERT_TRUE(manager.ok()) << manager.status();
          const Model model = load_model(**manager, *read_model_file(model_path("anderson.4")));
          ReachOptions options{.strategy = Strategy::kBfs};
          options.progress = [&](const ReachProgress& one) {
            if (fabric.rank() == 1 && one.level == 3) throw std::logic_error("the callback");
          };
          (void)reach(model, options);
          ADD_FAILURE() << "rank 0 waits for rank 1";
        } catch (const std::logic_error&) {
          _exit(3);
        }
      });
  EXPECT_THAT(std::string(ended.message()), HasSubstr("3"));
}

// The other process does not wait for its time limit.
TEST(Agreement, WrongOptionsOfOneProcessAreAnErrorOfAll) {
  cariama::testing::run_process_job(2, {}, [](Fabric& fabric) {
    Collectives all(fabric);
    ManagerOptions options = small();
    if (fabric.rank() == 1) options.in_flight = 0;
    const absl::Status refused = Manager::create(all, options).status();
    EXPECT_EQ(refused.code(), fabric.rank() == 0 ? absl::StatusCode::kUnavailable
                                                 : absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("in_flight is 0"));
    EXPECT_TRUE(Manager::create(all, small()).ok());
  });
}

// Sums and products of these sizes would overflow.
TEST(Options, HugeOnesAreRefused) {
  for (const int processes : {1, 2}) {
    cariama::testing::run_process_job(processes, {}, [](Fabric& fabric) {
      Collectives all(fabric);
      const auto expect_refused = [&](const ManagerOptions& options, const std::string& text) {
        for (const absl::Status& refused :
             {Manager::create(options).status(), Manager::create(all, options).status()}) {
          EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
          EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
        }
      };
      for (const uint64_t huge : {ManagerOptions::kMostBytes + 1, UINT64_MAX - 62, UINT64_MAX}) {
        const std::string number = std::to_string(huge);
        expect_refused({.cache_bytes = huge}, "cache_bytes is " + number);
        expect_refused({.max_table_bytes = huge}, "max_table_bytes is " + number);
        expect_refused({.table_bytes = huge, .max_table_bytes = huge}, "table_bytes is " + number);
      }
      expect_refused({.in_flight = UINT32_MAX}, "in_flight is 4294967295");
    });
  }
}

TEST(Operands, AModelWithoutStatesIsRefused) {
  const absl::Status empty = reach(Model{}, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(empty)) << empty;
  with_manager(1, small(), [](Manager& manager) {
    Model model;
    model.variables = manager.cube({0});
    EXPECT_TRUE(absl::IsInvalidArgument(reach(model, {}).status()));
  });
}

TEST(Operands, AModelWhosePartsDoNotFitTogetherIsRefused) {
  for (const int processes : {1, 2}) {
    with_manager(processes, small(), [](Manager& manager) {
      const auto v = [&](uint32_t variable) { return manager.variable(variable); };
      Model good;
      good.bits = {1, 1};
      good.first_bit = {0, 1};
      good.state_bits = 2;
      good.variables = manager.cube({0, 2});
      good.initial = ~v(0) & ~v(2);
      good.transitions = {{v(0) ^ v(1), manager.cube({0})}, {v(3), manager.cube({2})}};
      for (const Strategy strategy : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
        const auto reached = reach(good, {.strategy = strategy});
        ASSERT_TRUE(reached.ok()) << reached.status();
        EXPECT_EQ(reached->states.to_string(), "4");
      }
      const auto expect_refused = [&](const std::function<void(Model&)>& change,
                                      const std::string& text) {
        Model model = good;
        change(model);
        const absl::Status refused = reach(model, {}).status();
        EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text << ": " << refused;
        EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
      };
      const std::string no_cube = "the variables of the model are no cube of even variables";
      expect_refused([&](Model& m) { m.variables = manager.cube({0, 1, 2}); }, no_cube);
      expect_refused([&](Model& m) { m.variables = v(0) | v(2); }, no_cube);
      expect_refused([&](Model& m) { m.variables = v(0) & ~v(2); }, no_cube);
      expect_refused([&](Model& m) { m.initial = v(4); }, "initial states of the model depend on");
      expect_refused([&](Model& m) { m.initial = v(1); }, "initial states of the model depend on");
      expect_refused([&](Model& m) { m.first_bit = {0}; }, "bits and first_bit differ in size");
      expect_refused([&](Model& m) { m.first_bit = {0, 2}; }, "not below state_bits");
      expect_refused([&](Model& m) { m.transitions[1].relation = Bdd(); },
                     "transition 1 of the model has no relation or no variables");
      expect_refused([&](Model& m) { m.transitions[0].variables = Bdd(); },
                     "transition 0 of the model has no relation or no variables");
      const std::string outside = "has variables that are no cube of variables of Model::variables";
      expect_refused([&](Model& m) { m.transitions[0].variables = manager.cube({0, 4}); }, outside);
      expect_refused([&](Model& m) { m.transitions[0].variables = manager.cube({1}); }, outside);
      expect_refused([&](Model& m) { m.transitions[0].variables = ~v(0); }, outside);
      // Without the check, the relation would change variable 2 in no successor.
      expect_refused([&](Model& m) { m.transitions[0].relation = v(1) & v(3); },
                     "a relation over variable 3, but variable 2 is not in Transition::variables");
      expect_refused([&](Model& m) { m.transitions[0].relation = v(4); },
                     "a relation over variable 4, but variable 4 is not in Transition::variables");
    });
  }
}

TEST(Operands, OfStepsOverOddVariablesAreRefused) {
  for (const int processes : {1, 2}) {
    with_manager(processes, small(), [](Manager& manager) {
      const Bdd unprimed = manager.variable(0);
      const Bdd primed = manager.variable(1);
      const Bdd relation = unprimed ^ primed;
      const Bdd cube = manager.cube({0});
      const std::array<Transition, 1> good{{{relation, cube}}};
      const std::array<Transition, 1> bad{{{relation, primed}}};
      for (const auto step : {&Bdd::relnext, &Bdd::relprev}) {
        EXPECT_EQ((unprimed.*step)(relation, cube), ~unprimed);
        EXPECT_THROW((void)(primed.*step)(relation, cube), std::invalid_argument);
        EXPECT_THROW((void)(relation.*step)(relation, cube), std::invalid_argument);
        EXPECT_THROW((void)(unprimed.*step)(relation, primed), std::invalid_argument);
        // Functions of even variables that operations on odd ones returned.
        const Bdd states = (unprimed & primed).exists(primed);
        EXPECT_EQ((states.*step)(relation, (cube & primed).exists(primed)), ~unprimed);
      }
      EXPECT_EQ(manager.image(unprimed, good), ~unprimed);
      EXPECT_EQ(manager.preimage(unprimed, good), ~unprimed);
      EXPECT_TRUE(manager.chain(unprimed, good).is_true());
      EXPECT_TRUE(manager.saturate(unprimed, good).is_true());
      EXPECT_THROW((void)manager.image(primed, good), std::invalid_argument);
      EXPECT_THROW((void)manager.image(unprimed, bad), std::invalid_argument);
      EXPECT_THROW((void)manager.preimage(primed, good), std::invalid_argument);
      EXPECT_THROW((void)manager.chain(primed, good), std::invalid_argument);
      EXPECT_THROW((void)manager.saturate(primed, good), std::invalid_argument);
      EXPECT_THROW((void)manager.saturate(unprimed, bad), std::invalid_argument);
    });
  }
}

// Functions that exist at the end of their job, and those without a value.
TEST(Operands, WithoutAManagerAreRefused) {
  Bdd function;
  {
    auto job = Job::create(small());
    ASSERT_TRUE(job.ok()) << job.status();
    function = (*job)->manager().variable(3);
    const Bdd constant = (*job)->manager().constant(true);
    EXPECT_TRUE((*job)->end().ok());
    EXPECT_EQ(constant.manager(), nullptr);
    EXPECT_THROW((void)constant.is_true(), std::invalid_argument);
  }
  for (const Bdd& none : {function, Bdd()}) {
    EXPECT_EQ(none.manager(), nullptr);
    EXPECT_THROW((void)(none & none), std::invalid_argument);
    EXPECT_THROW((void)~none, std::invalid_argument);
    EXPECT_THROW((void)none.is_false(), std::invalid_argument);
    EXPECT_THROW((void)none.edge(), std::invalid_argument);
    EXPECT_THROW((void)none.nodes(), std::invalid_argument);
    EXPECT_THROW((void)none.evaluate({}), std::invalid_argument);
    EXPECT_THROW((void)none.relnext(none, none), std::invalid_argument);
    EXPECT_FALSE(none == none);
  }
  with_manager(1, small(), [&](Manager& manager) {
    const Bdd x = manager.variable(1);
    try {
      (void)(x & function);
      ADD_FAILURE() << "the function has no manager";
    } catch (const std::invalid_argument& refused) {
      EXPECT_THAT(refused.what(), HasSubstr("the manager of an operand has been destroyed"));
    }
    EXPECT_THROW((void)(x & Bdd()), std::invalid_argument);
    function = x;
    EXPECT_EQ(function & x, x);
  });
  EXPECT_EQ(function.manager(), nullptr);
}

TEST(Operands, OfAnotherManagerAreRefused) {
  with_manager(1, small(), [](Manager& a) {
    with_manager(1, small(), [&](Manager& b) {
      const Bdd x = a.variable(0);
      const Bdd y = b.variable(0);
      const std::array<Bdd, 2> both{x, y};
      const std::array<Transition, 1> transitions{{{y, a.cube({0})}}};
      EXPECT_THROW((void)(x & y), std::invalid_argument);
      EXPECT_THROW((void)(x | y), std::invalid_argument);
      EXPECT_THROW((void)(x ^ y), std::invalid_argument);
      EXPECT_THROW((void)x.minus(y), std::invalid_argument);
      EXPECT_THROW((void)x.ite(x, y), std::invalid_argument);
      EXPECT_THROW((void)x.exists(y), std::invalid_argument);
      EXPECT_THROW((void)x.and_exists(x, y), std::invalid_argument);
      EXPECT_THROW((void)x.compose(0, y), std::invalid_argument);
      EXPECT_THROW((void)x.relnext(y, x), std::invalid_argument);
      EXPECT_THROW((void)x.relprev(x, y), std::invalid_argument);
      EXPECT_THROW((void)x.count(y), std::invalid_argument);
      EXPECT_THROW((void)x.pick(y), std::invalid_argument);
      EXPECT_THROW((void)a.nodes(both), std::invalid_argument);
      EXPECT_THROW((void)a.store(both), std::invalid_argument);
      EXPECT_THROW((void)a.image(x, transitions), std::invalid_argument);
      EXPECT_THROW((void)a.saturate(y, {}), std::invalid_argument);
      EXPECT_FALSE(x == y);
    });
  });
}

TEST(Operands, OfOtherVariablesAreRefused) {
  with_manager(1, small(), [](Manager& manager) {
    const Bdd x = manager.variable(4);
    EXPECT_THROW((void)x.pick(manager.cube({2})), std::invalid_argument);
    EXPECT_THROW((void)x.pick(manager.cube({6})), std::invalid_argument);
    EXPECT_THROW((void)x.pick(manager.cube({2, 6})), std::invalid_argument);
    EXPECT_EQ(x.pick(manager.cube({2, 4})), ~manager.variable(2) & x);
    EXPECT_THROW((void)x.compose(kMaxVariable + 1, x), std::out_of_range);
    EXPECT_THROW((void)x.compose(UINT32_MAX, x), std::out_of_range);
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    const Bdd primed = manager.variable(1);
    EXPECT_EQ(reach(model, {.goal = primed}).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(reach(model, {.goal = manager.variable(2 * model.state_bits)}).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_THROW((void)find_trace(model, primed, model.initial), std::invalid_argument);
    EXPECT_THROW((void)find_trace(model, model.initial, primed), std::invalid_argument);
    with_manager(1, small(), [&](Manager& other) {
      EXPECT_EQ(reach(model, {.goal = other.variable(0)}).status().code(),
                absl::StatusCode::kInvalidArgument);
    });
  });
}

// A conjunction of `count` variables.
StoredDiagrams chain(uint32_t count, uint32_t first, uint32_t step) {
  StoredDiagrams result;
  for (uint32_t i = count; i-- > 0;) {
    const uint64_t below = result.nodes.empty() ? kTrue : result.nodes.size();
    result.nodes.push_back({below, uint64_t{first + i * step} << 40});
  }
  result.roots.push_back(result.nodes.size());
  return result;
}

TEST(Depth, DiagramsOfFilesAreLimited) {
  std::string bytes;
  append_diagrams(chain(kMaxLevels, 0, 1), bytes);
  size_t offset = 0;
  EXPECT_TRUE(parse_diagrams(bytes, offset).ok());
  bytes.clear();
  append_diagrams(chain(kMaxLevels + 1, 0, 1), bytes);
  offset = 0;
  EXPECT_THAT(std::string(parse_diagrams(bytes, offset).status().message()),
              HasSubstr("more than 9216 nodes"));
}

// The largest states and the most labels that a file may have: the recursion over both fits the
// stack.
TEST(Depth, TheLargestModelFitsTheStack) {
  if (testing::kShort) {
    GTEST_SKIP()
        << "ThreadSanitizer's own record of the calls holds 65 536, and some functions per "
           "level are called";
  }
  for (const int processes : {1, 2}) {
    with_manager(processes, small(), [](Manager& manager) {
      constexpr uint32_t kBits = 4096;
      ModelFile file;
      file.bits = std::vector<uint32_t>(kBits / 64, 64);
      file.initial.states = chain(kBits, 0, 2);
      std::vector<uint32_t> all;
      for (uint32_t i = 0; i < file.bits.size(); ++i) all.push_back(i);
      file.groups.push_back({all, all, chain(kMaxLevels, kFirstLabelVariable, 1)});
      file.groups.push_back({all, all, chain(2 * kBits, 0, 1)});
      const absl::StatusOr<ModelFile> read = parse_model(format_model(file));
      ASSERT_TRUE(read.ok()) << read.status();
      const Model model = load_model(manager, *read);
      // Steps over the labels, over the states, and operations on both.
      const Bdd labels = model.transitions[0].relation;
      const Bdd states = model.initial;
      EXPECT_TRUE(states.relnext(labels, model.variables).is_true());
      EXPECT_EQ(states.relnext(model.transitions[1].relation, model.variables), states);
      EXPECT_EQ(states.relprev(model.transitions[1].relation, model.variables), states);
      EXPECT_EQ((states & labels).exists(manager.cube({0})).nodes(), kBits + kMaxLevels);
      EXPECT_EQ((states ^ labels).nodes(), kBits + kMaxLevels + 1);
    });
  }
}

}  // namespace
}  // namespace cariama::bdd
