// Outlives the launcher by a moment: kills what it started if it dies without doing so itself.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_GUARDIAN_H_
#define CARIAMA_DSFABRIC_LAUNCHER_GUARDIAN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "dsfabric/internal/sockets.h"

namespace cariama::internal {

// A process of its own, which waits for the end of a pipe that only the launcher holds. The kernel
// kills the launcher's children with it (PR_SET_PDEATHSIG), but not what these started: wrapper
// scripts are common. For that there are the process groups, which the guardian knows from shared
// memory.
class Guardian {
 public:
  Guardian() = default;
  // Stops guarding: what is still in guard() is left alone.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Starts it, for so many process groups. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status start(size_t groups);

  // Has group `leader` killed if the launcher dies; 0 ends that. Called in the launcher, or in the
  // child that becomes the leader. Async-signal-safe.
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
