#include "dtutils/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/json.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/internal/trace_observer.h"

namespace cariama {
namespace internal {

constinit std::atomic<bool> trace_on{false};

namespace {
constinit std::atomic<TraceObserver> observer{nullptr};
}  // namespace

void set_trace_observer(TraceObserver observes) {
  observer.store(observes, std::memory_order_release);
}

uint64_t trace_begin(const char* category, const char* name) {
  if (TraceObserver const observes = observer.load(std::memory_order_acquire)) {
    observes(category, name);
  }
  return trace_now();
}

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

// Viewers read the ids of processes as 32 bits.
constexpr uint32_t kMaxHosts = 1u << 10;

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
  // The number of events of this buffer that are in the file; guarded by State::writing.
  size_t written = 0;
  std::string written_name;

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
  std::string process_name = program_invocation_short_name;
  uint32_t host = 0;
  std::vector<internal::TraceClockDifference> clocks;  // the first and the last comparison
  std::shared_ptr<Budget> budget = std::make_shared<Budget>();
  std::vector<std::shared_ptr<Buffer>> buffers;
  // Equal to budget.get(), readable without the lock.
  std::atomic<const Budget*> current{budget.get()};
  // `writing` guards the following members.
  FileDescriptor file;
  std::string written_name;          // of the process
  uint64_t written_dropped = 0;      // the part of the dropped events that the file counts
  size_t written_clocks = SIZE_MAX;  // the number of comparisons of the clocks that the file states

  // Begins a recording of no events. Requires: both mutexes are locked.
  void renew() {
    buffers.clear();
    budget = std::make_shared<Budget>();
    current.store(budget.get(), std::memory_order_release);
    written_name.clear();
    written_dropped = 0;
    written_clocks = SIZE_MAX;
  }
  [[nodiscard]] bool has_own_file() const { return path.find("%p") != std::string::npos; }
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
    all.renew();
    if (all.has_own_file()) all.file = FileDescriptor();  // the parent's; the next write opens one
  }
  after_fork_in_parent();
}

std::string file_name(const State& all) {
  const std::string process = std::to_string(getpid());
  std::string name = all.path;
  for (size_t at = name.find("%p"); at != std::string::npos;
       at = name.find("%p", at + process.size())) {
    name.replace(at, 2, process);
  }
  return name;
}

// ---- Text ---------------------------------------------------------------------------------------

// The text of one write. Its functions end each event by a comma and a line end.
class Text {
 public:
  // `host`, `clocks`: see State.
  Text(uint32_t host, const std::vector<internal::TraceClockDifference>& clocks)
      : first_id_(int64_t{host} << 22), clocks_(clocks) {}

  void add_event(pid_t thread, const Event& event) {
    begin(event.phase, thread);
    add_time(",\"ts\":", align(event.start));
    if (event.phase == 'X') add_time(",\"dur\":", event.duration);
    if (event.phase == 'i') text_ += ",\"s\":\"t\"";
    if (event.phase == 's' || event.phase == 'f') {
      // An arrow ends at the event around its end, not at the next one.
      text_ += event.phase == 's' ? ",\"id\":" : ",\"bp\":\"e\",\"id\":";
      add_number(event.value);
    }
    text_ += ",\"cat\":";
    add_string(event.category);
    text_ += ",\"name\":";
    add_string(event.name);
    if (event.argument != nullptr) {
      text_ += ",\"args\":{";
      add_string(event.argument);
      text_ += ':';
      add_number(event.value);
      text_ += '}';
    }
    text_ += "},\n";
  }
  void add_name(const char* kind, pid_t thread, const std::string& name) {
    begin('M', thread);
    text_ += ",\"name\":\"";
    text_ += kind;
    text_ += "\",\"args\":{\"name\":";
    add_string(name.c_str());
    text_ += "}},\n";
  }
  // States how exactly the times of this process fit those of host 0.
  void add_clock() {
    uint64_t error = 0;
    for (const auto& clock : clocks_) error = std::max(error, clock.error);
    begin('M', process_);
    text_ += ",\"name\":\"clock\",\"args\":{\"host\":";
    add_number(static_cast<uint64_t>(first_id_) >> 22);
    text_ += ",\"aligned\":";
    text_ += first_id_ == 0 || !clocks_.empty() ? "true" : "false";
    text_ += ",\"error_ns\":";
    add_number(error);
    text_ += "}},\n";
  }
  [[nodiscard]] pid_t process() const { return process_; }
  // Returns the events, separated by commas.
  [[nodiscard]] std::string_view events() const {
    return std::string_view(text_).substr(0, text_.size() - std::min<size_t>(text_.size(), 2));
  }

