// Explains a failed registration by the limit that the kernel applied: RLIMIT_MEMLOCK or
// vm.max_map_count. The kernel reports both as ENOMEM.
#ifndef CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_
#define CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace cariama::internal {

// The limits that a registration can meet, and their use.
struct MemoryLimits {
  uint64_t memlock = UINT64_MAX;  // RLIMIT_MEMLOCK in bytes, if the process may not exceed it
  uint64_t locked = 0;            // bytes that count against it
  uint64_t max_map_count = UINT64_MAX;
  uint64_t mappings = 0;  // of this process
};

// Returns the current limits. Reads files in /proc: for errors only.
[[nodiscard]] MemoryLimits query_memory_limits();

// Returns the error for a registration of `bytes` that failed with ENOMEM. The text names the limit
// and the value that it needs, if one of them explains the failure.
[[nodiscard]] absl::Status explain_no_memory(const MemoryLimits& limits, uint64_t bytes);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_
