// One process that the launcher starts: the leader of a group of its own, which dies with the
// launcher.
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
#include "dsfabric/internal/sockets.h"

namespace cariama::internal {

struct ChildSetup {
  const std::vector<std::string>& command;
  std::map<std::string, std::string> variables;  // added to our environment
  int kept_descriptor;                           // the one that it inherits besides 0, 1 and 2
  int input;                                     // what it reads, or -1: nothing
  bool capture_output;                           // we read what it prints
  std::vector<int> cpus;                         // bound to; empty: as we are
  sigset_t signal_mask;
  std::function<void()> in_child;  // called in it before it runs the program; async-signal-safe
};

class ChildProcess {
 public:
  // Errors: NOT_FOUND, PERMISSION_DENIED and others that running the program gives,
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<ChildProcess> start(const ChildSetup& setup);

  [[nodiscard]] pid_t pid() const { return pid_; }  // 0: not started, or reaped
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // What it prints, non-blocking: stream 0 is its stdout, 1 its stderr; -1 if we do not read it.
  [[nodiscard]] int output(int stream) const { return output_[static_cast<size_t>(stream)].get(); }
  void close_output(int stream) { output_[static_cast<size_t>(stream)].reset(); }
  // To it and all of its group; does nothing once it is reaped.
  void signal_group(int signal) const;
  // Waits for its end. Returns the status as waitpid().
  int reap();

 private:
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
  std::array<FileDescriptor, 2> output_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_CHILD_PROCESS_H_
