#include "dtutils/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/json.h"

namespace cariama {
namespace internal {

constinit std::atomic<bool> trace_on{false};

uint64_t trace_now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace internal

namespace {

struct Event {
  uint64_t start;
  uint64_t duration;
  const char* category;
  const char* name;
  const char* argument;
  uint64_t value;
  char phase;
};
static_assert(sizeof(Event) == 56);

constexpr size_t kBlockEvents = 1024;
constexpr size_t kBlocksPerThread = kMaxTraceEventsPerThread / kBlockEvents;
constexpr size_t kMaxBlocks = kMaxTraceEvents / kBlockEvents;

// The counters that the buffers of one recording share.
struct Budget {
  std::atomic<size_t> blocks{0};
  std::atomic<uint64_t> dropped{0};
};

// The events of one thread in one recording. That thread writes them; the writer of the file reads
// the first count() of them. The buffer may outlive the thread.
class Buffer {
 public:
  Buffer(std::shared_ptr<Budget> budget, pid_t thread)
      : budget_(std::move(budget)), thread_(thread) {}
  ~Buffer() {
    for (auto& block : blocks_) delete[] block.load(std::memory_order_relaxed);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void add(const Event& event) {
    const size_t index = count_.load(std::memory_order_relaxed);
    if (index % kBlockEvents == 0 && !grow(index / kBlockEvents)) {
      budget_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    blocks_[index / kBlockEvents].load(std::memory_order_relaxed)[index % kBlockEvents] = event;
    // Release: pairs with the acquire in count(); the event is written before the count.
    count_.store(index + 1, std::memory_order_release);
  }

  [[nodiscard]] size_t count() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] const Event& operator[](size_t index) const {
    return blocks_[index / kBlockEvents].load(std::memory_order_relaxed)[index % kBlockEvents];
  }
  [[nodiscard]] const Budget* budget() const { return budget_.get(); }
  [[nodiscard]] pid_t thread() const { return thread_; }

  std::string name;  // guarded by State::mutex

 private:
  bool grow(size_t block) {
    if (block == kBlocksPerThread) return false;
    if (budget_->blocks.load(std::memory_order_relaxed) >= kMaxBlocks) return false;
    if (budget_->blocks.fetch_add(1, std::memory_order_relaxed) >= kMaxBlocks) return false;
    auto* const events = new (std::nothrow) Event[kBlockEvents];
    if (events == nullptr) return false;
    blocks_[block].store(events, std::memory_order_relaxed);
    return true;
  }

  const std::shared_ptr<Budget> budget_;
  const pid_t thread_;
  std::atomic<size_t> count_{0};
  std::array<std::atomic<Event*>, kBlocksPerThread> blocks_{};
};

struct State {
  // Serialises the writers of the file. Locked before `mutex`.
  std::mutex writing;
  std::mutex mutex;
  // `mutex` guards the following members; `writing` guards in addition those that start and stop
  // change.
  std::string path;  // as given by the user
  bool forked = false;
  std::string process_name = program_invocation_short_name;
  std::shared_ptr<Budget> budget = std::make_shared<Budget>();
  std::vector<std::shared_ptr<Buffer>> buffers;
  // Equal to budget.get(), readable without the lock.
  std::atomic<const Budget*> current{budget.get()};

  void renew() {
    buffers.clear();
    budget = std::make_shared<Budget>();
    current.store(budget.get(), std::memory_order_release);
  }
};

// Never destroyed: threads and static objects may record until the process ends.
State& state() {
  static auto* const instance = new State;
  return *instance;
}

// Set when the thread's destructors have run; the thread has no buffer any more.
thread_local bool thread_ended = false;

struct ThreadState {
  std::shared_ptr<Buffer> buffer;
  std::string name;
  ~ThreadState() { thread_ended = true; }

