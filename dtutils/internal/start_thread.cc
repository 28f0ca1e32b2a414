#include "dtutils/internal/start_thread.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <string>
#include <utility>

#include "dtutils/error.h"

namespace cariama::internal {

absl::StatusOr<std::thread> start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::exception& error) {  // std::system_error, std::bad_alloc
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      std::string("cannot start a thread: ") + error.what(),
                      "raise ulimit -u, -v or -d, or the pids limit of the container");
  }
}

absl::StatusOr<std::thread> start_quiet_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::StatusOr<std::thread> thread = start_thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace cariama::internal
