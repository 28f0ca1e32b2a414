// KeepChildStatus: makes the exit status of children available to waitpid().
#ifndef CARIAMA_DTUTILS_INTERNAL_CHILD_STATUS_H_
#define CARIAMA_DTUTILS_INTERNAL_CHILD_STATUS_H_

#include <csignal>

namespace cariama::internal {

// If SIGCHLD is ignored (a process inherits this from its parent), the kernel discards the exit
// status of children. During its lifetime this object gives SIGCHLD its default action then.
// Children that are forked meanwhile inherit the default action. The action belongs to the whole
// process: the owner of the object has to ensure that no other thread changes it meanwhile.
class KeepChildStatus {
 public:
  KeepChildStatus() {
    sigaction(SIGCHLD, nullptr, &before_);
    if (before_.sa_handler != SIG_IGN && (before_.sa_flags & SA_NOCLDWAIT) == 0) return;
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, nullptr);
  }
  ~KeepChildStatus() { sigaction(SIGCHLD, &before_, nullptr); }
  KeepChildStatus(const KeepChildStatus&) = delete;
  KeepChildStatus& operator=(const KeepChildStatus&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_CHILD_STATUS_H_
