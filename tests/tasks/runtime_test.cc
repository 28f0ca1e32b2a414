// The contract of tasks/runtime.h beyond forks and joins: joiners of the queue, options that must
// be equal, calls that are refused, and the end of a run when a worker has died.
#include "tasks/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "tasks/await.h"
#include "tasks/cancellation.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::Shared;
using namespace std::chrono_literals;

// ---- joiners of the queue ----

std::atomic<bool> stop{false};  // of one process

enum class WaitBy { kAwait, kYield, kResume };

// Waits for `stop` without leaving the worker idle: the task is ready again at once.
bool wait_for_stop(WaitBy how) {
  if (how == WaitBy::kAwait) return await_until([] { return stop.load(); }, kForever);
  while (!stop) {
    if (how == WaitBy::kYield) {
      yield();
    } else {
      suspend([](const SuspendedTask& task) { resume(task); });
    }
  }
  return true;
}

void join_a_child_that_yields() {
  task<void> child = spawn([] { yield(); });
  join(std::move(child));
}

void join_beside_a_task_that_waits(const TaskOptions& options, WaitBy how, bool in_catch_block) {
  testing::with_workers(1, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run([=] {
      task<bool> waiter = spawn([how] { return wait_for_stop(how); });
      if (in_catch_block) {
        try {
          throw std::runtime_error("handled");
        } catch (const std::runtime_error&) {
          join_a_child_that_yields();
        }
      } else {
        join_a_child_that_yields();
      }
      stop = true;
      return join(std::move(waiter));
    });
    EXPECT_TRUE(result.value_or(false)) << result.status();
  });
}

// A joiner that handles an exception waits in the queue of its worker with every policy.
TEST(Runtime, AJoinerInACatchBlockIsResumedWhileATaskWaits) {
  for (const WaitBy how : {WaitBy::kAwait, WaitBy::kYield, WaitBy::kResume}) {
    join_beside_a_task_that_waits({}, how, true);
  }
}

TEST(Runtime, AJoinerOfTheWaitQueueIsResumedWhileATaskWaits) {
  TaskOptions options;
  options.join = JoinPolicy::kWaitQueue;
  for (const DequeKind deque : {DequeKind::kSplit, DequeKind::kThe, DequeKind::kPrivate}) {
    options.deque = deque;
    join_beside_a_task_that_waits(options, WaitBy::kAwait, false);
    join_beside_a_task_that_waits(options, WaitBy::kResume, true);
  }
  options.deque = DequeKind::kSplit;
  for (const StackScheme scheme : {StackScheme::kCrude, StackScheme::kIso}) {
    options.scheme = scheme;
    join_beside_a_task_that_waits(options, WaitBy::kAwait, false);
  }
}

// ---- a run inside a run ----

TEST(Runtime, ARunInATaskIsRefused) {
  testing::with_workers(1, {}, [](TaskRuntime& runtime) {
    TaskRuntime* const same = &runtime;
    const auto result = runtime.run([same] {
      task<long> child = spawn([] { return testing::fib(5); });
      const absl::StatusCode code = same->run([] { return 1; }).status().code();
      return join(std::move(child)) + static_cast<long>(code);
    });
    EXPECT_EQ(result.value_or(0), 5 + static_cast<long>(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(runtime.run([] { return testing::fib(10); }).value_or(0), 55) << "the runtime works";
  });
}

// ---- idle workers ----

// The number of times that this thread has slept or blocked.
long voluntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// Returns how often the worker has slept or blocked while a task waited for 1000 rounds.
long sleeps_of_a_wait(std::chrono::microseconds idle_sleep) {
  const Shared<std::atomic<long>> slept;
  TaskOptions options;
  options.idle_sleep = idle_sleep;
  testing::with_workers(1, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run([] {
      const long before = voluntary_switches();
      int rounds = 0;
      static_cast<void>(await_until([&rounds] { return ++rounds > 1000; }, kForever));
      return voluntary_switches() - before;
    });
    *slept = result.value_or(-1);
  });
  return *slept;
}

TEST(Runtime, AnIdleSleepOfZeroNeverSleeps) {
  if (sleeps_of_a_wait(1us) < 500) GTEST_SKIP() << "the kernel does not count voluntary switches";
  EXPECT_LT(sleeps_of_a_wait(0us), 100);
}

TEST(Runtime, APinnedAreaBelowOneSegmentIsRefused) {
  testing::run_test_processes(1, [&](Exchange& exchange) {
    TaskOptions options;
    options.pinned_bytes = (size_t{256} << 10) - 1;
    const absl::Status refused = TaskRuntime::create(exchange, options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("choose at least 262144"));
    options.pinned_bytes = size_t{256} << 10;
    EXPECT_TRUE(TaskRuntime::create(exchange, options).ok());
  });
}

TEST(Runtime, AnImpossibleRunTimeoutIsRefused) {
  testing::run_test_processes(1, [&](Exchange& exchange) {
    for (const std::chrono::milliseconds wrong : {-1ms, std::chrono::milliseconds::max()}) {
      TaskOptions options;
      options.run_timeout = wrong;
      const absl::Status refused = TaskRuntime::create(exchange, options).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("TaskOptions::run_timeout"));
    }
  });
}

// ---- options that must be equal ----

void expect_refused(const std::function<void(TaskOptions&)>& change, const char* option) {
  testing::run_test_processes(2, [&](Exchange& exchange) {
    TaskOptions options;
    options.timeout = 5s;
    if (exchange.rank() == 1) change(options);
    const auto runtime = TaskRuntime::create(exchange, options);
    EXPECT_EQ(runtime.status().code(), absl::StatusCode::kFailedPrecondition) << runtime.status();
    EXPECT_THAT(std::string(runtime.status().message()), HasSubstr(option));
  });
}

