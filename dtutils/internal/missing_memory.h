// Steps of threads of the library that find no memory. No caller can get their std::bad_alloc, and
// it must not end the process: the thread reports it once, and goes on.
#ifndef CARIAMA_DTUTILS_INTERNAL_MISSING_MEMORY_H_
#define CARIAMA_DTUTILS_INTERNAL_MISSING_MEMORY_H_

#include <chrono>
#include <new>
#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

// The pause after a step that found no memory, so that the thread does not spin.
inline constexpr std::chrono::milliseconds kMemoryPause{10};

// Reports a step that found no memory, once for each key (report_once). `what` is a sentence.
// Thread-safe.
CARIAMA_DTUTILS_EXPORT void report_missing_memory(std::string_view key,
                                                  std::string_view what) noexcept;

// Runs `step`. Returns false if it has thrown std::bad_alloc, which is reported. Requires: what the
// step has not done is done by a later step.
template <typename Step>
[[nodiscard]] bool has_memory_for(std::string_view key, std::string_view what, const Step& step) {
  try {
    step();
    return true;
  } catch (const std::bad_alloc&) {
    report_missing_memory(key, what);
    return false;
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_MISSING_MEMORY_H_
