// Termination detection under adversarial schedules, on paths of other layers, with failed
// processes, and between real processes.
#include "dsfabric/quiescence.h"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <random>

#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::testing {
namespace {

std::atomic<int64_t> running{0};
std::atomic<uint64_t> run{0};

LocalJobOptions simulated_job(uint32_t processes, uint64_t seed) {
  return {.processes = processes,
          .transport = transport_case("sim"),
          .seed = seed,
          .fabric = {.receive_units = 4, .receive_unit_bytes = 512, .send_depth = 32}};
}

TEST(WaveComparison, NeedsTwoEqualWaves) {
  WaveComparison comparison;
  EXPECT_FALSE(comparison.ended(5, 5, 0));  // a single wave is never sufficient
  EXPECT_FALSE(comparison.ended(6, 6, 0));  // 5 units had ended before, 6 have begun since
  EXPECT_TRUE(comparison.ended(6, 6, 0));
  EXPECT_FALSE(comparison.ended(6, 6, 1));  // another set of processes is counted
  EXPECT_TRUE(comparison.ended(6, 6, 1));
  comparison.reset();
  EXPECT_FALSE(comparison.ended(6, 6, 1));
  EXPECT_TRUE(comparison.ended(6, 7, 1));  // the ended count of this wave is used only in the next
}

TEST(Quiescence, AQuietJobTakesTwoWaves) {
  for (const uint32_t processes : {1u, 2u, 5u, 16u, 33u}) {
    LocalJob job(simulated_job(processes, processes));
    job.run([](Fabric& fabric, uint32_t) {
      TerminationDetector detector(fabric);
      must(detector.wait(soon()));
      EXPECT_EQ(detector.waves(), 2u);
      must(detector.wait(soon()));
      EXPECT_EQ(detector.waves(), 4u);
    });
  }
}

// Participants enter the wait at different times, and run calls meanwhile. So the first wave reads
// counts from before and from after the same unit.
void come_late(Fabric& fabric, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + fabric.rank());
  uint64_t looks = random() % 100;
  static_cast<void>(fabric.wait([&] { return looks-- == 0; }, soon()));
}

// A long chain of units, each of which also begins units that end immediately. A wave that reads
// one process's counts before such a unit begins, and another process's counts after it has ended
// there, can find ended = begun while the chain continues. A detector that compares the counts of a
// single wave would return too early. (The chain alone cannot cause this.)
void walk(Fabric& fabric, uint64_t seed, uint32_t steps) {
  if (steps == 0) return;
  std::mt19937_64 random(seed);
  const auto begin = [&](uint32_t steps_left) {
    const auto to = static_cast<uint32_t>(random() % fabric.total_threads());
    const uint64_t next = random();
    ++running;
    must(call(fabric, to, [next, steps_left] {
      walk(*running_fabric(), next, steps_left);
      ++run;
      --running;
    }));
  };
  if (random() % 2 == 0) begin(0);
  begin(steps - 1);
}

// Sanitizers multiply the time of a job by 10.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kLongChains = 24;
#else
constexpr uint64_t kLongChains = 80;
#endif

TEST(Quiescence, LongChainsOfUnitsDoNotEndItEarly) {
  for (uint64_t seed = 1; seed <= kLongChains; ++seed) {
    SCOPED_TRACE(seed);
    const auto processes = static_cast<uint32_t>(2 + seed % 8);
    running = 0;
    run = 0;
    LocalJob job(simulated_job(processes, seed));
    job.run([&](Fabric& fabric, uint32_t) {
      TerminationDetector detector(fabric);
      if (fabric.rank() == seed % processes) walk(fabric, seed, 150);
      come_late(fabric, seed);
      must(detector.wait(soon()));
      EXPECT_EQ(running, 0);
      const uint64_t before = run;
      must(detector.wait(soon()));
      EXPECT_EQ(run, before);
    });
  }
}

