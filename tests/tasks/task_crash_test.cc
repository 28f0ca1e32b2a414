// Faults in tasks.
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/internal/worker.h"
#include "tasks/runtime.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these handle SIGSEGV
volatile uintptr_t no_memory = 64;
long read_there() { return *reinterpret_cast<const volatile long*>(no_memory); }

TEST(TaskCrashDeath, ACrashInATaskNamesTheOptionsThatFindPointers) {
  for (const StackScheme scheme : {StackScheme::kUni, StackScheme::kIso}) {
    testing::run_test_processes(1, [&](Exchange& exchange) {
      auto runtime = TaskRuntime::create(exchange, {.scheme = scheme});
      ASSERT_TRUE(runtime.ok()) << runtime.status();
      EXPECT_EXIT(static_cast<void>((*runtime)->run([] { return read_there(); })),
                  ::testing::KilledBySignal(SIGSEGV),
                  ::testing::AllOf(::testing::HasSubstr("signal 11 in a task: "),
                                   ::testing::HasSubstr("set TaskOptions::check_frames")));
      EXPECT_EXIT(static_cast<void>(read_there()), ::testing::KilledBySignal(SIGSEGV),
                  ::testing::Not(::testing::HasSubstr("check_frames")));
    });
  }
}

TEST(TaskCrashDeath, AnAbortInATaskNamesThemToo) {
  testing::run_test_processes(1, [](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, TaskOptions{});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    for (const bool sent : {false, true}) {
      const auto end = [sent] {
        if (sent) raise(SIGABRT);
        if (!sent) std::abort();
        return 0L;
      };
      EXPECT_EXIT(static_cast<void>((*runtime)->run(end)), ::testing::KilledBySignal(SIGABRT),
                  ::testing::AllOf(::testing::HasSubstr("signal 6 in a task: if the heap"),
                                   ::testing::HasSubstr("set TaskOptions::check_frames")));
      EXPECT_EXIT(static_cast<void>(end()), ::testing::KilledBySignal(SIGABRT),
                  ::testing::Not(::testing::HasSubstr("check_frames")));
    }
  });
}
#endif

TEST(FaultsOfThieves, AWrongCountOfCopiedTasksEndsTheJobWithAMessage) {
  const testing::Shared<std::atomic<int>> go;
  const testing::LastWords words;
  RunOptions run_options;
  run_options.may_die = {0};
  const absl::Status status = testing::try_test_processes(
      2,
      [&](Exchange& exchange) {
        auto runtime = TaskRuntime::create(exchange, TaskOptions{});
        ASSERT_TRUE(runtime.ok()) << runtime.status();
        words.record();
        static_cast<void>((*runtime)->run([f = go.get()] {
          std::byte* const tail = tasks::this_worker->region().tail();
          reinterpret_cast<tasks::WorkerArea*>(tail)->public_part.copied += 5;
          task<int> child = spawn([f] {
            EXPECT_TRUE(testing::poll_until([f] { return *f == 1; }));
            return 1;
          });
          *f = 1;  // the thief sets it, which runs the parent
          return join(std::move(child));
        }));
        ADD_FAILURE() << "the run went on";
      },
      run_options);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(words.text(),
              ::testing::HasSubstr("the number of copied tasks of rank 0 is malformed"));
}

}  // namespace
}  // namespace cariama
