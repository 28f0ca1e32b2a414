// Explains a failed registration by the limit that it met: RLIMIT_MEMLOCK, vm.max_map_count, the
// number of regions of a device, which are all reported as ENOMEM, or the budget of a registration
// cache.
#ifndef CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_
#define CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace cariama::internal {

// The limits that a registration can meet, and their use.
struct MemoryLimits {
  uint64_t memlock = UINT64_MAX;  // RLIMIT_MEMLOCK in bytes, if the process may not exceed it
  uint64_t locked = 0;            // bytes that the process has pinned
  uint64_t max_map_count = UINT64_MAX;
  uint64_t mappings = 0;  // of this process
};

// Returns RLIMIT_MEMLOCK in bytes, or UINT64_MAX if there is none or the process may exceed it.
[[nodiscard]] uint64_t memlock_limit();

// Returns the current limits. Reads files in /proc: for errors only.
[[nodiscard]] MemoryLimits query_memory_limits();

// Returns the error for a registration of `bytes` that failed with ENOMEM. The text names the limit
// that is met and the value that it needs; RLIMIT_MEMLOCK only if the registration exceeds it.
[[nodiscard]] absl::Status explain_no_memory(const MemoryLimits& limits, uint64_t bytes);

// Returns the remedy for a mapping of `bytes` that failed with ENOMEM. If RLIMIT_AS explains the
// failure, the text names it and the value that it needs. Reads a file in /proc: for errors only.
[[nodiscard]] std::string address_space_remedy(uint64_t bytes);

// The budget of bytes of a registration cache, and its use.
struct BudgetState {
  uint64_t max_bytes = 0;
  uint64_t registered_bytes = 0;
  bool follows_memlock = false;  // max_bytes is the default, 80 % of RLIMIT_MEMLOCK
  bool evicts = false;           // idle memory is deregistered when the budget is full
};

// Returns the error for a registration of `bytes` that the budget does not permit. The text names
// the option, and RLIMIT_MEMLOCK if the budget follows it, with the values needed.
[[nodiscard]] absl::Status explain_full_budget(const BudgetState& budget, uint64_t bytes);
// Returns the error for a registration that the budget of `regions` regions does not permit.
// `evicts`: see BudgetState.
[[nodiscard]] absl::Status explain_full_regions(size_t regions, bool evicts);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_MEMORY_LIMITS_H_