TEST(Runtime, WorkersWithDifferentDequesAreRefused) {
  expect_refused([](TaskOptions& options) { options.deque = DequeKind::kPrivate; },
                 "TaskOptions::deque differs");
}

TEST(Runtime, WorkersWithDifferentAtomicsAreRefused) {
  expect_refused([](TaskOptions& options) { options.atomics = RemoteAtomics::kServed; },
                 "TaskOptions::atomics differs");
}

// ---- the end of a run ----

struct Ends {
  std::atomic<pid_t> victim{0};
  std::atomic<int> returned{0};
  std::atomic<int> second_runs{0};
};

// Rank 1 dies before rank 0 tells it that the run has ended. No worker steals from rank 1. Rank 2
// must leave the run.
TEST(Runtime, ADeathAtTheEndOfARunReleasesTheOtherWorkers) {
  const Shared<Ends> ends;
  RunOptions run_options;
  run_options.may_die = {1};
  testing::run_test_processes(
      3,
      [&, e = ends.get()](Exchange& exchange) {
        TaskOptions options;
        options.timeout = 5s;
        options.victims = {{exchange.rank() == 0 ? 2u : 0u}};
        auto runtime = TaskRuntime::create(exchange, options);
        ASSERT_TRUE(runtime.ok()) << runtime.status();
        if (exchange.rank() == 1) e->victim = getpid();
        const absl::Status first = (*runtime)->run([e] {
          EXPECT_TRUE(testing::poll_until([e] { return e->victim != 0; }));
          kill(e->victim, SIGKILL);
          EXPECT_TRUE(testing::poll_until([e] { return kill(e->victim, 0) != 0; }));
          // Writes do not wait for their completion, except for every 64th one to the same peer.
          // This one is that of the end of the run.
          const CancellationSource source;
          for (int i = 0; i < 63; ++i) source.token().cancel();
        });
        EXPECT_FALSE(first.ok());
        ++e->returned;
        const absl::Status second = (*runtime)->run([e] { ++e->second_runs; });
        EXPECT_EQ(second, first) << "the runtime is not marked broken";
        // The process of a worker must not end while another worker steals from it.
        EXPECT_TRUE(testing::spin_until([e] { return e->returned == 2; }))
            << "a worker has not left the run";
      },
      run_options);
  EXPECT_EQ(ends->second_runs, 0);
}

// ---- threads ----

// `root` ends its process with a message. ThreadSanitizer permits no threads in a process that was
// forked from one with several threads, so the process is not that of a death test.
template <typename F>
void expect_refused_in_a_thread(F root, const std::string& operation) {
  ::testing::internal::CaptureStderr();
  const absl::Status ended = testing::try_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, {});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    static_cast<void>((*runtime)->run(root));
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(std::string(ended.message()), HasSubstr("exited with code 70"));
  EXPECT_THAT(text, HasSubstr("rank 0: " + operation + " in a thread that is not the worker's"));
}

TEST(Runtime, ResumeInAnotherThread) {
  expect_refused_in_a_thread(
      [] {
        static SuspendedTask handle;
        task<void> child = spawn([] { suspend([](const SuspendedTask& task) { handle = task; }); });
        std::thread([] { resume(handle); }).join();
        join(std::move(child));
      },
      "resume()");
}

// In another thread these functions would read the worker's state while the worker changes it.
TEST(Runtime, FunctionsOfTasksInAnotherThread) {
  expect_refused_in_a_thread(
      [] { std::thread([] { static_cast<void>(parent_is_stolen()); }).join(); },
      "parent_is_stolen");
  expect_refused_in_a_thread(
      [] {
        std::thread([] { static_cast<void>(await_until([] { return true; }, kForever)); }).join();
      },
      "await");
}

TEST(Runtime, SetInAnotherThread) {
  expect_refused_in_a_thread(
      [] {
        const TaskPromise<int> promise;
        std::thread([promise] { promise.set(1); }).join();
        return promise.future().get();
      },
      "TaskPromise::set()");
}

TEST(Runtime, FailInAnotherThread) {
  expect_refused_in_a_thread(
      [] {
        const TaskPromise<int> promise;
        std::thread([promise] {
          promise.fail(std::make_exception_ptr(std::runtime_error("failed")));
        }).join();
        return promise.future().get();
      },
      "TaskPromise::fail()");
}

TEST(Runtime, RunOfDifferentFunctionsIsAnError) {
  testing::with_workers(2, {}, [](TaskRuntime& runtime) {
    const auto first = [] { return 1; };
    const auto second = [] { return 2; };
    const auto result = runtime.rank() == 0 ? runtime.run(first) : runtime.run(second);
    if (runtime.rank() == 0) {
      EXPECT_EQ(result.value_or(0), 1);
    } else {
      EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
      EXPECT_THAT(result.status().ToString(), HasSubstr("with the same function"));
    }
    EXPECT_EQ(runtime.run(second).value_or(0), 2) << "the runtime is usable afterwards";
  });
}

// A promise is plain data, so it can be used after the end of its runtime.
TEST(RuntimeDeathTest, WithoutARuntime) {
  EXPECT_EXIT(resume(SuspendedTask{}), ::testing::ExitedWithCode(70),
              "resume\\(\\) without a TaskRuntime");
  testing::run_test_processes(1, [](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, {});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const auto promise = (*runtime)->run([] { return TaskPromise<int>(); });
    ASSERT_TRUE(promise.ok()) << promise.status();
    runtime->reset();
    EXPECT_EXIT(promise->set(1), ::testing::ExitedWithCode(70),
                "TaskPromise::set\\(\\) without a TaskRuntime");
  });
}

}  // namespace
}  // namespace cariama
