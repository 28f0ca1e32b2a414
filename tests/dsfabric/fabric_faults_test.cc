// Faults that fabrics tolerate: late, torn and reordered transfers with any seed, senders that
// outrun receivers, peers that are lost.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// Every thread calls every thread in several ways and checks every answer.
void storm(Fabric& fabric, uint32_t rounds) {
  const uint32_t self = fabric.this_thread()->global_id();
  for (uint32_t round = 0; round < rounds; ++round) {
    std::vector<Future<uint64_t>> answers;
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      answers.push_back(async_call(
          fabric, to, [](uint64_t a, std::string b) { return a * 1000 + b.size(); }, uint64_t{self},
          std::string(round * 37 % 500, 'x')));
    }
    for (auto& answer : answers) {
      const absl::StatusOr<uint64_t> value = answer.get(soon());
      ASSERT_TRUE(value.ok()) << value.status();
      EXPECT_EQ(*value, self * 1000 + round * 37 % 500);
    }
  }
}

void run_storm(LocalJobOptions options, uint32_t rounds) {
  options.fabric.threads = 2;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) { storm(fabric, rounds); });
  if (job.sim() != nullptr) {
    EXPECT_EQ(job.sim()->statistics().completion_overruns, 0u);
  }
}

TEST(FabricSeedsTest, SimulatedFabrics) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    LocalJobOptions options{.processes = 3, .transport = transport_case("sim"), .seed = seed};
    options.sim.jitter = std::chrono::nanoseconds(500);
    if (seed % 2 == 0) {
      // Unordered WRITEs, including those of credits, which the heartbeat repeats.
      options.sim.write_order = ArrivalOrder::kNone;
      options.sim.torn_spread = std::chrono::nanoseconds(2000);
      options.fabric.heartbeat = std::chrono::milliseconds::zero();
    }
    options.fabric.receive_units = 1 + seed % 4;
    options.fabric.queue_pairs = 1 + seed % 2;
    run_storm(options, 4);
  }
}

// Connections take further receive units, and return them at each pause of their senders.
TEST(FabricSeedsTest, FabricsWithSharedReceiveUnits) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    LocalJobOptions options{.processes = 3, .transport = transport_case("sim"), .seed = seed};
    options.sim.jitter = std::chrono::nanoseconds(500);
    if (seed % 2 == 0) {
      options.sim.write_order = ArrivalOrder::kNone;
      options.sim.torn_spread = std::chrono::nanoseconds(2000);
    }
    options.fabric.heartbeat = std::chrono::milliseconds::zero();
    options.fabric.return_units_after = std::chrono::milliseconds::zero();
    options.fabric.reserved_units = 1 + seed % 3;
    options.fabric.shared_unit_bytes = (seed % 4) * 3 * options.fabric.receive_unit_bytes;
    run_storm(options, 4);
  }
}

TEST(FabricSeedsTest, FaultsAboveSim) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    LocalJobOptions options{.processes = 3, .transport = transport_case("fault_sim"), .seed = seed};
    options.fabric.receive_units = 2;
    run_storm(options, 3);
  }
}

TEST(FabricSeedsTest, FaultsAboveShm) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    LocalJobOptions options{.processes = 3, .transport = transport_case("fault_shm"), .seed = seed};
    options.fabric.receive_units = 3;
    run_storm(options, 3);
  }
}

// A sender never has more messages in flight than there are receive units: with 1 and with 2 units
// no message finds the receiver without a posted receive.
TEST(CreditsTest, ReceiversAreAlwaysReady) {
  for (uint32_t units : {1u, 2u}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(seed);
      LocalJobOptions options{.processes = 2, .transport = transport_case("sim"), .seed = seed};
      options.fabric.receive_units = units;
      options.sim.jitter = std::chrono::nanoseconds(3000);
      static std::atomic<int> run;
      run = 0;
      LocalJob job(options);
      job.run([](Fabric& fabric, uint32_t) {
        for (int i = 0; i < 50; ++i)
          must(call(fabric, fabric.thread_of(1 - fabric.rank()), [] { ++run; }));
      });
      EXPECT_EQ(run, 100);
      EXPECT_EQ(job.sim()->statistics().receiver_not_ready, 0u) << units << " units";
    }
  }
}

