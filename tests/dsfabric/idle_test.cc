// The cost of an idle process: it sleeps, and wakes for heartbeats and for calls only.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

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

// A worker receives a service call that blocks. Meanwhile the service thread must leave its port to
// the worker, also when another call arrives. The worker does not poll after its call.
TEST(IdleTest, ACallThatArrivesDuringAServiceCallOfAWorkerIsReceived) {
  static std::atomic<pid_t> worker;
  static std::atomic<bool> blocked, release, returned, received;
  worker = 0;
  blocked = release = returned = received = false;
  LocalJobOptions options;
  options.fabric.heartbeat = std::chrono::hours(1);
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      worker = gettid();
      EXPECT_TRUE(wait_until(
          [&] {
            fabric.process_calls();
            return returned.load();
          },
          soon()));
      EXPECT_TRUE(wait_until([] { return received.load(); }, soon()));
      return;
    }
    EXPECT_TRUE(wait_until([] { return worker.load() != 0; }, soon()));
    // The service thread may receive the call first.
    std::atomic<int> ended{0};
    int sent = 0;
    EXPECT_TRUE(wait_until(
        [&] {
          if (blocked) return true;
          if (ended != sent) return false;
          ++sent;
          must(service_call(
              fabric, 1,
              [](uint64_t count) {
                if (gettid() == worker) {
                  blocked = true;
                  EXPECT_TRUE(wait_until([] { return release.load(); }, soon()));
                  returned = true;
                }
                ++*reinterpret_cast<std::atomic<int>*>(count);
              },
              reinterpret_cast<uint64_t>(&ended)));
          return false;
        },
        soon()));
    must(service_call(fabric, 1, [] { received = true; }));
    // Long enough for the service thread to be asleep again nearly always; the test is also correct
    // if it is awake.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    release = true;
    EXPECT_TRUE(wait_until([&] { return received && ended == sent; }, soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
