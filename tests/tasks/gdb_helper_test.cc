// The gdb command that lists suspended tasks (tasks/gdb/cariama_tasks.py). gdb runs this program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tasks/suspend.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {

// gdb has a breakpoint at this function.
extern "C" [[gnu::noinline]] void some_tasks_are_suspended() { asm volatile(""); }

namespace {

std::vector<SuspendedTask> asleep;  // a plain global suffices: there is one worker

[[gnu::noinline]] int sleeps_until_resumed(int value) {
  suspend([](const SuspendedTask& me) { asleep.push_back(me); });
  asm volatile("");
  return value;
}
[[gnu::noinline]] int calls_who_sleeps(int value) {
  const int slept = sleeps_until_resumed(value);
  asm volatile("");
  return slept + 1;
}

// The program that gdb runs.
TEST(GdbHelper, DISABLED_Program) {
  testing::with_workers(1, {}, [](TaskRuntime& runtime) {
    const auto result = runtime.run([] {
      task<int> a = spawn([] { return calls_who_sleeps(1); });
      task<int> b = spawn([] { return sleeps_until_resumed(2); });
      task<int> c = spawn([] { return calls_who_sleeps(3); });
      some_tasks_are_suspended();
      resume(asleep[1]);
      const int second = join(std::move(b));
      some_tasks_are_suspended();
      resume(asleep[0]);
      resume(asleep[2]);
      const int first = join(std::move(a));
      return first + second + join(std::move(c));
    });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(*result, 8);
  });
}

TEST(GdbHelper, ListsSuspendedTasks) {
  if (access("/usr/bin/gdb", X_OK) != 0) GTEST_SKIP() << "there is no gdb";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "gdb cannot trace a process under a sanitizer, which also changes the frames";
#endif
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  // Without the variables by which ctest divides the cases of a program: the program that gdb runs
  // has one case.
  const std::string command =
      "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX timeout 100 gdb -nx -batch -ex 'set "
      "startup-with-shell off' -ex 'set confirm off'"
      " -ex 'set follow-fork-mode child' -ex 'set debuginfod enabled off'"
      " -ex 'source " CARIAMA_SOURCE_DIR
      "/tasks/gdb/cariama_tasks.py' -ex 'break some_tasks_are_suspended' -ex run"
      " -ex 'cariama-tasks' -ex 'cariama-tasks 1' -ex continue -ex 'cariama-tasks' -ex 'delete'"
      " -ex continue --args " +
      std::string(self) +
      " --gtest_filter=GdbHelper.DISABLED_Program --gtest_also_run_disabled_tests 2>&1";
  FILE* const gdb = popen(command.c_str(), "r");
  ASSERT_NE(gdb, nullptr);
  std::string output;
  for (char line[4096]; fgets(line, sizeof line, gdb) != nullptr;) output += line;
  pclose(gdb);
  if (output.find("Could not trace the inferior") != std::string::npos ||
      output.find("Operation not permitted") != std::string::npos) {
    GTEST_SKIP() << "this machine does not allow ptrace";
  }
  const size_t first = output.find("3 suspended tasks\n");
  ASSERT_NE(first, std::string::npos) << output;
  const size_t second = output.find("2 suspended tasks\n", first);
  ASSERT_NE(second, std::string::npos) << output;
  const std::string list = output.substr(first, second - first);
  const auto count = [&](const std::string& text) {
    int times = 0;
    for (size_t at = list.find(text); at != std::string::npos; at = list.find(text, at + 1))
      ++times;
    return times;
  };
  // Callers are listed innermost first. Three tasks in the list, and task 1 once more by its
  // number.
  EXPECT_EQ(count("sleeps_until_resumed"), 4) << output;
  // At least 2: the frames of task 1 can contain a return address of an earlier call.
  EXPECT_GE(count("sleeps_until_resumed < cariama::calls_who_sleeps"), 2) << output;
  EXPECT_NE(output.find("exited normally", second), std::string::npos) << output;
}

}  // namespace
}  // namespace cariama
