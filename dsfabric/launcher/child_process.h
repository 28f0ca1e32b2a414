// A process that the launcher starts. It leads its own process group, and is killed when the
// launcher dies.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_CHILD_PROCESS_H_
#define CARIAMA_DSFABRIC_LAUNCHER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <array>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/sockets.h"

namespace cariama::internal {

struct ChildSetup {
  const std::vector<std::string>& command;
  std::map<std::string, std::string> variables;  // added to the launcher's environment
  int inherited_descriptor;                      // inherited in addition to 0, 1 and 2
  int input;                                     // becomes its stdin; -1: /dev/null
  bool capture_output;                           // true: output() returns what it prints
  std::vector<int> cpus;  // CPUs to bind it to; empty: the launcher's affinity
  sigset_t signal_mask;
  std::function<void()> in_child;  // called in the child before the program runs; async-signal-safe
};

class ChildProcess {
 public:
  // Errors: NOT_FOUND, PERMISSION_DENIED and other errors of executing the program,
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<ChildProcess> start(const ChildSetup& setup);

  [[nodiscard]] pid_t pid() const { return pid_; }  // 0: not started, or reaped
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // Returns a non-blocking descriptor of the process's output: stream 0 is stdout, 1 is stderr.
  // Returns -1 if the output is not captured.
  [[nodiscard]] int output(int stream) const { return output_[static_cast<size_t>(stream)].get(); }
  void close_output(int stream) { output_[static_cast<size_t>(stream)].reset(); }
  // Returns true if a signal has stopped the process and it was not continued since.
  [[nodiscard]] bool is_stopped() const;
  // Returns true if the process is not reaped, and has ended or will certainly end: a signal has
  // killed it, it writes a core file, or it frees its memory. Does not block.
  [[nodiscard]] bool is_ending() const;
  // Sends a signal to the process group of the process. Has no effect after reap().
  void signal_group(int signal) const;
  // Blocks until the process has ended, and reaps it. Returns the status as waitpid() does.
  int reap();

 private:
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
  std::array<FileDescriptor, 2> output_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_CHILD_PROCESS_H_
