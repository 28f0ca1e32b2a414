// Each fault is really injected, and a user of the device sees its effect. The tests run over a
// simulated fabric, where each effect can be observed step by step, and over shared memory between
// two devices.
#include "dtutils/fault/fault_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Limit of a polling loop. An operation is withheld for at most some hundred ticks.
constexpr uint64_t kMany = 200'000;

class FaultTest : public testing::TestWithParam<Transport> {
 protected:
  // Both ends are decorated. The overload with one FaultOptions injects faults at a's end only.
  void start(const FaultOptions& options, const ConnectOptions& connection = {}) {
    start(options, {}, connection);
  }
  void start(const FaultOptions& options_a, const FaultOptions& options_b,
             const ConnectOptions& connection) {
    if (GetParam() == Transport::kSim) {
      fabric_ = std::make_unique<SimFabric>(SimOptions{.seed = options_a.seed});
      a_ = std::make_unique<DeviceNode>(
          make_fault_device(fabric_->create_endpoint(), options_a, control_));
      b_ = std::make_unique<DeviceNode>(
          make_fault_device(fabric_->create_endpoint(), options_b, control_));
    } else {
      a_ = std::make_unique<DeviceNode>(
          make_fault_device(must(open_device({.transport = GetParam()})), options_a, control_));
      b_ = std::make_unique<DeviceNode>(
          make_fault_device(must(open_device({.transport = GetParam()})), options_b, control_));
    }
    ab_ = a_->make_queue_pair();
    ba_ = b_->make_queue_pair();
    ConnectOptions to_b = connection, to_a = connection;
    to_b.peer = "b";
    to_a.peer = "a";
    must(ab_->connect(ba_->address(), to_b));
    must(ba_->connect(ab_->address(), to_a));
  }

  void post(Opcode opcode, uint32_t bytes, uint64_t id, uint8_t flags = kSignaled) {
    const Segment segment = a_->segment(0, bytes);
    const PostResult result = ab_->post_send(request_for(opcode, segment, *b_, 0, id, flags));
    ASSERT_TRUE(result.ok()) << to_status(result, "b");
  }

  // Lets the simulated fabric complete everything that is in flight, without progress of the
  // decorator. Sim only.
  void let_inner_finish() { ASSERT_TRUE(fabric_->run_until_idle()); }

  void expect(DeviceNode& node, uint64_t id, CompletionStatus status) {
    const std::vector<Completion> found = node.poll_for(1);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].id, id);
    EXPECT_EQ(status_name(found[0].status), status_name(status));
  }

  void repair() {
    must(ab_->repair());
    must(ba_->repair());
    Completion rest[16];
    while (a_->completions->poll(rest) + b_->completions->poll(rest) > 0) {
    }
  }

  void expect_flow() {
    std::fill_n(a_->bytes(), 64, std::byte{7});
    std::fill_n(b_->bytes(), 64, std::byte{0});
    post(Opcode::kWrite, 64, 77);
    expect(*a_, 77, CompletionStatus::kSuccess);
    EXPECT_EQ(std::count(b_->bytes(), b_->bytes() + 64, std::byte{7}), 64);
  }

  std::shared_ptr<FaultControl> control_ = std::make_shared<FaultControl>();
  std::unique_ptr<SimFabric> fabric_;
  std::unique_ptr<DeviceNode> a_, b_;
  std::unique_ptr<QueuePair> ab_, ba_;
};

std::string transport_of(const testing::TestParamInfo<Transport>& info) {
  return std::string(transport_name(info.param));
}
INSTANTIATE_TEST_SUITE_P(On, FaultTest, testing::Values(Transport::kSim, Transport::kShm),
                         transport_of);

// For effects that are observed between two steps of the simulated fabric.
class FaultOverSimTest : public FaultTest {};
INSTANTIATE_TEST_SUITE_P(On, FaultOverSimTest, testing::Values(Transport::kSim), transport_of);

TEST_P(FaultTest, NothingByDefault) {
  start({});
  EXPECT_EQ(a_->device->transport(), Transport::kFault);
  EXPECT_EQ(a_->device->description().substr(0, 6), "fault(");
  for (int i = 0; i < 100; ++i) expect_flow();
  for (size_t fault = 0; fault < kFaultKinds; ++fault) {
    EXPECT_EQ(control_->injected(static_cast<Fault>(fault)), 0u);
  }
}

