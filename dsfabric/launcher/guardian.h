// Kills the launcher's processes if the launcher dies without killing them.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_GUARDIAN_H_
#define CARIAMA_DSFABRIC_LAUNCHER_GUARDIAN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/sockets.h"

namespace cariama::internal {

// A separate process that blocks on a pipe whose write end only the launcher holds. When the
// launcher dies, the kernel kills the launcher's children (PR_SET_PDEATHSIG), but not their
// children; wrapper scripts, for example, have children. The guardian kills their process groups,
// which it reads from shared memory.
class Guardian {
 public:
  Guardian() = default;
  // Stops guarding. Groups that are still registered with guard() are not killed.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Starts the process, for up to `groups` process groups. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status start(size_t groups);

  // Registers group `leader` to be killed if the launcher dies; 0 unregisters it. Called in the
  // launcher, or in the child that becomes the leader. Async-signal-safe.
  void guard(size_t index, pid_t leader) {
    groups_[index].store(leader, std::memory_order_relaxed);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  std::atomic<pid_t>* groups_ = nullptr;
  size_t count_ = 0;
  pid_t pid_ = 0;
  FileDescriptor lifeline_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_GUARDIAN_H_
