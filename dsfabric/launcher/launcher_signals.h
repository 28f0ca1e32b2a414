// The signals that the launcher handles.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_LAUNCHER_SIGNALS_H_
#define CARIAMA_DSFABRIC_LAUNCHER_LAUNCHER_SIGNALS_H_

#include <csignal>

#include "dtutils/internal/child_status.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// Blocks the launcher's signals during its lifetime, and reads them from a descriptor. Also keeps
// the exit status of the children.
class LauncherSignals {
 public:
  LauncherSignals();
  ~LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  // Returns true for the signals that end the job. The launcher only passes on the other signals.
  [[nodiscard]] static bool ends_job(int signal);

  // Returns the descriptor from which the signals are read, or -1 if the system has none.
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  // Returns the errno that is the reason if there is no descriptor.
  [[nodiscard]] int error() const { return error_; }
  // Returns the signal mask that the process had before.
  [[nodiscard]] const sigset_t& before() const { return before_; }
  // Returns the next pending signal, or 0.
  [[nodiscard]] int next() const;

 private:
  sigset_t before_{};
  KeepChildStatus child_status_;
  FileDescriptor descriptor_;
  int error_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_LAUNCHER_SIGNALS_H_