TEST(Quiescence, UnderFaultsAndManySchedules) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(seed);
    running = 0;
    run = 0;
    LocalJobOptions options = simulated_job(4, seed);
    options.transport = transport_case("fault_sim");
    LocalJob job(options);
    job.run([&](Fabric& fabric, uint32_t) {
      TerminationDetector detector(fabric);
      walk(fabric, seed * 10 + fabric.rank(), 20);
      come_late(fabric, seed);
      must(detector.wait(soon()));
      EXPECT_EQ(running, 0);
    });
  }
}

// ---- Another path -------------------------------------------------------------------------------

// A path of another layer: units that threads of the processes exchange through shared memory,
// counted by the rules of quiescence.h.
class Mailboxes {
 public:
  explicit Mailboxes(uint32_t processes) : boxes_(processes), counters_(processes) {
    for (auto& counter : counters_) counter.reset(processes);
  }

  class Counter final : public WorkCounter {
   public:
    void reset(uint32_t processes) {
      begun_ = std::vector<std::atomic<uint64_t>>(processes);
      ended_ = std::vector<std::atomic<uint64_t>>(processes);
    }
    uint64_t begun(Rank rank) const override { return begun_[rank]; }
    uint64_t ended(Rank rank) const override { return ended_[rank]; }
    std::vector<std::atomic<uint64_t>> begun_;
    std::vector<std::atomic<uint64_t>> ended_;
  };

  struct Unit {
    uint32_t from;
    uint64_t seed;
    uint32_t steps;
  };
  void put(uint32_t from, uint32_t to, uint64_t seed, uint32_t steps) {
    ++running;
    ++counters_[from].begun_[to];
    const std::lock_guard lock(mutex_);
    boxes_[to].push_back({from, seed, steps});
  }
  // Runs a unit of `rank`, if there is one. The unit begins its successor on this path or by a
  // call.
  bool run_one(Fabric& fabric, uint32_t rank) {
    Unit unit{};
    {
      const std::lock_guard lock(mutex_);
      if (boxes_[rank].empty()) return false;
      unit = boxes_[rank].front();
      boxes_[rank].pop_front();
    }
    pass_on(fabric, rank, unit.seed, unit.steps);
    ++run;
    --running;
    ++counters_[rank].ended_[unit.from];
    return true;
  }
  void pass_on(Fabric& fabric, uint32_t rank, uint64_t seed, uint32_t steps) {
    if (steps == 0) return;
    std::mt19937_64 random(seed);
    const auto to = static_cast<uint32_t>(random() % boxes_.size());
    const uint64_t next = random();
    if (random() % 2 == 0) return put(rank, to, next, steps - 1);
    ++running;
    must(call(fabric, fabric.thread_of(to), [this, next, steps] {
      Fabric& here = *running_fabric();
      pass_on(here, here.rank(), next, steps - 1);
      ++run;
      --running;
    }));
  }
  const Counter& counter(uint32_t rank) const { return counters_[rank]; }

 private:
  std::mutex mutex_;
  std::vector<std::deque<Unit>> boxes_;
  std::vector<Counter> counters_;
};

void other_path(const TransportCase& transport, uint64_t seed) {
  SCOPED_TRACE(seed);
  constexpr uint32_t kProcesses = 3;
  running = 0;
  run = 0;
  LocalJobOptions options = simulated_job(kProcesses, seed);
  options.transport = transport;
  options.fabric.threads = 2;
  LocalJob job(options);
  Mailboxes mailboxes(kProcesses);
  std::atomic<uint32_t> registered{0};
  std::atomic<uint32_t> detected{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    const uint32_t rank = fabric.rank();
    if (thread == 1) {
      // Thread 0 registers the counter before the first unit begins.
      ASSERT_TRUE(fabric.wait_polling([&] { return registered == kProcesses; }, soon()));
      ASSERT_TRUE(fabric.wait_polling(
          [&] {
            mailboxes.run_one(fabric, rank);
            return detected == kProcesses;
          },
          soon()));
      return;
    }
    const WorkRegistration registration(fabric, mailboxes.counter(rank));
    TerminationDetector detector(fabric);
    ++registered;
    ASSERT_TRUE(fabric.wait_polling([&] { return registered == kProcesses; }, soon()));
    mailboxes.pass_on(fabric, rank, seed * 10 + rank, 30);
    if (transport.base == Transport::kSim) come_late(fabric, seed);
    must(detector.wait(soon()));
    EXPECT_EQ(running, 0);
    EXPECT_EQ(run, 30u * kProcesses);
    ++detected;
    ASSERT_TRUE(fabric.wait_polling([&] { return detected == kProcesses; }, soon()));
  });
}

