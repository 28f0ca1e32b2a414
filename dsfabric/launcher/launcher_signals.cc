#include "dsfabric/launcher/launcher_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>

namespace cariama::internal {
namespace {

// Signals that end the job, and signals that are only passed on.
constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int kPassedSignals[] = {SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH, SIGTSTP};

}  // namespace

LauncherSignals::LauncherSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int one : kEndingSignals) sigaddset(&handled, one);
  for (const int one : kPassedSignals) sigaddset(&handled, one);
  sigset_t blocked = handled;
  // Output beyond ulimit -f is an error of the write: the signal would kill the launcher.
  sigaddset(&blocked, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  descriptor_ = FileDescriptor(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  error_ = errno;
}

LauncherSignals::~LauncherSignals() {
  // A signal that is pending when it is unblocked would kill this process.
  sigset_t excess;
  sigemptyset(&excess);
  sigaddset(&excess, SIGXFSZ);
  const timespec no_time{};
  while (sigtimedwait(&excess, nullptr, &no_time) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool LauncherSignals::ends_job(int signal) {
  return std::find(std::begin(kEndingSignals), std::end(kEndingSignals), signal) !=
         std::end(kEndingSignals);
}

int LauncherSignals::next() const {
  signalfd_siginfo info;
  return read(descriptor_.get(), &info, sizeof info) == sizeof info
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

}  // namespace cariama::internal
