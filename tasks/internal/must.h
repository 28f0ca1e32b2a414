// Ends the run, or the process, of a worker at an error from which it cannot recover.
#ifndef CARIAMA_TASKS_INTERNAL_MUST_H_
#define CARIAMA_TASKS_INTERNAL_MUST_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cariama::tasks {

// Prints a message with `status` and the tasks that are lost with this worker, and ends the process
// with exit code 70. For the other workers this worker has failed.
[[noreturn]] void end_job(const absl::Status& status);

// Thrown on the scheduler's stack when a run ends because a worker has failed or is late. Does
// not pass through code of the user: Worker::run_root() and run_until_finished() catch it.
struct RunFailed {};

// Ends the run of this worker if `status` is the failure of a peer, or its silence until the
// deadline of the run: run() then returns an error.
// Abandons the tasks of this worker if a task calls it; throws RunFailed if the scheduler calls it.
// Any other error ends the process, like end_job(). Takes `status` by value, because destructors of
// the frames of an abandoned task do not run.
[[noreturn]] void end_run(absl::Status status);

inline void must(absl::Status status) {
  if (!status.ok()) [[unlikely]]
    end_run(std::move(status));
}
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) [[unlikely]]
    end_run(std::move(value).status());
  return *std::move(value);
}

// Returns the address of `memory` in any worker: shared memory has the same address in all workers.
[[nodiscard]] inline uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_MUST_H_