TEST(Quiescence, CountsPathsOfOtherLayersSimulated) {
  for (uint64_t seed = 1; seed <= 30; ++seed) other_path(transport_case("sim"), seed);
}
TEST(Quiescence, CountsPathsOfOtherLayers) {
  for (uint64_t seed = 1; seed <= 5; ++seed) other_path(transport_case("shm"), seed);
}

// While a unit has not ended, a wait returns DEADLINE_EXCEEDED. A later wait succeeds.
TEST(Quiescence, WaitsForAUnitAsLongAsItTakes) {
  Mailboxes mailboxes(2);
  std::atomic<bool> registered{false};
  std::atomic<uint32_t> late{0};
  std::atomic<uint32_t> detected{0};
  LocalJob job({.processes = 2, .transport = transport_case("shm")});
  job.run([&](Fabric& fabric, uint32_t) {
    const WorkRegistration registration(fabric, mailboxes.counter(fabric.rank()));
    TerminationDetector detector(fabric);
    if (fabric.rank() == 0) {
      mailboxes.put(0, 1, 1, 0);
      registered = true;
    }
    ASSERT_TRUE(fabric.wait_polling([&] { return registered.load(); }, soon()));
    EXPECT_EQ(detector.wait(deadline_after(std::chrono::milliseconds(100))).code(),
              absl::StatusCode::kDeadlineExceeded);
    ++late;
    ASSERT_TRUE(fabric.wait_polling([&] { return late == 2; }, soon()));
    if (fabric.rank() == 1) {
      EXPECT_TRUE(mailboxes.run_one(fabric, 1));
    }
    must(detector.wait(soon()));
    EXPECT_EQ(running, 0);
    ++detected;
    ASSERT_TRUE(fabric.wait_polling([&] { return detected == 2; }, soon()));
  });
}

TEST(Quiescence, ErrorsNameTheDetector) {
  LocalJob job({.processes = 1, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    TerminationDetector detector(fabric, {.participants = Participants::kThreads});
    const absl::Status status = detector.wait(soon());  // this thread is no worker
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr("TerminationDetector::wait() was called"));
    EXPECT_EQ(error_scope(status), ErrorScope::kOperation);
  });
}

// ---- Processes ----------------------------------------------------------------------------------

std::atomic<uint64_t> runs_here{0};

void spread(Fabric& fabric, uint64_t seed, uint32_t depth) {
  std::mt19937_64 random(seed);
  for (uint32_t i = 0; depth != 0 && i < 2; ++i) {
    const auto to = static_cast<uint32_t>(random() % fabric.total_threads());
    const uint64_t next = random();
    must(call(fabric, to, [next, depth] {
      spread(*running_fabric(), next, depth - 1);
      ++runs_here;
    }));
  }
}

TEST(QuiescenceOfProcesses, SeesEveryCallRun) {
  run_process_job(4, {}, [](Fabric& fabric) {
    TerminationDetector detector(fabric);
    Collectives all(fabric);
    constexpr uint32_t kDepth = 7;
    for (uint64_t round = 1; round <= 3; ++round) {
      spread(fabric, round * 10 + fabric.rank(), kDepth);
      must(detector.wait(soon()));
      // Read before any process begins new calls. The counts are complete: 2 + 4 + ... calls for
      // each process.
      const uint64_t here = runs_here;
      const uint64_t sum = must(all.all_reduce(here, std::plus<>(), soon()));
      EXPECT_EQ(sum, round * 4 * ((2u << kDepth) - 2));
    }
  });
}

}  // namespace
}  // namespace cariama::testing
