// Messengers between real processes: mapped chunks, and processes that are killed.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama {
namespace {

using testing::must;
using testing::run_job_with_a_victim;
using testing::run_process_job;
using testing::soon;

struct ProcessArrivals {
  uint64_t next[8] = {};  // by sender
  uint64_t disorder = 0;
  std::atomic<uint64_t> count{0};
};
ProcessArrivals process_arrivals;

void note(uint32_t from, uint64_t number) {
  if (process_arrivals.next[from]++ != number) ++process_arrivals.disorder;
  process_arrivals.count.fetch_add(1);
}

TEST(MessengerProcesses, AllProcessesCallEachOther) {
  run_process_job(4, {}, [](Fabric& fabric) {
    constexpr uint64_t kCalls = 5000;
    ThreadContext& self = *fabric.this_thread();
    {
      RDMAMessengerGlobal messengers(self, {.chunk_bytes = 8192});
      const uint32_t me = self.global_id();
      for (uint64_t i = 0; i < kCalls; ++i) {
        for (uint32_t to = 0; to < 4; ++to) {
          ASSERT_TRUE(messengers.call(to, [me, i] { note(me, i); }));
        }
      }
      EXPECT_EQ(messengers[(me + 1) % 4].arrival(), Arrival::kMapped);
      EXPECT_TRUE(fabric.wait([&] { return process_arrivals.count.load() == 4 * kCalls; }, soon()));
      EXPECT_EQ(process_arrivals.disorder, 0u);
      EXPECT_TRUE(messengers.shutdown_all(soon()).ok());
    }
  });
}

// Two processes send to each other in turn through mapped chunks; each may sleep while it waits.
TEST(MessengerProcesses, SleepersAreWoken) {
  run_process_job(2, {}, [](Fabric& fabric) {
    static std::atomic<uint64_t> pings{0};
    constexpr uint64_t kRounds = 300;
    {
      RDMAMessenger messenger(*fabric.this_thread(), fabric.thread_of(1 - fabric.rank()));
      for (uint64_t i = 0; i < kRounds; ++i) {
        if (fabric.rank() == 0) {
          ASSERT_TRUE(messenger.call([] { ++pings; }));
        }
        ASSERT_TRUE(fabric.wait([&] { return pings.load() > i; }, soon())) << i;
        if (fabric.rank() == 1) {
          ASSERT_TRUE(messenger.call([] { ++pings; }));
        }
      }
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    }
  });
}

// The set-up of a messenger ends at its timeout. When the receiver continues, the same messenger
// works.
TEST(MessengerProcesses, AStoppedReceiverHoldsNobodyUp) {
  run_process_job(2, {}, [](Fabric& fabric) {
    static std::atomic<int> ran{0};
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == 1; }, soon()));
      return;
    }
    const pid_t receiver = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1, {.timeout = std::chrono::milliseconds(200)});
    EXPECT_TRUE(testing::stop_process(receiver, soon()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(messenger.setup()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(messenger.setup())) << "the same request is awaited again";
    const CallResult refused = messenger.call([] { ADD_FAILURE() << "it was refused"; });
    EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status())) << refused.status();
    ASSERT_EQ(kill(receiver, SIGCONT), 0);
    EXPECT_TRUE(wait_until([&] { return messenger.setup().ok(); }, soon()));
    EXPECT_TRUE(messenger.call([] { ++ran; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// The first call to a peer is made inside of a call, so a helper thread sets the channel up. The
// fabric ends although the peer is stopped.
TEST(MessengerProcesses, AFabricEndsWhileASetUpWaits) {
  const auto body = [](Exchange& exchange) {
    pid_t receiver = 0;
    {
      const std::unique_ptr<Fabric> fabric = must(testing::fabric_of_group(exchange, {}));
      const auto thread = must(fabric->init_thread(0));
      static std::atomic<bool> called{false};
      static RDMAMessenger* outgoing = nullptr;
      if (fabric->rank() == 1) {
        static_cast<void>(fabric->wait([] { return false; }, soon()));
        return 0;
      }
      receiver = must(async_call(*fabric, 1, [] { return getpid(); }).get(soon()));
      RDMAMessenger messenger(*thread, 1);
      outgoing = &messenger;
      EXPECT_TRUE(testing::stop_process(receiver, soon()));
      must(call(*fabric, 0, [] { called = outgoing->call([] {}).ok(); }));
      EXPECT_TRUE(fabric->wait([] { return called.load(); }, soon()));
    }
    EXPECT_EQ(kill(receiver, SIGKILL), 0);
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  const absl::Status status = run_processes(2, body, {.may_die = {1}});
  EXPECT_TRUE(status.ok()) << status;
}

// A call with RetryAsync that needs a further chunk is deferred, although the receiver is stopped.
TEST(MessengerProcesses, ADeferredCallDoesNotWaitForAStoppedReceiver) {
  run_process_job(2, {}, [](Fabric& fabric) {
    constexpr int kCalls = 200;  // a chunk takes 111 of them
    static std::atomic<int> ran{0};
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == kCalls; }, soon()));
      return;
    }
    const pid_t receiver = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1,
                            {.chunks_per_request = 1,
                             .max_chunks = 4,
                             .chunk_bytes = 1024,
                             .timeout = std::chrono::milliseconds(200)});
    EXPECT_TRUE(wait_until([&] { return messenger.setup().ok(); }, soon()));
    EXPECT_TRUE(testing::stop_process(receiver, soon()));
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_EQ(messenger.call<RetryAsync>([] { ++ran; }).status(), absl::OkStatus()) << i;
    }
    EXPECT_NE(messenger.statistics().deferred, 0u);
    ASSERT_EQ(kill(receiver, SIGCONT), 0);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Also the first call of the channel, for which the stopped process has to grant the first chunk.
TEST(MessengerProcesses, AFirstCallDoesNotWaitForAStoppedReceiver) {
  run_process_job(2, {}, [](Fabric& fabric) {
    constexpr int kCalls = 200;
    static std::atomic<int> ran{0};
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == kCalls; }, soon()));
      return;
    }
    const pid_t receiver = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1, {.timeout = std::chrono::hours(1)});
    EXPECT_TRUE(testing::stop_process(receiver, soon()));
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_EQ(messenger.call<RetryAsync>([] { ++ran; }).status(), absl::OkStatus()) << i;
    }
    EXPECT_EQ(messenger.statistics().deferred, uint64_t{kCalls});
    ASSERT_EQ(kill(receiver, SIGCONT), 0);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// The helper thread sends deferred calls to one process while another one is stopped, which does
