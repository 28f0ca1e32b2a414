// Where one-sided calls run, when aggregated ones leave, and how far broadcasts travel.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

// ---- Consumers ----------------------------------------------------------------------------------

struct Way {
  CallConsumer consumer;
  Arrival arrival;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << (way.consumer == CallConsumer::kHelpers ? "helpers" : "process") << "_"
       << arrival_name(way.arrival);
}

class Consumers : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(On, Consumers,
                         ::testing::Values(Way{CallConsumer::kHelpers, Arrival::kMapped},
                                           Way{CallConsumer::kHelpers, Arrival::kPolled},
                                           Way{CallConsumer::kHelpers, Arrival::kEvent},
                                           Way{CallConsumer::kProcess, Arrival::kMapped},
                                           Way{CallConsumer::kProcess, Arrival::kPolled},
                                           Way{CallConsumer::kProcess, Arrival::kEvent}),
                         [](const auto& info) {
                           return std::string(info.param.consumer == CallConsumer::kHelpers
                                                  ? "helpers_"
                                                  : "process_") +
                                  std::string(arrival_name(info.param.arrival));
                         });

// What has come for one worker, from all senders.
struct Received {
  std::atomic<int> running{0};  // at this moment
  std::atomic<uint64_t> overlaps{0};
  std::atomic<uint64_t> disorder{0};
  std::atomic<uint64_t> in_own_thread{0};
  std::atomic<uint64_t> count{0};
  std::atomic<std::thread::id> worker{};
  uint64_t next[8] = {};  // by sender; guarded by "one at a time"
};
std::vector<Received>* received = nullptr;

void note(uint32_t to, uint32_t from, uint64_t number) {
  Received& here = (*received)[to];
  if (here.running.fetch_add(1) != 0) ++here.overlaps;
  if (here.worker.load() == std::this_thread::get_id()) ++here.in_own_thread;
  if (here.next[from]++ != number) ++here.disorder;
  here.running.fetch_sub(1);
  here.count.fetch_add(1);
}

// The workers of rank 1 never look for calls: others run them, one at a time for each worker, each
// sender's in order, also when they have to be woken.
TEST_P(Consumers, RunCallsForThreadsThatAreBusy) {
  constexpr uint32_t kThreads = 2;
  constexpr uint64_t kCalls = 2000;  // some hundred chunks
  std::vector<Received> all(2 * kThreads);
  received = &all;
  static std::atomic<int> set_up;
  set_up = 0;
  testing::LocalJobOptions options;
  options.transport = transport_case("shm");
  options.fabric.threads = kThreads;
  options.fabric.helper_threads = 2;
  options.init_thread = false;
  options.threads_stay = false;
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t thread) {
    const bool receives = fabric.rank() == 1;
    auto self =
        must(fabric.init_thread(thread, receives ? GetParam().consumer : CallConsumer::kThread));
    all[self->global_id()].worker = std::this_thread::get_id();
    ++set_up;
    while (set_up.load() != 2 * kThreads) std::this_thread::yield();
    const auto have_all = [&] {
      return all[2].count.load() == kThreads * kCalls && all[3].count.load() == kThreads * kCalls;
    };
    if (receives) {
      // Does something else.
      const Deadline deadline = soon();
      while (!have_all() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_TRUE(have_all());
      return;
    }
    MessengerOptions small;
    small.chunk_bytes = 1024;
    small.max_chunks = 4;
    small.arrival = GetParam().arrival;
    RDMAMessengerGlobal messengers(*self, small);
    const uint32_t me = self->global_id();
    for (uint64_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = kThreads; to < 2 * kThreads; ++to) {
        ASSERT_TRUE(messengers.call(to, [to, me, i] { note(to, me, i); }));
      }
      // Lets them fall asleep.
      if (i % 500 == 0) {
        Synchronizer run;
        ASSERT_TRUE(messengers.call<RemoteNotify>(
            kThreads, [] {}, run));
        ASSERT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      }
    }
    EXPECT_EQ(messengers[kThreads].arrival(), GetParam().arrival);
    EXPECT_TRUE(messengers.shutdown_all(soon()));
  });
  for (uint32_t to = kThreads; to < 2 * kThreads; ++to) {
    EXPECT_EQ(all[to].count.load(), kThreads * kCalls);
    EXPECT_EQ(all[to].disorder.load(), 0u);
    EXPECT_EQ(all[to].overlaps.load(), 0u);
    EXPECT_EQ(all[to].in_own_thread.load(), 0u);
  }
}

// The process consumer is one thread, whichever worker is called.
TEST(ProcessConsumer, IsOneThread) {
  static std::set<std::thread::id> threads;  // one at a time writes it: that is what is tested
  static std::atomic<int> count;
  threads.clear();
  count = 0;
  testing::LocalJobOptions options;
  options.transport = transport_case("shm");
  options.fabric.threads = 3;
  options.init_thread = false;
  options.threads_stay = false;
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t thread) {
    auto self = must(fabric.init_thread(
        thread, fabric.rank() == 1 ? CallConsumer::kProcess : CallConsumer::kThread));
    local.meet(6);
    if (fabric.rank() == 0 && thread == 0) {
      RDMAMessengerGlobal messengers(*self);
      Synchronizer run(300);
      for (uint32_t i = 0; i < 300; ++i) {
        ASSERT_TRUE(messengers.call<RemoteNotify>(
            3 + i % 3,
            [] {
              threads.insert(std::this_thread::get_id());
              ++count;
            },
            run));
      }
      EXPECT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      EXPECT_TRUE(messengers.shutdown_all(soon()));
    }
    local.meet(6);
  });
  EXPECT_EQ(count.load(), 300);
  EXPECT_EQ(threads.size(), 1u);
}

