#include "tasks/internal/worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/trace.h"
#include "tasks/internal/copy_frames.h"
#include "tasks/internal/sanitizer.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

// While the process has no worker, a fork writes its entry to no_entries and finds a steal request
// in kAlwaysRequested. So it calls cariama_fork_steal_request(), which reports that it is outside
// of a task. Worker::intercept_forks() and intercept_forks_and_loops() use kAlwaysRequested too.
uint64_t no_entries[1];
const std::atomic<uint64_t> kAlwaysRequested{1};

}  // namespace

extern "C" {
ForkState cariama_fork_state = {no_entries, no_entries, &kAlwaysRequested, nullptr,
                                0,          0,          &kAlwaysRequested};
void cariama_fork_steal_request(uint64_t first, uint64_t second, uint64_t bytes,
                                ChildFunction child) {
  worker_of_task("spawn")->before_child({child, first, second, bytes});
}
void cariama_fork_end(uint64_t value) {
  if (!pop_parent()) end_with_value(&value, sizeof value);
}
}

Worker* this_worker = nullptr;

void sample_steals(const StealSampling& sampling) { this_worker->sample_steals(sampling); }
std::vector<StealSample> take_steal_samples() { return this_worker->take_samples(); }

namespace {

void refuse_other_threads(const char* operation) {
  if (this_worker == nullptr || this_worker->is_this_thread()) return;
  end_job(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                     std::string(operation) + " in a thread that is not the worker's",
                     "call it in a task, or in a call that the idle worker runs"));
}

}  // namespace

// Not inlined: the compiler would read the identity of the thread once for several calls, between
// which a task may have moved to another process.
[[gnu::noinline]] Worker* worker_of_task(const char* operation) {
  refuse_other_threads(operation);
  if (this_worker == nullptr || !this_worker->in_task()) {
    end_job(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                       std::string(operation) + " outside of a task",
                       "call it from within TaskRuntime::run()"));
  }
  return this_worker;
}

[[gnu::noinline]] Worker* worker_of_thread(const char* operation) {
  refuse_other_threads(operation);
  if (this_worker == nullptr) {
    end_job(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                       std::string(operation) + " without a TaskRuntime",
                       "call it while the runtime exists"));
  }
  return this_worker;
}

uint64_t Worker::OwnMemory::compare_swap(std::atomic<uint64_t>& word, uint64_t expected,
                                         uint64_t desired) const {
  return must(access.compare_swap(access.rank(), address_of(&word), expected, desired));
}

Worker::Worker(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
               RemoteAccess& access, uint64_t canary)
    : SchedulerState(Victims(options.victims, options.victim_order,
                             options.seed + static_cast<uint64_t>(access.rank()))),
      options_(options),
      region_(region),
      access_(access),
      area_(area_of(region)),
      added_(region.tail() + memory.added_offset(access.size())),
      stack_(region.bottom(), region.stack_bytes()),
      guard_(
          region, "TaskOptions::stack_bytes",
          reinterpret_cast<uint64_t*>(region.tail() + WorkerMemory::entries_offset(access.size()))),
      pinned_(options.pinned_bytes,
              [this](size_t index, const MemorySource& source) {
                return access_.add_segment(index, source);
              }),
      memory_{access},
      public_part_(memory_, area_.public_part),
      joins_(access, area_.join_copy),
      counters_("tasks", "rank " + std::to_string(access.rank()), [this] {
        return CounterSet::Values{{"steals", steals_total_.value()},
                                  {"steal_attempts", steal_attempts_total_.value()}};
      }) {
  entries_ =
      reinterpret_cast<uint64_t*>(region.tail() + WorkerMemory::entries_offset(access.size()));
  reports_ = entries_ + memory.entries;
  pinned_.on_collect([this](void* block) { exceptions_.erase(block); });
  const std::atomic<uint64_t>* const request = &area_.public_part.steal_request;
  cariama_fork_state = {entries_ + 1, entries_ + 1, request, nullptr, canary, 0, request};
  if (options.check_closures) intercept_forks();
  taken_from_.resize(static_cast<size_t>(access.size()));
  tries_all_peers_ = victims_.count() + 1 >= static_cast<size_t>(access.size());
  for (int peer = 0; peer < access.size(); ++peer) {
    void* const area = access.mapped(peer, address_of(&area_), sizeof area_);
    if (area == nullptr) {
      peers_.clear();
      break;
    }
    peers_.push_back(static_cast<WorkerArea*>(area));
  }
  set_idle(true);
  if (access.size() > 1)
    area_.public_part.steal_request.store(kRefillRequest, std::memory_order_relaxed);
  this_worker = this;
}

