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
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"

namespace cariama {

// A small key-value store that the processes of a job share before they are connected.
//
// Every wait has a deadline. It ends earlier with UNAVAILABLE (scope kPeer) if the process for
// which it waits has ended; the text names that process and how it ended. Thread-compatible: one
// thread at a time.
class CARIAMA_DTUTILS_EXPORT Exchange {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // The largest key and value that put() accepts, in bytes.
  static constexpr size_t kMaxKey = 1024;
  static constexpr size_t kMaxValue = 64U << 20;

  virtual ~Exchange() = default;

  [[nodiscard]] virtual int rank() const = 0;  // 0 <= rank() < size()
  [[nodiscard]] virtual int size() const = 0;
  // Returns the name of a process for error texts; pass it as ConnectOptions::peer. Requires: 0 <=
  // rank < size().
  [[nodiscard]] virtual const std::string& label(int rank) const = 0;

  // Publishes `value` under this rank and `key`, and replaces an earlier value. Does not wait for
  // the other ranks. Errors: INVALID_ARGUMENT (too long), UNAVAILABLE (the store is gone).
  [[nodiscard]] virtual absl::Status put(std::string_view key, std::string_view value) = 0;

  // Returns the value that `rank` has put under `key`. Blocks until that rank has put it. A value
  // outlives the process that put it. Errors: INVALID_ARGUMENT (no such rank, key too long),
  // DEADLINE_EXCEEDED, UNAVAILABLE (that rank ended without putting the value, or the store is
  // gone).
  [[nodiscard]] virtual absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                        Deadline deadline) = 0;

  // Returns the values that all ranks have put under `key`, by rank, as size() calls of get() would
  // do. A store may need fewer messages for it. Errors: those of get().
  [[nodiscard]] virtual absl::StatusOr<std::vector<std::string>> get_all(std::string_view key,
                                                                         Deadline deadline);

  // Blocks until every rank has called fence(). Afterwards get() does not wait for values that a
  // rank put before its call. After DEADLINE_EXCEEDED this rank counts as having arrived: a further
  // call continues the same fence. Other errors: UNAVAILABLE (a rank ended, or the store is gone).
  [[nodiscard]] virtual absl::Status fence(Deadline deadline) = 0;

  struct Ended {
    int rank;
    std::string how;  // completes the sentence "LABEL ...": "was killed by signal 9 (Killed)"
  };
  // With `watch`, makes the store report the end of every other process to this process; ends
  // before the call are reported too. Without `watch`, ends these reports. Error: UNAVAILABLE (the
  // store is gone). The base class makes no reports: it ignores the call.
  virtual absl::Status watch_ends(bool /*watch*/) { return absl::OkStatus(); }
  // Returns the reports that have arrived since the last call. Never blocks. Thread-safe. While
  // another thread waits in this object, returns nothing; a later call returns the reports.
  [[nodiscard]] virtual std::vector<Ended> take_ended() { return {}; }
};

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
// (other threads), or the code of an errno of socketpair, fork or pidfd_open. An exception that
// leaves `body` ends its process by std::terminate.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status run_processes(
    int count, const std::function<int(Exchange&)>& body, const RunOptions& options = {});

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_PROCESS_GROUP_H_
