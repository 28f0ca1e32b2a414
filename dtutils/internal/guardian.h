// Kills the processes that a process has started, if it dies without ending them.
#ifndef CARIAMA_DTUTILS_INTERNAL_GUARDIAN_H_
#define CARIAMA_DTUTILS_INTERNAL_GUARDIAN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "dtutils/export.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// A separate process that blocks on a pipe whose write end only its creator has open. When a
// process dies, the kernel kills those of its children that have requested it (PR_SET_PDEATHSIG),
// but not their children; wrapper scripts, for example, have children. The guardian kills whole
// process groups, which it reads from shared memory. It ends with its creator.
class CARIAMA_DTUTILS_EXPORT Guardian {
 public:
  Guardian() = default;
  // Stops guarding. Groups that are still registered with guard() are not killed.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Starts the process, for up to `groups` process groups. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status start(size_t groups);

  // Registers group `leader` to be killed if the creator of this object dies; 0 unregisters it.
  // Called in the creator, or in the child that becomes the leader: if the child calls it before
  // exec, a group never runs without a guard. Async-signal-safe.
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

#endif  // CARIAMA_DTUTILS_INTERNAL_GUARDIAN_H_
