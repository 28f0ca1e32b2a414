// Results without which a benchmark cannot go on.
#ifndef CARIAMA_BENCH_SUPPORT_MUST_H_
#define CARIAMA_BENCH_SUPPORT_MUST_H_

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/job.h"

namespace cariama::bench {

// Ends the program with the message of the error, as give_up() does.
[[noreturn]] inline void fail(const absl::Status& why) {
  give_up(program_invocation_short_name, why);
}
// Returns the value. An error ends the program.
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) fail(value.status());
  return *std::move(value);
}
inline void must(const absl::Status& status) {
  if (!status.ok()) fail(status);
}

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_MUST_H_
