// Starts the threads of the library.
#ifndef CARIAMA_DTUTILS_INTERNAL_START_THREAD_H_
#define CARIAMA_DTUTILS_INTERNAL_START_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "dtutils/export.h"

namespace cariama::internal {

// Starts a thread. Error: RESOURCE_EXHAUSTED (kProcess) if a limit of the user, of the container or
// of the memory is met. The constructor of std::thread throws instead.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<std::thread> start_thread(
    std::function<void()> body);

// As start_thread(). The thread blocks all signals, so that only the application's threads run
// signal handlers.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<std::thread> start_quiet_thread(
    std::function<void()> body);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_START_THREAD_H_