 private:
  void begin(char phase, pid_t thread) {
    text_ += "{\"ph\":\"";
    text_ += phase;
    text_ += "\",\"pid\":";
    add_number(static_cast<uint64_t>(first_id_ + process_));
    text_ += ",\"tid\":";
    add_number(static_cast<uint64_t>(first_id_ + thread));
  }
  void add_number(uint64_t number) {
    std::array<char, 20> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    text_.append(digits.data(), static_cast<size_t>(end - digits.data()));
  }
  // Prints microseconds, as the format requires, with three decimals, so that no nanosecond digits
  // are lost.
  void add_time(const char* key, uint64_t nanoseconds) {
    text_ += key;
    add_number(nanoseconds / 1000);
    const auto rest = static_cast<uint32_t>(nanoseconds % 1000);
    text_ += '.';
    for (const uint32_t digit : {rest / 100, rest / 10 % 10, rest % 10}) {
      text_ += static_cast<char>('0' + digit);
    }
  }
  // Most texts are literals, which occur repeatedly.
  void add_string(const char* text) {
    const size_t slot = reinterpret_cast<uintptr_t>(text) / alignof(char*) % kKnown;
    if (known_[slot].first == text &&
        known_[slot].second.compare(1, std::strlen(text), text) == 0) {
      text_ += known_[slot].second;
      return;
    }
    known_[slot] = {text, json_string(text)};
    text_ += known_[slot].second;
  }
  // Returns the time of host 0.
  [[nodiscard]] uint64_t align(uint64_t time) const {
    if (clocks_.empty()) return time;
    const auto& first = clocks_.front();
    const auto& last = clocks_.back();
    auto ahead = static_cast<double>(first.ahead);
    if (last.at > first.at) {
      const double part = (static_cast<double>(time) - static_cast<double>(first.at)) /
                          static_cast<double>(last.at - first.at);
      ahead += std::clamp(part, 0.0, 1.0) * static_cast<double>(last.ahead - first.ahead);
    }
    return static_cast<uint64_t>(static_cast<int64_t>(time) + std::llround(ahead));
  }

  static constexpr size_t kKnown = 256;
  const int64_t first_id_;
  const std::vector<internal::TraceClockDifference>& clocks_;
  const pid_t process_ = getpid();
  std::string text_;
  std::vector<std::pair<const char*, std::string>> known_ =
      std::vector<std::pair<const char*, std::string>>(kKnown);
};

// ---- The file -----------------------------------------------------------------------------------

// Layout: a first line of kHeaderBytes, the events, and kTail. The first line states the number of
// bytes in front of kTail. A process appends by overwriting kTail. So the number in the first line
// tells the next process whether a write was completed.
constexpr size_t kHeaderBytes = 160;
constexpr std::string_view kTail = "\n]}\n";
constexpr std::string_view kBeginning = "{\"displayTimeUnit\":\"ns\"";
// Bytes of the file that are locked, beyond its end. All processes that record into the file share
// the first one. A process that writes has the second one for itself.
constexpr off_t kUsersLock = off_t{1} << 61;
constexpr off_t kWriterLock = kUsersLock + 1;
constexpr std::chrono::seconds kLockPatience{30};

struct Header {
  uint64_t bytes = kHeaderBytes;
  uint64_t dropped = 0;
};

std::string text_of(const Header& header) {
  std::string text = std::string(kBeginning) +
                     ",\"otherData\":{\"bytes\":" + std::to_string(header.bytes) +
                     ",\"dropped_events\":" + std::to_string(header.dropped) + "}";
  text += ",\"traceEvents\":[";
  text.resize(kHeaderBytes - 1, ' ');
  return text + "\n";
}

