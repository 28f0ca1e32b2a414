// Compares virtual time with times computed by hand from the model in sim_fabric.h.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

SimOptions figures() {
  return {.latency = nanoseconds(1000),
          .ack_latency = nanoseconds(500),
          .gigabytes_per_second = 10,
          .limits = {.max_send_depth = 1024,
                     .max_receive_depth = 1024,
                     .max_completions = 1 << 16,
                     .max_segments = 4,
                     .max_inline = 64,
                     .max_outstanding_reads = 2,
                     .mtu = 4096,
                     .max_message = 1 << 20,
                     .atomics = true}};
}

class SimTimingTest : public testing::Test {
 protected:
  void start(const SimOptions& options, const ConnectOptions& connection = {}) {
    fabric_ = std::make_unique<SimFabric>(options);
    a_ = std::make_unique<DeviceNode>(fabric_->create_endpoint());
    b_ = std::make_unique<DeviceNode>(fabric_->create_endpoint());
    ab_ = a_->make_queue_pair();
    ba_ = b_->make_queue_pair();
    connect_pair(*ab_, *ba_, connection);
  }

  void post(Opcode opcode, uint32_t bytes, uint64_t id = 0, uint8_t flags = kSignaled) {
    const Segment segment = a_->segment(0, bytes);
    ASSERT_TRUE(ab_->post_send(request_for(opcode, segment, *b_, 0, id, flags)).ok());
  }

  // Polls until a completion arrives, and checks its time.
  void expect_completion(SimTime time, uint64_t id = 0,
                         CompletionStatus status = CompletionStatus::kSuccess) {
    const std::vector<Completion> found = a_->poll_for(1);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].id, id);
    EXPECT_EQ(found[0].status, status) << status_name(found[0].status);
    EXPECT_EQ(fabric_->now().count(), time.count());
  }

  std::unique_ptr<SimFabric> fabric_;
  std::unique_ptr<DeviceNode> a_, b_;
  std::unique_ptr<QueuePair> ab_, ba_;
};

TEST_F(SimTimingTest, WriteTakesSizeOverBandwidthAndBothLatencies) {
  start(figures());
  post(Opcode::kWrite, 1000);
  expect_completion(nanoseconds(100 + 1000 + 500));
}

TEST_F(SimTimingTest, ReadDataTakesBandwidthInTheResponse) {
  start(figures());
  post(Opcode::kRead, 2000);
  expect_completion(nanoseconds(1000 + 500 + 200));
}

TEST_F(SimTimingTest, AtomicTakesBothLatencies) {
  start(figures());
  post(Opcode::kFetchAdd, 8);
  expect_completion(nanoseconds(1500));
}

TEST_F(SimTimingTest, SuccessiveWritesSharePort) {
  start(figures());
  for (uint64_t i = 0; i < 3; ++i) post(Opcode::kWrite, 1000, i);
  for (uint64_t i = 0; i < 3; ++i) expect_completion(nanoseconds(1600 + 100 * i), i);
}

TEST_F(SimTimingTest, MessageGapLimitsTheRate) {
  SimOptions options = figures();
  options.message_gap = nanoseconds(70);  // longer than the transmission of 8 bytes
  start(options);
  for (uint64_t i = 0; i < 10; ++i) post(Opcode::kWrite, 8, i);
  // 8 bytes take 0.8 ns. The tenth message leaves after nine gaps.
  for (uint64_t i = 0; i < 10; ++i) {
    expect_completion(SimTime(800) + nanoseconds(1500 + 70 * i), i);
  }
}

TEST_F(SimTimingTest, IncastQueuesAtTheTargetsPort) {
  start(figures());
  DeviceNode c(fabric_->create_endpoint());
  auto cb = c.make_queue_pair();
  auto bc = b_->make_queue_pair();
  connect_pair(*cb, *bc);
  post(Opcode::kWrite, 1000);
  const Segment segment = c.segment(0, 1000);
  ASSERT_TRUE(cb->post_send(request_for(Opcode::kWrite, segment, *b_, 2000)).ok());
  ASSERT_TRUE(fabric_->run_until_idle());
  // The first bytes of both messages arrive at 1000 ns. The port takes 100 ns for each message, one
  // after the other.
  EXPECT_EQ(fabric_->now(), nanoseconds(1000 + 200 + 500));
}

