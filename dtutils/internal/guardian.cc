#include "dtutils/internal/guardian.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <new>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// Closes all descriptors except the lifeline: readers of the creator's output must see end-of-file
// when the creator ends.
void close_all_but(int kept) {
  if (kept > 0) syscall(SYS_close_range, 0U, static_cast<unsigned>(kept - 1), 0U);
  syscall(SYS_close_range, static_cast<unsigned>(kept + 1), ~0U, 0U);
}

}  // namespace

absl::Status Guardian::start(size_t groups) {
  static_assert(std::atomic<pid_t>::is_always_lock_free);
  void* const memory = mmap(nullptr, groups * sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return make_errno_error(errno, ErrorScope::kProcess, "mmap");
  groups_ = static_cast<std::atomic<pid_t>*>(memory);
  count_ = groups;
  for (size_t i = 0; i < count_; ++i) new (&groups_[i]) std::atomic<pid_t>(0);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return make_errno_error(errno, ErrorScope::kProcess, "pipe2");
  lifeline_ = FileDescriptor(ends[1]);
  const FileDescriptor reader(ends[0]);
  pid_ = fork();
  if (pid_ < 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "fork",
                            "raise ulimit -u, or run fewer processes");
  }
  if (pid_ > 0) return absl::OkStatus();

  setsid();  // terminal signals do not reach it
  prctl(PR_SET_NAME, "cariama-guard");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(reader.get());
  char byte = 0;
  while (read(reader.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  for (size_t i = 0; i < count_; ++i) {
    const pid_t leader = groups_[i].load(std::memory_order_relaxed);
    if (leader > 0) kill(-leader, SIGKILL);
  }
  _exit(0);
}

Guardian::~Guardian() {
  for (size_t i = 0; i < count_; ++i) guard(i, 0);
  lifeline_.reset();
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // also ends a guardian that is stopped
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (groups_ != nullptr) munmap(groups_, count_ * sizeof(std::atomic<pid_t>));
}

}  // namespace cariama::internal