TEST_P(FaultOverSimTest, LateCompletionIsWithheldInOrder) {
  start({.late_completion = 1});
  for (uint64_t i = 0; i < 20; ++i) post(Opcode::kWrite, 8, i);
  let_inner_finish();
  Completion first;
  EXPECT_EQ(a_->completions->poll(std::span(&first, 1)), 0u) << "the completion was not withheld";
  for (uint64_t i = 0; i < 20; ++i) expect(*a_, i, CompletionStatus::kSuccess);
  EXPECT_EQ(control_->injected(Fault::kLateCompletion), 20u);
}

TEST_P(FaultOverSimTest, LateOperationStartsLater) {
  start({.late_operation = 1});
  a_->memory[0] = 5;
  post(Opcode::kWrite, 8, 1);
  let_inner_finish();
  EXPECT_EQ(b_->memory[0], 0u) << "the operation was not withheld";
  EXPECT_EQ(control_->injected(Fault::kLateOperation), 1u);
  expect(*a_, 1, CompletionStatus::kSuccess);
  EXPECT_EQ(b_->memory[0], 5u);
}

TEST_P(FaultOverSimTest, TornWriteIsSeenInPartsAndCompletesWhole) {
  start({.torn_write = 1});
  EXPECT_EQ(ab_->write_order(), ArrivalOrder::kWrites);
  std::fill_n(a_->bytes(), 1024, std::byte{9});
  bool partial = false;
  for (uint64_t i = 0; i < 20; ++i) {
    std::fill_n(b_->bytes(), 1024, std::byte{0});
    const auto landed = [this] {
      return std::count(b_->bytes(), b_->bytes() + 1024, std::byte{9});
    };
    post(Opcode::kWrite, 1024, i);
    Completion completion;
    for (uint64_t polls = 0; polls < kMany; ++polls) {
      partial |= landed() != 0 && landed() != 1024;
      for (int word = 0; word < 128; ++word) {
        const uint64_t value = b_->memory[word];
        ASSERT_TRUE(value == 0 || value == 0x0909090909090909u) << "an aligned word was torn";
      }
      if (a_->completions->poll(std::span(&completion, 1)) == 1) break;
    }
    EXPECT_EQ(completion.id, i);
    EXPECT_EQ(landed(), 1024);
  }
  EXPECT_TRUE(partial);
  EXPECT_EQ(control_->injected(Fault::kTornWrite), 20u);
}

TEST_P(FaultTest, TornGatheringInlineAndOddWritesArriveWhole) {
  start({.late_operation = 0.5, .torn_write = 1});
  for (uint64_t i = 0; i < 100; ++i) {
    for (size_t k = 0; k < 512; ++k) a_->bytes()[k] = static_cast<std::byte>(i + k);
    std::fill_n(b_->bytes(), 512, std::byte{0});
    const auto length = static_cast<uint32_t>(9 + i % 40);
    const Segment segments[] = {a_->segment(0, length), a_->segment(100, 0),
                                a_->segment(200, 2 * length)};
    const uint64_t offset = i % 8;  // alignment of the remote address
    WorkRequest request = request_for(Opcode::kWrite, segments[0], *b_, offset, i);
    const bool is_inline = i % 3 == 0 && length <= ab_->limits().max_inline;
    if (is_inline) {
      request.flags |= kInline;
    } else {
      request.segments = segments;
      request.segment_count = 3;
    }
    ASSERT_TRUE(ab_->post_send(request).ok());
    std::vector<std::byte> sent(a_->bytes(), a_->bytes() + length);
    if (is_inline) {
      std::fill_n(a_->bytes(), length, std::byte{0xee});
    } else {
      sent.insert(sent.end(), a_->bytes() + 200, a_->bytes() + 200 + 2 * length);
    }
    expect(*a_, i, CompletionStatus::kSuccess);
    ASSERT_TRUE(std::equal(sent.begin(), sent.end(), b_->bytes() + offset)) << i;
    ASSERT_EQ(b_->bytes()[offset + sent.size()], std::byte{0});
  }
  EXPECT_GE(control_->injected(Fault::kTornWrite), 90u);
}

