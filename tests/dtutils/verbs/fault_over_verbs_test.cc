// A property of real devices that the fault decorator relies on: an operation that it makes fail
// moves both ends to the error state, and both can be repaired.
#include <gtest/gtest.h>

#include "dtutils/fault/fault_device.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

class FaultOverVerbsTest : public ::testing::Test {
 protected:
  void expect(DeviceNode& node, uint64_t id, CompletionStatus status) {
    const std::vector<Completion> found = node.poll_for(1);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].id, id);
    EXPECT_EQ(status_name(found[0].status), status_name(status));
  }
  void post(uint64_t id, uint8_t flags = kSignaled) {
    const Segment segment = a_.segment(0, 8);
    ASSERT_TRUE(ab_->post_send(request_for(Opcode::kWrite, segment, b_, 0, id, flags)).ok());
  }
  void repair() {
    must(ab_->repair());
    must(ba_->repair());
  }

  std::shared_ptr<FaultControl> control_ = std::make_shared<FaultControl>();
  DeviceNode a_{make_fault_device(must(open_device({.transport = Transport::kVerbs})),
                                  {.lost_peer_ticks = 500}, control_)};
  DeviceNode b_{must(open_device({.transport = Transport::kVerbs}))};  // not decorated
  std::unique_ptr<QueuePair> ab_ = a_.make_queue_pair();
  std::unique_ptr<QueuePair> ba_ = b_.make_queue_pair();
};

TEST_F(FaultOverVerbsTest, FailedOperationIsNotExecutedAndBreaksBothEnds) {
  connect_pair(*ab_, *ba_, {.peer = "the other end"});
  ASSERT_TRUE(ba_->post_receive(ReceiveRequest{.id = 9}).ok());
  a_.memory[0] = 5;
  control_->fail_next(CompletionStatus::kRemoteOperation);
  post(1, 0);
  post(2);
  expect(a_, 1, CompletionStatus::kRemoteOperation);
  expect(a_, 2, CompletionStatus::kFlushed);
  expect(b_, 9, CompletionStatus::kFlushed);
  EXPECT_EQ(b_.memory[0], 0u);
  EXPECT_EQ(ba_->state(), QueuePairState::kError);
  repair();
  post(3);
  expect(a_, 3, CompletionStatus::kSuccess);
  EXPECT_EQ(b_.memory[0], 5u);
}

TEST_F(FaultOverVerbsTest, LostPeerEndsInRetryExceededAndCanBeRestored) {
  connect_pair(*ab_, *ba_, {.peer = "the other end"});
  control_->lose_peer("the other end");
  post(1);
  post(2, 0);
  expect(a_, 1, CompletionStatus::kRetryExceeded);
  expect(a_, 2, CompletionStatus::kFlushed);
  EXPECT_EQ(ab_->repair().code(), absl::StatusCode::kUnavailable);
  control_->restore_peer("the other end");
  repair();
  post(3);
  expect(a_, 3, CompletionStatus::kSuccess);
}

}  // namespace
}  // namespace cariama
