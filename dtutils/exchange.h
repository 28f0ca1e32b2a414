// Exchange: the interface of the store through which the processes of a job exchange set-up data. A
// launcher implements it; process_group.h has one for the processes of one host.
#ifndef CARIAMA_DTUTILS_EXCHANGE_H_
#define CARIAMA_DTUTILS_EXCHANGE_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"

namespace cariama {

// A small key-value store that the processes of a job share before they are connected.
//
// Every wait has a deadline: put() and watch_ends() wait for at most 30 s until the store takes
// their message, the other functions until the deadline of the caller. A wait ends earlier with
// UNAVAILABLE (scope kPeer) if the process for which it waits has ended; the text names that
// process and how it ended. Thread-compatible: one thread at a time.
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
  // the other ranks. Errors: INVALID_ARGUMENT (too long), DEADLINE_EXCEEDED (the store did not take
  // the message in 30 s), UNAVAILABLE (the store is gone).
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
  // before the call are reported too. Without `watch`, ends these reports. Errors:
  // DEADLINE_EXCEEDED (the store did not take the message in 30 s), UNAVAILABLE (the store is
  // gone). The base class makes no reports: it ignores the call.
  virtual absl::Status watch_ends(bool /*watch*/) { return absl::OkStatus(); }
  // Returns the reports that have arrived since the last call. Never blocks. Thread-safe. While
  // another thread waits in this object, returns nothing; a later call returns the reports.
  [[nodiscard]] virtual std::vector<Ended> take_ended() { return {}; }
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_EXCHANGE_H_