// not answer a request of the helper thread.
TEST(MessengerProcesses, AStoppedReceiverDoesNotDelayOtherChannels) {
  run_process_job(3, {}, [](Fabric& fabric) {
    static std::atomic<int> ran{0};
    if (fabric.rank() != 0) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == 1; }, soon()));
      if (fabric.rank() == 1) must(call(fabric, 0, [] { ++ran; }));
      return;
    }
    static RDMAMessenger* to_stopped = nullptr;
    static RDMAMessenger* to_running = nullptr;
    static std::atomic<bool> sent{false};
    const pid_t stopped = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
    const MessengerOptions options{.timeout = std::chrono::hours(1)};
    RDMAMessenger first(*fabric.this_thread(), 2, options);
    RDMAMessenger second(*fabric.this_thread(), 1, options);
    to_stopped = &first;
    to_running = &second;
    EXPECT_TRUE(testing::stop_process(stopped, soon()));
    // The first call of a channel is made inside of a call: the helper thread sets the channel up.
    must(call(fabric, 0, [] {
      sent = to_stopped->call([] { ++ran; }).ok() && to_running->call([] { ++ran; }).ok();
    }));
    EXPECT_TRUE(fabric.wait([] { return sent.load() && ran.load() == 1; }, soon()));
    ASSERT_EQ(kill(stopped, SIGCONT), 0);
    EXPECT_EQ(first.shutdown(soon()), absl::OkStatus());
    EXPECT_EQ(second.shutdown(soon()), absl::OkStatus());
  });
}

// A thread without a context, in which *fabric.this_thread() is a reference to nothing.
TEST(MessengerProcesses, AMessengerOfNoThreadSaysSo) {
  const auto use = [](void (*body)(Fabric & fabric)) {
    testing::LocalJob({.processes = 1}).run([body](Fabric& fabric, uint32_t) {
      std::thread([&] { body(fabric); }).join();
    });
  };
  const ::testing::KilledBySignal aborted(SIGABRT);
  const char* const said = "it has none: it has not called init_thread";
#if !defined(__SANITIZE_ADDRESS__)  // whose build reports the reference to nothing itself
  EXPECT_EXIT(use([](Fabric& fabric) { RDMAMessenger one(*fabric.this_thread(), 0); }), aborted,
              said);
  EXPECT_EXIT(use([](Fabric& fabric) { RDMAAggregatorGlobal all(*fabric.this_thread()); }), aborted,
              said);
#endif
  EXPECT_EXIT(use([](Fabric&) { RDMAMessengerGlobal all; }), aborted, said);
  EXPECT_EXIT(use([](Fabric&) { static_cast<void>(thread_information->index()); }), aborted, said);
}

