// Threads that find no memory while they run or answer calls: each call ends, with its result or
// with an error, and the process goes on.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "dsfabric/completions.h"
#include "dsfabric/fabric.h"
#include "dsfabric/fabric/fabric_core.h"
#include "dsfabric/future.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/send_call.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// The next allocation of the thread that runs the call fails.
constexpr auto lose_memory = [] { failing_bytes = 1; };

TEST(CallsWithoutMemory, AResultIsLostWithAnError) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Future<uint64_t> result = async_call(fabric, 0, [] {
      lose_memory();
      return uint64_t{7};
    });
    const absl::Status status = result.get(soon()).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad_alloc"));
    EXPECT_EQ(failing_bytes, 0u) << "the answer needed no memory";
  });
}

std::atomic<uint32_t> forgetful_runs;
constexpr auto run_forgetful = [] {
  ++forgetful_runs;
  lose_memory();
};
// A function of its own: clang 14 fails for this coroutine within the test.
CallResult call_forgetful(Fabric& fabric, uint32_t& consumed) {
  return call(
      fabric, fabric.thread_of(0), run_forgetful,
      on_consumed([&consumed](const absl::Status& status) { consumed += status.ok() ? 1 : 100; }));
}

// The caller learns that the call has run, when there is memory for the answer.
TEST(CallsWithoutMemory, ACallWithoutAResultIsAnsweredLater) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  forgetful_runs = 0;
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Future<void> ended = async_call(fabric, fabric.thread_of(0), run_forgetful);
    EXPECT_EQ(ended.get(soon()), absl::OkStatus());
    EXPECT_EQ(failing_bytes, 0u) << "the answer needed no memory";
    uint32_t consumed = 0;
    must(call_forgetful(fabric, consumed));
    EXPECT_TRUE(fabric.wait([&] { return consumed != 0; }, soon()));
    EXPECT_EQ(consumed, 1u);
    EXPECT_EQ(failing_bytes, 0u) << "the answer needed no memory";
  });
  EXPECT_EQ(forgetful_runs, 2u);
}

// The thread that answers is the service thread; it allocates at its heartbeats, too.
TEST(CallsWithoutMemory, AServiceThreadGoesOn) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJobOptions options{.processes = 2};
  options.fabric.heartbeat = std::chrono::milliseconds(5);
  LocalJob job(options);
  job.run([&job](Fabric& fabric, uint32_t) {
    const Rank other = 1 - fabric.rank();
    for (int i = 0; i < 20; ++i) {
      Synchronizer ended;
      must(service_call<RemoteNotify>(fabric, other, lose_memory, ended));
      // Does not poll, so that the service threads run the calls.
      EXPECT_TRUE(wait_until([&] { return ended.done(); }, soon()));
      EXPECT_TRUE(ended.status().ok()) << ended.status();
    }
    job.meet(2);  // finalize() polls
  });
}

// ---- Transports without memory for the credits of a receiver ------------------------------------

// One receive unit: the receiver returns a credit for each message. No heartbeat repeats anything.
LocalJobOptions one_unit() {
  LocalJobOptions options{.processes = 2, .transport = transport_case("fault_shm")};
  options.faults = [](uint64_t) { return FaultOptions{}; };
  options.fabric.receive_units = 1;
  options.fabric.heartbeat = std::chrono::hours(1);
  return options;
}

std::atomic<uint32_t> events_seen, calls_seen;

struct NoCalls final : CallSource {
  size_t run(size_t) override { return 0; }
};
struct EventCounter final : CallSourceRegistry {
  CallSource& source(ThreadIndex) override { return none; }
  void event(Rank, uint32_t value) override {
    EXPECT_EQ(value, events_seen.fetch_add(1, std::memory_order_acq_rel));
  }
  void peer_died(Rank) override {}
  uint64_t begun(Rank) override { return 0; }
  uint64_t ended(Rank) override { return 0; }
  void finalized() override {}
  void stop() override {}
  void disconnect() override {}
  NoCalls none;
};
std::unique_ptr<CallSourceRegistry> make_event_counter(Fabric&) {
  return std::make_unique<EventCounter>();
}

