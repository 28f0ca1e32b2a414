// Stops processes, and reads what the kernel says about their state.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_STATE_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_STATE_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "dtutils/wait.h"

namespace cariama::testing {

// Returns the state in /proc/PID/stat: T is stopped, Z has ended; 0 if there is no such process.
// Only system calls: a task that has migrated may call it.
inline char process_state(pid_t pid) {
  std::array<char, 512> text{};
  const int file = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  if (read(file, text.data(), text.size() - 1) < 0) text[0] = '\0';
  close(file);
  const char* const end = strrchr(text.data(), ')');
  return end != nullptr && end[1] == ' ' ? end[2] : 0;
}

// Blocks until the process is stopped. Returns false if it is not stopped by then.
[[nodiscard]] inline bool wait_until_stopped(pid_t pid, Deadline deadline) {
  return wait_until([&] { return process_state(pid) == 'T'; }, deadline);
}

// Blocks until the process has ended. Returns false if it lives then.
[[nodiscard]] inline bool wait_until_ended(pid_t pid, Deadline deadline) {
  const auto ended = [&] {
    const char state = process_state(pid);
    return state == 0 || state == 'Z' || state == 'X';
  };
  return wait_until(ended, deadline);
}

// Stops the process. Returns false if it cannot be stopped.
[[nodiscard]] inline bool stop_process(pid_t pid, Deadline deadline) {
  return kill(pid, SIGSTOP) == 0 && wait_until_stopped(pid, deadline);
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_PROCESS_STATE_H_
