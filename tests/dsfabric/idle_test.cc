// The cost of an idle process: it sleeps, and wakes for heartbeats and for calls only.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

// Returns how often threads of this process have gone to sleep.
uint64_t sleeps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_nvcsw);
}

// Returns true if all threads of this process except the caller sleep.
bool others_sleep() {
  const pid_t self = gettid();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(self)) continue;
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);
    const size_t name_end = line.rfind(')');  // "12 (name) S ..."
    if (name_end != std::string::npos && line.substr(name_end + 2, 1) != "S") return false;
  }
  return true;
}

// In its own processes, since the counters are per process. On any machine, a thread that sleeps
// also wakes, and a thread that polls with a timer sleeps far more often than the heartbeat.
TEST(IdleTest, AnIdleProcessWakesForItsHeartbeatOnly) {
  constexpr std::chrono::milliseconds kHeartbeat{50};
  FabricOptions options;
  options.threads = 2;
  options.helper_threads = 1;
  options.heartbeat = kHeartbeat;
  // Units that an idle sender returns wake the receiver once.
  options.return_units_after = std::chrono::hours(1);
  run_process_job(2, options, [&](Fabric& fabric) {
    std::atomic<bool> leave{false};
    std::atomic<uint64_t> looks{0};
    const auto look = [&] {
      ++looks;
      return leave.load();
    };
    std::thread other([&] {  // another worker; a helper runs its calls
      auto place = must(fabric.init_thread(1, CallConsumer::kHelpers));
      EXPECT_TRUE(fabric.wait(look, soon()));
    });
    for (uint32_t to = 0; to < 4; ++to) {  // connects both processes, and runs calls in each
      EXPECT_EQ(must(async_call(fabric, to, [] { return 3; }).get(soon())), 3);
    }
    static std::atomic<bool> both_here;
    must(call(fabric, fabric.thread_of(1 - fabric.rank()), [] { both_here = true; }));
    EXPECT_TRUE(fabric.wait([] { return both_here.load(); }, soon()));

    std::thread watch([&] {
      // A thread that has just begun to wait stays awake for a while, longer on a busy machine.
      EXPECT_TRUE(wait_until(others_sleep, soon()));
      // Both processes measure at the same time: the calls of one that begins or leaves would wake
      // the other one.
      must(fabric.bootstrap().fence(soon()));
      EXPECT_TRUE(wait_until(others_sleep, soon()));
      const auto start = std::chrono::steady_clock::now();
      const uint64_t looks_before = looks;
      const uint64_t sleeps_before = sleeps();
      const FabricStatistics before = fabric.statistics();
      std::this_thread::sleep_for(10 * kHeartbeat);
      const uint64_t slept = sleeps() - sleeps_before;
      const FabricStatistics after = fabric.statistics();
      const auto heartbeats =
          static_cast<uint64_t>((std::chrono::steady_clock::now() - start) / kHeartbeat) + 1;
      // One more round may have been in progress.
      EXPECT_LE(after.rounds - before.rounds, heartbeats + 1);
      // A futex may wake spuriously.
      EXPECT_LE(looks - looks_before, 8u);
      // Some sleeps are due to this thread and to a sanitizer's threads (ten per second). Polling
      // with a timer would need hundreds.
      EXPECT_LE(slept, 2 * heartbeats + 8);
      must(fabric.bootstrap().fence(soon()));
      leave = true;
      for (uint32_t index : {0u, 1u}) fabric.wake(index);
    });
    EXPECT_TRUE(fabric.wait(look, soon()));
    watch.join();
    other.join();
  });
}

// With a heartbeat that never comes, the sleeping process is woken only by the call itself.
TEST(IdleTest, ASleepingProcessIsWokenByACall) {
  FabricOptions options;
  options.heartbeat = std::chrono::hours(1);
  run_process_job(2, options, [&](Fabric& fabric) {
    static std::atomic<int> calls;
    constexpr int kCalls = 5;
    for (int i = 0; i < kCalls; ++i) {
      if (fabric.rank() == 0) {
        // Long enough for the other process to be asleep nearly always; the test is also correct if
        // it is awake.
        static_cast<void>(
            fabric.wait([] { return false; }, deadline_after(std::chrono::milliseconds(20))));
        EXPECT_EQ(must(async_call(fabric, 1, [] { return ++calls; }).get(soon())), i + 1);
      } else {
        EXPECT_TRUE(fabric.wait([&] { return calls.load() > i; }, soon()));
      }
    }
  });
}