bool write_at(int file, std::string_view text, uint64_t at) {
  while (!text.empty()) {
    const ssize_t count = pwrite(file, text.data(), text.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
    at += static_cast<uint64_t>(count);
  }
  return true;
}

// Reads the first line, and removes the incomplete write of a killed process. Returns false, with
// errno set, if the file is not one that start_file() has begun.
bool read_header(int file, Header& header) {
  std::array<char, kHeaderBytes + 1> line{};
  struct stat now;
  if (pread(file, line.data(), kHeaderBytes, 0) != static_cast<ssize_t>(kHeaderBytes) ||
      std::sscanf(line.data() + kBeginning.size(),
                  ",\"otherData\":{\"bytes\":%" SCNu64 ",\"dropped_events\":%" SCNu64 "}",
                  &header.bytes, &header.dropped) != 2 ||
      fstat(file, &now) != 0 || header.bytes < kHeaderBytes ||
      header.bytes > static_cast<uint64_t>(now.st_size)) {
    errno = EILSEQ;
    return false;
  }
  return static_cast<uint64_t>(now.st_size) == header.bytes + kTail.size() ||
         (ftruncate(file, static_cast<off_t>(header.bytes)) == 0 &&
          write_at(file, kTail, header.bytes));
}

// Appends events. If that fails, the file is as it was before, and errno is set. Requires:
// kWriterLock is locked.
bool append(int file, std::string_view events, uint64_t dropped) {
  Header header;
  if (!read_header(file, header)) return false;
  const uint64_t before = header.bytes;
  // Without events only the count of dropped events changes.
  const std::string_view comma = before == kHeaderBytes || events.empty() ? "" : ",\n";
  header.bytes += comma.size() + events.size();
  header.dropped += dropped;
  if (write_at(file, comma, before) && write_at(file, events, before + comma.size()) &&
      write_at(file, kTail, header.bytes) && write_at(file, text_of(header), 0)) {
    return true;
  }
  const int error_number = errno;
  // There is room for both, because the file had these bytes before.
  static_cast<void>(ftruncate(file, static_cast<off_t>(before)) == 0 &&
                    write_at(file, kTail, before));
  errno = error_number;
  return false;
}

// Locks or unlocks one byte. F_OFD_SETLK: the lock belongs to the open file, which forked children
// share. F_SETLK: it belongs to this process. Waits at most for `patience`.
bool lock_byte(int file, int command, short type, off_t byte, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  while (fcntl(file, command, &lock) != 0) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() >= deadline) {
      errno = ETIMEDOUT;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

absl::Status cannot_write(int error_number, const std::string& name) {
  return make_errno_error(
      error_number, ErrorScope::kProcess, "cannot write the trace file " + name,
      error_number == ENOSPC || error_number == EDQUOT
          ? "free space; the events of this process are lost, what the file had is kept"
          : "give CARIAMA_TRACE or start_trace() a path that can be written");
}

// Opens the file. Begins a new one, unless other processes record into it. Requires: `writing` is
// locked.
absl::Status open_file(State& all, const std::string& name) {
  // Opening a device or a pipe may have effects.
  struct stat before;
  if (stat(name.c_str(), &before) == 0 && !S_ISREG(before.st_mode)) {
    return cannot_write(EINVAL, name);
  }
  // In a folder that all users can write, another user may have put a link under this name, to make
  // this process overwrite a file.
  FileDescriptor file(open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) return cannot_write(errno, name);
  if (fstat(file.get(), &before) != 0) return cannot_write(errno, name);
  if (!S_ISREG(before.st_mode)) return cannot_write(EINVAL, name);
  if (lock_byte(file.get(), F_OFD_SETLK, F_WRLCK, kUsersLock, std::chrono::milliseconds(0))) {
    std::array<char, kBeginning.size()> beginning{};
    const ssize_t count = pread(file.get(), beginning.data(), beginning.size(), 0);
    if (count != 0 && std::string_view(beginning.data(), beginning.size()) != kBeginning) {
      return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                        "the file " + name + " is no trace, and is not replaced by one",
                        "remove it, or give CARIAMA_TRACE or start_trace() another path");
    }
    if (ftruncate(file.get(), 0) != 0 || !write_at(file.get(), text_of({}), 0) ||
        !write_at(file.get(), kTail, kHeaderBytes)) {
      return cannot_write(errno, name);
    }
  } else if (errno != ETIMEDOUT) {
    return cannot_write(errno, name);
  }
  if (!lock_byte(file.get(), F_OFD_SETLK, F_RDLCK, kUsersLock, kLockPatience)) {
    return cannot_write(errno, name);
  }
  all.file = std::move(file);
  return absl::OkStatus();
}

// Appends the events that were recorded since the last write. Requires: `writing` is locked and
// `mutex` is not, so that threads continue to record.
absl::Status write_file(State& all) {
  std::string name;
  std::string process_name;
  uint32_t host;
  std::vector<internal::TraceClockDifference> clocks;
  std::vector<std::pair<std::shared_ptr<Buffer>, std::string>> threads;
  uint64_t dropped;
  {
    const std::lock_guard lock(all.mutex);
    name = file_name(all);
    process_name = all.process_name;
    host = all.host;
    clocks = all.clocks;
    dropped = all.budget->dropped.load(std::memory_order_relaxed);
    for (const auto& buffer : all.buffers) threads.emplace_back(buffer, buffer->name);
  }
  if (all.file.get() < 0) {
    if (absl::Status opened = open_file(all, name); !opened.ok()) return opened;
  }
  Text text(host, clocks);
  if (process_name != all.written_name) {
    text.add_name("process_name", text.process(), process_name);
  }
  if (clocks.size() != all.written_clocks) text.add_clock();
  std::vector<size_t> counts;
  for (const auto& [buffer, thread_name] : threads) {
    if (thread_name != buffer->written_name) {
      text.add_name("thread_name", buffer->thread(), thread_name);
    }
    counts.push_back(buffer->count());
    for (size_t i = buffer->written; i < counts.back(); ++i) {
      text.add_event(buffer->thread(), (*buffer)[i]);
    }
  }
  if (text.events().empty() && dropped == all.written_dropped) return absl::OkStatus();
  const int file = all.file.get();
  if (!lock_byte(file, F_SETLK, F_WRLCK, kWriterLock, kLockPatience))
    return cannot_write(errno, name);
  const bool appended = append(file, text.events(), dropped - all.written_dropped);
  const int error_number = errno;
  static_cast<void>(lock_byte(file, F_SETLK, F_UNLCK, kWriterLock, std::chrono::milliseconds(0)));
  if (!appended) return cannot_write(error_number, name);
  all.written_name = process_name;
  all.written_dropped = dropped;
  all.written_clocks = clocks.size();
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].first->written = counts[i];
    threads[i].first->written_name = threads[i].second;
  }
  return absl::OkStatus();
}

