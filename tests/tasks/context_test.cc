// The context switch, on this processor and on an emulated AArch64.
#include "tasks/context.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/tasks/context_exercise.h"

namespace cariama::tasks {
namespace {

TEST(Context, ForkAndReturn) { EXPECT_STREQ(testing::exercise_fork(), nullptr); }
TEST(Context, TheParentIsContinuedInAThief) { EXPECT_STREQ(testing::exercise_steal(), nullptr); }
TEST(Context, SuspendAndContinue) { EXPECT_STREQ(testing::exercise_suspend(), nullptr); }
TEST(Context, UnwindersWalkThroughForks) { EXPECT_STREQ(testing::exercise_unwind(), nullptr); }

// Runs the same exercises on AArch64, with the cross compiler and emulator that scripts/setup
// installs.
TEST(Context, OnAArch64) {
  const auto there = [](const char* program) {
    return std::system((std::string("command -v ") + program + " >/dev/null").c_str()) == 0;
  };
  if (!there("aarch64-linux-gnu-g++") || !there("qemu-aarch64")) {
    GTEST_SKIP() << "needs aarch64-linux-gnu-g++ and qemu-aarch64: apt-get install "
                    "g++-aarch64-linux-gnu qemu-user";
  }
  const std::string source = CARIAMA_SOURCE_DIR;
  char folder[] = "/tmp/cariama-aarch64-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string program = std::string(folder) + "/context";
  // The last one signs the return addresses of the exercises (pointer authentication).
  for (const char* flags : {"-O2", "-O0", "-O2 -mbranch-protection=pac-ret"}) {
    const std::string build = std::string(
                                  "aarch64-linux-gnu-g++ -std=c++20 -Wall -Wextra -Werror "
                                  "-static -fasynchronous-unwind-tables ") +
                              flags + " -I" + source + " -o " + program + " " + source +
                              "/tests/tasks/aarch64/context_program.cpp " + source +
                              "/tasks/context.cc " + source + "/tasks/context_aarch64.cc 2>&1";
    EXPECT_EQ(std::system(build.c_str()), 0) << build;
    EXPECT_EQ(std::system(("qemu-aarch64 " + program + " 2>&1").c_str()), 0) << flags;
  }
  std::remove(program.c_str());
  std::remove(folder);
}

}  // namespace
}  // namespace cariama::tasks
