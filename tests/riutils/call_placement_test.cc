// In which threads one-sided calls run, when old batches are published, and how many messages a
// broadcast sends.
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

struct PlacementCase {
  CallConsumer consumer;
  Arrival arrival;
};
void PrintTo(const PlacementCase& placement, std::ostream* out) {
  *out << (placement.consumer == CallConsumer::kHelpers ? "helpers" : "process") << "_"
       << arrival_name(placement.arrival);
}

class Consumers : public ::testing::TestWithParam<PlacementCase> {};
INSTANTIATE_TEST_SUITE_P(On, Consumers,
                         ::testing::Values(PlacementCase{CallConsumer::kHelpers, Arrival::kMapped},
                                           PlacementCase{CallConsumer::kHelpers, Arrival::kPolled},
                                           PlacementCase{CallConsumer::kHelpers, Arrival::kEvent},
                                           PlacementCase{CallConsumer::kProcess, Arrival::kMapped},
                                           PlacementCase{CallConsumer::kProcess, Arrival::kPolled},
                                           PlacementCase{CallConsumer::kProcess, Arrival::kEvent}),
                         [](const auto& info) {
                           return std::string(info.param.consumer == CallConsumer::kHelpers
                                                  ? "helpers_"
                                                  : "process_") +
                                  std::string(arrival_name(info.param.arrival));
                         });

// Records the calls that ran for one worker, from all senders.
struct Received {
  std::atomic<int> running{0};  // calls running at this moment
  std::atomic<uint64_t> overlaps{0};
  std::atomic<uint64_t> disorder{0};
  std::atomic<uint64_t> in_own_thread{0};
  std::atomic<uint64_t> count{0};
  std::atomic<std::thread::id> worker{};
  uint64_t next[8] = {};  // by sender; unguarded, since one call of a worker runs at a time
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

// The workers of rank 1 never run calls. Helper threads or the process consumer run them: one call
// at a time per worker, the calls of each sender in order, also after the consumer was woken.
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
      // The worker is busy: it runs no calls.
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
      // A pause, so that the consumers fall asleep.
      if (i % 500 == 0) {
        Synchronizer run;
        ASSERT_TRUE(messengers.call<RemoteNotify>(
            kThreads, [] {}, run));
        ASSERT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      }
    }
    EXPECT_EQ(messengers[kThreads].arrival(), GetParam().arrival);
    EXPECT_TRUE(messengers.shutdown_all(soon()).ok());
  });
  for (uint32_t to = kThreads; to < 2 * kThreads; ++to) {
    EXPECT_EQ(all[to].count.load(), kThreads * kCalls);
    EXPECT_EQ(all[to].disorder.load(), 0u);
    EXPECT_EQ(all[to].overlaps.load(), 0u);
    EXPECT_EQ(all[to].in_own_thread.load(), 0u);
  }
}

// One thread, the process consumer, runs the calls of all workers of the process.
TEST(ProcessConsumer, IsOneThread) {
  static std::set<std::thread::id> threads;  // unguarded: only one thread may write it
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
      EXPECT_TRUE(messengers.shutdown_all(soon()).ok());
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

// Two ages that need no waiting: one nanosecond, which has always passed, and one hour, which never
// passes.
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
      EXPECT_TRUE(aggregator.flush().ok());
      EXPECT_EQ(publications(aggregator), 1u);
      // A batch that reaches flush_bytes is published before its age.
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
      // The next call publishes the old batch, and so does process_calls().
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
      EXPECT_TRUE(aggregators.shutdown_all(soon()).ok());
    }
  });
}

// ---- Broadcasts ---------------------------------------------------------------------------------

// Counts messages: one service call reaches each process, and each process sends as many as it has
// children in a binomial tree, which has ceil(log2 P) levels.
TEST(BroadcastSteps, AreTheLogarithmOfTheProcesses) {
  for (const uint32_t processes : {1u, 2u, 5u, 8u, 11u}) {
    SCOPED_TRACE(processes);
    static std::atomic<Fabric*> fabrics[16];
    static std::atomic<uint32_t> ran[16];
    static std::atomic<bool> ended[16];
    for (uint32_t rank = 0; rank < 16; ++rank) {
      fabrics[rank] = nullptr;
      ran[rank] = 0;
      ended[rank] = false;
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
        EXPECT_TRUE(fabric.wait([&] { return ended[me].load(); }, soon()));
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
        // One call to its own thread, one answer to its parent, and one call to each child.
        EXPECT_EQ(sent, 1 + (rank == 0 ? 0 : 1) + children) << rank;
        sends += sent;
      }
      // In all: one call to and one answer from each other process, and one call within each
      // process.
      EXPECT_EQ(sends, 2 * (processes - 1) + processes);
      ASSERT_TRUE(broadcast(fabric, [] { ended[running_fabric()->rank()] = true; }));
    });
  }
}

}  // namespace
}  // namespace cariama