// ---- flush_age ----------------------------------------------------------------------------------

class FlushAge : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(On, FlushAge, ::testing::Values("shm", "sim"),
                         [](const auto& info) { return std::string(info.param); });

// Two ages without a clock to wait for: one that has always passed, one that never does.
TEST_P(FlushAge, OldBatchesAreFlushedAndYoungOnesAreNot) {
  testing::LocalJobOptions options;
  options.transport = transport_case(GetParam());
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    ThreadContext& self = *fabric.this_thread();
    const auto publications = [](auto& calls) { return calls.statistics().publications; };
    {
      MessengerOptions young;
      young.flush_age = std::chrono::hours(1);
      RDMAMessenger messenger(self, 1, young);
      RDMAAggregator aggregator(messenger);
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(aggregator.call([] {}));
      aggregator.process_calls();
      EXPECT_EQ(publications(aggregator), 0u);
      EXPECT_TRUE(aggregator.flush());
      EXPECT_EQ(publications(aggregator), 1u);
      // Its size publishes it all the same.
      struct Load {
        uint64_t words[64];
      };
      for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(aggregator.call([load = Load{}] { static_cast<void>(load); }));
      }
      EXPECT_GE(publications(aggregator), 2u);
      EXPECT_EQ(aggregator.shutdown(soon()), absl::OkStatus());
    }
    {
      MessengerOptions old;
      old.flush_age = std::chrono::nanoseconds(1);
      RDMAMessenger messenger(self, 1, old);
      RDMAAggregator aggregator(messenger);
      Synchronizer run(2);
      ASSERT_TRUE(aggregator.call<RemoteNotify>([] {}, run));
      // By the next call, at the latest; and by process_calls().
      ASSERT_TRUE(aggregator.call<RemoteNotify>([] {}, run));
      EXPECT_TRUE(fabric.wait([&] { return aggregator.process_calls(), run.done(); }, soon()));
      EXPECT_EQ(run.status(), absl::OkStatus());
      EXPECT_EQ(aggregator.shutdown(soon()), absl::OkStatus());
    }
    {
      RDMAAggregatorGlobal aggregators(self, {.flush_age = std::chrono::nanoseconds(1)});
      Synchronizer run;
      ASSERT_TRUE(aggregators.call<RemoteNotify>(
          1, [] {}, run));
      EXPECT_TRUE(fabric.wait([&] { return aggregators.process_calls_all(), run.done(); }, soon()));
      EXPECT_TRUE(aggregators.shutdown_all(soon()));
    }
  });
}

// ---- Broadcasts ---------------------------------------------------------------------------------

// By count: every process is reached by one service call, and each makes as many as its place in a
// binomial tree says, which has ceil(log2 P) levels.
TEST(BroadcastSteps, AreTheLogarithmOfTheProcesses) {
  for (const uint32_t processes : {1u, 2u, 5u, 8u, 11u}) {
    SCOPED_TRACE(processes);
    static std::atomic<Fabric*> fabrics[16];
    static std::atomic<uint32_t> ran[16];
    static std::atomic<bool> over[16];
    for (uint32_t rank = 0; rank < 16; ++rank) {
      fabrics[rank] = nullptr;
      ran[rank] = 0;
      over[rank] = false;
    }
    testing::LocalJobOptions options;
    options.processes = processes;
    options.transport = transport_case("sim");
    LocalJob local(options);
    local.run([&](Fabric& fabric, uint32_t) {
      const uint32_t me = fabric.rank();
      fabrics[me] = &fabric;
      local.meet(processes);
      if (me != 0) {
        EXPECT_TRUE(fabric.wait([&] { return over[me].load(); }, soon()));
        return;
      }
      Synchronizer done;
      ASSERT_TRUE(broadcast<RemoteNotify>(
          fabric, [] { ++ran[running_fabric()->rank()]; }, done));
      ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status(), absl::OkStatus());
      uint64_t sends = 0;
      for (uint32_t rank = 0; rank < processes; ++rank) {
        EXPECT_EQ(ran[rank].load(), 1u) << rank;
        const uint64_t sent = fabrics[rank].load()->statistics().calls_sent;
        uint32_t children = 0;
        while ((rank >> children & 1) == 0 && rank + (1u << children) < processes) ++children;
        // To itself, for its thread; to its parent, the answer; to its children.
        EXPECT_EQ(sent, 1 + (rank == 0 ? 0 : 1) + children) << rank;
        sends += sent;
      }
      // In all: one down to each other process, one up from it, and one within each.
      EXPECT_EQ(sends, 2 * (processes - 1) + processes);
      ASSERT_TRUE(broadcast(fabric, [] { over[running_fabric()->rank()] = true; }));
    });
  }
}

}  // namespace
}  // namespace cariama
