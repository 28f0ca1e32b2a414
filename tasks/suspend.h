// suspend() and resume(): a task suspends itself, and another task continues it. TaskFuture and
// TaskPromise pass a value between two tasks.
//
//   cariama::suspend([&](const cariama::SuspendedTask& me) { registry.add(me); });   // waits here
//   ... in another task, on any worker ...
//   cariama::resume(registry.take());
//
// The frames of a suspended task are in registered memory of the worker that suspended it. The
// handle is plain data that may be sent to any worker. The worker that calls resume() continues the
// task, after the tasks that are on its stack.
#ifndef CARIAMA_TASKS_SUSPEND_H_
#define CARIAMA_TASKS_SUSPEND_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "tasks/fork_join.h"
#include "tasks/join_record.h"
#include "tasks/task.h"

namespace cariama {

// Handle to a suspended task. The task may be resumed once.
using SuspendedTask = tasks::Suspended;

// Suspends the calling task, then calls publish(handle). From then on the task may be resumed, even
// before publish() has returned. The scheduler calls `publish` on this worker, after it has copied
// the frames of the task. `publish` may read the locals of the task; a value that it writes to them
// is lost when the task continues. `publish` may call resume(), TaskPromise::set() and fail(), and
// no other function of this layer, and must not throw. A task that is never resumed keeps its
// parent's join waiting, so run() does not return. Throws std::logic_error if the task is handling
// an exception.
template <std::invocable<const SuspendedTask&> F>
void suspend(F publish) {
  tasks::suspend_task(
      [](void* argument, const SuspendedTask& task) { (*static_cast<F*>(argument))(task); },
      &publish);
}

// Makes the suspended task ready to run in this worker. Returns at once. Only the worker's thread
// may call it: in a task, in `publish`, or in a call that the idle worker runs
// (TaskRuntime::create() with a Fabric). In another thread, or without a runtime, it ends the
// program with a message. Requires: the task was not resumed before.
inline void resume(const SuspendedTask& task) { tasks::resume_task(task); }

// Lets other tasks run: the parent of the calling task, other ready tasks of this worker, or a
// stolen task. Then continues in the same process.
inline void yield() { tasks::yield_task(); }

// TaskPromise sets a value once, and TaskFuture::get() waits for it once; both may be used by tasks
// on any workers. Both are plain data that closures may capture. The value travels like a task's
// result (transfer.h). Its record is released when get() returns; without a get(), it exists until
// the end of the runtime.
template <typename T>
class TaskFuture {
 public:
  // Waits until the value is set, and returns it. Throws the exception if fail() was called
  // instead. The worker runs other tasks meanwhile, and the calling task may continue in another
  // process. Blocks for ever if neither set() nor fail() is called. Requires: get() is called once
  // for a promise, over all copies of the future. A second call on the same object throws
  // std::logic_error; one on another copy reads released memory, undetected.
  T get() const {
    const uint64_t record = std::exchange(record_, 0);
    if (record == 0)
      throw std::logic_error("the second get() of a TaskFuture: get() is called once");
    if constexpr (std::is_void_v<T>) {
      tasks::join_record(record, nullptr, 0);
    } else if constexpr (tasks::kTravelsAsBytes<T>) {
      alignas(T) std::byte value[sizeof(T)];
      tasks::join_record(record, value, sizeof value);
      return *std::launder(reinterpret_cast<T*>(value));
    } else {
      return Transfer<T>::unpack(tasks::join_packed(record));
    }
  }

 private:
  template <typename U>
  friend class TaskPromise;
  explicit TaskFuture(uint64_t record) : record_(record) {}
  mutable uint64_t record_;  // 0: get() was called
};

template <typename T>
class TaskPromise {
 public:
  // Creates a promise, whose record is in this worker's pinned area. Only tasks may call it: in
  // other code it ends the program with a message. Does not block.
  TaskPromise() : record_(tasks::make_record()) { tasks::require_transferable<T>(); }

  [[nodiscard]] TaskFuture<T> future() const { return TaskFuture<T>(record_); }

  // Sets the value. Waits for no task, but for one round trip if the promise was created in another
  // worker, and for two if a task waits for the value. That task becomes ready to run in this
  // worker; with JoinPolicy::kWaitQueue, or if it handles an exception, in the worker in which it
  // waits. Threads: as resume(). Requires: neither set() nor fail() was called before.
  template <typename U = T>
  requires(!std::is_void_v<U>) void set(const std::type_identity_t<U>& value) const {
    if constexpr (tasks::kTravelsAsBytes<U>) {
      tasks::complete_record(record_, &value, sizeof value);
    } else {
      std::vector<std::byte> packed;
      Transfer<U>::pack(value, packed);
      tasks::complete_record(record_, packed.data(), packed.size());
    }
  }
  void set() const requires std::is_void_v<T> { tasks::complete_record(record_, nullptr, 0); }
  // Like set(), but makes get() throw `exception`.
  void fail(const std::exception_ptr& exception) const { tasks::fail_record(record_, exception); }

 private:
  uint64_t record_;
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_SUSPEND_H_