Worker::~Worker() {
  this_worker = nullptr;
  cariama_fork_state = {no_entries, no_entries, &kAlwaysRequested, nullptr,
                        0,          0,          &kAlwaysRequested};
}

void Worker::intercept_forks() { cariama_fork_state.steal_request = &kAlwaysRequested; }

void Worker::intercept_forks_and_loops() {
  intercept_forks();
  cariama_fork_state.split_request = &kAlwaysRequested;
}

// ---- called by running tasks ----

ExceptionState Worker::take_exceptions() {
  leaving_.exceptions = std::exchange(exceptions(), {});
  if (leaving_.exceptions.empty()) return {};
  return split_exceptions(leaving_.exceptions, task_top());
}

void Worker::end_task(const TaskResult& result) {
  leaving_.why = Leaving::Why::kEnded;
  // top has been decremented: it is the address of the parent's entry, which was stolen.
  leaving_.next = deliver(Reference(reports_[cariama_fork_state.top - entries_]), result);
  before_leave(stack_end());
  cariama_leave();
}

namespace {

// Suspends the running task. Returns when the task is continued, possibly in another process,
// unless the task handles exceptions.
[[gnu::noinline]] void leave(void** sp) {
  const ExceptionState exceptions = this_worker->take_exceptions();
  const bool other_tasks_may_run = std::exchange(this_worker->other_tasks_may_run, false);
  before_leave(this_worker->stack_end());
  cariama_suspend(sp);
  arrived_on_stack();
  // If the parent did not continue in between, its exceptions are below those of this task again.
  if (!exceptions.empty()) join_exceptions(this_worker->exceptions(), exceptions);
  this_worker->other_tasks_may_run = other_tasks_may_run;
}

}  // namespace

void await(Reference record) {
  // Reads the worker each time: the process may have changed.
  while (!worker_of_task("join")->child_has_ended(record)) this_worker->wait_for(record);
}

TaskResult join(Reference record) {
  for (;;) {
    Worker& worker = *worker_of_task("join");  // read it each time: the process may have changed
    std::optional<TaskResult> result = worker.poll_result(record);
    if (result.has_value()) return *result;
    worker.wait_for(record);
  }
}

std::optional<TaskResult> Worker::poll_result(Reference record) {
  const std::optional<TaskResult> result = must(joins_.poll_result(record));
  if (result.has_value()) release(record);
  return result;
}

void Worker::wait_for(Reference record) {
  ++statistics_.joins_waited;
  trace_instant("tasks", "join waits");
  // A task that handles exceptions must continue in this process.
  const bool stays = handles_exceptions();
  leaving_.why = Leaving::Why::kJoin;
  leaving_.record = record;
  leaving_.stays = stays;
  leave(&leaving_.sp);
}

void Worker::suspend(void (*publish)(void*, const Suspended&), void* argument) {
  if (handles_exceptions()) {
    throw std::logic_error("cariama::suspend: an exception is being handled");
  }
  leaving_.why = Leaving::Why::kSuspend;
  leaving_.publish = publish;
  leaving_.argument = argument;
  leave(&leaving_.sp);
}

void Worker::yield() {
  leaving_.why = Leaving::Why::kYield;
  leave(&leaving_.sp);
}

// ---- records and results ----

void* Worker::allocate(size_t bytes) {
  void* block = pinned_.reuse(bytes);
  if (block == nullptr) block = must(pinned_.allocate(bytes));
  after_peers();
  return block;
}

void Worker::release(Reference block) {
  if (block.rank() == rank()) {
    pinned_.release(reinterpret_cast<void*>(block.address()));
  } else {
    const uint64_t released = 1;
    must(access_.write(block.rank(), PinnedArea::release_address(block.address()), &released,
                       sizeof released));
  }
}

Reference Worker::new_record(size_t more) {
  auto* record = new (allocate(sizeof(JoinRecord) + more)) JoinRecord;
  record->arrivals.store(0, std::memory_order_relaxed);
  before_peers();
  ++statistics_.records;
  return {rank(), record};
}

TaskResult Worker::value_result(const void* value, size_t bytes) {
  if (bytes > UINT32_MAX) {
    end_job(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                       "a task's result of " + std::to_string(bytes) + " bytes is too large",
                       "return less than 4 GiB, or leave it in global memory"));
  }
  TaskResult result;
  result.kind = TaskResultKind::kValue;
  result.bytes = static_cast<uint32_t>(bytes);
  void* to = result.value;
  if (bytes > TaskResult::kInlineBytes) {
    result.kind = TaskResultKind::kFar;
    to = allocate(bytes);
    result.block = Reference(rank(), to).word();
  }
  if (bytes != 0) std::memcpy(to, value, bytes);
  return result;
}

