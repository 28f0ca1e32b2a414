// Ten thousand endpoints in one process: their memory use, and that they work.
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <numeric>

#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

using std::chrono::nanoseconds;

constexpr uint32_t kEndpoints = 10'000;

// A ring: each endpoint has a queue pair to its successor and one to its predecessor.
class SimScaleTest : public testing::Test {
 protected:
  void make_ring() {
    const size_t before = mallinfo2().uordblks;
    for (uint32_t i = 0; i < kEndpoints; ++i) nodes_.emplace_back(fabric_.create_endpoint(), 64);
    for (uint32_t i = 0; i < kEndpoints; ++i) {
      next_.push_back(nodes_[i].make_queue_pair());
      previous_.push_back(nodes_[i].make_queue_pair());
    }
    for (uint32_t i = 0; i < kEndpoints; ++i) {
      connect_pair(*next_[i], *previous_[(i + 1) % kEndpoints]);
    }
    // mallinfo2() reports 0 under the sanitizers' allocators.
    bytes_per_endpoint_ = (mallinfo2().uordblks - before) / kEndpoints;
    RecordProperty("bytes_per_endpoint", std::to_string(bytes_per_endpoint_));
    std::printf("%zu bytes per endpoint with 2 queue pairs, completion queue and region\n",
                bytes_per_endpoint_);
  }

  SimFabric fabric_{{.seed = 11,
                     .latency = nanoseconds(900),
                     .ack_latency = nanoseconds(900),
                     .gigabytes_per_second = 25,
                     .message_gap = nanoseconds(5)}};
  std::vector<DeviceNode> nodes_;
  std::vector<std::unique_ptr<QueuePair>> next_, previous_;
  size_t bytes_per_endpoint_ = 0;
};

TEST_F(SimScaleTest, RingOfTenThousand) {
  make_ring();
  EXPECT_LT(bytes_per_endpoint_, 4096u);
  constexpr uint32_t kRounds = 5;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    // Each endpoint forwards the value it received. After r rounds endpoint i has the initial value
    // of endpoint i - r.
    for (uint32_t i = 0; i < kEndpoints; ++i) {
      nodes_[i].memory[1] = round == 1 ? i : nodes_[i].memory[0];
    }
    for (uint32_t i = 0; i < kEndpoints; ++i) {
      ASSERT_TRUE(previous_[i]->post_receive(ReceiveRequest{}).ok());
      const Segment segment = nodes_[i].segment(8, 8);
      ASSERT_TRUE(next_[i]
                      ->post_send(request_for(Opcode::kWriteImmediate, segment,
                                              nodes_[(i + 1) % kEndpoints], 0))
                      .ok());
    }
    const SimTime start = fabric_.now();
    ASSERT_TRUE(fabric_.run_until_idle());
    // All messages travel at the same time, and 8 bytes take 320 ps.
    EXPECT_EQ(fabric_.now() - start, SimTime(320) + nanoseconds(1800));
    for (DeviceNode& node : nodes_) ASSERT_EQ(node.poll_for(2, 4).size(), 2u);
  }
  for (uint32_t i = 0; i < kEndpoints; ++i) {
    ASSERT_EQ(nodes_[i].memory[0], (i + kEndpoints - kRounds) % kEndpoints);
  }
  EXPECT_EQ(fabric_.statistics().messages, uint64_t{kEndpoints} * kRounds);
  EXPECT_EQ(fabric_.statistics().completion_overruns, 0u);
}

// All endpoints add to the counters of ten hubs. The sums are exact, and each hub's port limits the
// rate.
TEST_F(SimScaleTest, AllToSome) {
  constexpr uint32_t kHubs = 10;
  std::vector<DeviceNode> hubs;
  for (uint32_t i = 0; i < kHubs; ++i) hubs.emplace_back(fabric_.create_endpoint(), 64, 1);
  std::vector<std::unique_ptr<QueuePair>> there, back;
  for (uint32_t i = 0; i < kEndpoints; ++i) {
    nodes_.emplace_back(fabric_.create_endpoint(), 64, 1);
    there.push_back(nodes_[i].make_queue_pair());
    back.push_back(hubs[i % kHubs].make_queue_pair());
    connect_pair(*there[i], *back[i]);
    const Segment segment = nodes_[i].segment(0, 8);
    WorkRequest add = request_for(Opcode::kFetchAdd, segment, hubs[i % kHubs], 0);
    add.operand = 1;
    ASSERT_TRUE(there[i]->post_send(add).ok());
  }
  ASSERT_TRUE(fabric_.run_until_idle());
  // Each hub receives 1000 messages, 5 ns apart.
  EXPECT_EQ(fabric_.now(), nanoseconds(900 + 999 * 5 + 900));
  std::vector<uint64_t> tickets(kHubs * kEndpoints / kHubs);
  for (uint32_t i = 0; i < kEndpoints; ++i) {
    ASSERT_EQ(nodes_[i].poll_for(1, 2).size(), 1u);
    const uint64_t ticket = nodes_[i].memory[0];
    ASSERT_LT(ticket, kEndpoints / kHubs);
    ++tickets[ticket * kHubs + i % kHubs];
  }
  for (const uint64_t holders : tickets) ASSERT_EQ(holders, 1u);
  for (uint32_t i = 0; i < kHubs; ++i) {
    EXPECT_EQ(hubs[i].memory[0], kEndpoints / kHubs);
    EXPECT_EQ(fabric_.endpoint_statistics(i).messages_received, kEndpoints / kHubs);
  }
}

}  // namespace
}  // namespace cariama
