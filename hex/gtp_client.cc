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

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"

namespace cariama::hex {
namespace {

using Clock = std::chrono::steady_clock;

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

}  // namespace

absl::StatusOr<std::unique_ptr<GtpClient>> GtpClient::start(const std::string& command) {
  std::unique_ptr<GtpClient> client(new GtpClient);
  if (absl::Status guarded = client->guardian_.start(1); !guarded.ok()) return guarded;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "no socket for an engine");
  }
  client->to_ = FileDescriptor(ends[0]);
  const FileDescriptor input(ends[1]);
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "no pipe for an engine");
  }
  client->from_ = FileDescriptor(ends[0]);
  const FileDescriptor output(ends[1]);
  client->pid_ = fork();
  if (client->pid_ == 0) {
    // Only async-signal-safe functions are allowed here: the program may have other threads. The
    // engine gets its own process group: a Ctrl-C does not reach it, and one kill() ends all its
    // processes.
    setpgid(0, 0);
    client->guardian_.guard(0, getpid());
    if (dup2(input.get(), 0) < 0 || dup2(output.get(), 1) < 0) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  if (client->pid_ < 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "cannot start an engine");
  }
  // Parent and child both call it, so the group exists when either continues.
  setpgid(client->pid_, client->pid_);
  return client;
}

GtpClient::~GtpClient() {
  if (pid_ < 0) return;
  send(to_.get(), "quit\n", 5, MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(to_.get(), SHUT_WR);
  // The pipe is closed when all processes of the engine have ended.
  const Clock::time_point end = Clock::now() + kQuitPatience;
  for (;;) {
    pollfd fds{from_.get(), POLLIN, 0};
    if (poll(&fds, 1, milliseconds_until(end)) <= 0) break;
    char bytes[4096];
    if (read(from_.get(), bytes, sizeof(bytes)) <= 0) break;
  }
  kill(-pid_, SIGKILL);
  // The number of the group is free after waitpid().
  guardian_.guard(0, 0);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<std::string> GtpClient::ask(std::string_view command, double seconds) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::min(seconds, 1e6)));
  std::string line = std::string(command) + "\n";
  while (!line.empty()) {
    const ssize_t sent = send(to_.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      line.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd fds{to_.get(), POLLOUT, 0};
      if (poll(&fds, 1, milliseconds_until(end)) == 0) break;
    } else if (errno != EINTR) {
      return gone("the engine has ended");
    }
  }
  for (;;) {
    if (auto answer = answers_.next(); answer.has_value()) return *std::move(answer);
    pollfd fds{from_.get(), POLLIN, 0};
    const int ready = poll(&fds, 1, milliseconds_until(end));
    if (ready == 0) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        absl::StrCat("the engine did not answer '", std::string(command),
                                     "' within ", seconds, " s"));
    }
    if (ready < 0) continue;
    char bytes[16384];
    const ssize_t count = read(from_.get(), bytes, sizeof(bytes));
    if (count > 0) {
      answers_.append(std::string_view(bytes, static_cast<size_t>(count)));
    } else if (count == 0 || errno != EINTR) {
      return gone("the engine has ended");
    }
  }
}

}  // namespace cariama::hex
