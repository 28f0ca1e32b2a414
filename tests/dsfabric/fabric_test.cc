// Processes of a job connect, call one another, wait, and end together.
#include "dsfabric/fabric.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "dsfabric/fabric/participation.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/send_call.h"
#include "dsfabric/serializer.h"
#include "dtutils/system_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

class FabricTest : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static LocalJobOptions job_of(uint32_t processes, uint32_t threads = 1) {
    return {.processes = processes,
            .transport = transport_case(GetParam()),
            .fabric = {.threads = threads}};
  }
};

std::atomic<uint64_t> sum{0};

TEST_P(FabricTest, EveryThreadCallsEveryThread) {
  sum = 0;
  LocalJobOptions options = job_of(3, 2);
  options.threads_stay = false;  // calls also arrive after the threads have left
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    const uint64_t self = fabric.this_thread()->global_id();
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      must(call(fabric, to, [self] { sum += 1 + self; }));
    }
  });
  EXPECT_EQ(sum.load(), 6u * (1 + 2 + 3 + 4 + 5 + 6));
}

TEST_P(FabricTest, MoreProcessesThanCores) {
  sum = 0;
  LocalJob job(job_of(8, 2));
  job.run([](Fabric& fabric, uint32_t) {
    for (int round = 0; round < 4; ++round) {
      Synchronizer done(fabric.total_threads());
      for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
        must(call<RemoteNotify>(
            fabric, to, [] { ++sum; }, done));
      }
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    }
  });
  EXPECT_EQ(sum.load(), 4u * 16 * 16);
}

TEST_P(FabricTest, AJobOfOneProcess) {
  sum = 0;
  LocalJob job(job_of(1));
  job.run([](Fabric& fabric, uint32_t) {
    EXPECT_EQ(fabric.size(), 1u);
    must(call(fabric, 0, [] { ++sum; }));
    EXPECT_EQ(fabric.process_calls(), 1u);
    must(call(fabric, 0, [] { ++sum; }));  // run by finalize()
    EXPECT_TRUE(absl::IsInvalidArgument(fabric.connection(0).status()));
  });
  EXPECT_EQ(sum.load(), 2u);
}

// Without a service thread: process_calls() receives messages, and so does a thread that waits for
// an answer.
TEST_P(FabricTest, WorkersReceiveByThemselves) {
  static std::atomic<bool> finished;
  finished = false;
  LocalJobOptions options = job_of(2);
  options.fabric.service_threads = 0;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until(
          [&] {
            fabric.process_calls();
            return finished.load();
          },
          soon()));
      return;
    }
    for (int i = 0; i < 3; ++i) {
      int result = 0;
      Synchronizer done;
      must(call_return(
          fabric, 1, [](int x) { return x * x; }, result, done, i));
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(result, i * i);
      Synchronizer served;
      must(service_call<RemoteNotify>(
          fabric, 1, [] {}, served));
      EXPECT_TRUE(fabric.wait_polling([&] { return served.done(); }, soon()));
    }
    finished = true;
  });
}

// wait() for a Synchronizer runs the calls that count it down, and keeps its deadline.
TEST_P(FabricTest, WaitsForASynchronizer) {
  static Synchronizer* counted;  // of rank 0
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) return;
    Synchronizer own(2);
    counted = &own;
    EXPECT_EQ(fabric.wait(own, deadline_after(std::chrono::milliseconds(1))).code(),
              absl::StatusCode::kDeadlineExceeded);
    // The calls run in this thread, while it waits.
    must(call(fabric, 0, [] { counted->decrease(); }));
    must(call(fabric, 0, [] { counted->fail(absl::DataLossError("the second one")); }));
    const absl::Status ended = fabric.wait(own, soon());
    EXPECT_EQ(ended.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(ended.message(), "the second one");
    Synchronizer ran;
    must(call<RemoteNotify>(
        fabric, 1, [] {}, ran));
    must(fabric.wait(ran, soon()));
  });
}

