#include "dtutils/internal/missing_memory.h"

#include <atomic>
#include <cstdio>

#include "dtutils/diagnostics.h"

namespace cariama::internal {

void report_missing_memory(std::string_view key, std::string_view what) noexcept {
  try {
    static_cast<void>(report_once(key, what, "raise ulimit -v and -d"));
  } catch (const std::bad_alloc&) {
    static std::atomic<bool> printed{false};
    if (printed.exchange(true)) return;
    std::fprintf(stderr, "cariama: %.*s\n", static_cast<int>(what.size()), what.data());
  }
}

}  // namespace cariama::internal
