// Runs a program of a few processes on one host: forks them, lets them exchange the data that they
// need to connect, and reports how each one ended.
//
//   absl::Status status = cariama::run_processes(2, [](cariama::Exchange& exchange) {
//     exchange.put("address", queue_pair->address());
//     // Waits until the other process has put it.
//     auto peer = exchange.get(1 - exchange.rank(), "address", deadline);
//     ... connect, exchange.fence(deadline), transfer ...
//     return 0;  // the exit code
//   });
//
// For tests, demonstrations and benchmarks. Larger launchers implement the same Exchange interface.
#ifndef CARIAMA_DTUTILS_PROCESS_GROUP_H_
#define CARIAMA_DTUTILS_PROCESS_GROUP_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/exchange.h"
#include "dtutils/export.h"

namespace cariama {

struct RunOptions {
  // When this time has passed, the processes that still run are killed.
  std::chrono::milliseconds timeout{60'000};
  // After one process has failed, the remaining ones have this long to detect it and to end before
  // they are killed.
  std::chrono::milliseconds grace{5'000};
  // Names of the ranks in error texts; a missing or empty one becomes "rank N".
  std::vector<std::string> labels{};
  // Ranks that the program kills: their death by a signal does not count as a failure.
  std::vector<int> may_die{};
};

// Forks `count` processes, runs `body` in each, and waits until all have ended. The result of
// `body` is the process's exit code (0 is success; only the low 8 bits count). The child leaves by
// _exit after flushing stdio, so neither atexit handlers nor destructors of the caller run in it.
//
// No process outlives the call: after a failure the remaining processes are killed when
// options.grace has passed, after options.timeout all are killed immediately, and if the caller
// dies the kernel kills them.
//
// Blocks. Requires, and checks: the calling process has one thread (a lock held by another thread
// would stay locked in the child). If SIGCHLD is ignored, it has its default action during the
// call. A handler of SIGCHLD must not wait for these processes. Errors: ABORTED (a process failed:
// the text names each failed one by its label, with exit code or signal), DEADLINE_EXCEEDED (the
// text names the processes that did not end), INVALID_ARGUMENT (count < 1), FAILED_PRECONDITION
// (other threads), RESOURCE_EXHAUSTED (the calling process lacks memory to watch the processes,
// which it has killed), or the code of an errno of socketpair, fork or pidfd_open. An exception
// that leaves `body` ends its process by std::terminate.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status run_processes(
    int count, const std::function<int(Exchange&)>& body, const RunOptions& options = {});

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_PROCESS_GROUP_H_
