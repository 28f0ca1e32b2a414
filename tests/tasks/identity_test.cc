#include "tasks/internal/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tasks/internal/set_up.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Identity, EachDifferenceIsNamed) {
  const tasks::Identity mine = tasks::this_identity({.stack_bytes = 4096});
  EXPECT_EQ(tasks::difference(mine, mine), "");
  EXPECT_NE(mine.code, 0u);
  EXPECT_NE(mine.program, 0u);
  EXPECT_NE(mine.c_library, 0u);
  EXPECT_NE(mine.cpp_runtime, 0u);
  EXPECT_NE(mine.canary, 0u);
  EXPECT_NE(mine.thread, 0u);
  const auto differs = [&](uint64_t tasks::Identity::*member) {
    tasks::Identity theirs = mine;
    theirs.*member += 4096;
    return tasks::difference(mine, theirs);
  };
  EXPECT_THAT(differs(&tasks::Identity::code), HasSubstr("task library"));
  EXPECT_THAT(differs(&tasks::Identity::program), HasSubstr("the program"));
  EXPECT_THAT(differs(&tasks::Identity::c_library), HasSubstr("C library"));
  EXPECT_THAT(differs(&tasks::Identity::cpp_runtime), HasSubstr("C++ runtime"));
#if defined(__x86_64__)
  EXPECT_EQ(differs(&tasks::Identity::canary), "") << "the canary is switched with the stack";
#else
  EXPECT_THAT(differs(&tasks::Identity::canary), HasSubstr("stack protector"));
  EXPECT_THAT(differs(&tasks::Identity::canary), Not(HasSubstr("0x"))) << "the canary was printed";
#endif
  EXPECT_THAT(differs(&tasks::Identity::keys),
              AllOf(HasSubstr("pointer authentication"), HasSubstr("fork"), Not(HasSubstr("0x"))));
  EXPECT_EQ(tasks::this_identity({.stack_bytes = 4096}).keys, mine.keys);
  EXPECT_THAT(
      differs(&tasks::Identity::builds),
      AllOf(HasSubstr("build id"), HasSubstr("start the same build"), Not(HasSubstr("0x"))));
  EXPECT_THAT(differs(&tasks::Identity::libraries), HasSubstr("shared libraries"));
  EXPECT_THAT(differs(&tasks::Identity::thread), HasSubstr("thread-local"));
  EXPECT_THAT(differs(&tasks::Identity::stack_bytes), HasSubstr("TaskOptions::stack_bytes"));
  EXPECT_THAT(differs(&tasks::Identity::scheme), HasSubstr("TaskOptions::scheme"));
  EXPECT_THAT(differs(&tasks::Identity::deque), HasSubstr("TaskOptions::deque"));
  EXPECT_THAT(differs(&tasks::Identity::atomics), HasSubstr("TaskOptions::atomics"));
}

TEST(ShadowStack, IsRefusedWithTheRemedy) {
  EXPECT_TRUE(tasks::check_shadow_stack(tasks::shadow_stack_features()).ok());
  EXPECT_TRUE(tasks::check_shadow_stack(0).ok());
  for (const uint64_t features : {1, 3}) {  // a shadow stack; one that the program may write
    const absl::Status status = tasks::check_shadow_stack(features);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("shadow stack"), HasSubstr("glibc.cpu.x86_shstk=off")));
  }
}

TEST(Identity, WorkersThatDifferAreRefused) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    TaskOptions options;
    options.stack_bytes = exchange.rank() == 0 ? 1 << 20 : 2 << 20;
    const auto runtime = TaskRuntime::create(exchange, options);
    EXPECT_EQ(runtime.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(runtime.status().message()),
                HasSubstr("TaskOptions::stack_bytes differs"));
  });
}

}  // namespace
}  // namespace cariama
