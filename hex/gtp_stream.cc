#include "hex/gtp_stream.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::hex {
namespace {

// Maximum number of lines that were read and wait to be executed, and of their bytes. At one of
// them the reader stops until the session has taken a line.
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxWaitingBytes = 4 * LineReader::kMaxLine;

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<uint64_t, std::string>> lines;
  size_t bytes = 0;     // of the lines
  bool ended = false;   // the input has ended
  bool closed = false;  // the session has ended: the reader must stop
  int error = 0;        // errno, if the input has ended by an error
  GtpInterrupts interrupts;
};

bool is_interrupt(const std::string& line) {
  const size_t start = line.find_first_not_of(" \t");
  return start != std::string::npos && line.compare(start, 11, "# interrupt") == 0;
}

// The body of the reader thread: reads lines into the queue until the input ends or the session
// does.
void read_lines(Queue* queue, int in, int wake) {
  LineReader reader(in, wake);
  uint64_t number = 0;
  while (std::optional<std::string> line = reader.next()) {
    const bool interrupt = is_interrupt(*line);
    queue->interrupts.received(++number, interrupt);
    std::unique_lock lock(queue->mutex);
    queue->changed.wait(lock, [&] {
      return queue->closed ||
             (queue->lines.size() < kMaxWaiting && queue->bytes + line->size() <= kMaxWaitingBytes);
    });
    if (queue->closed) return;
    queue->bytes += line->size();
    queue->lines.emplace_back(number, *std::move(line));
    queue->changed.notify_all();
  }
  queue->interrupts.ended();
  const std::lock_guard lock(queue->mutex);
  queue->ended = true;
  queue->error = reader.error();
  queue->changed.notify_all();
}

// The reader thread of a session. The destructor ends it, also if the engine has thrown an
// exception.
class ReaderThread {
 public:
  // Takes over the thread that runs read_lines() with the same arguments.
  ReaderThread(std::thread thread, Queue& queue, int wake)
      : thread_(std::move(thread)), queue_(queue), wake_(wake) {}
  ~ReaderThread() { end(); }
  ReaderThread(const ReaderThread&) = delete;
  ReaderThread& operator=(const ReaderThread&) = delete;

  void end() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(queue_.mutex);
      queue_.closed = true;
      queue_.changed.notify_all();
    }
    eventfd_write(wake_, 1);
    thread_.join();
  }

 private:
  std::thread thread_;
  Queue& queue_;
  int wake_;
};

// Returns 0, or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

std::optional<std::string> LineReader::next() {
  for (;;) {
    const size_t end = buffer_.find('\n', used_);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      used_ = 0;
      if (line.size() > kMaxLine) line.resize(kMaxLine);
      return line;
    }
    if (ended_) {
      if (buffer_.empty()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
    // Drop the characters beyond the limit.
    if (buffer_.size() > kMaxLine) buffer_.resize(kMaxLine);
    used_ = buffer_.size();
    pollfd fds[2] = {{fd_, POLLIN, 0}, {wake_, POLLIN, 0}};  // poll() ignores a wake_ of -1
    if (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    if (fds[1].revents != 0) return std::nullopt;
    char bytes[4096];
    const ssize_t count = read(fd_, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ended_ = true;
      if (count < 0) error_ = errno;
    } else {
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }
}

absl::Status run_gtp(Engine& engine, int in, int out, const GtpOptions& options) {
  const FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) return make_errno_error(errno, ErrorScope::kProcess, "no event descriptor");
  Queue queue;
  absl::StatusOr<std::thread> thread =
      internal::start_thread([&] { read_lines(&queue, in, wake.get()); });
  if (!thread.ok()) return thread.status();
  ReaderThread reader(*std::move(thread), queue, wake.get());
  int error = 0;  // errno of the first write that failed
  const auto output = [&](std::string_view text) {
    if (error == 0) error = write_all(out, text);
  };
  GtpSession session(engine, output, options, &queue.interrupts);
  for (;;) {
    std::unique_lock lock(queue.mutex);
    queue.changed.wait(lock, [&] { return !queue.lines.empty() || queue.ended; });
    if (queue.lines.empty()) break;
    const auto [number, line] = std::move(queue.lines.front());
    queue.lines.pop_front();
    queue.bytes -= line.size();
    queue.changed.notify_all();
    lock.unlock();
    queue.interrupts.executing(number);
    if (!session.execute(line) || error != 0) break;
    session.ponder();
  }
  reader.end();
  // EPIPE and ECONNRESET: the controller has closed its end, as it may at the end of a session.
  if (error != 0 && error != EPIPE) {
    return make_errno_error(
        error, ErrorScope::kOperation,
        out == STDOUT_FILENO ? "cannot write to standard output" : "cannot write the answers");
  }
  if (queue.error != 0 && queue.error != ECONNRESET) {
    return make_errno_error(
        queue.error, ErrorScope::kOperation,
        in == STDIN_FILENO ? "cannot read standard input" : "cannot read the commands",
        "connect it to a controller, a pipe or a file of GTP commands");
  }
  return absl::OkStatus();
}

}  // namespace cariama::hex
