// A worker that dies during a run: run() returns an error in every surviving process, which then
// continues. The workers are processes that are killed.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using namespace std::chrono_literals;
using testing::fib;
using ::testing::HasSubstr;
using testing::poll_until;
using testing::Shared;
using testing::spin_until;

struct FailureFlags {
  std::array<std::atomic<pid_t>, 3> pids{};
  std::atomic<int> go{0};
  std::atomic<int> dead{-1};  // the rank that was killed
  std::atomic<int> survivors{0};
  std::atomic<int> count{0};
  std::array<std::byte, sizeof(TaskPromise<int>)> promise{};
};

int this_rank;  // of this process; not a local of a task, which may change its process

// Kills its process with `levels` tasks on the stack.
void die_below(int levels, FailureFlags* flags) {
  if (levels == 0) {
    flags->dead = this_rank;
    raise(SIGKILL);
  }
  join(spawn_tied([levels, flags] { die_below(levels - 1, flags); }));
}

// Kills the process `rank`, and waits until it has ended. May be used in tasks.
void kill_rank(int rank, FailureFlags* flags) {
  const pid_t pid = flags->pids[static_cast<size_t>(rank)];
  flags->dead = rank;
  kill(pid, SIGKILL);
  EXPECT_TRUE(spin_until([pid] { return kill(pid, 0) != 0; }));
}

// Runs `root` on `workers` workers, one of which is killed by it. Requires that run() returns the
// error in each other process, and that these processes continue.
template <typename F>
void run_until_failure(int workers, const std::function<TaskOptions(int rank)>& options_of,
                       FailureFlags* flags, F root) {
  RunOptions run_options;
  for (int rank = 0; rank < workers; ++rank) run_options.may_die.push_back(rank);
  testing::run_test_processes(
      workers,
      [&](Exchange& exchange) {
        this_rank = exchange.rank();
        flags->pids[static_cast<size_t>(this_rank)] = getpid();
        const TaskOptions options = options_of(this_rank);
        auto runtime = TaskRuntime::create(exchange, options);
        ASSERT_TRUE(runtime.ok()) << runtime.status();
        const absl::Status failed = (*runtime)->run(root);
        EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
        const std::string text(failed.message());
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(flags->dead) +
                                    " has failed during a run of tasks: "));
        EXPECT_THAT(text, HasSubstr("of this worker are lost"));
        EXPECT_THAT(text, HasSubstr("start the job again"));
        EXPECT_EQ((*runtime)->run([flags] { ++flags->count; }), failed) << "a later run() began";
        // Exceptions of abandoned tasks are not those of the caller.
        EXPECT_EQ(std::current_exception(), nullptr);
        EXPECT_EQ(std::uncaught_exceptions(), 0);
        // The other worker may still be in its run, and access the memory of this one.
        runtime->reset();
        ++flags->survivors;
        EXPECT_TRUE(spin_until([&] { return flags->survivors == workers - 1; }));
        // A runtime on the exchange needs all its processes.
        const absl::Status again = TaskRuntime::create(exchange, options).status();
        EXPECT_TRUE(absl::IsUnavailable(again)) << again;
        // The addresses of the stacks are free, and the process can run tasks.
        auto alone = make_bootstrap({.kind = BootstrapKind::kSingle});
        ASSERT_TRUE(alone.ok()) << alone.status();
        TaskOptions of_alone = options;
        of_alone.victims = {};
        auto next = TaskRuntime::create(**alone, of_alone);
        ASSERT_TRUE(next.ok()) << next.status();
        EXPECT_EQ((*next)->run([] { return fib(10); }).value_or(0), 55);
      },
      run_options);
  EXPECT_EQ(flags->survivors, workers - 1);
  EXPECT_EQ(flags->count, 0);
}
template <typename F>
void run_until_failure(int workers, const TaskOptions& options, FailureFlags* flags, F root) {
  run_until_failure(
      workers, [&options](int) { return options; }, flags, root);
}

struct FailureVariant {
  const char* name;
  TaskOptions options;
};
void PrintTo(const FailureVariant& variant, std::ostream* out) { *out << variant.name; }