TEST_P(FaultOverSimTest, SenderMeetsReceiverNotReady) {
  start({}, {.receiver_not_ready = 1, .longest_hold = 2000}, {});
  ASSERT_TRUE(ba_->post_receive(ReceiveRequest{.id = 4}).ok());
  post(Opcode::kSend, 0, 1);
  expect(*b_, 4, CompletionStatus::kSuccess);
  expect(*a_, 1, CompletionStatus::kSuccess);
  EXPECT_EQ(control_->injected(Fault::kReceiverNotReady), 1u);
  EXPECT_GT(fabric_->statistics().receiver_not_ready, 0u);
}

TEST_P(FaultTest, ReceiverNotReadyIsNotInjectedIfTheSenderDoesNotRetry) {
  start({}, {.receiver_not_ready = 1}, {.receiver_retry_count = 0});
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(ba_->post_receive(ReceiveRequest{.id = i}).ok());
    post(Opcode::kSend, 0, i);
    expect(*a_, i, CompletionStatus::kSuccess);
    expect(*b_, i, CompletionStatus::kSuccess);
  }
  EXPECT_EQ(control_->injected(Fault::kReceiverNotReady), 0u);
}

TEST_P(FaultTest, FailedOperationIsNotExecutedAndBreaksBothEnds) {
  start({});
  for (const CompletionStatus status :
       {CompletionStatus::kRemoteOperation, CompletionStatus::kRemoteInvalid,
        CompletionStatus::kLocalProtection}) {
    for (const uint8_t flags : {kSignaled, uint8_t{0}}) {
      a_->memory[0] = 5;
      b_->memory[0] = 1;
      ASSERT_TRUE(ba_->post_receive(ReceiveRequest{.id = 9}).ok());
      post(Opcode::kWrite, 0, 1);  // posted before the failing operation: succeeds
      control_->fail_next(status);
      post(Opcode::kWrite, 8, 2, flags);
      post(Opcode::kWrite, 8, 3, 0);  // posted after the failing operation: flushed
      expect(*a_, 1, CompletionStatus::kSuccess);
      expect(*a_, 2, status);
      expect(*a_, 3, CompletionStatus::kFlushed);
      expect(*b_, 9, CompletionStatus::kFlushed);
      EXPECT_EQ(b_->memory[0], 1u) << "the failed operation was executed";
      EXPECT_EQ(ab_->state(), QueuePairState::kError);
      EXPECT_EQ(ba_->state(), QueuePairState::kError);
      repair();
      expect_flow();
    }
  }
  EXPECT_EQ(control_->injected(Fault::kFailedOperation), 6u);
}

TEST_P(FaultTest, TheNthOperationFails) {
  start({.fail_nth = 3, .fail_status = CompletionStatus::kRemoteInvalid});
  for (uint64_t i = 1; i <= 4; ++i) post(Opcode::kFetchAdd, 8, i);
  expect(*a_, 1, CompletionStatus::kSuccess);
  expect(*a_, 2, CompletionStatus::kSuccess);
  expect(*a_, 3, CompletionStatus::kRemoteInvalid);
  expect(*a_, 4, CompletionStatus::kFlushed);
  repair();
  expect_flow();
}

TEST_P(FaultTest, SeedChoosesWhichOperationFails) {
  const auto first_failure = [this](uint64_t seed) {
    start({.seed = seed, .failed_operation = 0.1});
    uint64_t number = 0;
    for (;; ++number) {
      post(Opcode::kWrite, 8, number);
      const std::vector<Completion> found = a_->poll_for(1);
      if (found.empty() || found[0].status != CompletionStatus::kSuccess) break;
    }
    ab_.reset();
    ba_.reset();
    return number;
  };
  std::set<uint64_t> failures;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const uint64_t number = first_failure(seed);
    EXPECT_EQ(first_failure(seed), number);
    failures.insert(number);
  }
  EXPECT_GT(failures.size(), 2u);
}