// An event for which a thread waits asleep, so that others_sleep() can become true.
class Event {
 public:
  void happen() { notification_.Notify(); }
  [[nodiscard]] bool happened() const { return notification_.HasBeenNotified(); }
  void wait() {
    EXPECT_TRUE(notification_.WaitForNotificationWithTimeout(
        absl::FromChrono(soon() - std::chrono::steady_clock::now())));
  }

 private:
  absl::Notification notification_;
};

// Waits until all other threads of this process sleep: they have handled what has arrived.
void wait_until_others_sleep() {
  const Deadline deadline = soon();
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (!others_sleep() && std::chrono::steady_clock::now() < deadline);
}

// A worker receives a service call that blocks. Meanwhile the service thread must leave its port to
// the worker, also when another call arrives. The worker does not poll after its call.
TEST(IdleTest, ACallThatArrivesDuringAServiceCallOfAWorkerIsReceived) {
  struct State {
    std::atomic<pid_t> worker{0};
    std::atomic<int> ran{0};
    Event ready, blocked, release, received;
  };
  static State* state;
  State here;
  state = &here;
  LocalJobOptions options;
  options.fabric.heartbeat = std::chrono::hours(1);
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      here.worker = gettid();
      here.ready.happen();
      EXPECT_TRUE(wait_until(
          [&] {
            fabric.process_calls();
            return here.release.happened();
          },
          soon()));
      here.received.wait();
      return;
    }
    here.ready.wait();
    // The service thread may receive the call first.
    for (int sent = 1; !here.blocked.happened() && !::testing::Test::HasFailure(); ++sent) {
      must(service_call(fabric, 1, [] {
        if (gettid() == state->worker) {
          state->blocked.happen();
          state->release.wait();
        }
        ++state->ran;
      }));
      EXPECT_TRUE(wait_until([&] { return here.blocked.happened() || here.ran == sent; }, soon()));
    }
    must(service_call(fabric, 1, [] { state->received.happen(); }));
    wait_until_others_sleep();
    here.release.happen();
    here.received.wait();
  });
}

// A worker whose calls a helper thread runs polls for a call itself. Meanwhile the helper thread
// finds the inbox in use, and goes to sleep. The worker leaves the next call to it.
TEST(IdleTest, AHelperRunsTheCallsThatItsWorkerHasLeft) {
  struct State {
    Event helper_runs, helper_may_end, worker_runs, worker_may_end, last_ran;
  };
  static State* state;
  State here;
  state = &here;
  LocalJobOptions options{.fabric = {.threads = 2, .helper_threads = 1}};
  options.fabric.heartbeat = std::chrono::hours(1);
  options.init_thread = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() == 1) {
      auto place = must(fabric.init_thread(thread, CallConsumer::kHelpers));
      if (thread == 0) {
        here.helper_runs.wait();
        EXPECT_TRUE(wait_until([&] { return fabric.process_calls(1) == 1; }, soon()));
      }
      here.last_ran.wait();
      return;
    }
    if (thread != 0) return;
    const ThreadId first = fabric.thread_of(1, 0);
    must(call(fabric, fabric.thread_of(1, 1), [] {
      state->helper_runs.happen();
      state->helper_may_end.wait();
    }));
    here.helper_runs.wait();
    must(call(fabric, first, [] {
      state->worker_runs.happen();
      state->worker_may_end.wait();
    }));
    here.worker_runs.wait();
    here.helper_may_end.happen();
    must(call(fabric, first, [] { state->last_ran.happen(); }));
    wait_until_others_sleep();
    here.worker_may_end.happen();
    here.last_ran.wait();
  });
}

// A worker whose calls a helper thread runs polls, and there is no call.
TEST(IdleTest, AWorkerThatPollsWithoutCallsWakesNoHelper) {
  constexpr int kPolls = 200;
  FabricOptions options;
  options.threads = 2;
  options.helper_threads = 1;
  options.heartbeat = std::chrono::hours(1);
  run_process_job(1, options, [&](Fabric& fabric) {
    std::thread worker([&] {
      auto place = must(fabric.init_thread(1, CallConsumer::kHelpers));
      uint64_t slept = 0;
      for (int i = 0; i < kPolls; ++i) {
        EXPECT_TRUE(wait_until([] { return others_sleep(); }, soon()));
        const uint64_t before = sleeps();
        fabric.process_calls();
        EXPECT_TRUE(wait_until([] { return others_sleep(); }, soon()));
        slept += sleeps() - before;
      }
      // A helper that wakes sleeps again: once for each poll. A thread of a sanitizer may sleep.
      EXPECT_LT(slept, kPolls / 2);
    });
    worker.join();
  });
}

}  // namespace
}  // namespace cariama::testing