TEST_F(SimTimingTest, OutstandingReadsAreLimited) {
  start(figures());  // max_outstanding_reads is 2
  for (uint64_t i = 0; i < 5; ++i) post(Opcode::kFetchAdd, 8, i);
  expect_completion(nanoseconds(1500), 0);
  expect_completion(nanoseconds(1500), 1);
  expect_completion(nanoseconds(3000), 2);
  expect_completion(nanoseconds(3000), 3);
  expect_completion(nanoseconds(4500), 4);
}

TEST_F(SimTimingTest, FenceWaitsForEarlierReads) {
  start(figures());
  post(Opcode::kFetchAdd, 8, 1);
  post(Opcode::kWrite, 1000, 2, kSignaled | kFence);
  expect_completion(nanoseconds(1500), 1);
  expect_completion(nanoseconds(1500 + 1600), 2);
}

TEST_F(SimTimingTest, WriteReadsItsBufferAtDepartureAndLandsAtArrival) {
  SimOptions options = figures();
  options.message_gap = nanoseconds(700);
  start(options);
  a_->memory[0] = 1;
  const Segment segment = a_->segment(0, 8);
  ASSERT_TRUE(ab_->post_send(request_for(Opcode::kWrite, segment, *b_, 0)).ok());
  ASSERT_TRUE(ab_->post_send(request_for(Opcode::kWrite, segment, *b_, 8)).ok());
  fabric_->run_until(nanoseconds(699));  // the first WRITE has left, the second has not
  a_->memory[0] = 2;
  EXPECT_EQ(b_->memory[0], 0u);
  fabric_->run_until(nanoseconds(1001));
  EXPECT_EQ(b_->memory[0], 1u);
  EXPECT_EQ(b_->memory[1], 0u);
  fabric_->run_until(nanoseconds(1702));
  EXPECT_EQ(b_->memory[1], 2u);
}

TEST_F(SimTimingTest, ReceiverNotReadyIsRetriedWithTheGivenCountAndDelay) {
  start(figures(), {.receiver_retry_count = 2, .receiver_retry_delay = microseconds(10)});
  post(Opcode::kSend, 0, 7);
  // The sender learns of the first refusal after 1500 ns. Each of the two retries leaves 10 us
  // after the refusal before it, and its refusal arrives 1500 ns later.
  expect_completion(nanoseconds(1500 + 2 * 11500), 7, CompletionStatus::kReceiverNotReady);
  EXPECT_EQ(fabric_->statistics().receiver_not_ready, 3u);
  EXPECT_EQ(ab_->state(), QueuePairState::kError);
}

TEST_F(SimTimingTest, LateReceiveGetsTheNextRetryAndLaterOperationsStayInOrder) {
  start(figures(), {.receiver_retry_delay = microseconds(10)});
  post(Opcode::kSend, 0, 1);
  post(Opcode::kWrite, 8, 2);
  a_->memory[0] = 42;
  fabric_->run_until(microseconds(10));
  EXPECT_EQ(b_->memory[0], 0u) << "a WRITE overtook a SEND that was not received";
  ASSERT_TRUE(ba_->post_receive(ReceiveRequest{}).ok());
  expect_completion(nanoseconds(1500 + 10000 + 1500), 1);
  expect_completion(SimTime(800) + nanoseconds(1500 + 10000 + 1500), 2);
  EXPECT_EQ(b_->memory[0], 42u);
}

TEST_F(SimTimingTest, DeadPeerIsReportedAfterAllRetries) {
  start(figures(), {.retry_count = 3, .ack_timeout = microseconds(100)});
  post(Opcode::kWrite, 8, 1);
  post(Opcode::kWrite, 8, 2, 0);
  fabric_->kill(1);
  expect_completion(microseconds(4 * 100), 1, CompletionStatus::kRetryExceeded);
  expect_completion(microseconds(4 * 100), 2, CompletionStatus::kFlushed);
  EXPECT_EQ(ab_->repair().code(), absl::StatusCode::kUnavailable);
  const Segment segment = a_->segment(0, 8);
  EXPECT_EQ(ab_->post_send(request_for(Opcode::kWrite, segment, *b_, 0)).error,
            PostError::kNotConnected);
}