TEST(MessengerProcesses, ObjectsThatOutliveTheFabricSaySo) {
  const ::testing::KilledBySignal aborted(SIGABRT);
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        auto self = must(fabric->init_thread(0));
        RDMAMessenger messenger(*self, 0);
        fabric.reset();
      },
      aborted, "a messenger is destroyed after the Fabric");
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        const auto self = must(fabric->init_thread(0));
        fabric.reset();
      },
      aborted, "a ThreadContext is destroyed after the Fabric");
  // The destructor of an aggregator publishes its batch.
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        auto self = must(fabric->init_thread(0));
        RDMAAggregatorGlobal all(*self);
        must(all.call(0, [] {}));
        fabric.reset();
      },
      aborted, "a messenger is destroyed after the Fabric");
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        const auto memory = must(GlobalMemory::create(*fabric));
        fabric.reset();
      },
      aborted, "a GlobalMemory is destroyed after the Fabric");
}

// A call that waits for a call to its own thread gets an error immediately.
TEST(MessengerProcesses, AFutureOfTheOwnThreadIsRefusedInsideOfACall) {
  run_process_job(1, {}, [](Fabric& fabric) {
    static RDMAMessenger* own = nullptr;
    static absl::Status inside;
    RDMAMessenger messenger(*fabric.this_thread(), 0);
    ASSERT_TRUE(messenger.setup().ok());
    own = &messenger;
    const absl::Status outside = messenger
                                     .async_call([] {
                                       inside =
                                           own->async_call([] { return 1; }).get(soon()).status();
                                       return 2;
                                     })
                                     .get(soon())
                                     .status();
    EXPECT_TRUE(outside.ok()) << outside;
    EXPECT_TRUE(absl::IsFailedPrecondition(inside)) << inside;
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Rank 2 is killed while its chunks are full. Rank 0 has a call whose answer is outstanding, and
// then sends a call that has to wait for room.
void lose_a_receiver(Fabric& fabric) {
  if (fabric.rank() == 2) {
    EXPECT_TRUE(fabric.wait([&] { return fabric.statistics().calls_run >= 2; }, soon()));
    static_cast<void>(wait_until([] { return false; }, soon()));  // runs no calls
    ADD_FAILURE() << "this process was not killed";
    return;
  }
  static std::atomic<bool> ended, met;
  const pid_t victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
  if (fabric.rank() == 1) {
    must(call(fabric, 0, [] { met = true; }));
    EXPECT_TRUE(fabric.wait([] { return ended.load(); }, soon()));
  } else {
    EXPECT_TRUE(fabric.wait([] { return met.load(); }, soon()));
    ThreadContext& self = *fabric.this_thread();
    MessengerOptions options;
    options.chunks_per_request = options.max_chunks = 1;
    options.chunk_bytes = 1024;
    RDMAMessenger messenger(self, 2, options);
    Synchronizer awaited;
    ASSERT_TRUE(messenger.call<RemoteNotify>([] {}, awaited));
    while (messenger.call<Fail>([] {})) {
    }
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    testing::expect_dead(messenger.call([] {}), fabric, 2);
    EXPECT_TRUE(fabric.wait([&] { return awaited.done(); }, soon()));
    testing::expect_dead(awaited.status(), fabric, 2);
    testing::expect_dead(messenger.call<RetryAsync>([] {}), fabric, 2);
    testing::expect_dead(messenger.shutdown(soon()), fabric, 2);
    // A new messenger to the failed process returns the error immediately; other processes are
    // reachable.
    RDMAMessenger late(self, 2, options);
    testing::expect_dead(late.call([] {}), fabric, 2);
    RDMAMessenger other(self, 1, options);
    EXPECT_TRUE(other.call([] { ended = true; }));
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
  }
  must(fabric.finalize(soon()));
}

TEST(MessengerProcesses, AReceiverIsKilled) { run_job_with_a_victim(3, 2, lose_a_receiver); }

// Rank 2 is killed while it sends continuously. The calls that it had published are run or lost,
// but in order, and other channels still work.
void lose_a_sender(Fabric& fabric) {
  ThreadContext& self = *fabric.this_thread();
  if (fabric.rank() == 2) {
    RDMAMessenger messenger(self, 0);
    for (uint64_t i = 0; i < UINT64_MAX; ++i) {
      if (!messenger.call([i] { note(2, i); })) break;
      if (i % 64 == 0) fabric.process_calls();
    }
    return;
  }
  static std::atomic<bool> ended, met;
  const pid_t victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
  if (fabric.rank() == 0) {
    EXPECT_TRUE(fabric.wait([] { return met.load(); }, soon()));
    EXPECT_TRUE(fabric.wait([&] { return process_arrivals.count.load() > 10000; }, soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(2).ok(); }, soon()));
    EXPECT_EQ(process_arrivals.disorder, 0u);
    RDMAMessenger other(self, 1);
    EXPECT_TRUE(other.call([] { ended = true; }));
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
  } else {
    must(call(fabric, 0, [] { met = true; }));
    EXPECT_TRUE(fabric.wait([] { return ended.load(); }, soon()));
  }
  must(fabric.finalize(soon()));
}

TEST(MessengerProcesses, ASenderIsKilled) { run_job_with_a_victim(3, 2, lose_a_sender); }

}  // namespace
}  // namespace cariama