TEST(CreditsWithoutMemory, NoEventOfAnIdleReceiverIsLost) {
  events_seen = 0;
  LocalJob job(one_unit());
  job.run([&job](Fabric& fabric, uint32_t) {
    static_cast<void>(internal::call_source_registry(fabric, &make_event_counter));
    job.meet(2);
    if (fabric.rank() == 0) {
      // Connects.
      EXPECT_EQ(must(async_call(fabric, fabric.thread_of(1), [] { return 1; }).get(soon())), 1);
      for (uint32_t i = 0; i < 30; ++i) {
        // The transfers of credits for this event, and for 0 to 3 attempts behind it, are denied.
        job.faults(1)->deny_memory(1 + i % 4);
        EXPECT_TRUE(
            wait_until([&] { return must(internal::post_call_event(fabric, 1, 0, i)); }, soon()));
        // Does not poll. Rank 1 soon sleeps, so that its service thread receives the events.
        ASSERT_TRUE(wait_until([&] { return events_seen.load() == i + 1; }, soon())) << i;
      }
      job.faults(1)->deny_memory(0);
      must(call(fabric, fabric.thread_of(1), [] { ++events_seen; }));
    } else {
      EXPECT_TRUE(fabric.wait([] { return events_seen.load() == 31; }, soon()));
    }
  });
}

// The end of a message is in a destructor. A call that a service thread runs ends there.
TEST(CreditsWithoutMemory, CallsOfAServiceThreadEnd) {
  calls_seen = 0;
  LocalJob job(one_unit());
  job.run([&job](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      for (uint32_t i = 0; i < 30; ++i) {
        must(service_call(fabric, 1, [] { ++calls_seen; }));
        ASSERT_TRUE(wait_until([&] { return calls_seen.load() == i + 1; }, soon())) << i;
        job.faults(1)->deny_memory(1 + i % 4);
      }
      job.faults(1)->deny_memory(0);
    }
    job.meet(2);  // finalize() polls
  });
}

// ---- Failures -----------------------------------------------------------------------------------

// A connection fails, and the thread that polls finds no memory for one of its steps.
TEST(FailuresWithoutMemory, OfAConnectionAreNoticed) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  std::atomic<bool> all_succeeded{false};
  for (size_t skips = 0; !all_succeeded; ++skips) {
    ASSERT_LT(skips, 1000U);
    LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
    options.fabric.service_threads = 0;
    options.finalize = false;
    LocalJob job(options);
    std::atomic<bool> connected{false}, cut{false};
    job.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        EXPECT_TRUE(fabric.wait_polling([&] { return connected.load(); }, soon()));
        internal::core_of(fabric).peers().connected(0)->cut();
        cut = true;
        return;
      }
      EXPECT_EQ(must(async_call(fabric, fabric.thread_of(1), [] { return 1; }).get(soon())), 1);
      connected = true;
      ASSERT_TRUE(wait_until([&] { return cut.load(); }, soon()));
      {
        const FailAllocation fail(1, skips);
        try {
          static_cast<void>(fabric.process_calls());
        } catch (const std::bad_alloc&) {
        }
        all_succeeded = failing_bytes != 0;
      }
      EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(1).ok(); }, soon())) << skips;
    });
  }
}

// ---- Waiters ------------------------------------------------------------------------------------

TEST(CoroutinesWithoutMemory, AreResumed) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Synchronizer one, other;
    const auto event = std::make_shared<internal::FutureValue<void>>(fabric);
    uint32_t resumed = 0;
    const auto await = [](Fabric& of, Synchronizer& done, uint32_t& count) -> Detached {
      const absl::Status status = co_await finished(of, done);
      if (status.ok()) ++count;
    };
    const auto await_event = [](Future<void> future, uint32_t& count) -> Detached {
      const absl::Status status = co_await future;
      if (status.ok()) ++count;
    };
    await(fabric, one, resumed);
    await(fabric, other, resumed);
    await_event(internal::FutureAccess::of(event), resumed);
    bool threw = false;
    size_t left = 0;
    {
      const FailAllocation fail(1);
      try {
        one.decrease();
        other.decrease();
        internal::tell_waiters(fabric);
        event->finish(absl::OkStatus(), {});
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      left = failing_bytes;
    }
    EXPECT_FALSE(threw);
    EXPECT_EQ(left, 1u) << "a resumption needed memory";
    EXPECT_TRUE(fabric.wait([&] { return resumed == 3; }, soon()));
  });
}

