// The limits that two ends agree on, from the limits that each of them has.
#include <set>
#include <string>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/verbs/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;

class NegotiationTest : public testing::VerbsTest {
 protected:
  // Returns the address of `end` after `change`, as an end on a device with smaller limits would
  // send it.
  template <typename Change>
  static std::string changed(const testing::VerbsEnd& end, Change change) {
    verbs::Address address = *verbs::decode(end.pair->address());
    change(address);
    return verbs::encode(address);
  }
};

TEST_F(NegotiationTest, TheSmallerMtuOfBothEndsIsUsed) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  const auto shrink = [](verbs::Address& address) { address.mtu = 512; };
  ASSERT_TRUE(near.pair->connect(changed(far, shrink), {}).ok());
  ASSERT_TRUE(far.pair->connect(changed(near, shrink), {}).ok());
  EXPECT_EQ(near.pair->limits().mtu, 512U);
  EXPECT_EQ(far.pair->limits().mtu, 512U);
  expect_write_arrives(near, 10'000, 1);
  expect_write_arrives(far, 10'000, 2);
}

TEST_F(NegotiationTest, BetweenEqualEndsTheLimitsOfTheDeviceAreUsed) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  connect(near, far);
  EXPECT_EQ(near.pair->limits().mtu, device_->limits().mtu);
  EXPECT_EQ(near.pair->limits().max_message, device_->limits().max_message);
  EXPECT_EQ(near.pair->limits().max_outstanding_reads, device_->limits().max_outstanding_reads);
  EXPECT_GE(near.pair->limits().max_outstanding_reads, 1U);
  EXPECT_EQ(near.pair->limits().send_depth, 16U);
  EXPECT_EQ(near.pair->limits().receive_depth, 16U);
}

TEST_F(NegotiationTest, OutstandingReadsAreLimitedByThePeer) {
  testing::VerbsEnd near = make_end({.send_depth = 64, .receive_depth = 1});
  testing::VerbsEnd far = make_end();
  ASSERT_TRUE(
      near.pair->connect(changed(far, [](verbs::Address& a) { a.served_reads = 1; }), {}).ok());
  ASSERT_TRUE(
      far.pair->connect(changed(near, [](verbs::Address& a) { a.initiated_reads = 1; }), {}).ok());
  EXPECT_EQ(near.pair->limits().max_outstanding_reads, 1U);

  // Posts more READs than may be in flight. The rest waits in the send queue, and all succeed.
  constexpr size_t kReads = 48;
  testing::VerbsBuffer from(*domain_, kReads * 8);
  testing::VerbsBuffer to(*domain_, kReads * 8);
  for (size_t i = 0; i < from.bytes.size(); ++i) from.bytes[i] = static_cast<std::byte>(i * 5 + 1);
  std::vector<Segment> segments;
  std::vector<WorkRequest> reads;
  for (size_t i = 0; i < kReads; ++i) segments.push_back(to.segment(i * 8, 8));
  for (size_t i = 0; i < kReads; ++i) {
    reads.push_back({.id = i,
                     .opcode = Opcode::kRead,
                     .flags = kSignaled,
                     .segment_count = 1,
                     .segments = &segments[i],
                     .remote_address = from.region->locator(i * 8, 8).address,
                     .remote_key = from.region->remote_key()});
  }
  ASSERT_EQ(near.pair->post_send(reads).posted, kReads);
  const std::vector<Completion> completions = testing::take_completions(*near.sends, kReads);
  ASSERT_EQ(completions.size(), kReads);
  for (size_t i = 0; i < kReads; ++i) {
    EXPECT_EQ(completions[i].id, i);
    EXPECT_EQ(completions[i].status, CompletionStatus::kSuccess);
  }
  EXPECT_TRUE(from.bytes == to.bytes);
}

TEST_F(NegotiationTest, TheSmallerMaximumMessageIsUsed) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  ASSERT_TRUE(
      near.pair->connect(changed(far, [](verbs::Address& a) { a.max_message = 1000; }), {}).ok());
  testing::VerbsBuffer buffer(*domain_, 1001);
  const Segment segment = buffer.segment(0, 1001);
  const PostResult posted = near.pair->post_send(
      WorkRequest{.opcode = Opcode::kWrite, .segment_count = 1, .segments = &segment});
  EXPECT_EQ(posted.error, PostError::kMessageTooLarge);
}