TEST_P(FaultTest, LostPeerEndsInRetryExceededAndOtherPeersKeepWorking) {
  start({.lost_peer_ticks = 500});
  DeviceNode c(b_->device);
  auto ac = a_->make_queue_pair(), ca = c.make_queue_pair();
  must(ac->connect(ca->address(), {.peer = "c"}));
  must(ca->connect(ac->address(), {.peer = "a"}));
  expect_flow();
  ASSERT_TRUE(ab_->post_receive(ReceiveRequest{.id = 8}).ok());
  control_->lose_peer("b");
  // The result of an operation to a lost peer is not reported any more.
  ASSERT_TRUE(ba_->post_send({.opcode = Opcode::kSend}).ok());
  post(Opcode::kWrite, 8, 1);
  post(Opcode::kWrite, 8, 2, 0);
  const Segment segment = a_->segment(0, 8);
  ASSERT_TRUE(ac->post_send(request_for(Opcode::kWrite, segment, c, 0, 5)).ok());
  expect(*a_, 5, CompletionStatus::kSuccess);
  expect(*a_, 1, CompletionStatus::kRetryExceeded);
  std::set<uint64_t> flushed;
  for (const Completion& completion : a_->poll_for(2)) {
    EXPECT_EQ(completion.status, CompletionStatus::kFlushed);
    flushed.insert(completion.id);
  }
  EXPECT_EQ(flushed, (std::set<uint64_t>{2, 8}));
  EXPECT_EQ(control_->injected(Fault::kLostPeer), 1u);

  const absl::Status status = ab_->repair();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("to b"), std::string::npos) << status;
  EXPECT_EQ(ab_->post_send({.opcode = Opcode::kWrite}).error, PostError::kNotConnected);
  control_->restore_peer("b");
  repair();
  expect_flow();
}

TEST_P(FaultTest, PeerIsLostAfterTheGivenNumberOfOperations) {
  start({.lose_peer_after = 10, .lost_peer_ticks = 50});
  for (uint64_t i = 0; i < 10; ++i) {
    post(Opcode::kWrite, 8, i);
    expect(*a_, i, CompletionStatus::kSuccess);
  }
  post(Opcode::kWrite, 8, 10);
  expect(*a_, 10, CompletionStatus::kRetryExceeded);
}

TEST_P(FaultTest, QueuesAreShort) {
  start({.max_send_depth = 4, .max_receive_depth = 3, .max_segments = 2, .max_inline = 8});
  EXPECT_EQ(a_->device->limits().max_send_depth, 4u);
  EXPECT_EQ(ab_->limits().send_depth, 4u);
  EXPECT_EQ(ab_->limits().receive_depth, 3u);
  EXPECT_EQ(ab_->limits().max_send_segments, 2u);
  EXPECT_EQ(ab_->limits().max_inline, 8u);
  for (uint64_t i = 0; i < 4; ++i) post(Opcode::kWrite, 8, i, i == 3 ? kSignaled : 0);
  const Segment segment = a_->segment(0, 8);
  const WorkRequest more = request_for(Opcode::kWrite, segment, *b_, 0);
  EXPECT_EQ(ab_->post_send(more).error, PostError::kQueueFull);
  expect(*a_, 3, CompletionStatus::kSuccess);
  EXPECT_TRUE(ab_->post_send(more).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ab_->post_receive(ReceiveRequest{}).ok());
  EXPECT_EQ(ab_->post_receive(ReceiveRequest{}).error, PostError::kQueueFull);
  const Segment large = a_->segment(0, 9);
  WorkRequest inlined = request_for(Opcode::kWrite, large, *b_, 0);
  inlined.flags |= kInline;
  EXPECT_EQ(ab_->post_send(inlined).error, PostError::kInlineTooLarge);
}

TEST_P(FaultTest, SwitchedOffFaultsDoNotHappen) {
  start({.late_completion = 1, .late_operation = 1, .torn_write = 1, .failed_operation = 1});
  control_->enable_all(false);
  for (int i = 0; i < 20; ++i) expect_flow();
  for (size_t fault = 0; fault < kFaultKinds; ++fault) {
    EXPECT_EQ(control_->injected(static_cast<Fault>(fault)), 0u);
  }
  control_->enable(Fault::kTornWrite, true);
  expect_flow();
  EXPECT_EQ(control_->injected(Fault::kTornWrite), 1u);
  EXPECT_EQ(control_->injected(Fault::kLateOperation), 0u);
}

