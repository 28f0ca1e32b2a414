// Helpers for tests of tasks: run tasks on several forked workers, and wait in a task until a thief
// has stolen its parent.
#ifndef CARIAMA_TESTS_TASKS_TASK_TEST_SUPPORT_H_
#define CARIAMA_TESTS_TASKS_TASK_TEST_SUPPORT_H_

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "dtutils/process_group.h"
#include "tasks/runtime.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/shared.h"

namespace cariama::testing {

// Waits until condition() is true, without suspending a task. May be used outside of tasks. Returns
// false after 30 s.
template <typename Condition>
[[nodiscard]] bool spin_until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    sched_yield();
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// Waits in a task until condition() is true, without suspending the task. Polls, so that thieves
// can steal the ancestors of the task. Returns false after 30 s.
template <typename Condition>
[[nodiscard]] bool poll_until(const Condition& condition) {
  return spin_until([&] {
    poll();
    return condition();
  });
}

// Forks `workers` processes, creates a runtime in each, and calls body(runtime).
inline void with_workers(int workers, const TaskOptions& options,
                         const std::function<void(TaskRuntime&)>& body,
                         const RunOptions& run_options = {}) {
  run_test_processes(
      workers,
      [&](Exchange& exchange) {
        auto runtime = TaskRuntime::create(exchange, options);
        ASSERT_TRUE(runtime.ok()) << runtime.status();
        body(**runtime);
      },
      run_options);
}

// Captures the output of the surviving workers on stderr before they end.
class LastWords {
 public:
  LastWords() : file_(memfd_create("last words", 0)) {}
  ~LastWords() { close(file_); }
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

  // Called in a worker: redirects its stderr.
  void record() const { dup2(file_, STDERR_FILENO); }
  [[nodiscard]] std::string text() const {
    std::string text(1 << 16, '\0');
    const ssize_t length = pread(file_, text.data(), text.size(), 0);
    text.resize(length < 0 ? 0 : static_cast<size_t>(length));
    return text;
  }

 private:
  const int file_;
};

// Returns the number of dependent round trips of one steal.
[[nodiscard]] inline uint64_t round_trips_of(DequeKind deque) {
  switch (deque) {
    case DequeKind::kSplit:
      return 3;
    case DequeKind::kThe:
      return 5;
    case DequeKind::kPrivate:
      return 1;
  }
  return 0;
}

inline long fib(long n) {
  if (n < 2) return n;
  task<long> left = spawn([n] { return fib(n - 1); });
  const long right = fib(n - 2);
  return join(std::move(left)) + right;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_TASKS_TASK_TEST_SUPPORT_H_