TEST_F(SimTimingTest, EndpointWhoseOperationFailsIsAmongTheArrivals) {
  start(figures(), {.retry_count = 3, .ack_timeout = microseconds(100)});
  post(Opcode::kWrite, 8, 1);
  fabric_->kill(1);
  fabric_->run_until(microseconds(3 * 100));
  EXPECT_TRUE(fabric_->take_arrivals().empty()) << "retries are left";
  fabric_->run_until(microseconds(5 * 100));
  EXPECT_EQ(fabric_->take_arrivals(), std::vector<uint32_t>{0});
}

TEST_F(SimTimingTest, PartitionThatHealsInTimeIsNotNoticed) {
  start(figures(), {.retry_count = 3, .ack_timeout = microseconds(100)});
  const uint32_t island[] = {1};
  fabric_->partition(island);
  post(Opcode::kWrite, 8, 1);
  a_->memory[0] = 5;
  fabric_->run_until(microseconds(150));
  fabric_->heal();
  // Transmitted at 0, 100 and 200 us; the third transmission arrives.
  expect_completion(SimTime(800) + microseconds(200) + nanoseconds(1500), 1);
  EXPECT_EQ(b_->memory[0], 5u);
  EXPECT_EQ(fabric_->statistics().retransmissions, 2u);
  EXPECT_EQ(fabric_->statistics().lost, 2u);
}

TEST_F(SimTimingTest, AtomicWhoseResponseIsLostIsNotExecutedTwice) {
  start(figures(), {.ack_timeout = microseconds(100)});
  b_->memory[0] = 10;
  const Segment segment = a_->segment(8, 8);
  WorkRequest add = request_for(Opcode::kFetchAdd, segment, *b_, 0);
  add.operand = 5;
  ASSERT_TRUE(ab_->post_send(add).ok());
  fabric_->run_until(nanoseconds(1200));  // executed; the response is in flight
  EXPECT_EQ(b_->memory[0], 15u);
  const uint32_t island[] = {0};
  fabric_->partition(island);
  fabric_->run_until(microseconds(2));
  EXPECT_EQ(fabric_->statistics().lost, 1u);
  fabric_->heal();
  expect_completion(microseconds(100) + nanoseconds(1500));
  EXPECT_EQ(b_->memory[0], 15u);
  EXPECT_EQ(a_->memory[1], 10u);
}

TEST_F(SimTimingTest, ChannelSleepsInVirtualTime) {
  start(figures());
  auto channel = must(a_->domain->create_channel());
  a_->completions = must(a_->domain->create_completion_queue({.depth = 16, .channel = channel}));
  a_->options.send_completions = a_->options.receive_completions = a_->completions;
  ab_ = a_->make_queue_pair();
  ba_ = b_->make_queue_pair();
  connect_pair(*ab_, *ba_);
  EXPECT_FALSE(channel->wait(std::chrono::hours(1)));
  EXPECT_EQ(fabric_->now(), std::chrono::hours(1));
  must(a_->completions->arm());
  post(Opcode::kFetchAdd, 8, 1);
  EXPECT_FALSE(channel->wait(nanoseconds(1499)));
  EXPECT_TRUE(channel->wait(nanoseconds::max()));
  EXPECT_EQ(fabric_->now(), std::chrono::hours(1) + nanoseconds(1500));
  EXPECT_EQ(a_->poll_for(1).size(), 1u);
  channel->wake();
  EXPECT_TRUE(channel->wait(nanoseconds(0)));
  // No event is pending: wait() returns false instead of hanging.
  EXPECT_FALSE(channel->wait(nanoseconds::max()));
}

TEST_F(SimTimingTest, NothingHappensBeyondTheHorizon) {
  start(figures());
  auto channel = must(a_->domain->create_channel());
  fabric_->set_horizon(nanoseconds(1200));
  post(Opcode::kFetchAdd, 8, 1);
  Completion completion;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(a_->completions->poll({&completion, 1}), 0u);
    EXPECT_LE(fabric_->now(), nanoseconds(1200));
  }
  EXPECT_EQ(fabric_->now(), nanoseconds(1000));  // time of the request's arrival
  EXPECT_FALSE(channel->wait(std::chrono::hours(1)));
  EXPECT_EQ(fabric_->now(), nanoseconds(1200));
  EXPECT_FALSE(channel->wait(nanoseconds::max()));
  EXPECT_EQ(fabric_->now(), nanoseconds(1200));
  fabric_->set_horizon(SimTime::max());
  expect_completion(nanoseconds(1500), 1);
}

}  // namespace
}  // namespace cariama