class WorkerFailure : public ::testing::TestWithParam<FailureVariant> {
 protected:
  const Shared<FailureFlags> flags_;
};
INSTANTIATE_TEST_SUITE_P(
    Variants, WorkerFailure,
    ::testing::Values(
        FailureVariant{"split", {.atomics = RemoteAtomics::kDevice}},
        FailureVariant{"the",
                       {.join = JoinPolicy::kWaitQueue,
                        .deque = DequeKind::kThe,
                        .atomics = RemoteAtomics::kDevice}},
        FailureVariant{"private",
                       {.deque = DequeKind::kPrivate, .atomics = RemoteAtomics::kDevice}},
        FailureVariant{"split_served", {.atomics = RemoteAtomics::kServed}},
        FailureVariant{"the_served",
                       {.join = JoinPolicy::kWaitQueue,
                        .deque = DequeKind::kThe,
                        .atomics = RemoteAtomics::kServed}},
        FailureVariant{"private_served",
                       {.join = JoinPolicy::kWaitQueue,
                        .deque = DequeKind::kPrivate,
                        .atomics = RemoteAtomics::kServed}},
        FailureVariant{"crude", {.scheme = StackScheme::kCrude, .atomics = RemoteAtomics::kDevice}},
        FailureVariant{"iso", {.scheme = StackScheme::kIso, .atomics = RemoteAtomics::kDevice}}),
    [](const auto& info) { return info.param.name; });

TEST_P(WorkerFailure, OfAThief) {
  run_until_failure(3, GetParam().options, flags_.get(), [f = flags_.get()] {
    task<void> child = spawn([f] { EXPECT_TRUE(poll_until([f] { return f->go == 1; })); });
    f->go = 1;
    die_below(3, f);  // kills the thief, which runs the parent
    join(std::move(child));
  });
  EXPECT_NE(flags_->dead, 0);
}

TEST_P(WorkerFailure, OfAVictim) {
  run_until_failure(3, GetParam().options, flags_.get(), [f = flags_.get()] {
    task<void> child = spawn([f] {
      EXPECT_TRUE(poll_until([f] { return f->go == 1; }));
      die_below(3, f);
    });
    f->go = 1;
    // The thief waits for a child that will never end.
    join(std::move(child));
  });
  EXPECT_EQ(flags_->dead, 0);
}

// Rank 0 never accesses the dead worker: its only task ends when it learns of the failure.
template <typename F>
void run_with_a_busy_worker(const TaskOptions& options, FailureFlags* flags, F forever) {
  run_until_failure(3, options, flags, [flags, forever] {
    task<void> child = spawn([flags, forever] {
      EXPECT_TRUE(poll_until([flags] { return flags->go == 1; }));
      forever();
    });
    flags->go = 1;
    kill_rank(3 - this_rank, flags);  // the worker that is neither rank 0 nor this thief
    join(std::move(child));
  });
}

TEST_P(WorkerFailure, IsReportedToATaskThatPolls) {
  run_with_a_busy_worker(GetParam().options, flags_.get(), [] {
    try {
      throw 1;
    } catch (int) {
      for (;;) poll();
    }
  });
}

TEST_P(WorkerFailure, IsReportedToATaskThatSpawns) {
  run_with_a_busy_worker(GetParam().options, flags_.get(), [] {
    for (;;) fib(3);
  });
}

// A search for work need not reach the dead worker by a steal.
TEST(WorkerFailureOf, AThiefOfAWorkerWithoutVictims) {
  const Shared<FailureFlags> flags;
  const auto options_of = [](int rank) {
    TaskOptions options;
    if (rank == 0) options.victims = {{}};
    return options;
  };
  run_until_failure(2, options_of, flags.get(), [f = flags.get()] {
    task<void> child = spawn([f] { EXPECT_TRUE(poll_until([f] { return f->go == 1; })); });
    f->go = 1;
    die_below(0, f);
    join(std::move(child));
  });
  EXPECT_EQ(flags->dead, 1);
}

// The record of the promise is in the dead worker. (shm may notice the death only after the set().)
void set_promise_of_dead_worker(void (*set)(TaskPromise<int>, FailureFlags*)) {
  const Shared<FailureFlags> flags;
  run_until_failure(2, TaskOptions(), flags.get(), [f = flags.get(), set] {
    task<void> child = spawn([f, set] {
      EXPECT_TRUE(poll_until([f] { return f->dead == 1; }));
      kill_rank(1, f);
      set(std::bit_cast<TaskPromise<int>>(f->promise), f);
    });
    f->promise = std::bit_cast<decltype(f->promise)>(TaskPromise<int>());
    die_below(0, f);
    join(std::move(child));
  });
  EXPECT_EQ(flags->go, 1);
}

