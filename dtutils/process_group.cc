#include "dtutils/process_group.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtutils/doorbell.h"
#include "dtutils/error.h"
#include "dtutils/internal/child_status.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/exchange_client.h"
#include "dtutils/internal/exchange_server.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/shared_diagnostics.h"
#include "dtutils/trace.h"

namespace cariama {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif

int count_threads() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 1;
  int count = 0;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(tasks);
  return count;
}

absl::Status check_single_threaded() {
  // ThreadSanitizer runs a thread of its own and handles it across a fork.
  if (kThreadSanitizer) return absl::OkStatus();
  // A joined thread disappears from /proc/self/task only after a short delay.
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
  int threads = count_threads();
  while (threads > 1 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    threads = count_threads();
  }
  if (threads <= 1) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                    absl::StrCat("run_processes: the calling process has ", threads, " threads"),
                    "fork before devices and threads are made");
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return absl::StrCat("was killed by signal ", number, " (", strsignal(number), ")");
  }
  const int code = WEXITSTATUS(wait_status);
  return code == 0 ? "has ended" : absl::StrCat("exited with code ", code);
}

std::vector<std::string> complete_labels(int count, std::vector<std::string> labels) {
  labels.resize(count);
  for (int rank = 0; rank < count; ++rank) {
    if (labels[rank].empty()) labels[rank] = absl::StrCat("rank ", rank);
  }
  return labels;
}

// The parent's side: serves the store and watches the children.
class ProcessGroup {
 public:
  ProcessGroup(int count, const RunOptions& options)
      : options_(options),
        labels_(complete_labels(count, options.labels)),
        deadline_(deadline_after(options.timeout)),
        server_(labels_, [this](int rank, const absl::Status& why) { on_closed(rank, why); }),
        children_(count),
        job_(absl::StrCat("processes-", getpid(), "-", Clock::now().time_since_epoch().count())) {}