TaskResult Worker::failed_result(const std::exception_ptr& exception) {
  ExceptionText text = describe(exception);
  text.type += '\0';
  text.type += text.text;
  TaskResult result;
  result.kind = TaskResultKind::kFailed;
  result.bytes = static_cast<uint32_t>(text.type.size());
  void* block = allocate(text.type.size());
  std::memcpy(block, text.type.data(), text.type.size());
  exceptions_[block] = exception;
  pinned_.mark(block);
  result.block = Reference(rank(), block).word();
  return result;
}

Suspended Worker::deliver(Reference record, const TaskResult& result) {
  return must(joins_.deliver(record, result));
}

std::vector<std::byte> Worker::fetch(const TaskResult& result) {
  if (result.bytes == 0) return {};
  if (result.block == 0) return {result.value, result.value + result.bytes};
  const Reference block(result.block);
  auto* source = reinterpret_cast<std::byte*>(block.address());
  const bool here = block.rank() == rank();
  if (!here) {
    source = static_cast<std::byte*>(allocate(result.bytes));
    must(access_.read(block.rank(), block.address(), source, result.bytes));
  }
  // After the read: if it fails, no destructor runs (end_run()).
  std::vector<std::byte> bytes(source, source + result.bytes);
  if (!here) pinned_.release(source);
  return bytes;
}

void Worker::take_value(const TaskResult& result, void* value, size_t bytes) {
  if (bytes == 0) return drop(result);
  if (result.bytes != bytes) {
    end_job(make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                       "a task's result has " + std::to_string(result.bytes) + " bytes, not " +
                           std::to_string(bytes)));
  }
  if (result.block == 0) {
    if (bytes != 0) std::memcpy(value, result.value, bytes);
    return;
  }
  const Reference block(result.block);
  if (block.rank() == rank()) {
    std::memcpy(value, reinterpret_cast<const void*>(block.address()), bytes);
  } else {
    // `value` is a local of a task, so it is in the registered region.
    must(access_.read(block.rank(), block.address(), value, bytes));
  }
  release(block);
}

std::vector<std::byte> Worker::take_bytes(const TaskResult& result) {
  std::vector<std::byte> bytes = fetch(result);
  drop(result);
  return bytes;
}

void Worker::drop(const TaskResult& result) {
  if (result.block != 0) release(Reference(result.block));
}

void Worker::rethrow(const TaskResult& result) {
  const Reference block(result.block);
  if (block.rank() == rank()) {
    const auto found = exceptions_.find(reinterpret_cast<const void*>(block.address()));
    if (found == exceptions_.end()) must(malformed_words(rank(), "an exception of a task"));
    const std::exception_ptr exception = found->second;
    release(block);
    std::rethrow_exception(exception);
  }
  const std::vector<std::byte> bytes = take_bytes(result);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = text.find('\0');
  throw_described(text.substr(0, end), text.substr(end + 1));
}

// ---- on the scheduler's stack ----

absl::StatusOr<Worker::RootResult> Worker::run_root(ChildFunction root, uint64_t first,
                                                    uint64_t second) {
  ++runs_;
  RootResult result;
  absl::Status status = until_failure([&] {
    result = work_on_root(root, first, second);
    // Notify the other workers even if one of them is dead: they would search for tasks for ever.
    absl::Status first_error;
    for (int peer = 0; peer < access_.size(); ++peer) {
      if (peer == rank()) continue;
      first_error.Update(access_.write(peer, address_of(&area_.finished), &runs_, sizeof runs_));
      ring(peer);
    }
    must(std::move(first_error));
  });
  if (!status.ok()) return status;
  return result;
}

absl::Status Worker::run_until_finished() {
  ++runs_;
  return until_failure([&] { work({&area_.finished, runs_, &area_.failed}); });
}

template <typename Body>
absl::Status Worker::until_failure(const Body& body) {
  absl::Status failed_before = failure();
  if (!failed_before.ok()) return failed_before;
  bind_to_this_thread();
  const ExceptionState of_caller = exceptions();
  run_deadline_ =
      options_.run_timeout.count() == 0 ? kForever : deadline_after(options_.run_timeout);
  access_.set_deadline(run_deadline_);
  bool failed_now = false;
  try {
    body();
  } catch (const RunFailed&) {
    failed_now = true;
  }
  set_idle(true);
  if (!failed_now) return absl::OkStatus();
  // The exceptions that abandoned tasks handle belong to no caller any more.
  exceptions() = of_caller;
  absl::Status failed = failure();
  next_ = {};
  ready_.clear();
  waiting_.clear();
  return failed;
}