TEST_F(NegotiationTest, APeerWithoutAtomicsIsNotSentAny) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  ASSERT_TRUE(
      near.pair->connect(changed(far, [](verbs::Address& a) { a.atomics = false; }), {}).ok());
  testing::VerbsBuffer buffer(*domain_, 8);
  const Segment segment = buffer.segment(0, 8);
  const PostResult posted = near.pair->post_send(
      WorkRequest{.opcode = Opcode::kFetchAdd, .segment_count = 1, .segments = &segment});
  EXPECT_EQ(posted.error, PostError::kUnsupported);
}

TEST_F(NegotiationTest, RequestsAboveTheDeviceLimitsAreReduced) {
  const DeviceLimits& limits = device_->limits();
  testing::VerbsEnd near = make_end({.send_depth = 16,
                                     .receive_depth = 16,
                                     .max_send_segments = 1'000'000,
                                     .max_receive_segments = 1'000'000,
                                     .max_inline = 1'000'000});
  testing::VerbsEnd far = make_end();
  connect(near, far);
  EXPECT_LE(near.pair->limits().max_send_segments, limits.max_segments);
  EXPECT_GE(near.pair->limits().max_send_segments, 1U);
  ASSERT_GE(near.pair->limits().max_inline, 8U);

  // An inline WRITE of exactly the limit arrives; one byte more is refused.
  const uint32_t most = near.pair->limits().max_inline;
  std::vector<std::byte> data(most + 1);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i + 3);
  testing::VerbsBuffer to(*domain_, most + 1);
  Segment segment{.address = data.data(), .length = most};
  WorkRequest write{.opcode = Opcode::kWrite,
                    .flags = kSignaled | kInline,
                    .segment_count = 1,
                    .segments = &segment,
                    .remote_address = to.region->locator().address,
                    .remote_key = to.region->remote_key()};
  ASSERT_TRUE(near.pair->post_send(write).ok());
  const std::vector<Completion> completions = testing::take_completions(*near.sends, 1);
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, CompletionStatus::kSuccess);
  EXPECT_TRUE(std::equal(data.begin(), data.end() - 1, to.bytes.begin()));
  EXPECT_EQ(to.bytes[most], std::byte{0});
  segment.length = most + 1;
  EXPECT_EQ(near.pair->post_send(write).error, PostError::kInlineTooLarge);
}

TEST_F(NegotiationTest, QueuePairsThatOverflowTheCompletionQueueAreRefused) {
  // The creation is refused by an error, because the completion queue could not report the failure
  // of all requests without losing completions.
  const DeviceLimits& limits = device_->limits();
  auto completions = testing::value_of(domain_->create_completion_queue({.depth = 64}));
  const QueuePairOptions deepest{.send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 4'000'000'000U,
                                 .receive_depth = 4'000'000'000U,
                                 .max_send_segments = 1,
                                 .max_receive_segments = 1,
                                 .max_inline = 0};
  auto first = testing::value_of(domain_->create_queue_pair(deepest));
  EXPECT_LE(first->limits().send_depth, limits.max_send_depth);
  EXPECT_LE(first->limits().receive_depth, limits.max_receive_depth);
  const uint32_t used = first->limits().send_depth + first->limits().receive_depth;
  EXPECT_GT(completions->depth(), used);
  QueuePairOptions more = deepest;
  more.send_depth = limits.max_completions - used;
  const auto second = domain_->create_queue_pair(more);
  if (first->limits().send_depth == limits.max_send_depth) {
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr(std::to_string(limits.max_completions)));
  }
  // After the first queue pair was destroyed there is room again.
  first.reset();
  EXPECT_TRUE(domain_->create_queue_pair(more).ok());
}

