#include "dtutils/internal/memory_limits.h"

#include <sys/resource.h>

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
constexpr uint64_t kPage = 4 * kKiB;

}  // namespace

uint64_t memlock_limit() {
  const MemoryLockLimit limit = query_memory_lock_limit();
  return limit.may_exceed || limit.soft_bytes == kUnlimited ? UINT64_MAX : limit.soft_bytes;
}

MemoryLimits query_memory_limits() {
  MemoryLimits limits;
  limits.memlock = memlock_limit();
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    // What verbs and io_uring pin. The kernel compares locked bytes (VmLck, of mlock) with the same
    // limit, but does not add the two.
    if (word == "VmPin:" && status >> kilobytes) limits.locked = kilobytes * kKiB;
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
  // A range that does not begin at a page takes one page more.
  if (limits.memlock != UINT64_MAX && limits.locked + bytes + kPage > limits.memlock) {
    const uint64_t needed = std::max(limits.locked + bytes, limits.memlock + kPage);
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "registering " + size + ": RLIMIT_MEMLOCK is " +
                          format_bytes(limits.memlock) + ", " + format_bytes(limits.locked) +
                          " are pinned",
                      "raise it to at least " + format_bytes(needed) + " (ulimit -l " +
                          std::to_string(round_up(needed, kKiB) / kKiB) +
                          "), or register less: lower RegistrationOptions::max_bytes");
  }
  return make_error(
      absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
      "registering " + size + ": the kernel or the device has no memory for it; " +
          format_bytes(limits.locked) + " are pinned" +
          (limits.memlock == UINT64_MAX ? std::string()
                                        : ", RLIMIT_MEMLOCK is " + format_bytes(limits.memlock)),
      "free memory, or register less: lower RegistrationOptions::max_bytes, or "
      "max_regions if the device has no more regions" +
          std::string(limits.memlock == UINT64_MAX
                          ? ""
                          : "; io_uring counts all processes of a user against "
                            "RLIMIT_MEMLOCK"));
}

std::string address_space_remedy(uint64_t bytes) {
  rlimit limit{};
  uint64_t mapped = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "VmSize:" && status >> kilobytes) mapped = kilobytes * kKiB;
  }
  const uint64_t needed = mapped + bytes;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= needed) {
    return "free memory, or raise vm.max_map_count";
  }
  return "raise RLIMIT_AS from " + format_bytes(limit.rlim_cur) + " to at least " +
         format_bytes(needed) + " (ulimit -v " + std::to_string(round_up(needed, kKiB) / kKiB) +
         ")";
}

absl::Status explain_full_budget(const BudgetState& budget, uint64_t bytes) {
  const uint64_t needed = budget.registered_bytes + bytes;
  const std::string rounded = format_bytes(needed);
  std::string remedy = "raise RegistrationOptions::max_bytes to at least " + rounded;
  if (rounded.find('.') != std::string::npos) remedy += " (" + std::to_string(needed) + " bytes)";
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

absl::Status explain_full_regions(size_t regions, bool evicts) {
  return make_error(
      absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
      "all " + std::to_string(regions) +
          (evicts ? " regions are in use" : " regions stay registered"),
      "raise RegistrationOptions::max_regions to at least " + std::to_string(regions + 1));
}

}  // namespace cariama::internal
