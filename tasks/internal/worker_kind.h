// WorkerKind: a scheduler that a worker can run, chosen at the start by TaskOptions.
#ifndef CARIAMA_TASKS_INTERNAL_WORKER_KIND_H_
#define CARIAMA_TASKS_INTERNAL_WORKER_KIND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {

struct WorkerKind {
  // Returns the sizes of the memory of each of `workers` workers.
  WorkerMemory (*memory)(const TaskOptions& options, int workers);
  // Creates a worker. Call it after the registration of the region.
  absl::StatusOr<std::unique_ptr<Worker>> (*create)(const TaskOptions& options,
                                                    const WorkerMemory& memory, StackRegion& region,
                                                    RemoteAccess& access, uint64_t canary);
};

// Implements WorkerKind::create for a worker of class `Kind`.
template <typename Kind>
absl::StatusOr<std::unique_ptr<Worker>> create_worker(const TaskOptions& options,
                                                      const WorkerMemory& memory,
                                                      StackRegion& region, RemoteAccess& access,
                                                      uint64_t canary) {
  return std::unique_ptr<Worker>(std::make_unique<Kind>(options, memory, region, access, canary));
}

// Implements WorkerKind::memory for tasks that nest on one stack. Each nesting level takes at least
// kContextBytes and a return address of the stack, which bounds the number of entries.
[[nodiscard]] WorkerMemory uni_address_memory(const TaskOptions& options, int workers);

// The product: split deque, greedy join, uni-address stack.
extern const WorkerKind kDefaultWorker;

// Returns the kind that TaskOptions::deque, scheme and join name. Error: INVALID_ARGUMENT (options
// that exclude each other).
[[nodiscard]] absl::StatusOr<WorkerKind> worker_kind(const TaskOptions& options);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_WORKER_KIND_H_