TEST_F(NegotiationTest, ACompletionQueueGrowsWithItsQueuePairs) {
  auto completions = testing::value_of(domain_->create_completion_queue({.depth = 8}));
  std::vector<testing::VerbsEnd> ends;
  for (int i = 0; i < 6; ++i) {
    ends.push_back(make_end({.send_completions = completions,
                             .receive_completions = completions,
                             .send_depth = 16,
                             .receive_depth = 16}));
  }
  EXPECT_GE(completions->depth(), 6U * 32);
  for (size_t i = 0; i < ends.size(); i += 2) connect(ends[i], ends[i + 1]);
  // All queue pairs fail with full queues: each request is reported.
  constexpr size_t kRequests = 16;
  testing::VerbsBuffer buffer(*domain_, 8);
  const Segment segment = buffer.segment(0, 8);
  for (size_t i = 0; i < ends.size(); ++i) {
    for (size_t k = 0; k < kRequests; ++k) {
      ASSERT_TRUE(ends[i].pair->post_receive({.id = 1000 * i + 100 + k}).ok());
    }
    ends[i].pair->fail();
    for (size_t k = 0; k < kRequests; ++k) {
      ASSERT_TRUE(ends[i]
                      .pair
                      ->post_send(WorkRequest{.id = 1000 * i + k,
                                              .opcode = Opcode::kSend,
                                              .segment_count = 1,
                                              .segments = &segment})
                      .ok());
    }
  }
  std::set<uint64_t> ids;
  for (const Completion& completion :
       testing::take_completions(*completions, ends.size() * 2 * kRequests)) {
    EXPECT_EQ(completion.status, CompletionStatus::kFlushed);
    EXPECT_TRUE(ids.insert(completion.id).second);
  }
  EXPECT_EQ(ids.size(), ends.size() * 2 * kRequests);
}

TEST_F(NegotiationTest, TheInlineSizeOfTheDeviceIsExact) {
  const uint32_t most = device_->limits().max_inline;
  ASSERT_GT(most, 0U);
  testing::VerbsEnd end =
      make_end({.send_depth = 16, .receive_depth = 16, .max_send_segments = 1, .max_inline = most});
  EXPECT_GE(end.pair->limits().max_inline, most);
}

TEST_F(NegotiationTest, DamagedAddressesAreRefused) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  const std::string address = far.pair->address();
  for (size_t length = 0; length < address.size(); ++length) {
    const absl::Status status = near.pair->connect(address.substr(0, length), {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_EQ(near.pair->connect(address + "x", {}).code(), absl::StatusCode::kInvalidArgument);
  for (size_t bit = 0; bit < address.size() * 8; ++bit) {
    std::string bad = address;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const absl::Status status = near.pair->connect(bad, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bit;
  }
  EXPECT_EQ(near.pair->state(), QueuePairState::kUnconnected);
  // The queue pair can still be connected.
  connect(near, far);
  expect_write_arrives(near, 100, 3);
}

TEST_F(NegotiationTest, AnInfiniBandEndDoesNotFitARoceEnd) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  const absl::Status status =
      near.pair->connect(changed(far, [](verbs::Address& a) { a.ethernet = !a.ethernet; }), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("InfiniBand"));
}

TEST_F(NegotiationTest, AnUnreachablePeerIsAnErrorAndCanBeTriedAgain) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  // The unspecified address, to which no route exists.
  const absl::Status status = near.pair->connect(
      changed(far, [](verbs::Address& a) { a.gid = {}; }), {.peer = "rank 3 on node1"});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 on node1"));
  EXPECT_NE(error_scope(status), ErrorScope::kNone);
  EXPECT_EQ(near.pair->state(), QueuePairState::kUnconnected);
  connect(near, far);
  expect_write_arrives(near, 100, 4);
}

TEST_F(NegotiationTest, OptionsOutOfRangeAreRefused) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  const std::string address = far.pair->address();
  using std::chrono::microseconds;
  for (const ConnectOptions& options :
       {ConnectOptions{.retry_count = 7}, ConnectOptions{.receiver_retry_count = 8},
        ConnectOptions{.ack_timeout = microseconds(0)},
        ConnectOptions{.receiver_retry_delay = microseconds(-1)}}) {
    EXPECT_EQ(near.pair->connect(address, options).code(), absl::StatusCode::kInvalidArgument);
  }
  connect(near, far,
          {.ack_timeout = microseconds::max(), .receiver_retry_delay = microseconds::max()});
  expect_write_arrives(near, 100, 5);
  EXPECT_EQ(near.pair->connect(address, {}).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cariama
