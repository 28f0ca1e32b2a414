#include "dtutils/internal/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/system_info.h"

namespace cariama::internal {
namespace {

// A registration can split the mappings at both of its ends, and its notification again.
constexpr uint64_t kSplits = 4;

}  // namespace

MemoryLimits query_memory_limits() {
  MemoryLimits limits;
  const MemoryLockLimit memlock = query_memory_lock_limit();
  if (!memlock.may_exceed && memlock.soft_bytes != kUnlimited) limits.memlock = memlock.soft_bytes;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    // VmPin counts what verbs and io_uring pin, VmLck what mlock locks. For a user without
    // CAP_IPC_LOCK, io_uring and mlock count against the limit separately.
    if ((word == "VmPin:" || word == "VmLck:") && status >> kilobytes) {
      limits.locked += kilobytes * kKiB;
    }
  }
  std::ifstream("/proc/sys/vm/max_map_count") >> limits.max_map_count;
  std::ifstream maps("/proc/self/maps");
  limits.mappings = static_cast<uint64_t>(
      std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
  return limits;
}

absl::Status explain_no_memory(const MemoryLimits& limits, uint64_t bytes) {
  const std::string size = format_bytes(bytes);
  if (limits.mappings + kSplits > limits.max_map_count) {
    const std::string needed = std::to_string(2 * limits.max_map_count);
    return make_error(
        absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
        "registering " + size + ": the process has " + std::to_string(limits.mappings) +
            " mappings, vm.max_map_count is " + std::to_string(limits.max_map_count),
        "sysctl vm.max_map_count=" + needed + ", or lower RegistrationOptions::max_regions");
  }
  if (limits.memlock != UINT64_MAX) {
    const uint64_t needed = limits.locked + bytes;
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "registering " + size + ": RLIMIT_MEMLOCK is " +
                          format_bytes(limits.memlock) + ", " + format_bytes(limits.locked) +
                          " are pinned",
                      "raise it to at least " + format_bytes(needed) + " (ulimit -l " +
                          std::to_string(round_up(needed, kKiB) / kKiB) +
                          "), or register less: lower RegistrationOptions::max_bytes");
  }
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                    "registering " + size + ": the kernel has no memory for it",
                    "free memory, or register less: lower RegistrationOptions::max_bytes");
}

absl::Status explain_full_budget(const BudgetState& budget, uint64_t bytes) {
  const uint64_t needed = budget.registered_bytes + bytes;
  std::string remedy = "raise RegistrationOptions::max_bytes to at least " + format_bytes(needed);
  if (budget.follows_memlock) {
    // The smallest limit in KiB of which 80 % suffice.
    const uint64_t limit = round_up((needed + 7) / 8 * 10, kKiB);
    remedy = "raise RLIMIT_MEMLOCK to at least " + format_bytes(limit) + " (ulimit -l " +
             std::to_string(limit / kKiB) + "), or " + remedy;
  }
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                    "registering " + format_bytes(bytes) + ": the budget is " +
                        format_bytes(budget.max_bytes) +
                        (budget.follows_memlock ? " (80 % of RLIMIT_MEMLOCK), " : ", ") +
                        format_bytes(budget.registered_bytes) +
                        (budget.evicts ? " are in use" : " stay registered"),
                    remedy);
}

}  // namespace cariama::internal
