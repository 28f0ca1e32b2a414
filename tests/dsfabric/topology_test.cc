// The places of threads, and binding them.
#include "dsfabric/topology.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

TEST(CoresTest, AreTheUsableOnes) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const auto cores = must(usable_cores());
  ASSERT_FALSE(cores.empty());
  std::set<int> cpus;
  for (size_t i = 0; i < cores.size(); ++i) {
    EXPECT_TRUE(CPU_ISSET(cores[i].cpu, &allowed));
    EXPECT_TRUE(cpus.insert(cores[i].cpu).second);
    if (i != 0) {
      EXPECT_GE(cores[i].numa_node, cores[i - 1].numa_node);
    }
  }
}

TEST(CoresTest, WorkersTakeThemInTurn) {
  const std::vector<Core> cores{{0, 0}, {2, 0}, {1, 1}, {3, 1}};
  std::vector<int> taken;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (uint32_t index = 0; index < 2; ++index) {
      taken.push_back(core_for(cores, rank, 2, index).cpu);
    }
  }
  EXPECT_EQ(taken, (std::vector<int>{0, 2, 1, 3, 0, 2}));
}

// Threads that are bound to CPU 0, to CPU 1, or to both.
TEST(NeighbourhoodTest, FollowsTheThreadsBinding) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (!CPU_ISSET(0, &allowed) || !CPU_ISSET(1, &allowed)) GTEST_SKIP() << "needs CPUs 0 and 1";
  const auto bound_to = [](std::vector<int> cpus) {
    Neighbourhood found;
    std::thread([&] {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int cpu : cpus) CPU_SET(cpu, &set);
      ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
      found = must(this_neighbourhood());
    }).join();
    return std::pair(found.numa_node, found.core_complex);
  };
  using Place = std::pair<int, int>;
  setenv("HWLOC_SYNTHETIC", "numa:2 l3:2 core:1 pu:1", 1);
  EXPECT_EQ(bound_to({0}), Place(0, 0));
  EXPECT_EQ(bound_to({1}), Place(0, 1));
  EXPECT_EQ(bound_to({0, 1}), Place(0, -1));
  setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
  EXPECT_EQ(bound_to({0}), Place(0, -1));
  EXPECT_EQ(bound_to({1}), Place(1, -1));
  EXPECT_EQ(bound_to({0, 1}), Place(-1, -1));
  unsetenv("HWLOC_SYNTHETIC");
}

TEST(TopologyTest, ThreadsAreWhereTheySay) {
  LocalJobOptions options{.processes = 2, .fabric = {.threads = 2}};
  options.init_thread = false;
  LocalJob job(options);
  const auto cores = must(usable_cores());
  std::atomic<int> asked{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    EXPECT_EQ(local_rank(fabric), fabric.rank());
    const Binding binding = thread == 0 ? Binding::kCore : Binding::kNone;
    auto place = must(init_thread(fabric, thread, CallConsumer::kThread, binding));
    const Core& mine = core_for(cores, fabric.rank(), 2, thread);
    if (thread == 0) {
      EXPECT_EQ(sched_getcpu(), mine.cpu);
    }
    job.meet(4);
    for (uint32_t other = 0; other < 4; ++other) {
      const ThreadPlace there = must(where_is(fabric, other, soon()));
      EXPECT_EQ(there.rank, other / 2);
      EXPECT_EQ(there.index, other % 2);
      EXPECT_EQ(there.host, host_of(fabric, 0));
      EXPECT_EQ(there.cpu, other % 2 == 0 ? core_for(cores, other / 2, 2, 0).cpu : -1);
    }
    EXPECT_TRUE(absl::IsOutOfRange(where_is(fabric, 4, soon()).status()));
    ++asked;
    EXPECT_TRUE(wait_until([&] { return asked.load() == 4; }, soon()));
    place.reset();
    job.meet(4);
    EXPECT_TRUE(absl::IsNotFound(where_is(fabric, 1, soon()).status()));
    job.meet(4);
  });
}

// A service thread answers while the worker's thread creates and destroys its context.
TEST(TopologyTest, AThreadThatJoinsAndLeavesIsFoundOrNotFound) {
  LocalJobOptions options{.processes = 2};
  options.init_thread = false;
  LocalJob job(options);
  std::atomic<bool> asked{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      while (!asked) must(fabric.init_thread(0)).reset();
    } else {
      const auto self = must(fabric.init_thread(0));
      for (int i = 0; i < 200; ++i) {
        const auto there = where_is(fabric, 0, soon());
        EXPECT_TRUE(there.ok() || absl::IsNotFound(there.status())) << there.status();
      }
      asked = true;
    }
    job.meet(2);
  });
}

}  // namespace
}  // namespace cariama::testing