// The threads of a process share connections as the options say, and calls arrive.
TEST_P(FabricTest, ThreadsShareQueuePairs) {
  struct Case {
    QueuePairSharing sharing;
    uint32_t expected;
  };
  const auto nodes =
      static_cast<uint32_t>(1 + *std::max_element(numa_nodes().begin(), numa_nodes().end()));
  for (const Case& one :
       {Case{QueuePairSharing::kProcess, 1}, Case{QueuePairSharing::kNumaNode, nodes},
        Case{QueuePairSharing::kThread, 3}}) {
    sum = 0;
    LocalJobOptions options = job_of(2, 3);
    options.fabric.queue_pair_sharing = one.sharing;
    LocalJob job(options);
    job.run([&](Fabric& fabric, uint32_t thread) {
      EXPECT_EQ(fabric.options().queue_pairs, one.expected);
      const uint32_t other = 1 - fabric.rank();
      Synchronizer ran;
      must(call<RemoteNotify>(
          fabric, other * 3 + thread, [] { ++sum; }, ran));
      must(fabric.wait(ran, soon()));
      std::set<TransmitQueue*> queues;
      for (uint32_t index = 0; index < 3; ++index) {
        queues.insert(must(fabric.connection(other, index)));
      }
      if (one.sharing != QueuePairSharing::kNumaNode) {
        EXPECT_EQ(queues.size(), one.expected);
      } else {
        EXPECT_LE(queues.size(), nodes);
      }
    });
    EXPECT_EQ(sum.load(), 6u);
  }
}

// The allocators have the sizes that the user has set. memory_statistics() and options() return the
// effective values.
TEST_P(FabricTest, AllocatorsAreChosen) {
  LocalJobOptions options = job_of(2);
  options.fabric.superpages.chunk_bytes = size_t{1} << 20;
  options.fabric.superpages.first_superpage_bytes = size_t{8} << 20;
  options.fabric.thread_buffers = {.unit_bytes = 8192, .initial_units = 4};
  options.fabric.general_memory.max_bytes = size_t{4} << 20;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    const RDMAAllocatorStatistics memory = fabric.memory_statistics();
    EXPECT_EQ(memory.bytes % (size_t{8} << 20), 0u);
    EXPECT_GE(memory.bytes, size_t{8} << 20);
    EXPECT_EQ(fabric.this_thread()->buffers().options().unit_bytes, 8192u);
    EXPECT_EQ(fabric.this_thread()->buffers().allocate()->size(), 8192u);
    EXPECT_TRUE(absl::IsResourceExhausted(fabric.memory().allocate(size_t{5} << 20).status()));
    EXPECT_NE(fabric.device_description(1 - fabric.rank()), "");
    EXPECT_EQ(fabric.device_description(fabric.rank()), "");
  });
}

// Without service threads, a process that does not poll receives nothing, so calls to it are
// deferred at the sender. Calls of a thread to itself are buffered until it runs them.
TEST_P(FabricTest, DeferredAndBufferedBytesAreTwoLimits) {
  constexpr int kCalls = 50;
  static std::atomic<bool> stop, stopped, go;
  static std::atomic<int> run;
  for (const bool small_deferred : {false, true}) {
    SCOPED_TRACE(small_deferred ? "deferred_bytes is small" : "buffered_bytes is small");
    stop = stopped = go = false;
    run = 0;
    LocalJobOptions options = job_of(2);
    options.fabric.service_threads = 0;
    options.fabric.receive_units = 2;
    (small_deferred ? options.fabric.deferred_bytes : options.fabric.buffered_bytes) = 1;
    LocalJob job(options);
    std::atomic<int> accepted{0};
    job.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        EXPECT_TRUE(fabric.wait_polling([] { return stop.load(); }, soon()));
        stopped = true;
        EXPECT_TRUE(wait_until([] { return go.load(); }, soon()));
        return;
      }
      Synchronizer connected;
      must(call<RemoteNotify>(
          fabric, 1, [] {}, connected));
      EXPECT_TRUE(fabric.wait([&] { return connected.done(); }, soon()));
      stop = true;
      EXPECT_TRUE(wait_until([] { return stopped.load(); }, soon()));
      // Returns the first error.
      const auto send_to = [&](uint32_t to) {
        for (int i = 0; i < kCalls; ++i) {
          absl::Status status = call<RetryAsync>(fabric, to, [] { ++run; });
          if (!status.ok()) return status;
          ++accepted;
        }
        return absl::OkStatus();
      };
      const absl::Status to_peer = send_to(1);
      const absl::Status to_self = send_to(0);
      go = true;
      const absl::Status& refused = small_deferred ? to_peer : to_self;
      EXPECT_EQ(small_deferred ? to_self : to_peer, absl::OkStatus());
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(
          std::string(refused.message()),
          ::testing::HasSubstr(small_deferred ? "raise deferred_bytes" : "raise buffered_bytes"));
    });
    EXPECT_GT(accepted, kCalls);
    EXPECT_EQ(run, accepted);
  }
}

