// A job of several operating-system processes, for tests of what only those can show: memory that
// is really shared, and deaths.
//
//   EXPECT_TRUE(run_forked(3, {}, [](Fabric& fabric) {
//     must(call(fabric, 0, [] { ... }));
//     return ::testing::Test::HasFailure() ? 1 : 0;
//   }).ok());
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_FORKED_JOB_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_FORKED_JOB_H_

#include <functional>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dtutils/process_group.h"

namespace cariama::testing {

struct ForkedJobOptions {
  FabricOptions fabric{};
  bool finalize = true;  // after the body, if it returned 0
  RunOptions run{};
};

// Forks `processes`, makes the fabric in each, makes the calling thread its worker 0, and runs
// `body`; its result, or 1 if an expectation or finalize() failed, is the exit code. Returns what
// run_processes returns.
[[nodiscard]] absl::Status run_forked(int processes, const ForkedJobOptions& options,
                                      const std::function<int(Fabric& fabric)>& body);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_FORKED_JOB_H_
