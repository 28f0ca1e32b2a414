// Checks of the options that TaskRuntime and TaskPool share.
#ifndef CARIAMA_TASKS_INTERNAL_CHECK_OPTIONS_H_
#define CARIAMA_TASKS_INTERNAL_CHECK_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/ids.h"

namespace cariama::tasks {

// Returns INVALID_ARGUMENT, with the name of the option, unless `victims` holds ranks of [0, size)
// without `rank`, each at most once, 0 <= idle_sleep <= 1 s, 1 ms <= timeout <= kMostTimeout, and
// 0 <= run_timeout <= kMostTimeout. `owner` is the name of the options struct.
[[nodiscard]] absl::Status check_common_options(const std::string& owner,
                                                const std::vector<std::vector<Rank>>& victims,
                                                std::chrono::microseconds idle_sleep,
                                                std::chrono::milliseconds timeout,
                                                std::chrono::milliseconds run_timeout, Rank rank,
                                                uint32_t size);

// A deadline counts nanoseconds in 63 bits: 292 years.
inline constexpr std::chrono::hours kMostTimeout{24 * 365 * 100};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_CHECK_OPTIONS_H_