// The sleeper is woken, however long its completion or any earlier operation was withheld.
TEST_P(FaultTest, SleepersAreWoken) {
  FaultOptions options = FaultOptions::benign(5);
  options.late_completion = options.late_operation = 1;
  start(options, options, {});
  for (const bool solicited : {false, true}) {
    auto channel = must(b_->domain->create_channel());
    b_->completions = must(b_->domain->create_completion_queue({.depth = 64, .channel = channel}));
    b_->options.send_completions = b_->options.receive_completions = b_->completions;
    ba_ = b_->make_queue_pair();
    ab_ = a_->make_queue_pair();
    connect_pair(*ab_, *ba_);
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(ba_->post_receive(ReceiveRequest{.id = i}).ok());
      ASSERT_TRUE(ab_->post_send({.id = i, .opcode = Opcode::kSend, .flags = kSolicited}).ok());
      // Signaled: its completion frees the slots of the sends.
      if (i % 4 == 3) post(Opcode::kWrite, 0, i);
      Completion completion;
      size_t count = 0;
      for (int rounds = 0; count == 0; ++rounds) {
        ASSERT_LT(rounds, 1000) << "the channel reports events without completions";
        must(b_->completions->arm(solicited));
        count = b_->completions->poll(std::span(&completion, 1));
        // One hour: over shm, the watchdog of the test ends the wait if a wake-up is lost. Over
        // sim, the hour is virtual time, and wait() then returns false.
        if (count > 0) break;
        ASSERT_TRUE(channel->wait(std::chrono::hours(1)));
        count = b_->completions->poll(std::span(&completion, 1));
      }
      EXPECT_EQ(completion.id, i);
      if (i % 4 == 3) expect(*a_, i, CompletionStatus::kSuccess);
    }
  }
  EXPECT_GT(control_->injected(Fault::kLateCompletion), 100u);
}

TEST_P(FaultOverSimTest, SeedReplaysTheRun) {
  const auto run = [this](uint64_t seed) {
    control_ = std::make_shared<FaultControl>();
    FaultOptions options = FaultOptions::benign(seed);
    start(options, options, {});
    for (uint64_t i = 0; i < 200; ++i) {
      EXPECT_TRUE(ba_->post_receive(ReceiveRequest{.id = i}).ok());
      post(Opcode::kWrite, 100, 2 * i, 0);
      post(Opcode::kSend, 0, 2 * i + 1);
      expect(*b_, i, CompletionStatus::kSuccess);
      expect(*a_, 2 * i + 1, CompletionStatus::kSuccess);
    }
    for (size_t fault = 0; fault <= static_cast<size_t>(Fault::kReceiverNotReady); ++fault) {
      EXPECT_GT(control_->injected(static_cast<Fault>(fault)), 10u)
          << fault_name(static_cast<Fault>(fault));
    }
    const uint64_t trace = fabric_->trace_hash();
    ab_.reset();
    ba_.reset();
    return trace;
  };
  const uint64_t trace = run(1);
  EXPECT_EQ(run(1), trace);
  EXPECT_NE(run(2), trace);
}

// A withheld operation is executed although its program does not poll.
TEST(FaultOverShmTest, WorkMovesOnWithoutPolling) {
  auto control = std::make_shared<FaultControl>();
  const FaultOptions options{.late_operation = 1, .torn_write = 1};
  DeviceNode a(
      make_fault_device(must(open_device({.transport = Transport::kShm})), options, control));
  DeviceNode b(must(open_device({.transport = Transport::kShm})));  // a peer without decorator
  auto ab = a.make_queue_pair(), ba = b.make_queue_pair();
  connect_pair(*ab, *ba);
  std::fill_n(a.memory.begin(), 17, 3);
  const Segment data = a.segment(0, 128), flag = a.segment(128, 8);
  ASSERT_TRUE(ab->post_send(request_for(Opcode::kWrite, data, b, 0)).ok());
  ASSERT_TRUE(ab->post_send(request_for(Opcode::kWrite, flag, b, 128)).ok());
  ASSERT_TRUE(orders_writes(ab->write_order()));
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (std::atomic_ref(b.memory[16]).load(std::memory_order_acquire) != 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(std::count(b.memory.begin(), b.memory.begin() + 16, 3), 16);
  EXPECT_EQ(control->injected(Fault::kLateOperation), 2u);
  EXPECT_EQ(control->injected(Fault::kTornWrite), 1u);
}

}  // namespace
}  // namespace cariama
