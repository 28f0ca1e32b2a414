// The library functions that the templates of task.h, parallel.h, suspend.h and cancellation.h call
// when their inline fast paths do not suffice. Not for users.
#ifndef CARIAMA_TASKS_FORK_JOIN_H_
#define CARIAMA_TASKS_FORK_JOIN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "tasks/context.h"
#include "tasks/export.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

// Pops the entry of the parent when a child ends and its inline pop has failed. Takes the entry
// back from the public part of the deque if it is public. Returns false if a thief stole the
// parent.
[[nodiscard]] CARIAMA_TASKS_EXPORT bool pop_parent();

// Ends a child whose parent was stolen: writes a copy of `value` to the child's join record. The
// worker then continues the task that waits for this child, or, if no task waits, searches for
// other work.
[[noreturn]] CARIAMA_TASKS_EXPORT void end_with_value(const void* value, size_t bytes);

// End a child that threw, or whose result Transfer<T>::pack() has packed. If the parent was not
// stolen, they pop its entry and return the ForkResult for the parent, whose record holds the
// exception or the result. Otherwise they write it to the child's join record and do not return.
// They delete their argument.
[[nodiscard]] CARIAMA_TASKS_EXPORT ForkResult end_failed_child(std::exception_ptr* exception);
[[nodiscard]] CARIAMA_TASKS_EXPORT ForkResult
end_packed_child(const std::vector<std::byte>* packed);

// Waits until the child of `record` has ended, copies its result of `bytes` bytes to `value` (0:
// the result is dropped), and releases the record. The worker runs other tasks meanwhile, and the
// calling task may continue in another process. Throws the exception of the child, or its
// representation (exceptions.h). Requires: `value` is a local variable of the calling task.
CARIAMA_TASKS_EXPORT void join_record(uint64_t record, void* value, size_t bytes);
// Like join_record(), for a result that Transfer<T>::pack() has packed. Returns its bytes.
[[nodiscard]] CARIAMA_TASKS_EXPORT std::vector<std::byte> join_packed(uint64_t record);
// Waits until the child of `record` has ended, but does not join it: join_record() or join_packed()
// of the same record then returns without waiting, in the same process.
CARIAMA_TASKS_EXPORT void await_record(uint64_t record);
// Waits until the child of `record` has ended, and drops its result or exception.
CARIAMA_TASKS_EXPORT void join_and_drop(uint64_t record) noexcept;
// Waits until the child of `record` has ended. Returns a new record that holds the child's
// exception, or 0 if the child did not throw. Drops the child's value.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t join_for_failure(uint64_t record);

// Returns a completed record that holds `exception`. Deletes `exception`.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t record_exception(std::exception_ptr* exception);

// Implementation of suspend.h, which documents these functions.
using PublishFunction = void (*)(void* argument, const Suspended& task);
CARIAMA_TASKS_EXPORT void suspend_task(PublishFunction publish, void* argument);
CARIAMA_TASKS_EXPORT void resume_task(const Suspended& task);
CARIAMA_TASKS_EXPORT void yield_task();

// make_record() returns a record without a child. Any task may complete it once, with a value
// (complete_record) or with an exception (fail_record). Copies `value`.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t make_record();
CARIAMA_TASKS_EXPORT void complete_record(uint64_t record, const void* value, size_t bytes);
CARIAMA_TASKS_EXPORT void fail_record(uint64_t record, const std::exception_ptr& exception);

// Implementation of cancellation.h. A job has kCancellationTokens cancellation words in each
// worker. new_token() returns the word and the serial number of a new token. cancel_token() writes
// `serial` to `word` in every worker.
inline constexpr uint64_t kCancellationTokens = 4096;
[[nodiscard]] CARIAMA_TASKS_EXPORT std::pair<const std::atomic<uint64_t>*, uint64_t> new_token();
CARIAMA_TASKS_EXPORT void cancel_token(const std::atomic<uint64_t>* word, uint64_t serial);

// TaskOptions::check_closures for a value of which closures will contain a copy. `flag` is
// kClosureOfValues or kClosureWithGaps (context.h).
CARIAMA_TASKS_EXPORT void check_value(const void* value, size_t bytes, uint64_t flag);

// Serves a pending steal request of a thief: makes entries public, or hands a task over
// (DequeKind::kPrivate). Does nothing if there is no request.
CARIAMA_TASKS_EXPORT void serve_steal_request();

// Returns true if the next fork of the running task serves a steal request, or if the deque needs
// loops that always split (DequeKind::kThe, StackScheme::kCrude and kIso). Two loads.
[[nodiscard, gnu::always_inline]] inline bool steal_is_requested() {
  return cariama_fork_state.split_request->load(std::memory_order_relaxed) != 0;
}

// A task calls arrived_on_stack() when it may have been continued in another process. It tells the
// sanitizer about the new stack. It does nothing in a build without a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
CARIAMA_TASKS_EXPORT void arrived_on_stack();
#else
inline void arrived_on_stack() {}
#endif

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_FORK_JOIN_H_