void stop_at_exit() {
  if (const absl::Status status = stop_trace(); !status.ok()) {
    // Reported at the first failed write, which may have been that of Fabric::finalize().
    report_once("trace", std::string(status.message()), "");
  }
}

absl::Status start(const char* path) {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  if (trace_enabled()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a trace is being recorded already", "call stop_trace() before");
  }
  std::string name;
  {
    const std::lock_guard lock(all.mutex);
    all.path = path;
    all.renew();
    name = file_name(all);
  }
  if (absl::Status opened = open_file(all, name); !opened.ok()) return opened;
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

void set_trace_host(uint32_t number) {
  const std::lock_guard lock(state().mutex);
  state().host = number % kMaxHosts;
}

void add_trace_clock(const TraceClockDifference& compared) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.clocks.size() == 2) all.clocks.pop_back();
  all.clocks.push_back(compared);
}

}  // namespace internal

absl::Status start_trace(std::string_view path) { return start(std::string(path).c_str()); }

absl::Status write_trace() {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  return trace_enabled() ? write_file(all) : absl::OkStatus();
}

absl::Status stop_trace() {
  State& all = state();
  const std::lock_guard one_writer(all.writing);
  if (!internal::trace_on.exchange(false, std::memory_order_relaxed)) return absl::OkStatus();
  absl::Status status = write_file(all);
  all.file = FileDescriptor();
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