// The end of a transfer is repeated after std::bad_alloc, which a resumed coroutine may throw.
TEST(CoroutinesWithoutMemory, ARepeatedEventResumesOnce) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    const auto event = std::make_shared<internal::FutureValue<void>>(fabric);
    uint32_t resumed = 0;
    const auto await_event = [](Future<void> future, uint32_t& count) -> Detached {
      const absl::Status status = co_await future;
      if (status.ok()) ++count;
    };
    await_event(internal::FutureAccess::of(event), resumed);
    event->finish(absl::OkStatus(), {});
    event->finish(absl::InternalError("repeated"), {});
    EXPECT_TRUE(fabric.wait([&] { return resumed == 1; }, soon()));
    EXPECT_EQ(event->status(), absl::OkStatus());
  });
}

uint32_t ran;
// A function of its own: clang 14 fails for this coroutine within the test.
CallResult call_back(Fabric& fabric, uint32_t& called_back) {
  return call(
      fabric, fabric.thread_of(0), [] { ++ran; },
      on_consumed([&called_back](const absl::Status&) { ++called_back; }));
}

// All that a callback needs is allocated before the call is accepted: without memory the call
// throws, and the callback does not run.
TEST(CallbacksWithoutMemory, RunExactlyIfTheCallIsAccepted) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    ran = 0;
    uint32_t called_back = 0;
    uint32_t accepted = 0;
    bool all_succeeded = false;
    for (size_t skips = 0; skips < 50 && !all_succeeded; ++skips) {
      try {
        const FailAllocation fail(1, skips);
        const CallResult sent = call_back(fabric, called_back);
        if (sent.ok()) ++accepted;
        all_succeeded = failing_bytes != 0;
      } catch (const std::bad_alloc&) {
      }
      EXPECT_TRUE(fabric.wait([&] { return ran == accepted && called_back == accepted; }, soon()))
          << skips;
    }
    EXPECT_TRUE(all_succeeded);
  });
}

// A call that finds no memory in send() is withdrawn: its Synchronizer may end before the fabric.
TEST(CallsWithoutMemory, ACallThatThrowsNotifiesNothing) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  Synchronizer done;
  {
    LocalJob job({.processes = 1});
    job.run([&done](Fabric& fabric, uint32_t) {
      const std::array<std::byte, 8000> large{};
      bool threw = false;
      {
        const FailAllocation fail(large.size());  // that of the message
        try {
          must(call<RemoteNotify>(
              fabric, fabric.thread_of(0), [](const std::array<std::byte, 8000>&) {}, done, large));
        } catch (const std::bad_alloc&) {
          threw = true;
        }
      }
      EXPECT_TRUE(threw);
    });
  }
  EXPECT_FALSE(done.done()) << "the end of the fabric has notified it";
}

// A call whose receiver has no room is deferred. If there is no memory for that, its bytes must not
// count as deferred: with this deferred_bytes no later call would be accepted.
TEST(CallsWithoutMemory, ACallThatIsNotDeferredTakesNoDeferredBytes) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  LocalJobOptions options{.processes = 2};
  options.fabric.service_threads = 0;
  options.fabric.receive_units = 2;
  options.fabric.deferred_bytes = 1;
  LocalJob job(options);
  std::atomic<bool> stop{false}, stopped{false}, go{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {  // receives nothing between `stop` and `go`
      EXPECT_TRUE(fabric.wait_polling([&] { return stop.load(); }, soon()));
      stopped = true;
      EXPECT_TRUE(wait_until([&] { return go.load(); }, soon()));
      return;
    }
    Synchronizer connected;
    must(call<RemoteNotify>(
        fabric, 1, [] {}, connected));
    must(fabric.wait(connected, soon()));
    stop = true;
    EXPECT_TRUE(wait_until([&] { return stopped.load(); }, soon()));
    absl::Status sent;
    while (sent.ok()) sent = call<Fail>(fabric, 1, [] {}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
    const std::array<std::byte, 2000> large{};
    bool threw = false;
    {
      const FailAllocation fail(large.size());  // that of the deferred message
      try {
        must(call<RetryAsync>(
            fabric, 1, [](const std::array<std::byte, 2000>&) {}, large));
      } catch (const std::bad_alloc&) {
        threw = true;
      }
    }
    EXPECT_TRUE(threw);
    EXPECT_EQ(call<RetryAsync>(fabric, 1, [] {}).status(), absl::OkStatus());
    go = true;
  });
}

}  // namespace
}  // namespace cariama::testing