TEST(FabricOptionsTest, NumbersThatNoProcessHasAreRefused) {
  constexpr uint32_t kBeyond = FabricOptions::kMaxPerProcess + 1;
  for (const uint32_t value : {kBeyond, uint32_t{1} << 31, UINT32_MAX}) {
    const auto expect_refusal = [&](const FabricOptions& options, const std::string& name) {
      const absl::Status status = Fabric::create(options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  ::testing::HasSubstr("FabricOptions::" + name + " is " + std::to_string(value)));
    };
    expect_refusal({.threads = value}, "threads");
    expect_refusal({.threads = value, .queue_pair_sharing = QueuePairSharing::kNumaNode},
                   "threads");
    expect_refusal({.helper_threads = value}, "helper_threads");
    expect_refusal({.queue_pairs = value}, "queue_pairs");
    expect_refusal({.queue_pairs = value, .receive_units = UINT32_MAX}, "queue_pairs");
    expect_refusal({.receive_units = value}, "receive_units");
  }
  EXPECT_EQ(Fabric::create({.threads = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Fabric::create({.queue_pairs = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Fabric::create({.reserved_units = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FabricPresets, HaveNames) {
  EXPECT_EQ(must(fabric_preset("paper")).superpages.first_superpage_bytes, size_t{1} << 30);
  EXPECT_EQ(must(fabric_preset("default")).superpages.chunk_bytes, size_t{64} << 10);
  EXPECT_EQ(fabric_preset("papers").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FabricTest, ThreadsHavePlaces) {
  LocalJobOptions options = job_of(2, 2);
  options.init_thread = false;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t thread) {
    EXPECT_EQ(fabric.this_thread(), nullptr);
    EXPECT_TRUE(absl::IsOutOfRange(fabric.init_thread(2).status()));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(fabric.init_thread(thread, CallConsumer::kHelpers).status()));
    auto place = must(fabric.init_thread(thread));
    EXPECT_EQ(fabric.this_thread(), place.get());
    EXPECT_EQ(place->global_id(), fabric.rank() * 2 + thread);
    EXPECT_NE(place->circular_allocator->allocate(), nullptr);
    EXPECT_TRUE(absl::IsAlreadyExists(fabric.init_thread(thread).status()));
    EXPECT_THAT(fabric.label(1), HasSubstr("rank 1 (on "));
    place.reset();
    EXPECT_EQ(fabric.this_thread(), nullptr);
    auto again = must(fabric.init_thread(thread));
  });
}

// One handler blocks; calls to other threads, from the same and from other senders, continue.
TEST_P(FabricTest, ABlockedHandlerDoesNotStallOtherThreads) {
  static std::atomic<bool> release;
  static std::atomic<int> blocked_run;
  release = false;
  blocked_run = 0;
  LocalJobOptions options = job_of(3, 2);
  options.fabric.receive_units = 4;
  LocalJob job(options);
  std::atomic<int> ready{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    if (thread == 1 || fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return release.load(); }, soon()));
      return;
    }
    for (int i = 0; i < 40; ++i) {
      must(call(fabric, 2, [] {
        EXPECT_TRUE(wait_until(
            [] {
              if (running_fabric()->options().service_threads == 0) running_fabric()->progress();
              return release.load();
            },
            soon()));
        ++blocked_run;
      }));
    }
    for (int i = 0; i < 10; ++i) {
      Synchronizer done(2);
      must(call<RemoteNotify>(
          fabric, 3, [] {}, done));
      must(service_call<RemoteNotify>(
          fabric, 1, [] {}, done));
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    }
    if (++ready == 2) {
      EXPECT_EQ(blocked_run, 0);
      release = true;
      for (uint32_t to = 0; to < 6; ++to) must(call(fabric, to, [] {}));  // makes them re-check
    }
    EXPECT_TRUE(fabric.wait([] { return release.load(); }, soon()));
  });
  EXPECT_EQ(blocked_run, 80);
}

TEST_P(FabricTest, FinalizeNamesMissingProcesses) {
  LocalJobOptions options = job_of(3);
  options.finalize = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 2) {
      const absl::Status missing = fabric.finalize(deadline_after(std::chrono::milliseconds(100)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(missing)) << missing;
      EXPECT_THAT(missing.ToString(), HasSubstr("rank 2 (on "));
    }
    job.meet(3);
    must(call(fabric, fabric.thread_of((fabric.rank() + 1) % 3), [] {}));  // the fabric still works
    must(fabric.finalize(soon()));
    job.meet(3);
  });
}