// A process stops communicating while calls to it are in every state: sent, waiting for credits,
// deferred, waiting for the answer. All of them end; the other processes continue.
TEST(LostPeerTest, EverythingPendingEnds) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    LocalJobOptions options{.processes = 3, .transport = transport_case("sim"), .seed = seed};
    options.fabric.heartbeat = std::chrono::milliseconds::zero();
    options.fabric.receive_units = 3;
    options.finalize = false;
    LocalJob job(options);
    static std::atomic<bool> killed;
    static std::atomic<int> connected;
    killed = false;
    connected = 0;
    std::atomic<int> finished{0};
    job.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 2) {
        EXPECT_TRUE(fabric.wait_polling([] { return killed.load(); }, soon()));
        EXPECT_TRUE(wait_until([&] { return finished.load() == 2; }, soon()));
        return;
      }
      std::vector<Future<int>> answers;
      std::vector<std::unique_ptr<Synchronizer>> notified;
      answers.push_back(async_call(fabric, 2, [] { return 1; }));
      EXPECT_EQ(must(answers[0].get(soon())), 1);
      ++connected;
      if (fabric.rank() == 0) {
        EXPECT_TRUE(fabric.wait_polling([] { return connected == 2; }, soon()));
        job.sim()->kill(2);
        killed = true;
      }
      EXPECT_TRUE(fabric.wait_polling([] { return killed.load(); }, soon()));
      absl::Status status;
      for (int i = 0; i < 5; ++i)
        answers.push_back(async_call<RetryAsync>(fabric, 2, [] { return 2; }));
      // Waits for a credit that the dead process does not return.
      Synchronizer done;
      while (status.ok()) {
        notified.push_back(std::make_unique<Synchronizer>());
        status = call<RemoteNotify>(
            fabric, 2, [] {}, *notified.back());
        if (!status.ok()) notified.pop_back();
      }
      expect_dead(status, fabric, 2);
      for (size_t i = 1; i < answers.size(); ++i) {
        expect_dead(answers[i].get(soon()).status(), fabric, 2);
      }
      for (auto& one : notified) {
        EXPECT_TRUE(fabric.wait([&] { return one->done(); }, soon()));
        expect_dead(one->status(), fabric, 2);
      }
      expect_dead(fabric.peer_status(2), fabric, 2);
      // The other processes continue.
      EXPECT_EQ(must(async_call(fabric, fabric.thread_of(1 - fabric.rank()), [] { return 3; })
                         .get(soon())),
                3);
      const int mine = ++finished;
      EXPECT_TRUE(fabric.wait_polling([&] { return mine == 2 || finished == 2; }, soon()));
    });
  }
}

// A process sleeps without an operation in flight. A probe detects the loss of its peer.
TEST(LostPeerTest, ASleepingWaiterIsNotified) {
  LocalJobOptions options{.processes = 2, .transport = transport_case("fault_shm")};
  options.faults = [](uint64_t seed) {
    FaultOptions faults;
    faults.seed = seed;
    return faults;
  };
  options.finalize = false;
  options.fabric.heartbeat = std::chrono::milliseconds(20);
  LocalJob job(options);
  static std::atomic<bool> there, finished;
  there = finished = false;
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
      return;
    }
    Future<void> never = async_call(fabric, 1, [] {
      there = true;
      EXPECT_TRUE(wait_until([] { return finished.load(); }, soon()));
    });
    EXPECT_TRUE(wait_until([] { return there.load(); }, soon()));
    job.faults(0)->lose_peer(fabric.label(1));
    const absl::Status lost = never.get(soon());
    EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
    finished = true;
  });
}

// Two live processes consider each other failed. All processes exclude the same one of them, and
// finalize() ends in every process.
TEST(LostPeerTest, TheJobEndsWithoutOneOfTwoThatLostEachOther) {
  LocalJobOptions options{.processes = 3, .transport = transport_case("fault_shm")};
  options.finalize = false;
  LocalJob job(options);
  static std::atomic<bool> lost;
  static std::atomic<int> connected;
  lost = false;
  connected = 0;
  job.run([&](Fabric& fabric, uint32_t) {
    EXPECT_EQ(must(async_call(fabric, 1, [] { return 1; }).get(soon())), 1);
    // Without this wait process 1 may learn of the loss before process 0 connects to it, and refuse
    // the connection.
    ++connected;
    EXPECT_TRUE(fabric.wait_polling([] { return connected.load() == 3; }, soon()));
    if (fabric.rank() == 2) {
      must(call(fabric, 0, [] {}));
      job.faults(2)->lose_peer(fabric.label(0));
      Synchronizer never;
      const absl::Status sent = call<RemoteNotify>(
          fabric, 0, [] {}, never);
      EXPECT_TRUE(absl::IsUnavailable(sent.ok() ? fabric.wait(never, soon()) : sent));
      lost = true;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return lost.load(); }, soon()));
    const absl::Status ended = fabric.finalize(soon());
    if (fabric.rank() == 2) {
      EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
      EXPECT_THAT(std::string(ended.message()), ::testing::HasSubstr(fabric.label(0)));
      EXPECT_THAT(std::string(ended.message()), ::testing::HasSubstr("check the network"));
    } else {
      EXPECT_TRUE(ended.ok()) << ended;
      EXPECT_FALSE(fabric.peer_status(2).ok());
      EXPECT_TRUE(fabric.peer_status(1 - fabric.rank()).ok());
    }
  });
}

}  // namespace
}  // namespace cariama::testing
