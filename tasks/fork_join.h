// What the templates of task.h call in the library: the ends of the fast paths. Not for users.
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

// A child's end that is out of the ordinary: takes the entry of its parent, from the shelf if need
// be. False: the parent was stolen.
[[nodiscard]] CARIAMA_TASKS_EXPORT bool pop_parent();

// The child's end without its parent: leaves the result in its join record, continues who waits for
// it, or looks for other work. `value` is copied; `packed` is deleted.
[[noreturn]] CARIAMA_TASKS_EXPORT void end_with_value(const void* value, size_t bytes);
[[noreturn]] CARIAMA_TASKS_EXPORT void end_with_packed(const std::vector<std::byte>* packed);

// The end of a child that threw: takes the entry back, and returns what the parent gets; or ends
// without it. `exception` is deleted.
[[nodiscard]] CARIAMA_TASKS_EXPORT ForkResult end_failed_child(std::exception_ptr* exception);

// Waits until the child of `record` has ended, and takes its result; the record is gone then. Other
// tasks run meanwhile, and the calling task may go on in another process. Throws what the child
// threw, or what stands for it (exceptions.h).
CARIAMA_TASKS_EXPORT void join_record(uint64_t record, void* value, size_t bytes);
[[nodiscard]] CARIAMA_TASKS_EXPORT std::vector<std::byte> join_packed(uint64_t record);
// ... and drops it, exceptions too.
CARIAMA_TASKS_EXPORT void join_and_drop(uint64_t record) noexcept;
// ... and drops a value, but keeps an exception: a record that says so, or 0.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t join_for_failure(uint64_t record);

// A record that says that an exception was thrown. `exception` is deleted.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t record_exception(std::exception_ptr* exception);

// suspend.h
using PublishFunction = void (*)(void* argument, const Suspended& task);
CARIAMA_TASKS_EXPORT void suspend_task(PublishFunction publish, void* argument);
CARIAMA_TASKS_EXPORT void resume_task(const Suspended& task);
CARIAMA_TASKS_EXPORT void yield_task();

// A record that any task may complete, once.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t make_record();
CARIAMA_TASKS_EXPORT void complete_record(uint64_t record, const void* value, size_t bytes);
CARIAMA_TASKS_EXPORT void fail_record(uint64_t record, const std::exception_ptr& exception);

// cancellation.h
inline constexpr uint64_t kCancellationTokens = 4096;
[[nodiscard]] CARIAMA_TASKS_EXPORT std::pair<const std::atomic<uint64_t>*, uint64_t> new_token();
CARIAMA_TASKS_EXPORT void cancel_token(const std::atomic<uint64_t>* word, uint64_t serial);

// Makes entries public if somebody wants them.
CARIAMA_TASKS_EXPORT void attend();

// Under a sanitizer, what continues in another process must say so.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
CARIAMA_TASKS_EXPORT void arrived_on_stack();
#else
inline void arrived_on_stack() {}
#endif

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_FORK_JOIN_H_