Worker::RootResult Worker::work_on_root(ChildFunction root, uint64_t first, uint64_t second) {
  const Reference record = new_record();
  auto* const state = reinterpret_cast<JoinRecord*>(record.address());
  begin(new_stack(), record, {root, first, second, 0});
  work({&state->arrivals, 1, &area_.failed});
  const TaskResult of_root = state->result;
  if (!is_possible(of_root, access_.size())) must(malformed_words(rank(), "the root's result"));
  RootResult result;
  if (of_root.kind == TaskResultKind::kFailed) {
    try {
      rethrow(of_root);
    } catch (const RunFailed&) {
      throw;
    } catch (...) {
      const ExceptionText thrown = describe(std::current_exception());
      result.exception = cariama::internal::describe_exception(demangled(thrown.type), thrown.text);
    }
  } else {
    result.bytes = take_bytes(of_root);
  }
  release(record);
  return result;
}

void Worker::first_entry(void* argument) {
  arrived_on_stack();
  const FirstCall call = *static_cast<FirstCall*>(argument);
  // The task has no parent. The address passed as the parent's entry is not a private entry, so
  // takes_back() fails and a child with a result larger than a word ends itself.
  const ForkResult result =
      call.function(call.first, call.second, &cariama_fork_state, cariama_fork_state.top - 1);
  cariama_fork_end(result.value);
  std::abort();
}

void Worker::begin(std::byte* top, Reference record, const FirstCall& call) {
  set_idle(false);
  first_call_ = call;
  install(address_of(top), record.word(),
          {make_context(top - kChildWordBytes, first_entry, &first_call_), 0});
}

void Worker::copy_out(Suspended& task) {
  const TraceScope trace("tasks", "suspend");
  const size_t bytes = task.top - task.sp;
  void* frames = allocate(bytes + PinnedArea::kNoteBytes);
  copy_frames(frames, reinterpret_cast<const void*>(task.sp), bytes);
  pinned_.note_frames(frames, task.sp, task.top);
  task.frames = Reference(rank(), frames).word();
  statistics_.suspended_bytes += bytes;
}

void Worker::copy_in(const Suspended& task) {
  const Reference frames(task.frames);
  void* const sp = reinterpret_cast<void*>(task.sp);
  const size_t bytes = task.top - task.sp;
  check_place(frames.rank(), task.sp, task.top);
  if (frames.rank() != rank()) {
    must(access_.read(frames.rank(), frames.address(), sp, bytes));
  } else {
    copy_frames(sp, reinterpret_cast<const void*>(frames.address()), bytes);
  }
  release(frames);
}

bool Worker::child_has_ended(Reference record) {
  return must(joins_.poll_result(record)).has_value();
}

std::pair<const std::atomic<uint64_t>*, uint64_t> Worker::new_token() {
  // Serial numbers begin at 1, because the words in `cancelled` are initially 0.
  const uint64_t serial = must(access_.fetch_add(0, address_of(&area_.tokens), 1)) + 1;
  return {&area_.cancelled[serial % kCancellationTokens], serial};
}

void Worker::cancel(const std::atomic<uint64_t>* word, uint64_t serial) {
  for (int peer = 0; peer < access_.size(); ++peer) {
    must(access_.write(peer, address_of(word), &serial, sizeof serial));
  }
}

void Worker::make_ready(const Suspended& task) { ready_.push_back(task); }

void Worker::complete(Reference record, const TaskResult& result) {
  absl::StatusOr<Suspended> waiter = joins_.deliver(record, result);
  if (!waiter.ok()) return note_failure(waiter.status());
  if (waiter->frames != 0) make_ready(*waiter);
}

TaskStatistics Worker::statistics() const {
  TaskStatistics statistics = statistics_;
  statistics.stack_high_water = stack_high_water();
  statistics.stack_reserved = region_.stack_bytes();
  statistics.pinned_bytes = pinned_.segment_total();
  const auto ns = static_cast<double>((steady_clock::now() - created_).count());
  const auto ticks = static_cast<double>(steal_clock() - created_tick_);
  statistics.idle_ns = static_cast<uint64_t>(static_cast<double>(idle_ticks_) * ns / ticks);
  return statistics;
}

}  // namespace cariama::tasks
