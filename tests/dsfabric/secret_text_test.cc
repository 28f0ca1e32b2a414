// The text of the job's secret in the memory that the kernel shows as /proc/PID/environ.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "dsfabric/bootstrap.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/job_environment.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The kernel shows the variables with which a program was started, also after unsetenv(). So each
// process of the job starts this program again, with this test only and the variables of the job.
TEST(SecretText, IsNotInTheEnvironmentOfAProcessThatHasJoined) {
  constexpr const char* kMember = "CARIAMA_TEST_MEMBER";
  const std::string secret = "nobody else knows it";
  const std::string shown = "/proc/self/environ";
  if (std::getenv(kMember) != nullptr) {
    EXPECT_THAT(text_of(shown), HasSubstr(secret));
    const auto joined = make_bootstrap({.kind = {}, .timeout = std::chrono::seconds(60)});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_THAT(text_of(shown), Not(HasSubstr(secret)));
    must((*joined)->finalize(soon()));
    return;
  }
  for (const int size : {1, 2}) {
    const FreePort port;
    run_test_processes(size, [&](Exchange& exchange) {
      const pid_t child = fork();
      if (child == 0) {
        auto variables = job_of(exchange.rank(), size, port);
        variables["CARIAMA_JOB_SECRET"] = secret;
        variables[kMember] = "1";
        set_environment(variables);
        execl("/proc/self/exe", "dsfabric_test", "--gtest_filter=SecretText.*", nullptr);
        _exit(127);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    });
  }
}

}  // namespace
}  // namespace cariama::testing
