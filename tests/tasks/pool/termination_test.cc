// How the workers of a pool find out that a run has ended: the fabric's termination detector, and
// Oortwijn's scan of status cells with the condition under which it is correct.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "dsfabric/quiescence.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/tasks/pool/pool_test_support.h"

namespace cariama::testing {
namespace {

// A model of three workers and one task, which the first of them spawns and hands over to the
// second, and the second to the third. All interleavings of a scan with the steps of the workers
// are tried. A worker sets its status cell to WORKING after it has received the task, as Oortwijn's
// steal() does, and to IDLE when it has nothing to do. The first worker is the initiator: with
// `initiator_stays`, its cell is WORKING until the task has ended.
struct Model {
  enum class Place : uint8_t { kAt0, kTo1, kAt1, kTo2, kAt2, kEnded };
  Place task = Place::kAt0;
  std::array<bool, 3> working{true, false, false};
  bool initiator_stays = true;

  [[nodiscard]] bool done() const { return task == Place::kEnded && !working[0] && !working[2]; }
  // The next event of the workers. Events of different workers are ordered by the task's way, so
  // there is one sequence of events; the scan interleaves with it.
  void step() {
    switch (task) {
      case Place::kAt0:  // the victim writes the transfer cell
        task = Place::kTo1;
        if (!initiator_stays) working[0] = false;
        break;
      case Place::kTo1:
        task = Place::kAt1;
        working[1] = true;
        break;
      case Place::kAt1:
        task = Place::kTo2;
        working[1] = false;  // it has handed its only task over
        break;
      case Place::kTo2:
        task = Place::kAt2;
        working[2] = true;
        break;
      case Place::kAt2:
        task = Place::kEnded;
        break;
      case Place::kEnded:  // the workers leave the task, the initiator last
        if (working[2]) {
          working[2] = false;
        } else {
          working[0] = false;
        }
        break;
    }
  }
};

// Scans from every state, with any number of steps between two reads of the scan, in any order of
// the reads. Returns true if a scan has reported the end although the task had not ended.
bool some_scan_is_wrong(const Model& start) {
  std::array<size_t, 3> order{0, 1, 2};
  do {
    for (int before = 0; before < 9; ++before) {
      for (int first = 0; first < 9; ++first) {
        for (int second = 0; second < 9; ++second) {
          Model model = start;
          for (int i = 0; i < before; ++i) model.step();
          bool all_idle = !model.working[order[0]];
          for (int i = 0; i < first; ++i) model.step();
          all_idle = all_idle && !model.working[order[1]];
          for (int i = 0; i < second; ++i) model.step();
          all_idle = all_idle && !model.working[order[2]];
          if (all_idle && model.task != Model::Place::kEnded) return true;
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

TEST(StatusScan, IsRightWhileTheInitiatorStaysWorking) {
  EXPECT_FALSE(some_scan_is_wrong({.initiator_stays = true}));
}
TEST(StatusScan, IsWrongWithoutThatCondition) {
  EXPECT_TRUE(some_scan_is_wrong({.initiator_stays = false}));
}

// The model of the test above, with the counts of the detector: a unit begins before the task is
// sent, and ends after the task has left the worker.
TEST(Detector, IsRightInTheSameModel) {
  // Events of the task: begun by 0; received and begun by 1 for 2; ended at 1; ended at 2; the
  // root task, begun at the start, ends at 0.
  struct Counts {
    std::array<uint64_t, 3> begun{1, 0, 0};
    std::array<uint64_t, 3> ended{0, 0, 0};
  };
  const auto after = [](int steps) {
    Counts counts;
    if (steps > 0) ++counts.begun[0];
    if (steps > 1) ++counts.begun[1];
    if (steps > 2) ++counts.ended[1];
    if (steps > 3) ++counts.ended[2];
    if (steps > 4) ++counts.ended[0];
    return counts;
  };
  constexpr int kSteps = 5;
  // Two waves, which read the counts of the ranks at any times, the second after the first.
  for (int code = 0; code < 6 * 6 * 6 * 6 * 6 * 6; ++code) {
    std::array<int, 6> times{};
    for (int i = 0, rest = code; i < 6; ++i, rest /= 6) times[static_cast<size_t>(i)] = rest % 6;
    const int end_of_first = std::max({times[0], times[1], times[2]});
    if (std::min({times[3], times[4], times[5]}) < end_of_first) continue;
    WaveComparison waves;
    bool ended = false;
    for (size_t wave = 0; wave < 2; ++wave) {
      uint64_t begun = 0;
      uint64_t finished = 0;
      for (size_t rank = 0; rank < 3; ++rank) {
        const Counts counts = after(times[3 * wave + rank]);
        begun += counts.begun[rank];
        finished += counts.ended[rank];
      }
      ended = waves.ended(begun, finished, 0);
    }
    if (ended) {
      ASSERT_EQ(end_of_first, kSteps);
    }
  }
}

// ---- With real workers ----

int rests(int milliseconds) {
  const Deadline end = deadline_after(std::chrono::milliseconds(milliseconds));
  static_cast<void>(communicate_until([&] { return std::chrono::steady_clock::now() > end; }));
  return 1;
}
int rests_in_many_tasks(int count) {
  pool::Children<rests> children;
  for (int i = 0; i < count; ++i) children.spawn(2);
  int sum = 0;
  while (!children.empty()) sum += children.sync();
  return sum;
}

// Idle workers search while one worker works, and leave when the root task has ended.
TEST(Termination, NoWorkerLeavesEarly) {
  for (const PoolTermination termination :
       {PoolTermination::kDetector, PoolTermination::kStatusScan}) {
    with_pool(4, {.termination = termination}, [](TaskPool& pool, Fabric& fabric) {
      for (int run = 0; run < 5; ++run) {
        EXPECT_EQ(must(pool.run<rests>(10)), 1);
        EXPECT_EQ(must(pool.run<rests_in_many_tasks>(12)), 12);
      }
      const PoolStatistics counts = pool.statistics();
      if (fabric.rank() != 0) {
        EXPECT_GE(counts.detections, 10u) << "at least one search without success in each run";
      }
    });
  }
}

// ---- After a broken run ----

Shared<std::atomic<int>>* workers_that_left = nullptr;
TaskPool* pool_of_test = nullptr;

int nothing(int) { return 0; }
int syncs_the_task_of_its_caller(int) { return pool::sync<nothing>(); }
int breaks_the_run(int) {
  pool::spawn<nothing>(0);
  return pool::call<syncs_the_task_of_its_caller>(0);
}
// One thief steals a task that breaks the run there. The other one has sent a request, which it
// gives up. This worker then answers the request with a task, which no worker runs.
int answers_a_thief_that_has_left(int) {
  pool::Children<breaks_the_run> first;
  pool::Children<nothing> more;
  first.spawn(0);
  for (int i = 0; i < 4; ++i) more.spawn(0);
  if (!communicate_until([] { return pool_of_test->statistics().handed_over != 0; })) return 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (**workers_that_left < 2 && std::chrono::steady_clock::now() < deadline) sched_yield();
  EXPECT_EQ(pool_of_test->statistics().handed_over, 1u);
  pool::communicate();
  EXPECT_EQ(pool_of_test->statistics().handed_over, 2u);
  while (!more.empty()) more.sync();
  return first.sync();
}

TEST(Termination, TasksLostInABrokenRunAreNotAwaitedLater) {
  for (const PoolTermination termination :
       {PoolTermination::kDetector, PoolTermination::kStatusScan}) {
    Shared<std::atomic<int>> left;
    workers_that_left = &left;
    run_process_job(3, {}, [&](Fabric& fabric) {
      PoolOptions options{.termination = termination};
      // All steal from rank 0 only.
      options.victims = {{}, {}, {}, {fabric.rank() == 0 ? 1U : 0U}};
      auto pool = must(TaskPool::create(fabric, options));
      pool_of_test = pool.get();
      EXPECT_FALSE(pool->run<answers_a_thief_that_has_left>(0).ok());
      if (fabric.rank() != 0) ++*left;
      TerminationDetector detector(fabric);
      EXPECT_TRUE(detector.wait(deadline_after(std::chrono::seconds(20))).ok());
    });
  }
}

}  // namespace
}  // namespace cariama::testing