// Rank 0 publishes a result that excludes a process that does not exist.
TEST_P(FabricTest, FinalizeRefusesAResultWithAnInvalidRank) {
  LocalJobOptions options = job_of(2);
  options.finalize = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      internal::ParticipationResult result;
      result.without = {1'000'000'000};
      std::string bytes;
      save_value(bytes, result);
      must(fabric.bootstrap().put("end/0/sum", bytes));
    } else {
      const absl::Status ended = fabric.finalize(soon());
      EXPECT_TRUE(absl::IsInvalidArgument(ended)) << ended;
      EXPECT_THAT(ended.ToString(), HasSubstr("rank 0 published a report for finalize()"));
      EXPECT_THAT(ended.ToString(), HasSubstr("1000000000"));
    }
    job.meet(2);
  });
}

// Rank 0 has put its report, but does not combine the reports.
TEST_P(FabricTest, FinalizeNamesAProcessThatDoesNotFinishARound) {
  LocalJobOptions options = job_of(2);
  options.finalize = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      std::string bytes;
      save_value(bytes, internal::ParticipationReport{});
      must(fabric.bootstrap().put("end/0", bytes));
    }
    job.meet(2);
    if (fabric.rank() == 1) {
      const absl::Status late = fabric.finalize(deadline_after(std::chrono::milliseconds(100)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      EXPECT_THAT(late.ToString(), HasSubstr("rank 0 (on "));
      EXPECT_THAT(late.ToString(), HasSubstr("did not finish finalize() in time"));
    }
    job.meet(2);
  });
}

INSTANTIATE_TEST_SUITE_P(On, FabricTest, ::testing::Values("shm", "sim", "fault_shm", "fault_sim"),
                         [](const auto& info) { return std::string(info.param); });

// ---- Where calls run ----------------------------------------------------------------------------

class ConsumerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ConsumerTest, EachThreadChooses) {
  static constexpr uint32_t kCalls = 50;
  static std::mutex mutex;
  static std::set<std::thread::id> ran[3];
  static std::vector<uint32_t> order[3];
  for (auto& one : ran) one.clear();
  for (auto& one : order) one.clear();
  LocalJobOptions options{.processes = 2,
                          .transport = transport_case(GetParam()),
                          .fabric = {.threads = 3, .helper_threads = 2}};
  options.init_thread = false;
  LocalJob job(options);
  std::thread::id own[3];
  job.run([&](Fabric& fabric, uint32_t thread) {
    constexpr CallConsumer kConsumers[] = {CallConsumer::kThread, CallConsumer::kHelpers,
                                           CallConsumer::kProcess};
    auto place = must(fabric.init_thread(thread, kConsumers[thread]));
    if (fabric.rank() == 1) own[thread] = std::this_thread::get_id();
    if (fabric.rank() == 0) {
      Synchronizer done(kCalls);
      for (uint32_t i = 0; i < kCalls; ++i) {
        must(call<RemoteNotify>(
            fabric, 3 + thread,
            [thread, i] {
              const std::lock_guard lock(mutex);
              ran[thread].insert(std::this_thread::get_id());
              order[thread].push_back(i);
            },
            done));
      }
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      return;
    }
    const auto all_run = [thread] {
      const std::lock_guard lock(mutex);
      return order[thread].size() == kCalls;
    };
    EXPECT_TRUE(fabric.wait(all_run, soon()));
  });
  for (uint32_t thread = 0; thread < 3; ++thread) {
    EXPECT_TRUE(std::is_sorted(order[thread].begin(), order[thread].end())) << thread;
    EXPECT_EQ(ran[thread].count(own[thread]), thread == 0 ? 1u : 0u) << thread;
  }
  EXPECT_EQ(ran[0].size(), 1u);
  EXPECT_LE(ran[1].size(), 2u);
  EXPECT_EQ(ran[2].size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(On, ConsumerTest, ::testing::Values("shm", "fault_shm"),
                         [](const auto& info) { return std::string(info.param); });

// A service thread that reports a failure answers calls outside of a call. It must not wait for
// credit then: it returns no credits meanwhile.
TEST(AnswersTest, DoNotWaitForCredit) {
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  options.fabric.service_threads = 0;
  options.fabric.receive_units = 4;
  LocalJob job(options);
  std::atomic<bool> answered{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      EXPECT_TRUE(wait_until([&] { return answered.load(); }, soon()));  // does not poll
      return;
    }
    absl::Status sent;
    while (sent.ok()) sent = call<Fail>(fabric, 0, [] {});
    EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
    // As if rank 0 had called; it does not know the handle, and ignores the answer.
    NotifyTarget caller{};
    caller.handle = uint64_t{1} << 40;
    internal::answer_call(fabric, 0, &caller, IncomingCall{}, "");
    answered = true;
  });
}

// ---- Replay ------------------------------------------------------------------------------------

struct Replayed {
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> order;
  uint64_t trace = 0;
  friend bool operator==(const Replayed&, const Replayed&) = default;
};

Replayed replay(const char* transport, uint64_t seed) {
  static constexpr uint32_t kCalls = 5;
  static Replayed run;
  static std::atomic<uint32_t> finished;
  run = {};
  finished = 0;
  LocalJobOptions options{.processes = 3, .transport = transport_case(transport), .seed = seed};
  options.fabric.threads = 2;
  options.fabric.receive_units = 2;
  options.sim.jitter = std::chrono::nanoseconds(700);
  options.finalize = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    const uint32_t self = fabric.this_thread()->global_id();
    for (uint32_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = 0; to < 6; ++to) {
        must(call(fabric, to, [self, to, i] { run.order.emplace_back(self, to, i); }));
      }
    }
    EXPECT_TRUE(fabric.wait([] { return run.order.size() == 6u * 6 * kCalls; }, soon()));
    if (++finished == 6) run.trace = job.sim()->trace_hash();
  });
  return run;
}

TEST(ReplayTest, ASeedIsARun) {
  for (const char* transport : {"sim", "fault_sim"}) {
    std::set<uint64_t> traces;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Replayed first = replay(transport, seed);
      EXPECT_TRUE(first == replay(transport, seed)) << transport << " seed " << seed;
      traces.insert(first.trace);
    }
    EXPECT_EQ(traces.size(), 6u) << transport;
  }
}

}  // namespace
}  // namespace cariama::testing
