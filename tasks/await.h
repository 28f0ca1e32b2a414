// Waiting in a task for what other layers bring: a call's result, global memory, anything that
// becomes true. Other tasks run meanwhile.
//
//   cariama::Future<int> answer = cariama::async_call(fabric, 1, [] { return 42; });
//   absl::StatusOr<int> value = cariama::await(answer);
//
//   cariama::GlobalValue<double> cell = memory.rget(pointer);
//   absl::StatusOr<double> got = cariama::await(cell);
//
// A task that waits so comes back to the process where it waited: what it waits for belongs to that
// process. Its frames are copied out meanwhile, so nothing that is pending may point into its
// stack: a Future and what GlobalMemory returns keep their state elsewhere. A Synchronizer that is
// a local does not; waiting for it by other means than these functions is allowed in a task, but
// occupies the worker, whose public tasks may still be stolen.
//
// For tasks only.
#ifndef CARIAMA_TASKS_AWAIT_H_
#define CARIAMA_TASKS_AWAIT_H_

#include <concepts>
#include <utility>

#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "dtutils/wait.h"
#include "tasks/export.h"

namespace cariama {
namespace tasks {

// In its scope, waits of the calling task let other tasks run.
class CARIAMA_TASKS_EXPORT LetsOthersRun {
 public:
  LetsOthersRun();
  ~LetsOthersRun();
  LetsOthersRun(const LetsOthersRun&) = delete;
  LetsOthersRun& operator=(const LetsOthersRun&) = delete;

 private:
  const bool before_;
};

}  // namespace tasks

// As Future::get(): the result of a call, once.
template <typename T>
[[nodiscard]] typename Future<T>::Result await(Future<T>& future, Deadline deadline = kForever) {
  const tasks::LetsOthersRun scope;
  return future.get(deadline);
}

// As wait() of a transfer of global memory.
template <std::derived_from<GlobalTransfer> Transfer>
[[nodiscard]] auto await(Transfer& transfer, Deadline deadline = kForever) {
  const tasks::LetsOthersRun scope;
  return transfer.wait(deadline);
}

// Until `condition()`, which looks at memory of this process, is true. False: the deadline came.
template <std::predicate Condition>
[[nodiscard]] bool await_until(Condition condition, Deadline deadline = kForever) {
  const tasks::LetsOthersRun scope;
  return wait_until(condition, deadline);
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_AWAIT_H_
