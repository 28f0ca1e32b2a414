// How the end of a one-sided call is reported to the caller: futures, coroutines and notifications,
// and the messages that each costs; and the errors of calls after the fabric was finalized.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/future.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using ::testing::HasSubstr;
using testing::LocalJob;
using testing::must;
using testing::soon;

class CallResults : public ::testing::TestWithParam<ChannelCase> {
 protected:
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes) {
    return testing::job_on(GetParam(), processes);
  }
  [[nodiscard]] static MessengerOptions small() { return testing::small_channel(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(On, CallResults,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"sim", Arrival::kAuto},
                                           ChannelCase{"sim", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kPolled}),
                         testing::channel_case_name);

// ---- Futures ------------------------------------------------------------------------------------

TEST_P(CallResults, FuturesReturnValuesAndErrors) {
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    Future<std::string> text = messenger.async_call(
        [](const std::string& its, int times) {
          std::string all;
          for (int i = 0; i < times; ++i) all += its;
          return all;
        },
        std::string("ab"), 3);
    std::vector<Future<int>> many;
    for (int i = 0; i < 100; ++i) many.push_back(messenger.async_call([i] { return i * i; }));
    Future<void> nothing = messenger.async_call([] {});
    Future<int> thrown =
        messenger.async_call([]() -> int { throw std::out_of_range("of my mind"); });
    EXPECT_EQ(must(text.get(soon())), "ababab");
    for (int i = 0; i < 100; ++i) EXPECT_EQ(must(many[static_cast<size_t>(i)].get(soon())), i * i);
    EXPECT_EQ(nothing.get(soon()), absl::OkStatus());
    const absl::Status why = thrown.get(soon()).status();
    EXPECT_TRUE(absl::IsInternal(why)) << why;
    EXPECT_THAT(std::string(why.message()), HasSubstr("of my mind"));

    RDMAAggregator aggregator(messenger);
    Future<int> batched = aggregator.async_call([] { return 7; });
    EXPECT_FALSE(batched.ready());
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_EQ(must(batched.get(soon())), 7);

    RDMAMessengerGlobal messengers(*fabric.this_thread(), small());
    EXPECT_EQ(must(messengers
                       .async_call(
                           1, [](int a) { return a + 1; }, 1)
                       .get(soon())),
              2);
    Future<int> refused = messengers.async_call(99, [] { return 1; });
    EXPECT_TRUE(refused.ready());
    EXPECT_TRUE(absl::IsOutOfRange(refused.get(soon()).status()));
    RDMAMessenger invalid(*fabric.this_thread(), 99, small());
    EXPECT_TRUE(absl::IsOutOfRange(invalid.async_call([] { return 1; }).get(soon()).status()));
    EXPECT_TRUE(messengers.shutdown_all(soon()).ok());
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

Detached await_calls(Fabric& fabric, RDMAMessenger& messenger, std::atomic<int>& steps) {
  for (int i = 0; i < 20; ++i) {
    absl::StatusOr<int> value = co_await messenger.async_call([i] { return i + 1; });
    EXPECT_EQ(must(std::move(value)), i + 1);
    ++steps;
  }
  Synchronizer run;
  EXPECT_TRUE(messenger.call<RemoteNotify>([] {}, run));
  EXPECT_EQ(co_await finished(fabric, run), absl::OkStatus());
  ++steps;
  // Published immediately: the Synchronizer is already counted down.
  Synchronizer left;
  EXPECT_TRUE(messenger.call([] {}, left));
  EXPECT_EQ(co_await finished(fabric, left), absl::OkStatus());
  ++steps;
  EXPECT_TRUE(absl::IsInternal(
      co_await messenger.async_call([] { throw std::runtime_error("expected"); })));
  ++steps;
}

TEST_P(CallResults, CoroutinesAwaitFutures) {
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    std::atomic<int> steps = 0;
    await_calls(fabric, messenger, steps);
    EXPECT_TRUE(fabric.wait([&] { return steps.load() == 23; }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// The drain thread publishes deferred calls. The thread that waits for their publication sleeps.
class DeferredCalls : public CallResults {};
INSTANTIATE_TEST_SUITE_P(On, DeferredCalls,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent}),
                         testing::channel_case_name);

Detached wait_for_publication(Fabric& fabric, Synchronizer& published, std::atomic<bool>& resumed) {
  EXPECT_EQ(co_await finished(fabric, published), absl::OkStatus());
  resumed = true;
}

TEST_P(DeferredCalls, PublicationWakesWaitingThreads) {
  static std::atomic<bool> go;
  static std::atomic<int> run;
  go = false;
  run = 0;
  constexpr int kCalls = 600;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      // Runs no calls before `go` is set.
      while (!go.load()) std::this_thread::yield();
      EXPECT_TRUE(fabric.wait([] { return run.load() == kCalls; }, soon()));
      return;
    }
    MessengerOptions options = small();
    options.max_chunks = 2;
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    struct Load {
      uint64_t words[8];
    };
    Synchronizer published(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(messenger.call<RetryAsync>([load = Load{}] { run += load.words[0] == 0 ? 1 : 2; },
                                             published));
    }
    EXPECT_GT(messenger.statistics().deferred, 0u);
    EXPECT_FALSE(published.done());
    std::atomic<bool> resumed = false;
    wait_for_publication(fabric, published, resumed);
    go = true;
    EXPECT_TRUE(fabric.wait([&] { return published.done() && resumed.load(); }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(run.load(), kCalls);
}

// ---- Messages per notification ------------------------------------------------------------------

TEST_P(CallResults, APlainNotificationIsOneCallAndARemoteObjectsOneWrite) {
  static std::atomic<int> phase;
  phase = 0;
  static RemoteMemoryLocator place;
  static std::atomic<uint64_t> buffers;
  buffers = 0;
  constexpr uint64_t kCalls = 10;
  constexpr uint64_t kBuffers = 5;  // one of each call_buffer that can have a RemoteObject
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      place = must(internal::locate_for(fabric, 0, must(fabric.memory().allocate(2000)), 0, 2000));
      // During each phase only the calls of that phase arrive.
      FabricStatistics at[4];
      for (int i = 1; i <= 3; ++i) {
        EXPECT_TRUE(fabric.wait_polling([&] { return phase.load() == i; }, soon()));
        // An answer or a write is counted after it was posted, possibly after its caller has
        // received it. So wait until all expected ones are counted: the two answers of the set-up,
        // then those of the calls, and the writes of results.
        const uint64_t least = i == 1 ? 2 : at[i - 1].calls_sent + 1 + (i == 2 ? kCalls : 0);
        const uint64_t writes = i == 3 ? at[2].writes + kCalls + kBuffers : 0;
        EXPECT_TRUE(fabric.wait_polling(
            [&] {
              const FabricStatistics now = fabric.statistics();
              return now.calls_sent >= least && now.writes >= writes;
            },
            soon()));
        at[i] = fabric.statistics();
        must(call(fabric, 0, [i] { phase = i + 10; }));
      }
      // Phase 1 to 2: kCalls calls with a plain Synchronizer, one answer each. The test itself sent
      // one more call (the -1).
      EXPECT_EQ(at[2].calls_sent - at[1].calls_sent - 1, kCalls);
      // Phase 2 to 3: calls with a RemoteObject, one write each and no answers.
      EXPECT_EQ(at[3].calls_sent - at[2].calls_sent - 1, 0u);
      const uint64_t writes = at[3].writes - at[2].writes;
      EXPECT_GE(writes, kCalls + kBuffers);
      // Heartbeats write credits again, once per earlier credit; their number depends on the load.
      // A second write per result would add kCalls + kBuffers writes. With Arrival::kEvent the
      // limit is not checked: each event takes a receive unit, and its credit is returned by a
      // write.
      if (GetParam().arrival != Arrival::kEvent) {
        EXPECT_LT(writes, 2 * (kCalls + kBuffers));
      }
      return;
    }
    const auto next = [&](int number) {
      phase = number;
      EXPECT_TRUE(fabric.wait([&] { return phase.load() == number + 10; }, soon()));
    };
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    EXPECT_EQ(messenger.setup(), absl::OkStatus());
    next(1);
    const FabricStatistics before = fabric.statistics();
    Synchronizer plain(kCalls);
    for (uint64_t i = 0; i < kCalls; ++i) ASSERT_TRUE(messenger.call<RemoteNotify>([] {}, plain));
    EXPECT_TRUE(fabric.wait([&] { return plain.done(); }, soon()));
    next(2);
    auto object = must(RemoteObject<Synchronizer>::create(fabric, kCalls + kBuffers));
    for (uint64_t i = 0; i < kCalls; ++i) ASSERT_TRUE(messenger.call<RemoteNotify>([] {}, object));
    const auto look = [](void* buffer, uint64_t size) {
      const auto* const bytes = static_cast<const char*>(buffer);
      if (std::string(bytes, size) == std::string(2000, 'b')) ++buffers;
    };
    RDMAMemory memory = must(fabric.memory().allocate(2000));
    std::memset(memory.get_buffer(), 'b', 2000);
    const std::string own(2000, 'b');
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(look, std::as_bytes(std::span(own)), object));
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(look, &memory, 0, 2000, object));
    ASSERT_TRUE((messenger.call_buffer<RemoteNotify, Sync>(look, &memory, 0, 2000, object)));
    ASSERT_TRUE((messenger.call_buffer<RemoteNotify, Async>(look, &memory, 0, 2000, object)));
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(look, &memory, 0, 2000, place, object));
    EXPECT_EQ(object.wait(soon()), absl::OkStatus());
    EXPECT_EQ(buffers.load(), kBuffers);
    next(3);
    // The calls themselves are one-sided: no send-based call was sent.
    EXPECT_EQ(fabric.statistics().calls_sent, before.calls_sent);

    // The limits and failures of a RemoteObject.
    EXPECT_TRUE(absl::IsFailedPrecondition(messenger.call<RemoteNotify>([] {}, object).status()));
    auto failing = must(RemoteObject<Synchronizer>::create(fabric, 2));
    ASSERT_TRUE(
        messenger.call<RemoteNotify>([] { throw std::runtime_error("expected"); }, failing));
    ASSERT_TRUE(messenger.call<RemoteNotify>([] {}, failing));
    EXPECT_TRUE(absl::IsInternal(failing.wait(soon())));
    auto never = must(RemoteObject<Synchronizer>::create(fabric));
    RDMAMessenger invalid(*fabric.this_thread(), 99, small());
    EXPECT_TRUE(absl::IsOutOfRange(invalid.call<RemoteNotify>([] {}, never).status()));
    EXPECT_EQ(never.operations_left(), 1u);  // the refused call does not count
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// ---- After finalize -----------------------------------------------------------------------------

