// Tests with several processes: an expectation that fails in one process fails the test.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_TEST_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_TEST_H_

#include <functional>

#include "dtutils/process_group.h"
#include "gtest/gtest.h"

namespace cariama::testing {

inline int failed_parts() {
  const ::testing::TestResult& result =
      *::testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int i = 0; i < result.total_part_count(); ++i) {
    if (result.GetTestPartResult(i).failed()) ++failed;
  }
  return failed;
}

// Like run_processes(), for a body with EXPECT_ and ASSERT_. A process in which an expectation
// fails prints it and exits with code 1.
[[nodiscard]] inline absl::Status try_test_processes(int count,
                                                     const std::function<void(Exchange&)>& body,
                                                     const RunOptions& options = {}) {
  RunOptions run = options;
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer multiplies the time of a job by 20 or more.
  if (run.timeout == RunOptions{}.timeout) run.timeout *= 3;
#endif
  return run_processes(
      count,
      [&body](Exchange& exchange) {
        const int before = failed_parts();  // failures of the parent before the fork
        body(exchange);
        return failed_parts() == before ? 0 : 1;
      },
      run);
}

// Runs `body` in `count` processes. If one of them fails, fails the calling test and names it.
inline void run_test_processes(int count, const std::function<void(Exchange&)>& body,
                               const RunOptions& options = {}) {
  const absl::Status status = try_test_processes(count, body, options);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_TEST_H_
