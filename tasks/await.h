// await(): waits in a task for an event of another layer (the result of a call, a transfer of
// global memory, a condition). The worker runs other tasks meanwhile.
//
//   cariama::Future<int> answer = cariama::async_call(fabric, 1, [] { return 42; });
//   absl::StatusOr<int> value = cariama::await(answer, deadline);
//
//   cariama::GlobalValue<double> cell = memory.rget(pointer);
//   absl::StatusOr<double> got = cariama::await(cell, deadline);
//
// The waiting task continues in the same process, because the event belongs to that process.
//
// The worker may copy the frames of the waiting task out of the stack. No pending operation may
// therefore point into these frames. A Future and the objects that GlobalMemory returns keep their
// state elsewhere and are safe. A Synchronizer that is a local variable is not: do not wait for it
// with these functions. A task may wait for it with the Synchronizer's own functions; the worker
// then runs no other task, but thieves can still steal the worker's public tasks.
//
// Deadlines. The worker tests the event each time that it continues the waiting task, and the
// deadline each 16th time. In between, each other task that is ready on the worker runs until it
// ends, suspends, yields or waits. So the functions may return later than the deadline, by the time
// for which these tasks compute in 16 rounds. If no other task is ready, a round takes at most one
// idle sleep (TaskOptions::idle_sleep). An event that comes before the test of the deadline counts:
// the functions return its result. In a task of a pool no other task runs meanwhile.
//
// Only tasks may call these functions, in the worker's thread. Elsewhere they end the program with
// a message.
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

// While an object of this class exists, the worker runs other tasks whenever the calling task waits
// for another layer. Only tasks may construct it. In a task of a pool (pool.h), which cannot move,
// the worker only answers its thieves.
class CARIAMA_TASKS_EXPORT OtherTasksMayRun {
 public:
  OtherTasksMayRun();
  ~OtherTasksMayRun();
  OtherTasksMayRun(const OtherTasksMayRun&) = delete;
  OtherTasksMayRun& operator=(const OtherTasksMayRun&) = delete;

 private:
  const bool before_;
};

}  // namespace tasks

// Returns the result of a call, like Future::get(). Requires: the result was not taken before.
// Returns DEADLINE_EXCEEDED if `deadline` passes first; then await() may be called again.
template <typename T>
[[nodiscard]] typename Future<T>::Result await(Future<T>& future, Deadline deadline) {
  const tasks::OtherTasksMayRun scope;
  return future.get(deadline);
}

// Waits until a transfer of global memory is complete, like its wait(), and returns what its wait()
// returns.
template <std::derived_from<GlobalTransfer> Transfer>
[[nodiscard]] auto await(Transfer& transfer, Deadline deadline) {
  const tasks::OtherTasksMayRun scope;
  return transfer.wait(deadline);
}

// Waits until `condition()` returns true. Returns false if `deadline` passed first. `condition` may
// read only memory of this process.
template <std::predicate Condition>
[[nodiscard]] bool await_until(Condition condition, Deadline deadline) {
  const tasks::OtherTasksMayRun scope;
  return wait_until(condition, deadline);
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_AWAIT_H_
