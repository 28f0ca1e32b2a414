// A seed replays a run exactly, and other seeds give other orders of delivery. Deliveries that the
// contract does not order really occur in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

using std::chrono::nanoseconds;

constexpr uint32_t kNodes = 6;

struct Record {
  // Node, id, bytes and time of every completion, in the order in which they were polled.
  std::vector<std::tuple<uint32_t, uint64_t, uint32_t, int64_t>> completions;
  uint64_t trace = 0;
  SimStatistics statistics;
};

// Every node sends SENDs, WRITEs, READs and atomics to every other node, and posts one receive for
// each message that it gets.
Record run_traffic(uint64_t seed, bool torn = false) {
  SimFabric fabric({.seed = seed,
                    .jitter = nanoseconds(700),
                    .write_order = torn ? ArrivalOrder::kNone : ArrivalOrder::kWrites,
                    .torn_spread = nanoseconds(torn ? 2000 : 0)});
  std::vector<DeviceNode> nodes;
  for (uint32_t i = 0; i < kNodes; ++i) nodes.emplace_back(fabric.create_endpoint());
  std::vector<std::unique_ptr<QueuePair>> pairs(kNodes * kNodes);
  for (uint32_t a = 0; a < kNodes; ++a) {
    for (uint32_t b = a + 1; b < kNodes; ++b) {
      pairs[a * kNodes + b] = nodes[a].make_queue_pair();
      pairs[b * kNodes + a] = nodes[b].make_queue_pair();
      connect_pair(*pairs[a * kNodes + b], *pairs[b * kNodes + a]);
    }
  }
  std::mt19937 program(99);  // the program does not depend on the seed of the fabric
  constexpr uint32_t kPerPair = 10;
  size_t expected = 0;
  for (uint32_t i = 0; i < kPerPair; ++i) {
    for (uint32_t a = 0; a < kNodes; ++a) {
      for (uint32_t b = 0; b < kNodes; ++b) {
        if (a == b) continue;
        QueuePair& pair = *pairs[a * kNodes + b];
        const auto opcode = static_cast<Opcode>(program() % 7);
        const bool atomic = opcode >= Opcode::kFetchAdd;
        const Segment segment = nodes[a].segment(0, atomic ? 8 : 8 + program() % 500);
        EXPECT_TRUE(
            pair.post_send(request_for(opcode, segment, nodes[b], 1024, a << 16 | b << 8 | i))
                .ok());
        ++expected;
        const bool message = opcode <= Opcode::kSendImmediate || opcode == Opcode::kWriteImmediate;
        if (!message) continue;
        const Segment room = nodes[b].segment(2048, 512);
        EXPECT_TRUE(pairs[b * kNodes + a]
                        ->post_receive({.id = 1 << 24 | i, .segments = &room, .segment_count = 1})
                        .ok());
        ++expected;
      }
    }
  }
  Record run;
  Completion batch[4];
  for (uint64_t polls = 0; run.completions.size() < expected && polls < 1'000'000; ++polls) {
    DeviceNode& node = nodes[polls % kNodes];
    const size_t count = node.completions->poll(batch);
    for (const Completion& completion : std::span(batch, count)) {
      EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
      run.completions.emplace_back(static_cast<uint32_t>(polls % kNodes), completion.id,
                                   completion.bytes, fabric.now().count());
    }
  }
  EXPECT_EQ(run.completions.size(), expected);
  run.trace = fabric.trace_hash();
  run.statistics = fabric.statistics();
  return run;
}

TEST(SimReplayTest, SameSeedSameRun) {
  for (const bool torn : {false, true}) {
    const Record first = run_traffic(5, torn);
    const Record second = run_traffic(5, torn);
    EXPECT_EQ(first.trace, second.trace);
    EXPECT_EQ(first.completions, second.completions);
    EXPECT_EQ(first.statistics.events, second.statistics.events);
  }
}

TEST(SimReplayTest, DifferentSeedsGiveDifferentRuns) {
  std::set<uint64_t> traces;
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Record run = run_traffic(seed);
    traces.insert(run.trace);
    std::vector<uint64_t> order;
    for (const auto& completion : run.completions) order.push_back(std::get<1>(completion));
    orders.insert(order);
  }
  EXPECT_EQ(traces.size(), 8u);
  EXPECT_EQ(orders.size(), 8u);
}

// Two messages arrive at the same instant. Without jitter, only the seed decides their order.
TEST(SimReplayTest, SeedDecidesBetweenSimultaneousArrivals) {
  std::set<uint32_t> winners;
  for (uint64_t seed = 1; seed <= 32; ++seed) {
    SimFabric fabric({.seed = seed});
    DeviceNode a(fabric.create_endpoint()), b(fabric.create_endpoint()),
        c(fabric.create_endpoint());
    auto ac = a.make_queue_pair(), ca = c.make_queue_pair();
    auto bc = b.make_queue_pair(), cb = c.make_queue_pair();
    connect_pair(*ac, *ca);
    connect_pair(*bc, *cb);
    ASSERT_TRUE(ca->post_receive(ReceiveRequest{.id = 1}).ok());
    ASSERT_TRUE(cb->post_receive(ReceiveRequest{.id = 2}).ok());
    ASSERT_TRUE(ac->post_send({.opcode = Opcode::kSend}).ok());
    ASSERT_TRUE(bc->post_send({.opcode = Opcode::kSend}).ok());
    winners.insert(static_cast<uint32_t>(c.poll_for(1, 1000).at(0).id));
  }
  EXPECT_EQ(winners, (std::set<uint32_t>{1, 2}));
}

TEST(SimReplayTest, JitterNeverReordersOneQueuePair) {
  SimFabric fabric({.seed = 3, .jitter = std::chrono::microseconds(50)});
  DeviceNode a(fabric.create_endpoint()), b(fabric.create_endpoint());
  auto ab = a.make_queue_pair(), ba = b.make_queue_pair();
  connect_pair(*ab, *ba);
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(ba->post_receive(ReceiveRequest{}).ok());
    ASSERT_TRUE(ab->post_send({.id = i, .opcode = Opcode::kSendImmediate, .immediate = i}).ok());
  }
  const std::vector<Completion> received = b.poll_for(200, 100'000);
  ASSERT_EQ(received.size(), 200u);
  for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(received[i].immediate, i);
}

// Not deterministic: each endpoint has a thread, and the threads poll memory with acquire loads.
TEST(SimThreadsTest, ThreadsPollMemoryThatTheFabricWrites) {
  constexpr uint64_t kRounds = 2000;
  SimFabric fabric;
  DeviceNode a(fabric.create_endpoint()), b(fabric.create_endpoint());
  auto ab = a.make_queue_pair(), ba = b.make_queue_pair();
  connect_pair(*ab, *ba);
  const auto play = [](DeviceNode& own, QueuePair& pair, const DeviceNode& peer, bool serves) {
    std::atomic_ref<uint64_t> flag(own.memory[0]);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const auto write = [&] {
        own.memory[1] = round;
        const Segment segment = own.segment(8, 8);
        ASSERT_TRUE(pair.post_send(request_for(Opcode::kWrite, segment, peer, 0)).ok());
        ASSERT_EQ(own.poll_for(1).size(), 1u);
      };
      if (serves) write();
      while (flag.load(std::memory_order_acquire) != round) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        Completion none;
        ASSERT_EQ(own.completions->poll(std::span(&none, 1)), 0u);
      }
      if (!serves) write();
    }
  };
  std::thread other([&] { play(b, *ba, a, false); });
  play(a, *ab, b, true);
  other.join();
}

}  // namespace
}  // namespace cariama
