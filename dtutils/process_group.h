// Programs of a few processes on one host: fork them, let them exchange what they need to connect,
// and learn how they ended.
//
//   absl::Status status = cariama::run_processes(2, [](cariama::Exchange& exchange) {
//     exchange.put("address", queue_pair->address());
//     auto peer = exchange.get(1 - exchange.rank(), "address", deadline);   // waits until it is
//     put
//     ... connect, exchange.fence(deadline), transfer ...
//     return 0;                                                             // the exit code
//   });
//
// For tests, demonstrations and benchmarks. The same Exchange interface is what larger launchers
// implement.
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
// Every wait has a deadline, and ends earlier with UNAVAILABLE (scope kPeer) naming the process and
// how it ended, if that process can no longer do its part. Thread-compatible: one thread at a time.
class CARIAMA_DTUTILS_EXPORT Exchange {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // What put() accepts, in bytes.
  static constexpr size_t kMaxKey = 1024;
  static constexpr size_t kMaxValue = 64U << 20;

  virtual ~Exchange() = default;

  [[nodiscard]] virtual int rank() const = 0;  // 0 <= rank() < size()
  [[nodiscard]] virtual int size() const = 0;
  // What error texts call that process; give it to ConnectOptions::peer.
  // Precondition: 0 <= rank < size().
  [[nodiscard]] virtual const std::string& label(int rank) const = 0;

  // Publishes `value` under this rank and `key`; an earlier value is replaced. Does not wait for
  // the other ranks. Errors: INVALID_ARGUMENT (too long), UNAVAILABLE (the store is gone).
  [[nodiscard]] virtual absl::Status put(std::string_view key, std::string_view value) = 0;

  // The value that `rank` put (or will put: waits) under `key`. What a process put outlives it.
  // Errors: INVALID_ARGUMENT (no such rank, key too long), DEADLINE_EXCEEDED, UNAVAILABLE (that
  // rank ended without putting it, or the store is gone).
  [[nodiscard]] virtual absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                        Deadline deadline) = 0;

  // Waits until every rank has called it. What any rank put before can then be had without waiting.
  // After DEADLINE_EXCEEDED this rank counts as having arrived: a further call continues the same
  // fence. Other errors: UNAVAILABLE (a rank ended, or the store is gone).
  [[nodiscard]] virtual absl::Status fence(Deadline deadline) = 0;
};

struct RunOptions {
  // After this, what still runs is killed.
  std::chrono::milliseconds timeout{60'000};
  // Once a process has failed, the others have this long to notice and to end by themselves before
  // they are killed.
  std::chrono::milliseconds grace{5'000};
  // What errors call each rank; "rank N" where there is none.
  std::vector<std::string> labels{};
  // Ranks whose death by a signal is no failure: the victims of a test.
  std::vector<int> may_die{};
};

// Forks `count` processes, runs `body` in each, and waits until all have ended. A body's result is
// the process's exit code (0 is success; only the low 8 bits count); the child leaves by _exit
// after flushing stdio, so neither atexit handlers nor destructors of the caller run in it.
//
// Nothing is left behind: when a process fails the rest is killed after options.grace, when the
// time is up at once, and when the caller dies the kernel kills them.
//
// Blocks. Precondition, checked: the calling process has one thread (a lock held by another thread
// would stay locked in the child). Errors: ABORTED (a process failed: names each one by its label
// with exit code or signal), DEADLINE_EXCEEDED (names those that did not end),
// INVALID_ARGUMENT (count < 1), FAILED_PRECONDITION (other threads), RESOURCE_EXHAUSTED (fork).
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status run_processes(
    int count, const std::function<int(Exchange&)>& body, const RunOptions& options = {});

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_PROCESS_GROUP_H_
