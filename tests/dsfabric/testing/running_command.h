// Runs a shell command beside the test.
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_RUNNING_COMMAND_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_RUNNING_COMMAND_H_

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "dtutils/wait.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama::testing {

// A running command with its output in files.
class Running {
 public:
  explicit Running(const std::string& command) {
    char pattern[] = "/tmp/cariama-launcher-XXXXXX";
    folder_ = mkdtemp(pattern);
    pid_ = fork();
    if (pid_ == 0) {
      // A shell ignores SIGINT in a test that it starts in the background.
      static_cast<void>(signal(SIGINT, SIG_DFL));
      unsetenv("RANK");  // the test itself may have been started by another launcher
      unsetenv("CARIAMA_LAUNCH_SOCKET");
      unsetenv("PMIX_RANK");
      const std::string whole =
          "exec " + command + " < /dev/null > " + folder_ + "/out 2> " + folder_ + "/err";
      execl("/bin/sh", "sh", "-c", whole.c_str(), nullptr);
      _exit(127);
    }
  }
  ~Running() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const char* file : {"/out", "/err"}) unlink((folder_ + file).c_str());
    rmdir(folder_.c_str());
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string out() const { return text_of(folder_ + "/out"); }
  [[nodiscard]] std::string err() const { return text_of(folder_ + "/err"); }

  // Returns the exit code; 128+n for a signal. The test's watchdog ends a wait that lasts too long.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // Blocks until `condition` holds.
  template <typename Condition>
  static bool eventually(const Condition& condition) {
    const Deadline deadline = deadline_after(std::chrono::seconds(60));
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  std::string folder_;
  pid_t pid_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_RUNNING_COMMAND_H_
