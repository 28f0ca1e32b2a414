// A one-sided call wakes a sleeping thread, for each kind of CallConsumer. On shm the sender itself
// wakes it, without a message and without another thread in between. Heartbeats are disabled.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "dtutils/synchronizer.h"
#include "gtest/gtest.h"
#include "riutils/aggregator.h"
#include "riutils/messenger.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama::testing {
namespace {

class Sleeper : public ::testing::TestWithParam<CallConsumer> {};

TEST_P(Sleeper, IsWokenByTheSenderItself) {
  const CallConsumer consumer = GetParam();
  FabricOptions options;
  options.threads = 2;
  options.helper_threads = 1;
  options.heartbeat = std::chrono::hours(1);
  run_process_job(2, options, [&](Fabric& fabric) {
    static std::atomic<uint64_t> calls;
    static std::atomic<uint64_t> expected;
    static std::atomic<bool> ended;
    constexpr std::chrono::seconds kPatience{60};
    // Worker 1 of each process; the job's body runs in worker 0.
    std::thread other([&] {
      const auto place = must(fabric.init_thread(1, consumer));
      EXPECT_TRUE(fabric.wait([] { return ended.load(); }, deadline_after(kPatience)));
    });
    if (fabric.rank() == 0) {
      RDMAMessenger messenger(*fabric.this_thread(), 3);
      must(messenger.setup());
      const uint64_t wakes = fabric.statistics().wakes;
      // Sends with growing pauses until a call has found the receiver asleep. On a busy machine the
      // receiver needs longer to fall asleep.
      const Deadline deadline = soon();
      std::chrono::milliseconds pause{2};
      uint64_t sent = 0;
      while (messenger.statistics().wakes == 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(pause);
        pause *= 2;
        ++sent;
        Synchronizer run;
        ASSERT_TRUE(messenger.call<RemoteNotify>([] { ++calls; }, run).ok());
        EXPECT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      }
      EXPECT_EQ(fabric.statistics().wakes, wakes);
      EXPECT_EQ(messenger.statistics().wakes, 1u);
      must(messenger.shutdown(soon()));
      for (uint32_t thread : {1u, 2u, 3u})
        must(call(fabric, thread, [sent] {
          expected = sent;
          ended = true;
          for (uint32_t index : {0u, 1u}) running_fabric()->wake(index);
        }));
    } else {
      EXPECT_TRUE(fabric.wait([] { return ended.load(); }, deadline_after(kPatience)));
      EXPECT_EQ(calls, expected);
    }
    other.join();
  });
}

// No thread arms the doorbell of a worker that has left. A thread that sleeps in finalize() runs
// the worker's calls all the same, although plain stores deliver them.
TEST(SleeperInFinalize, RunsCallsToAWorkerThatHasLeft) {
  FabricOptions options;
  options.threads = 2;
  options.heartbeat = std::chrono::hours(1);
  run_process_job(2, options, [&](Fabric& fabric) {
    static std::atomic<pid_t> finalizes;  // the process whose main thread calls finalize()
    if (fabric.rank() == 1) {
      std::thread([&] { const auto place = must(fabric.init_thread(1)); }).join();
      must(call(fabric, 0, [pid = getpid()] { finalizes = pid; }));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 3);
    must(messenger.setup());
    EXPECT_TRUE(fabric.wait([] { return finalizes.load() != 0; }, soon()));
    for (int asleep = 0; asleep < 50;) {
      asleep = process_state(finalizes) == 'S' ? asleep + 1 : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(messenger.call([] {}).ok());
    must(messenger.shutdown(soon()));
  });
}

INSTANTIATE_TEST_SUITE_P(Consumers, Sleeper,
                         ::testing::Values(CallConsumer::kThread, CallConsumer::kHelpers,
                                           CallConsumer::kProcess),
                         [](const auto& info) {
                           return info.param == CallConsumer::kThread    ? "Thread"
                                  : info.param == CallConsumer::kHelpers ? "Helpers"
                                                                         : "Process";
                         });

}  // namespace
}  // namespace cariama::testing
