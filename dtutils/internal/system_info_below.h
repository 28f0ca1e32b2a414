// Reads a SystemInfo from files of a test.
#ifndef CARIAMA_DTUTILS_INTERNAL_SYSTEM_INFO_BELOW_H_
#define CARIAMA_DTUTILS_INTERNAL_SYSTEM_INFO_BELOW_H_

#include <string>

#include "dtutils/system_info.h"

namespace cariama::internal {

// As query_system_info(), with `root` instead of "/" in front of proc and sys. Values that come
// from system calls (page size, limits, affinity) always describe the real system.
[[nodiscard]] SystemInfo query_system_info_below(const std::string& root);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SYSTEM_INFO_BELOW_H_