  Buffer& renew() {
    State& all = state();
    const std::lock_guard lock(all.mutex);
    buffer = std::make_shared<Buffer>(all.budget, gettid());
    buffer->name = name;
    all.buffers.push_back(buffer);
    return *buffer;
  }
};

ThreadState& this_thread() {
  static thread_local ThreadState instance;
  return instance;
}

// A forked child inherits the parent's buffers, including those of threads that do not exist in the
// child, so it starts with an empty recording. Both locks are held across the fork, so that the
// locks and the data that they guard are consistent in the child.
void before_fork() {
  state().writing.lock();
  state().mutex.lock();
}
void after_fork_in_parent() {
  state().mutex.unlock();
  state().writing.unlock();
}
void after_fork_in_child() {
  State& all = state();
  if (internal::trace_on.load(std::memory_order_relaxed)) {
    all.forked = true;
    all.renew();
  }
  after_fork_in_parent();
}

std::string file_name(const State& all) {
  const std::string process = std::to_string(getpid());
  std::string name = all.path;
  size_t at = name.find("%p");
  if (at == std::string::npos) return all.forked ? name + "." + process : name;
  for (; at != std::string::npos; at = name.find("%p", at + process.size())) {
    name.replace(at, 2, process);
  }
  return name;
}

// Prints microseconds, as the format requires, with three decimals, so that no nanosecond digits
// are lost.
void print_time(std::FILE* file, const char* key, uint64_t nanoseconds) {
  std::fprintf(file, ",\"%s\":%" PRIu64 ".%03u", key, nanoseconds / 1000,
               static_cast<unsigned>(nanoseconds % 1000));
}

void print_name(std::FILE* file, const char* kind, pid_t process, pid_t thread,
                const std::string& name) {
  std::fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":%s}}",
               process, thread, kind, json_string(name).c_str());
}

void print_event(std::FILE* file, pid_t process, pid_t thread, const Event& event) {
  std::fprintf(file, ",\n{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", event.phase, process, thread);
  print_time(file, "ts", event.start);
  if (event.phase == 'X') print_time(file, "dur", event.duration);
  if (event.phase == 'i') std::fputs(",\"s\":\"t\"", file);
  std::fprintf(file, ",\"cat\":%s,\"name\":%s", json_string(event.category).c_str(),
               json_string(event.name).c_str());
  if (event.argument != nullptr) {
    std::fprintf(file, ",\"args\":{%s:%" PRIu64 "}", json_string(event.argument).c_str(),
                 event.value);
  }
  std::fputs("}", file);
}

absl::Status cannot_write(int error_number, const std::string& name) {
  return make_errno_error(error_number, ErrorScope::kProcess, "cannot write the trace file " + name,
                          "give CARIAMA_TRACE or start_trace() a path that can be written");
}

// Replaces the whole file. Requires: `writing` is locked and `mutex` is not, so that threads
// continue to record.
absl::Status write_file(State& all) {
  std::string name;
  std::string process_name;
  std::vector<std::pair<std::shared_ptr<Buffer>, std::string>> threads;
  uint64_t dropped;
  {
    const std::lock_guard lock(all.mutex);
    name = file_name(all);
    process_name = all.process_name;
    dropped = all.budget->dropped.load(std::memory_order_relaxed);
    for (const auto& buffer : all.buffers) threads.emplace_back(buffer, buffer->name);
  }
  // A rename would replace a device or a pipe by a regular file, so only regular files are
  // accepted.
  struct stat before;
  if (stat(name.c_str(), &before) == 0 && !S_ISREG(before.st_mode)) {
    return cannot_write(EINVAL, name);
  }
  const std::string unfinished = name + ".unfinished." + std::to_string(getpid());
  // In a folder of all users, another user may have put a link there, to make this process
  // overwrite a file: the file is created, and no existing one is opened.
  unlink(unfinished.c_str());
  const int descriptor =
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) return cannot_write(errno, unfinished);
  std::FILE* const file = fdopen(descriptor, "w");
  if (file == nullptr) {
    const int error_number = errno;
    close(descriptor);
    unlink(unfinished.c_str());
    return cannot_write(error_number, unfinished);
  }
  const pid_t process = getpid();
  std::fprintf(file,
               "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped_events\":%" PRIu64 "},\n",
               dropped);
  std::fputs("\"traceEvents\":[\n", file);
  print_name(file, "process_name", process, process, process_name);
  for (const auto& [buffer, thread_name] : threads) {
    if (!thread_name.empty()) {
      std::fputs(",\n", file);
      print_name(file, "thread_name", process, buffer->thread(), thread_name);
    }
    const size_t count = buffer->count();
    for (size_t i = 0; i < count; ++i) print_event(file, process, buffer->thread(), (*buffer)[i]);
  }
  std::fputs("\n]}\n", file);
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed || std::rename(unfinished.c_str(), name.c_str()) != 0) {
    const int error_number = errno;
    unlink(unfinished.c_str());
    return cannot_write(error_number, name);
  }
  return absl::OkStatus();
}

void stop_at_exit() {
  if (const absl::Status status = stop_trace(); !status.ok()) {
    std::fprintf(stderr, "cariama: %s\n", std::string(status.message()).c_str());
  }
}

absl::Status start(const char* path) {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  if (trace_enabled()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a trace is being recorded already", "call stop_trace() before");
  }
  {
    const std::lock_guard lock(all.mutex);
    all.path = path;
    all.forked = false;
    all.renew();
  }
  if (absl::Status status = write_file(all); !status.ok()) return status;
  static const bool prepared =
      std::atexit(stop_at_exit) == 0 &&
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  if (!prepared) return cannot_write(ENOMEM, path);
  internal::trace_on.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

[[maybe_unused]] const bool kStartedByEnvironment = [] {
  const char* const path = secure_getenv("CARIAMA_TRACE");
  if (path == nullptr || *path == '\0') return false;
  const absl::Status status = start(path);
  if (!status.ok()) {
    report_once("trace", "nothing is traced", std::string(status.message()));
  }
  return status.ok();
}();

}  // namespace

namespace internal {

void trace_record(char phase, const char* category, const char* name, uint64_t start,
                  uint64_t duration, const char* argument, uint64_t value) {
  if (thread_ended) return;
  ThreadState& thread = this_thread();
  Buffer* buffer = thread.buffer.get();
  if (buffer == nullptr || buffer->budget() != state().current.load(std::memory_order_relaxed))
      [[unlikely]] {
    buffer = &thread.renew();
  }
  buffer->add({start, duration, category, name, argument, value, phase});
}

}  // namespace internal

absl::Status start_trace(std::string_view path) { return start(std::string(path).c_str()); }

absl::Status flush_trace() {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  return trace_enabled() ? write_file(all) : absl::OkStatus();
}

absl::Status stop_trace() {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  if (!internal::trace_on.exchange(false, std::memory_order_relaxed)) return absl::OkStatus();
  absl::Status status = write_file(all);
  const std::lock_guard lock(all.mutex);
  all.buffers.clear();  // each thread releases its last buffer when it records again or ends
  return status;
}

uint64_t dropped_trace_events() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  return all.budget->dropped.load(std::memory_order_relaxed);
}

void name_trace_process(std::string_view name) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.process_name = name;
}

void name_trace_thread(std::string_view name) {
  if (thread_ended) return;
  ThreadState& thread = this_thread();
  thread.name = name;
  const std::lock_guard lock(state().mutex);
  if (thread.buffer != nullptr) thread.buffer->name = name;
}

}  // namespace cariama
