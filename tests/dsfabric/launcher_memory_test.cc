// A launcher that lacks memory while it passes on the output of its processes: it kills and reaps
// them, and returns an error that says what to do.
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "dsfabric/launcher.h"
#include "dtutils/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;

std::string children_of_this_thread() { return testing::text_of("/proc/thread-self/children"); }

TEST(LauncherWithoutMemory, KillsTheJobAndSaysSo) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  const std::string before = children_of_this_thread();
  absl::StatusOr<int> ended = 0;
  {
    // The launcher keeps an incomplete line of at most 64 KiB.
    const testing::FailAllocation fail(size_t{1} << 16);
    ended = launch({.processes = 2,
                    .tag_output = true,
                    .command = {"sh", "-c", "head -c 1000000 /dev/zero; sleep 1000"}});
  }
  ASSERT_FALSE(ended.ok()) << "exit code " << *ended;
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error_scope(ended.status()), ErrorScope::kProcess);
  EXPECT_EQ(launch_exit_code(ended.status()), 125);
  const std::string message(ended.status().message());
  EXPECT_THAT(message, HasSubstr("the job was killed, since its launcher lacks memory"));
  EXPECT_THAT(message, HasSubstr("raise ulimit -v"));
  EXPECT_EQ(children_of_this_thread(), before);
}

}  // namespace
}  // namespace cariama
