// Suspending a task, continuing it from another one, and a future made of that.
//
//   cariama::suspend([&](const cariama::SuspendedTask& me) { registry.add(me); });   // waits here
//   ... in another task, on any worker ...
//   cariama::resume(registry.take());
//
// While a task is suspended its frames lie in registered memory of the worker where it was; the
// handle is plain data that may be sent anywhere. Who calls resume() gets the task: it goes on in
// that worker, when the worker has nothing younger to do.
#ifndef CARIAMA_TASKS_SUSPEND_H_
#define CARIAMA_TASKS_SUSPEND_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>
#include <vector>

#include "tasks/fork_join.h"
#include "tasks/join_record.h"
#include "tasks/task.h"

namespace cariama {

// A task that waits to be continued, once.
using SuspendedTask = tasks::Suspended;

// Suspends the calling task, then calls publish(handle): the task may be continued from then on,
// even before publish has returned. `publish` may use the task's locals, and resume(); it may not
// spawn, join, suspend or throw. Precondition, checked: no exception is being handled.
template <std::invocable<const SuspendedTask&> F>
void suspend(F publish) {
  tasks::suspend_task(
      [](void* argument, const SuspendedTask& task) { (*static_cast<F*>(argument))(task); },
      &publish);
}

// Continues it in this worker. Returns at once. Precondition: nobody did before.
inline void resume(const SuspendedTask& task) { tasks::resume_task(task); }

// Lets older tasks of this worker and stolen ones run, then goes on, in this process.
inline void yield() { tasks::yield_task(); }

// The two ends of a value that is set once and waited for once, by tasks on any workers. Both are
// plain data: copy them into closures. The value travels as a result does (transfer.h). Its record
// lives until get() has returned; one that nobody gets stays until the end of the runtime.
template <typename T>
class TaskFuture {
 public:
  // Waits until the value is set; other tasks run meanwhile, and this one may change its process.
  // Throws what was set in its place. Call it once.
  T get() const {
    if constexpr (std::is_void_v<T>) {
      tasks::join_record(record_, nullptr, 0);
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      alignas(T) std::byte value[sizeof(T)];
      tasks::join_record(record_, value, sizeof value);
      return *std::launder(reinterpret_cast<T*>(value));
    } else {
      return Transfer<T>::unpack(tasks::join_packed(record_));
    }
  }

 private:
  template <typename U>
  friend class TaskPromise;
  explicit TaskFuture(uint64_t record) : record_(record) {}
  uint64_t record_;
};

template <typename T>
class TaskPromise {
 public:
  TaskPromise() : record_(tasks::make_record()) {}

  [[nodiscard]] TaskFuture<T> future() const { return TaskFuture<T>(record_); }

  // Sets the value, once. Returns at once; the waiter goes on in this worker.
  template <typename U = T>
  requires(!std::is_void_v<U>) void set(const std::type_identity_t<U>& value) const {
    if constexpr (std::is_trivially_copyable_v<U>) {
      tasks::complete_record(record_, &value, sizeof value);
    } else {
      std::vector<std::byte> packed;
      Transfer<U>::pack(value, packed);
      tasks::complete_record(record_, packed.data(), packed.size());
    }
  }
  void set() const requires std::is_void_v<T> { tasks::complete_record(record_, nullptr, 0); }
  void fail(const std::exception_ptr& exception) const { tasks::fail_record(record_, exception); }

 private:
  uint64_t record_;
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_SUSPEND_H_
