// A process of a job is stopped (SIGSTOP) while the others wait for it in a function of the
// manager: each wait ends by ManagerOptions::timeout, with the name of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/job.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"
#include "dtutils/internal/trace_observer.h"
#include "dtutils/trace.h"
#include "tests/bdd/bdd_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/shared.h"

namespace cariama::bdd {
namespace {

using cariama::testing::must;
using cariama::testing::soon;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::small;

// A step takes milliseconds while no process is stopped.
ManagerOptions of_impatient_job() {
  ManagerOptions options = small();
  options.timeout = std::chrono::milliseconds(1'500);
  return options;
}

void expect_late(const std::string& text, const std::string& rank) {
  EXPECT_THAT(text, AllOf(HasSubstr(rank), HasSubstr("kill -CONT"),
                          HasSubstr("raise ManagerOptions::timeout")));
}
void expect_late(const absl::Status& late, const std::string& rank) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  expect_late(std::string(late.message()), rank);
}

// Expects that `operation` throws the error of a late process.
void expect_late_operation(const std::function<void()>& operation, const std::string& rank) {
  try {
    operation();
    ADD_FAILURE() << "the operation has ended without the stopped process";
  } catch (const std::runtime_error& late) {
    expect_late(std::string(late.what()), rank);
  }
}

// A conjunction of so many variables that rank 0 alone loads its nodes.
StoredDiagrams long_conjunction() {
  StoredDiagrams result;
  uint64_t below = kTrue;
  for (uint64_t variable = 300; variable-- > 0;) {
    result.nodes.push_back({below, variable << 40});
    below = result.nodes.size();
  }
  result.roots.push_back(below);
  return result;
}

// A manager without tasks, and the collectives of which it is the only user.
struct OwnManager {
  OwnManager(Fabric& fabric, const ManagerOptions& options)
      : all(fabric), manager(must(Manager::create(all, options))) {}
  Collectives all;
  std::unique_ptr<Manager> manager;
};

TEST(StoppedDiagrams, EachFunctionOfAManagerEndsByItsTimeout) {
  cariama::testing::run_job_with_a_victim(2, 0, [](Fabric& fabric) {
    const ManagerOptions options = of_impatient_job();
    ManagerOptions remote = options;
    remote.remote = true;
    OwnManager agrees(fabric, options);
    OwnManager asks(fabric, options);
    OwnManager computes(fabric, options);
    OwnManager collects(fabric, options);
    OwnManager loads(fabric, remote);
    const Bdd x = computes.manager->variable(0);
    const Bdd y = computes.manager->variable(1);
    Collectives all(fabric);
    const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
    if (fabric.rank() == 0) return cariama::testing::wait_to_be_killed(fabric);
    ASSERT_TRUE(cariama::testing::stop_process(*processes[0], soon()));

    const absl::Status agreed = agrees.manager->agree(absl::OkStatus(), "a step");
    expect_late(agreed, "rank 0");
    // The operation that was not completed is the last one of this manager.
    EXPECT_EQ(agrees.manager->agree(absl::OkStatus(), "another step"), agreed);
    EXPECT_EQ(agrees.manager->value_of_rank_0(1).status(), agreed);
    expect_late_operation([&] { (void)agrees.manager->variable(0); }, "rank 0");

    expect_late(asks.manager->value_of_rank_0(1).status(), "rank 0");

    expect_late_operation([&] { (void)(x & y); }, "rank 0");
    expect_late_operation([&] { collects.manager->collect(); }, "rank 0");
    expect_late_operation([&] { (void)loads.manager->load(long_conjunction()); }, "rank 0");

    Collectives created(fabric);
    expect_late(Manager::create(created, options).status(), "rank 0");
    kill(*processes[0], SIGKILL);
  });
}

// Rank 0 stops itself at the collective operation with this number.
std::atomic<int> operations_until_stop;

void stop_at_the_operation(const char*, const char* name) {
  const std::string_view event(name);
  if (event != "all_reduce" && event != "barrier" && event != "broadcast") return;
  if (--operations_until_stop == 0) raise(SIGSTOP);
}

// Every second collective operation of a collection: the table of all processes is freed, created
// and filled in them.
TEST(StoppedDiagrams, EachStepOfACollectionEndsByTheTimeout) {
  const cariama::testing::Shared<std::atomic<bool>> is_complete;
  for (int step = 2; !*is_complete; step += 2) {
    ASSERT_LT(step, 60) << "rank 0 was not stopped, or the collection does not end without it";
    cariama::testing::run_job_with_a_victim(2, 0, [&](Fabric& fabric) {
      ManagerOptions options = of_impatient_job();
      options.remote = true;
      OwnManager own(fabric, options);
      const std::vector<Bdd> held = own.manager->load(long_conjunction());
      Collectives all(fabric);
      const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
      if (fabric.rank() == 0) {
        operations_until_stop = step;
        must(start_trace(::testing::TempDir() + "/collection_" + std::to_string(getpid())));
        cariama::internal::set_trace_observer(&stop_at_the_operation);
        own.manager->collect();
        cariama::internal::set_trace_observer(nullptr);
        return cariama::testing::wait_to_be_killed(fabric);
      }
      try {
        own.manager->collect();
        *is_complete = true;
      } catch (const std::runtime_error& late) {
        expect_late(std::string(late.what()), "rank 0");
        expect_late_operation([&] { own.manager->collect(); }, "rank 0");
      }
      kill(*processes[0], SIGKILL);
    });
    if (HasFailure()) return;
  }
}

// Runs `body` in rank 0 of a job whose other process has stopped itself. The processes of the job
// run this program with the test StoppedDiagrams.`test` only.
void run_beside_a_stopped_process(const std::string& test,
                                  const std::function<void(std::unique_ptr<Job>&)>& body) {
  constexpr int kNoFailure = 7;
  if (!Job::launched()) {
    // Otherwise the processes of the job would run a part of their only test.
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    const absl::StatusOr<int> code =
        launch({.processes = 2,
                .grace = std::chrono::milliseconds(500),
                .command = {"/proc/self/exe", "--gtest_filter=StoppedDiagrams." + test}});
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, kNoFailure);
    return;
  }
  auto job = Job::create(of_impatient_job(), TaskModel::kPool, {});
  ASSERT_TRUE(job.ok()) << job.status();
  if ((*job)->manager().rank() == 1) raise(SIGSTOP);
  body(*job);
  job->reset();
  _exit(::testing::Test::HasFailure() ? 1 : kNoFailure);
}

TEST(StoppedDiagrams, TheRowsOfAJobEndByTheTimeout) {
  run_beside_a_stopped_process("TheRowsOfAJobEndByTheTimeout", [](std::unique_ptr<Job>& job) {
    expect_late_operation([&] { (void)job->process_rows(); }, "rank 1");
    // No function waits for the stopped process, which the launcher kills.
    expect_late_operation([&] { (void)job->process_rows(); }, "rank 1");
  });
}

TEST(StoppedDiagrams, TheEndOfAJobEndsByTheTimeout) {
  run_beside_a_stopped_process("TheEndOfAJobEndsByTheTimeout", [](std::unique_ptr<Job>& job) {
    expect_late(job->end(), "rank 1");
  });
}

TEST(StoppedDiagrams, ATimeoutOutOfRangeIsRefused) {
  for (const auto timeout : {std::chrono::milliseconds(-1), std::chrono::milliseconds::max()}) {
    ManagerOptions options = small();
    options.timeout = timeout;
    const absl::Status refused = Manager::create(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("bdd: timeout is "));
  }
}

}  // namespace
}  // namespace cariama::bdd