TEST_P(CallResults, AfterFinalizeAllCallsReturnUnavailable) {
  static std::atomic<int> run;
  run = 0;
  testing::LocalJobOptions options = job(2);
  options.finalize = false;
  options.threads_stay = false;
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    RDMAMessenger messenger(self, fabric.thread_of(1 - fabric.rank()), small());
    RDMAMessenger own(self, fabric.thread_of(fabric.rank()));
    RDMAAggregator aggregator(messenger);
    auto object = must(RemoteObject<Synchronizer>::create(fabric));
    ASSERT_TRUE(messenger.call([] { ++run; }));
    ASSERT_TRUE(own.call([] { ++run; }));
    EXPECT_EQ(fabric.finalize(soon()), absl::OkStatus());
    EXPECT_EQ(run.load(), 4);  // calls of both processes

    const auto expect_unavailable = [](const absl::Status& status) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("the fabric was finalized"));
    };
    const auto touch = [] { ++run; };
    const std::byte byte{};
    // Send-based calls.
    Synchronizer done;
    expect_unavailable(call(fabric, fabric.thread_of(1 - fabric.rank()), touch));
    expect_unavailable(call(fabric, fabric.thread_of(fabric.rank()), touch));
    expect_unavailable(
        call<RemoteNotify>(fabric, fabric.thread_of(1 - fabric.rank()), touch, done));
    expect_unavailable(
        call<RemoteNotify>(fabric, fabric.thread_of(1 - fabric.rank()), touch, object));
    expect_unavailable(async_call(fabric, fabric.thread_of(1 - fabric.rank()), touch).get(soon()));
    // One-sided calls: channels that were in use and new ones, to the peer and within the process.
    RDMAMessenger late(self, fabric.thread_of(1 - fabric.rank()), small());
    RDMAMessenger late_own(self, fabric.thread_of(fabric.rank()));
    for (RDMAMessenger* one : {&messenger, &own, &late, &late_own}) {
      expect_unavailable(one->call(touch).status());
      expect_unavailable(one->call<RetryAsync>(touch).status());
      expect_unavailable(one->call<RemoteNotify>(touch, done).status());
      expect_unavailable(one->call<RemoteNotify>(touch, object).status());
      expect_unavailable(
          one->call_buffer([](void*, uint64_t) { ++run; }, std::span(&byte, 1)).status());
      expect_unavailable(
          one->call_buffer<Sync>([](void*, uint64_t) { ++run; }, std::span(&byte, 1)).status());
      expect_unavailable(one->async_call(touch).get(soon()));
      expect_unavailable(one->setup());
    }
    expect_unavailable(aggregator.call(touch).status());
    expect_unavailable(aggregator.flush());
    expect_unavailable(broadcast(fabric, touch).status());
    expect_unavailable(RDMAMessengerGlobal(self).broadcast(touch).status());
    EXPECT_EQ(done.operations_left(), 1u);  // no call was accepted
    EXPECT_EQ(object.operations_left(), 1u);
    expect_unavailable(messenger.shutdown(soon()));
  });
  EXPECT_EQ(run.load(), 4);
}

}  // namespace
}  // namespace cariama