TEST(WorkerFailureOf, TheOwnerOfAPromiseThatATaskSets) {
  set_promise_of_dead_worker([](TaskPromise<int> promise, FailureFlags* f) {
    promise.set(1);
    f->go = 1;  // set() returns
  });
}

TEST(WorkerFailureOf, TheOwnerOfAPromiseThatThePublishFunctionSets) {
  set_promise_of_dead_worker([](TaskPromise<int> promise, FailureFlags* f) {
    suspend([&](const SuspendedTask&) {
      promise.set(1);
      f->go = 1;
    });
    ADD_FAILURE() << "an abandoned task continues";
  });
}

// ---- FailurePolicy ----

// Kills the thief.
auto lose_thief(FailureFlags* flags) {
  return [flags] {
    task<void> child =
        spawn([flags] { EXPECT_TRUE(poll_until([flags] { return flags->go == 1; })); });
    flags->go = 1;
    die_below(1, flags);
    join(std::move(child));
  };
}

TEST(WorkerFailurePolicy, AbortEndsTheProcessWithAMessage) {
  const Shared<FailureFlags> flags;
  const testing::LastWords words;
  const absl::Status status = testing::try_test_processes(
      2,
      [&](Exchange& exchange) {
        this_rank = exchange.rank();
        auto runtime = TaskRuntime::create(exchange, {.on_failure = FailurePolicy::kAbort});
        ASSERT_TRUE(runtime.ok()) << runtime.status();
        words.record();
        static_cast<void>((*runtime)->run(lose_thief(flags.get())));
        ADD_FAILURE() << "the process continues";
      },
      {.may_die = {1}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 exited with code 70"));
  const std::string said = words.text();
  EXPECT_THAT(said, HasSubstr("rank 0: rank 1 has failed during a run of tasks: "));
  EXPECT_THAT(said, HasSubstr("the peer process has ended"));
  EXPECT_THAT(said, HasSubstr("of this worker are lost"));
  EXPECT_THAT(said, HasSubstr("rank 1 stole 1 task from it"));
  EXPECT_THAT(said, HasSubstr("the job ends"));
}

// Loses the thief of a runtime on a fabric of two processes, then calls survived() in the other.
absl::Status run_on_fabric(FailurePolicy of_fabric, const TaskOptions& options,
                           const std::function<void(Fabric&, const absl::Status&)>& survived) {
  const Shared<FailureFlags> flags;
  return testing::try_process_job(2, {.on_failure = of_fabric},
                                  [&](Fabric& fabric) {
                                    this_rank = static_cast<int>(fabric.rank());
                                    auto runtime = TaskRuntime::create(fabric, options);
                                    ASSERT_TRUE(runtime.ok()) << runtime.status();
                                    const absl::Status status =
                                        (*runtime)->run(lose_thief(flags.get()));
                                    runtime->reset();
                                    survived(fabric, status);
                                  },
                                  {.may_die = {1}});
}

TEST(WorkerFailurePolicy, AFabricContinues) {
  const absl::Status ended =
      run_on_fabric(FailurePolicy::kContinue, {}, [](Fabric& fabric, const absl::Status& failed) {
        EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
        const ThreadId me = fabric.thread_of(fabric.rank(), 0);
        EXPECT_EQ(async_call(fabric, me, [] { return 42; }).get(deadline_after(30s)).value(), 42);
      });
  EXPECT_TRUE(ended.ok()) << ended;
}

// The worker (exit code 70) or the fabric (1) notices the death first.
TEST(WorkerFailurePolicy, TheFabricsPolicyHoldsForItsRuntimes) {
  const absl::Status ended =
      run_on_fabric(FailurePolicy::kAbort, {}, [](Fabric&, const absl::Status&) { ADD_FAILURE(); });
  EXPECT_THAT(std::string(ended.message()),
              ::testing::AnyOf(HasSubstr("rank 0 exited with code 70"),
                               HasSubstr("rank 0 exited with code 1")));
}

TEST(WorkerFailurePolicy, TaskOptionsReplaceThePolicyOfTheFabric) {
  const absl::Status ended =
      run_on_fabric(FailurePolicy::kContinue, {.on_failure = FailurePolicy::kAbort},
                    [](Fabric&, const absl::Status&) { ADD_FAILURE(); });
  EXPECT_THAT(std::string(ended.message()), HasSubstr("rank 0 exited with code 70"));
}

}  // namespace
}  // namespace cariama
