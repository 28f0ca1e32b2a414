// The contract of tasks/runtime.h beyond forks and joins: joiners of the queue.
#include "tasks/runtime.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <utility>

#include "tasks/await.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

// ---- joiners of the queue ----

std::atomic<bool> stop{false};  // of one process

enum class WaitBy { kAwait, kYield, kResume };

// Waits for `stop` without leaving the worker idle: the task is ready again at once.
bool wait_for_stop(WaitBy how) {
  if (how == WaitBy::kAwait) return await_until([] { return stop.load(); }, kForever);
  while (!stop) {
    if (how == WaitBy::kYield) {
      yield();
    } else {
      suspend([](const SuspendedTask& task) { resume(task); });
    }
  }
  return true;
}

void join_a_child_that_yields() {
  task<void> child = spawn([] { yield(); });
  join(std::move(child));
}

void join_beside_a_task_that_waits(const TaskOptions& options, WaitBy how, bool in_catch_block) {
  testing::with_workers(1, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run([=] {
      task<bool> waiter = spawn([how] { return wait_for_stop(how); });
      if (in_catch_block) {
        try {
          throw std::runtime_error("handled");
        } catch (const std::runtime_error&) {
          join_a_child_that_yields();
        }
      } else {
        join_a_child_that_yields();
      }
      stop = true;
      return join(std::move(waiter));
    });
    EXPECT_TRUE(result.value_or(false)) << result.status();
  });
}

// A joiner that handles an exception waits in the queue of its worker with every policy.
TEST(Runtime, AJoinerInACatchBlockIsResumedWhileATaskWaits) {
  for (const WaitBy how : {WaitBy::kAwait, WaitBy::kYield, WaitBy::kResume}) {
    join_beside_a_task_that_waits({}, how, true);
  }
}

TEST(Runtime, AJoinerOfTheWaitQueueIsResumedWhileATaskWaits) {
  TaskOptions options;
  options.join = JoinPolicy::kWaitQueue;
  for (const DequeKind deque : {DequeKind::kSplit, DequeKind::kThe, DequeKind::kPrivate}) {
    options.deque = deque;
    join_beside_a_task_that_waits(options, WaitBy::kAwait, false);
    join_beside_a_task_that_waits(options, WaitBy::kResume, true);
  }
  options.deque = DequeKind::kSplit;
  for (const StackScheme scheme : {StackScheme::kCrude, StackScheme::kIso}) {
    options.scheme = scheme;
    join_beside_a_task_that_waits(options, WaitBy::kAwait, false);
  }
}

}  // namespace
}  // namespace cariama
