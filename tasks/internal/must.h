// Ends the process of a worker at an error from which the job cannot recover.
#ifndef CARIAMA_TASKS_INTERNAL_MUST_H_
#define CARIAMA_TASKS_INTERNAL_MUST_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cariama::tasks {

// Prints a message with `status` and the tasks that are lost with this worker, and ends the
// process. The job cannot continue without this worker, so the other workers end too.
[[noreturn]] void end_job(const absl::Status& status);

inline void must(const absl::Status& status) {
  if (!status.ok()) [[unlikely]]
    end_job(status);
}
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) [[unlikely]]
    end_job(value.status());
  return *std::move(value);
}

// Returns the address of `memory` in any worker: shared memory has the same address in all workers.
[[nodiscard]] inline uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_MUST_H_