  ~ProcessGroup() {
    kill_all();
    for (Child& child : children_) {
      while (child.pid > 0 && waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  absl::Status start(const std::function<int(Exchange&)>& body) {
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
      if (absl::Status status = start_one(rank, body); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status serve() {
    while (running_ > 0) {
      const Clock::time_point now = Clock::now();
      if (now >= deadline_ && !killed_) on_deadline();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now).count();
      poll_once(killed_ ? -1 : static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
    }
    if (failures_.empty()) return absl::OkStatus();
    return make_error(timed_out_ ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted,
                      ErrorScope::kPeer, absl::StrJoin(failures_, "; "));
  }

 private:
  struct Child {
    pid_t pid = 0;  // 0: not started, or already reaped
    FileDescriptor pidfd;
    bool blamed = false;  // its failure is already in failures_
  };

  absl::Status start_one(int rank, const std::function<int(Exchange&)>& body) {
    const auto failure = [&](std::string_view call) {
      return make_errno_error(
          errno, ErrorScope::kProcess,
          absl::StrCat("run_processes: ", std::string(call), " for ", labels_[rank]),
          "raise ulimit -n and ulimit -u, or run fewer processes");
    };
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return failure("socketpair");
    FileDescriptor ours(pair[0]);
    FileDescriptor theirs(pair[1]);

    // Otherwise the child would print the parent's buffered output a second time.
    std::fflush(nullptr);
    std::cout.flush();
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return failure("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // the parent died before the prctl
      // If this child kept an end of another child's socket open, the parent would not notice the
      // death of that other child.
      ours.reset();
      server_.abandon();
      for (Child& other : children_) other.pidfd.reset();
      run_child(theirs.release(), rank, body);
    }

    Child& child = children_[rank];
    child.pid = pid;
    server_.connect(rank, ours.release());
    ++running_;
    child.pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (child.pidfd.get() < 0) return failure("pidfd_open");
    return absl::OkStatus();
  }

  // Runs `body` in the child and exits with its result. An exception that leaves `body` ends the
  // process by std::terminate, because this function is noexcept.
  [[noreturn]] void run_child(int socket, int rank,
                              const std::function<int(Exchange&)>& body) noexcept {
    int code = 0;
    internal::share_diagnostics(job_);
    {
      ExchangeClient exchange(socket, rank, labels_, "the process that started this one");
      code = body(exchange);
    }
    static_cast<void>(write_trace());  // exit() would write the trace; _exit does not
    std::cout.flush();
    std::fflush(nullptr);
    _exit(code);
  }

  void poll_once(int timeout) {
    std::vector<pollfd> entries;
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
      if (children_[rank].pid == 0) continue;
      entries.push_back({children_[rank].pidfd.get(), POLLIN, 0});
      ranks.push_back(rank);
    }
    server_.append_polled(entries);
    if (poll(entries.data(), entries.size(), timeout) <= 0) return;
    server_.serve(std::span(entries).subspan(ranks.size()));
    if (server_.has_unreported()) throw std::bad_alloc();  // run_processes() ends without memory
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (entries[i].revents != 0) reap(ranks[i]);
    }
  }

  // If the child closed the connection, nothing is done: its pidfd will report how it ended. If the
  // server closed it because of malformed data, the child is killed.
  void on_closed(int rank, const absl::Status& why) {
    if (why.ok()) return;
    if (absl::IsResourceExhausted(why)) throw std::bad_alloc();  // see poll_once()
    if (children_[rank].pid > 0) kill(children_[rank].pid, SIGKILL);
    blame(rank,
          absl::StrCat("broke the exchange (", std::string(why.message()), ") and was killed"));
  }

  void reap(int rank) {
    Child& child = children_[rank];
    int wait_status = 0;
    const bool known = waitpid(child.pid, &wait_status, 0) == child.pid;
    child.pid = 0;
    child.pidfd.reset();
    --running_;
    std::string how = known ? describe_end(wait_status)
                            : "has ended, but a signal handler of the program took its exit status";
    const bool may_die =
        std::find(options_.may_die.begin(), options_.may_die.end(), rank) != options_.may_die.end();
    const bool good =
        known && (wait_status == 0 || (WIFSIGNALED(wait_status) && (may_die || killed_)));
    if (!good) blame(rank, how);
    server_.rank_ended(rank, std::move(how));
  }

  void blame(int rank, const std::string& how) {
    Child& child = children_[rank];
    if (std::exchange(child.blamed, true)) return;
    if (failures_.empty()) deadline_ = std::min(deadline_, deadline_after(options_.grace));
    failures_.push_back(absl::StrCat(labels_[rank], " ", how));
  }

  void on_deadline() {
    // After a failure, the processes that still run may only be waiting for the failed one, so they
    // are not recorded as failures.
    timed_out_ = failures_.empty();
    if (timed_out_) {
      for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
        if (children_[rank].pid == 0) continue;
        blame(rank,
              absl::StrCat("did not end within ", options_.timeout.count(), " ms and was killed"));
      }
    }
    kill_all();
  }

  void kill_all() {
    killed_ = true;
    for (const Child& child : children_) {
      if (child.pid > 0) kill(child.pid, SIGKILL);
    }
  }

  const RunOptions& options_;
  internal::KeepChildStatus child_status_;
  const std::vector<std::string> labels_;
  Clock::time_point deadline_;
  ExchangeServer server_;
  std::vector<Child> children_;
  const std::string job_;  // of share_diagnostics()
  int running_ = 0;
  // Set when the remaining children are killed; their death by a signal is then no failure.
  bool killed_ = false;
  bool timed_out_ = false;
  std::vector<std::string> failures_;
};

}  // namespace

absl::Status run_processes(int count, const std::function<int(Exchange&)>& body,
                           const RunOptions& options) {
  if (count < 1) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      absl::StrCat("run_processes: asked for ", count, " processes"),
                      "ask for at least 1");
  }
  if (absl::Status status = check_single_threaded(); !status.ok()) return status;
  try {
    ProcessGroup group(count, options);
    if (absl::Status status = group.start(body); !status.ok()) return status;
    return group.serve();
  } catch (const std::bad_alloc&) {  // the destructor of the group has killed the processes
    return internal::error_or_code(absl::StatusCode::kResourceExhausted, [] {
      return make_errno_error(ENOMEM, ErrorScope::kProcess,
                              "run_processes: the processes were killed, since the calling process "
                              "lacks memory to watch them",
                              "raise ulimit -v and -d, or run fewer processes");
    });
  }
}

}  // namespace cariama
