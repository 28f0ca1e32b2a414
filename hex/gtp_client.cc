#include "hex/gtp_client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "dtutils/error.h"

namespace cariama::hex {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxAnswer = size_t{4} << 20;
constexpr std::chrono::milliseconds kQuitPatience{1000};

// Returns the time-out for poll(), rounded up, so that the caller does not poll with a time-out of
// 0 ms shortly before the end.
int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
}

absl::Status gone(std::string_view what) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer, what);
}

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GtpClient>> GtpClient::start(const std::string& command) {
  int to[2];
  int from[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "no socket for an engine");
  }
  if (pipe2(from, O_CLOEXEC) != 0) {
    const int error = errno;
    close(to[0]);
    close(to[1]);
    return make_errno_error(error, ErrorScope::kProcess, "no pipe for an engine");
  }
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe functions are allowed here: the program may have other threads. The
    // engine gets its own process group: a Ctrl-C does not reach it, and one kill() ends all its
    // processes.
    setpgid(0, 0);
    if (dup2(to[1], 0) < 0 || dup2(from[1], 1) < 0) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  const int error = errno;
  close(to[1]);
  close(from[1]);
  if (pid < 0) {
    close(to[0]);
    close(from[0]);
    return make_errno_error(error, ErrorScope::kProcess, "cannot start an engine");
  }
  setpgid(pid, pid);  // parent and child both call it, so the group exists when either continues
  return std::unique_ptr<GtpClient>(new GtpClient(pid, to[0], from[0]));
}

GtpClient::~GtpClient() {
  send(to_, "quit\n", 5, MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(to_, SHUT_WR);
  // The pipe is closed when all processes of the engine have ended.
  const Clock::time_point end = Clock::now() + kQuitPatience;
  for (;;) {
    pollfd fds{from_, POLLIN, 0};
    if (poll(&fds, 1, milliseconds_until(end)) <= 0) break;
    char bytes[4096];
    if (read(from_, bytes, sizeof(bytes)) <= 0) break;
  }
  kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(to_);
  close(from_);
}

absl::StatusOr<std::string> GtpClient::ask(std::string_view command, double seconds) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::min(seconds, 1e6)));
  std::string line = std::string(command) + "\n";
  while (!line.empty()) {
    const ssize_t sent = send(to_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      line.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd fds{to_, POLLOUT, 0};
      if (poll(&fds, 1, milliseconds_until(end)) == 0) break;
    } else if (errno != EINTR) {
      return gone("the engine has ended");
    }
  }
  for (;;) {
    // An answer ends with an empty line. Carriage returns are ignored.
    for (size_t at = received_.find('\n', scanned_); at != std::string::npos;
         at = received_.find('\n', at + 1)) {
      size_t next = at + 1;
      if (next < received_.size() && received_[next] == '\r') ++next;
      if (next >= received_.size()) break;  // the next character is not received yet
      scanned_ = next;
      if (received_[next] != '\n') continue;
      const std::string block = trimmed(std::string_view(received_).substr(0, at));
      received_.erase(0, next + 1);
      scanned_ = 0;
      at = static_cast<size_t>(-1);  // continue at the beginning of the remaining text
      if (block.empty() || block.rfind("gogui-gfx:", 0) == 0) continue;
      if (block[0] == '=') return trimmed(std::string_view(block).substr(1));
      if (block[0] == '?') {
        return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                          trimmed(std::string_view(block).substr(1)));
      }
      return gone("the engine's output is not a GTP answer");
    }
    if (received_.size() > kMaxAnswer) return gone("the engine's answer is longer than 4 MiB");
    pollfd fds{from_, POLLIN, 0};
    const int ready = poll(&fds, 1, milliseconds_until(end));
    if (ready == 0) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        "the engine did not answer in time");
    }
    if (ready < 0) continue;
    char bytes[65536];
    const ssize_t count = read(from_, bytes, sizeof(bytes));
    if (count > 0) {
      received_.append(bytes, static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return gone("the engine has ended");
    }
  }
}

}  // namespace cariama::hex
