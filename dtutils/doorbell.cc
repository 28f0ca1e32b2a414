#include "dtutils/doorbell.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtutils/internal/futex.h"
#include "dtutils/internal/register_ringers.h"

namespace cariama::internal {

void Machine::fence_ringers() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); }

void Machine::wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  futex_wait(&word, expected, deadline);
}

void Machine::wake(const std::atomic<uint32_t>& word) { futex_wake(&word); }

bool register_ringers() {
  static const bool registered =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return registered;
}

}  // namespace cariama::internal
