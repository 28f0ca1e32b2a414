#include "tasks/fork_join.h"

#include <utility>

#include "tasks/internal/sanitizer.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {
namespace {

// Joins `record` and returns the result. Throws the child's exception if there is one.
TaskResult join_value(uint64_t record) {
  const TaskResult result = join(Reference(record));
  if (result.kind == TaskResultKind::kFailed) this_worker->rethrow(result);
  return result;
}

Reference completed(TaskResult result) {
  const Reference record = this_worker->new_record();
  static_cast<void>(this_worker->deliver(record, result));
  return record;
}

ForkResult end_child(const TaskResult& result) {
  if (!pop_parent()) this_worker->end_task(result);
  return {0, completed(result).word()};
}

}  // namespace

bool pop_parent() {
  uint64_t* const entry = --cariama_fork_state.top;
  return entry >= cariama_fork_state.floor || this_worker->take_parent_back();
}

void end_with_value(const void* value, size_t bytes) {
  this_worker->end_task(this_worker->value_result(value, bytes));
}

ForkResult end_failed_child(std::exception_ptr* exception) {
  const TaskResult result = this_worker->failed_result(*exception);
  delete exception;
  return end_child(result);
}

ForkResult end_packed_child(const std::vector<std::byte>* packed) {
  const TaskResult result = this_worker->value_result(packed->data(), packed->size());
  delete packed;
  return end_child(result);
}

void join_record(uint64_t record, void* value, size_t bytes) {
  const TaskResult result = join_value(record);
  this_worker->take_value(result, value, bytes);
}

std::vector<std::byte> join_packed(uint64_t record) {
  const TaskResult result = join_value(record);
  return this_worker->take_bytes(result);
}

void await_record(uint64_t record) { await(Reference(record)); }

void join_and_drop(uint64_t record) noexcept {
  const TaskResult result = join(Reference(record));
  this_worker->drop(result);
}

uint64_t join_for_failure(uint64_t record) {
  const TaskResult result = join(Reference(record));
  if (result.kind == TaskResultKind::kFailed) return completed(result).word();
  this_worker->drop(result);
  return 0;
}

uint64_t record_exception(std::exception_ptr* exception) {
  const TaskResult result = worker_of_task("parallel_for")->failed_result(*exception);
  delete exception;
  return completed(result).word();
}

void suspend_task(PublishFunction publish, void* argument) {
  worker_of_task("suspend")->suspend(publish, argument);
}
void resume_task(const Suspended& task) {
  // The publish function of suspend() may call this too. It runs between tasks, where
  // worker_of_task() would end the program.
  worker_of_thread("resume()")->make_ready(task);
}
void yield_task() { worker_of_task("yield")->yield(); }

uint64_t make_record() { return worker_of_task("TaskPromise")->new_record().word(); }

void complete_record(uint64_t record, const void* value, size_t bytes) {
  Worker& worker = *worker_of_thread("TaskPromise::set()");
  worker.complete(Reference(record), worker.value_result(value, bytes));
}

void fail_record(uint64_t record, const std::exception_ptr& exception) {
  Worker& worker = *worker_of_thread("TaskPromise::fail()");
  worker.complete(Reference(record), worker.failed_result(exception));
}

std::pair<const std::atomic<uint64_t>*, uint64_t> new_token() {
  return worker_of_task("CancellationSource")->new_token();
}
void cancel_token(const std::atomic<uint64_t>* word, uint64_t serial) {
  worker_of_task("cancel")->cancel(word, serial);
}

void serve_steal_request() { worker_of_task("poll")->poll(); }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void arrived_on_stack() { on_stack(); }
#endif

}  // namespace cariama::tasks
