// TaskOptions::run_timeout: a run ends at its time limit, also if a worker is stopped (SIGSTOP) and
// never answers. The limits are long enough that the processes get there on a loaded machine.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "dtutils/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/await.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using namespace std::chrono_literals;
using testing::fib;
using ::testing::HasSubstr;
using testing::poll_until;
using testing::Shared;
using testing::spin_until;
using testing::with_workers;

struct StopFlags {
  std::array<std::atomic<pid_t>, 3> pids{};
  std::atomic<int> go{0};
  std::atomic<int> stopped{-1};  // the rank that stops itself
  std::atomic<int> ended{0};     // number of workers whose run() has returned
};

int rank_here;  // of this process; not a local of a task, which may change its process

// Stops its process, which continues when the other workers have left the run. Then the task is
// abandoned.
void stop_here(StopFlags* flags) {
  flags->stopped = rank_here;
  raise(SIGSTOP);
  for (;;) poll();
}

// Runs `root`, which stops one of three workers. Requires that run() ends on the other two, and
// later on this one.
template <typename F>
void run_until_late(const TaskOptions& options, StopFlags* flags, F root) {
  with_workers(3, options, [&](TaskRuntime& runtime) {
    rank_here = static_cast<int>(runtime.rank());
    flags->pids[static_cast<size_t>(rank_here)] = getpid();
    const absl::Status late = runtime.run(root);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    const std::string text(late.message());
    EXPECT_THAT(text, HasSubstr("within TaskOptions::run_timeout"));
    EXPECT_THAT(text, HasSubstr("rank " + std::to_string(flags->stopped)));
    EXPECT_THAT(text, HasSubstr("continue it with kill -CONT"));
    EXPECT_THAT(text, HasSubstr("of this worker are lost"));
    EXPECT_EQ(runtime.run([] { ADD_FAILURE() << "a later run() began"; }), late);
    if (++flags->ended == 2) kill(flags->pids[static_cast<size_t>(flags->stopped)], SIGCONT);
    EXPECT_TRUE(spin_until([&] { return flags->ended == 3; }));
  });
  EXPECT_EQ(flags->ended, 3);
}

struct StopVariant {
  const char* name;
  TaskOptions options;
};
void PrintTo(const StopVariant& variant, std::ostream* out) { *out << variant.name; }

class RunTimeout : public ::testing::TestWithParam<StopVariant> {
 protected:
  static TaskOptions options() {
    TaskOptions options = GetParam().options;
    options.run_timeout = 2s;
    return options;
  }
  const Shared<StopFlags> flags_;
};
INSTANTIATE_TEST_SUITE_P(
    Variants, RunTimeout,
    ::testing::Values(
        StopVariant{"split", {.atomics = RemoteAtomics::kDevice}},
        StopVariant{"split_served", {.atomics = RemoteAtomics::kServed}},
        StopVariant{"the",
                    {.join = JoinPolicy::kWaitQueue,
                     .deque = DequeKind::kThe,
                     .atomics = RemoteAtomics::kDevice}},
        StopVariant{"private", {.deque = DequeKind::kPrivate, .atomics = RemoteAtomics::kDevice}}),
    [](const auto& info) { return info.param.name; });

TEST_P(RunTimeout, EndsARunWhoseThiefIsStopped) {
  run_until_late(options(), flags_.get(), [f = flags_.get()] {
    task<void> child = spawn([f] { EXPECT_TRUE(poll_until([f] { return f->go == 1; })); });
    f->go = 1;
    stop_here(f);  // stops the thief, which runs the parent
    join(std::move(child));
  });
  EXPECT_NE(flags_->stopped, 0);
}

TEST_P(RunTimeout, EndsARunWhoseVictimIsStopped) {
  run_until_late(options(), flags_.get(), [f = flags_.get()] {
    task<void> child = spawn([f] {
      EXPECT_TRUE(poll_until([f] { return f->go == 1; }));
      stop_here(f);
    });
    f->go = 1;
    join(std::move(child));  // the thief waits for a child that does not end
  });
  EXPECT_EQ(flags_->stopped, 0);
}

// The worker sleeps until a peer wakes it, or until the limit.
TEST(RunTimeoutOf, AWorkerThatSleeps) {
  const Shared<StopFlags> flags;
  TaskOptions options;
  options.wakeable_sleep = 1h;
  options.run_timeout = 2s;
  run_until_late(options, flags.get(), [f = flags.get()] {
    task<void> child = spawn([f] { EXPECT_TRUE(poll_until([f] { return f->go == 1; })); });
    f->go = 1;
    stop_here(f);
    join(std::move(child));
  });
}

// Runs `root`, which waits for an event that does not happen, on one worker.
template <typename F>
void wait_in_vain(F root) {
  with_workers(1, {.run_timeout = 100ms}, [&](TaskRuntime& runtime) {
    const absl::Status late = runtime.run(root);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("no other worker has tasks"));
    EXPECT_THAT(std::string(late.message()), HasSubstr("raise TaskOptions::run_timeout"));
  });
}

TEST(RunTimeoutOf, TasksThatWaitForNothing) {
  wait_in_vain([] { suspend([](const SuspendedTask&) {}); });
  wait_in_vain([] {
    for (;;) yield();
  });
  wait_in_vain([] { static_cast<void>(await_until([] { return false; }, kForever)); });
  wait_in_vain([] {
    const TaskPromise<int> promise;
    static_cast<void>(promise.future().get());
  });
}

// The wait of another layer ends by its own deadline; then the task is abandoned.
TEST(RunTimeoutOf, ATaskInAnotherLayer) {
  static std::atomic<bool> never{false};
  wait_in_vain([] {
    EXPECT_FALSE(wait_until([] { return never.load(); }, deadline_after(300ms)));
    poll();
    ADD_FAILURE() << "an abandoned task continues";
  });
}

TEST(RunTimeoutOf, EachRunBeginsAnew) {
  with_workers(2, {.run_timeout = 30s}, [](TaskRuntime& runtime) {
    for (int run = 0; run < 3; ++run) {
      const auto result = runtime.run([] { return fib(15); });
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(*result, 610);
    }
  });
}

TEST(RunTimeoutPolicy, AbortEndsTheProcessWithAMessage) {
  const testing::LastWords words;
  const absl::Status status = testing::try_test_processes(1, [&](Exchange& exchange) {
    auto runtime =
        TaskRuntime::create(exchange, {.on_failure = FailurePolicy::kAbort, .run_timeout = 100ms});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    words.record();
    static_cast<void>((*runtime)->run([] { suspend([](const SuspendedTask&) {}); }));
    ADD_FAILURE() << "the process continues";
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("exited with code 70"));
  EXPECT_THAT(words.text(), HasSubstr("within TaskOptions::run_timeout"));
}

}  // namespace
}  // namespace cariama
