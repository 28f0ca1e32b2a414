// How the callers of one-sided calls learn of their ends: futures, coroutines, notifications and
// what each of them costs; and what calls say when the fabric has ended.
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
#include "tests/riutils/testing/way.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::Way;

class CallResults : public ::testing::TestWithParam<Way> {
 protected:
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes) {
    return testing::job_on(GetParam(), processes);
  }
  [[nodiscard]] static MessengerOptions small() { return testing::small_channel(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(On, CallResults,
                         ::testing::Values(Way{"shm", Arrival::kAuto}, Way{"shm", Arrival::kPolled},
                                           Way{"shm", Arrival::kEvent}, Way{"sim", Arrival::kAuto},
                                           Way{"sim", Arrival::kEvent},
                                           Way{"fault_shm", Arrival::kPolled}),
                         testing::way_name);

// ---- Futures ------------------------------------------------------------------------------------

TEST_P(CallResults, FuturesBringValuesAndErrors) {
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
    Future<int> held = aggregator.async_call([] { return 7; });
    EXPECT_FALSE(held.ready());
    EXPECT_TRUE(aggregator.flush());
    EXPECT_EQ(must(held.get(soon())), 7);

    RDMAMessengerGlobal messengers(*fabric.this_thread(), small());
    EXPECT_EQ(must(messengers
                       .async_call(
                           1, [](int a) { return a + 1; }, 1)
                       .get(soon())),
              2);
    Future<int> nobody = messengers.async_call(99, [] { return 1; });
    EXPECT_TRUE(nobody.ready());
    EXPECT_TRUE(absl::IsOutOfRange(nobody.get(soon()).status()));
    RDMAMessenger lost(*fabric.this_thread(), 99, small());
    EXPECT_TRUE(absl::IsOutOfRange(lost.async_call([] { return 1; }).get(soon()).status()));
    EXPECT_TRUE(messengers.shutdown_all(soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

Detached ask_on_and_on(Fabric& fabric, RDMAMessenger& messenger, std::atomic<int>& steps) {
  for (int i = 0; i < 20; ++i) {
    absl::StatusOr<int> value = co_await messenger.async_call([i] { return i + 1; });
    EXPECT_EQ(must(std::move(value)), i + 1);
    ++steps;
  }
  Synchronizer run;
  EXPECT_TRUE(messenger.call<RemoteNotify>([] {}, run));
  EXPECT_EQ(co_await finished(fabric, run), absl::OkStatus());
  ++steps;
  // Left at once: there is nothing to wait for.
  Synchronizer left;
  EXPECT_TRUE(messenger.call([] {}, left));
  EXPECT_EQ(co_await finished(fabric, left), absl::OkStatus());
  ++steps;
  EXPECT_TRUE(absl::IsInternal(
      co_await messenger.async_call([] { throw std::runtime_error("expected"); })));
  ++steps;
}

TEST_P(CallResults, CoroutinesAwaitThem) {
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    std::atomic<int> steps = 0;
    ask_on_and_on(fabric, messenger, steps);
    EXPECT_TRUE(fabric.wait([&] { return steps.load() == 23; }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// What is kept is brought on by a helper thread, and who waits for it to leave is asleep.
class KeptCalls : public CallResults {};
INSTANTIATE_TEST_SUITE_P(On, KeptCalls,
                         ::testing::Values(Way{"shm", Arrival::kAuto}, Way{"shm", Arrival::kPolled},
                                           Way{"shm", Arrival::kEvent}),
                         testing::way_name);

Detached wait_for_leaving(Fabric& fabric, Synchronizer& left, std::atomic<bool>& gone) {
  EXPECT_EQ(co_await finished(fabric, left), absl::OkStatus());
  gone = true;
}

TEST_P(KeptCalls, WhoWaitsForTheirLeavingIsWoken) {
  static std::atomic<bool> go;
  static std::atomic<int> run;
  go = false;
  run = 0;
  constexpr int kCalls = 600;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      // Receives nothing before it is told to.
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
    Synchronizer left(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(
          messenger.call<RetryAsync>([load = Load{}] { run += load.words[0] == 0 ? 1 : 2; }, left));
    }
    EXPECT_GT(messenger.statistics().exceeding, 0u);
    EXPECT_FALSE(left.done());
    std::atomic<bool> gone = false;
    wait_for_leaving(fabric, left, gone);
    go = true;
    EXPECT_TRUE(fabric.wait([&] { return left.done() && gone.load(); }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(run.load(), kCalls);
}

// ---- What notifications cost --------------------------------------------------------------------

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
      // Each phase's calls are the only things that come meanwhile.
      FabricStatistics at[4];
      for (int i = 1; i <= 3; ++i) {
        EXPECT_TRUE(fabric.wait_polling([&] { return phase.load() == i; }, soon()));
        // An answer is counted when it has been posted, perhaps after its caller has heard of it:
        // the two of the set-up, and then those of the calls.
        const uint64_t least = i == 1 ? 2 : at[i - 1].calls_sent + 1 + (i == 2 ? kCalls : 0);
        EXPECT_TRUE(
            fabric.wait_polling([&] { return fabric.statistics().calls_sent >= least; }, soon()));
        at[i] = fabric.statistics();
        must(call(fabric, 0, [i] { phase = i + 10; }));
      }
      // Between phases 1 and 2 ran kCalls with a plain Synchronizer. One call was made by hand.
      EXPECT_EQ(at[2].calls_sent - at[1].calls_sent - 1, kCalls);
      // Between 2 and 3 kCalls with a RemoteObject.
      EXPECT_EQ(at[3].calls_sent - at[2].calls_sent - 1, 0u);
      const uint64_t writes = at[3].writes - at[2].writes;
      EXPECT_GE(writes, kCalls + kBuffers);
      // Heartbeats repeat the credits of what came before, each once: how many come meanwhile is a
      // matter of load. A second write for each result would be as many again. Events take receive
      // units all the time, whose credits are returned by writes, too.
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
    // The calls themselves are one-sided: none was sent.
    EXPECT_EQ(fabric.statistics().calls_sent, before.calls_sent);

    // The limits and failures of a RemoteObject.
    EXPECT_TRUE(absl::IsResourceExhausted(messenger.call<RemoteNotify>([] {}, object).status()));
    auto failing = must(RemoteObject<Synchronizer>::create(fabric, 2));
    ASSERT_TRUE(
        messenger.call<RemoteNotify>([] { throw std::runtime_error("expected"); }, failing));
    ASSERT_TRUE(messenger.call<LocalNotify>([] {}, failing));
    EXPECT_TRUE(absl::IsInternal(failing.wait(soon())));
    auto never = must(RemoteObject<Synchronizer>::create(fabric));
    RDMAMessenger nobody(*fabric.this_thread(), 99, small());
    EXPECT_TRUE(absl::IsOutOfRange(nobody.call<RemoteNotify>([] {}, never).status()));
    EXPECT_EQ(never.operations_left(), 1u);  // it was given back
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// ---- After the end ------------------------------------------------------------------------------

TEST_P(CallResults, AfterFinalizeEverythingSaysSo) {
  static std::atomic<int> run;
  run = 0;
  testing::LocalJobOptions options = job(2);
  options.finalize = false;
  options.threads_stay = false;
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    RDMAMessenger messenger(self, 1 - fabric.rank(), small());
    RDMAMessenger own(self, fabric.rank());
    RDMAAggregator aggregator(messenger);
    auto object = must(RemoteObject<Synchronizer>::create(fabric));
    ASSERT_TRUE(messenger.call([] { ++run; }));
    ASSERT_TRUE(own.call([] { ++run; }));
    EXPECT_EQ(fabric.finalize(soon()), absl::OkStatus());
    EXPECT_EQ(run.load(), 4);  // of both processes

    const auto says_so = [](const absl::Status& status) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("the fabric was finalized"));
    };
    const auto touch = [] { ++run; };
    const std::byte byte{};
    // Send-based.
    Synchronizer done;
    says_so(call(fabric, 1 - fabric.rank(), touch));
    says_so(call(fabric, fabric.rank(), touch));
    says_so(call<RemoteNotify>(fabric, 1 - fabric.rank(), touch, done));
    says_so(call<RemoteNotify>(fabric, 1 - fabric.rank(), touch, object));
    says_so(async_call(fabric, 1 - fabric.rank(), touch).get(soon()));
    // One-sided: a channel that was in use, one within the process, and a new one.
    RDMAMessenger late(self, 1 - fabric.rank(), small());
    RDMAMessenger late_own(self, fabric.rank());
    for (RDMAMessenger* one : {&messenger, &own, &late, &late_own}) {
      says_so(one->call(touch).status());
      says_so(one->call<RetryAsync>(touch).status());
      says_so(one->call<RemoteNotify>(touch, done).status());
      says_so(one->call<RemoteNotify>(touch, object).status());
      says_so(one->call_buffer([](void*, uint64_t) { ++run; }, std::span(&byte, 1)).status());
      says_so(one->call_buffer<Sync>([](void*, uint64_t) { ++run; }, std::span(&byte, 1)).status());
      says_so(one->async_call(touch).get(soon()));
      says_so(one->setup());
    }
    says_so(aggregator.call(touch).status());
    says_so(aggregator.flush().status());
    says_so(broadcast(fabric, touch).status());
    EXPECT_EQ(done.operations_left(), 1u);  // no call was accepted
    EXPECT_EQ(object.operations_left(), 1u);
    says_so(messenger.shutdown(soon()));
  });
  EXPECT_EQ(run.load(), 4);
}

}  // namespace
}  // namespace cariama
