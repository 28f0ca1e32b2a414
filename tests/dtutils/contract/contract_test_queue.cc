// Posting and completing: lists, signaling, order, fences, full queues, threads.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class QueueContract : public ContractTest {};

TEST_P(QueueContract, LimitsAreRealAndWithinTheDevice) {
  LinkOptions options;
  options.near = {.send_depth = 37,
                  .receive_depth = 19,
                  .max_send_segments = 3,
                  .max_receive_segments = 2,
                  .max_inline = 32};
  Link link = make_link(options);
  for (const End* end : {&link.near, &link.far}) {
    const QueuePairLimits& has = (*end)->limits();
    const DeviceLimits& device = (end == &link.near ? near_device_ : far_device_)->limits();
    EXPECT_GE(has.send_depth, 1U);
    EXPECT_LE(has.send_depth, device.max_send_depth);
    EXPECT_GE(has.receive_depth, 1U);
    EXPECT_LE(has.receive_depth, device.max_receive_depth);
    EXPECT_GE(has.max_send_segments, 1U);
    EXPECT_LE(has.max_send_segments, device.max_segments);
    EXPECT_GE(has.max_receive_segments, 1U);
    EXPECT_LE(has.max_inline, device.max_inline);
    EXPECT_GE(has.max_outstanding_reads, 1U);
    EXPECT_LE(has.max_outstanding_reads, device.max_outstanding_reads);
    EXPECT_GE(has.mtu, 256U);
    EXPECT_GE(has.max_message, 1U << 16);
    EXPECT_LE(has.max_message, device.max_message);
  }
  EXPECT_EQ(link.near->limits().mtu, link.far->limits().mtu);
  EXPECT_NE(link.near->number(), make_link().near->number());
  EXPECT_EQ(link.near->peer(), kFarLabel);
  EXPECT_EQ(link.near->domain(), near_domain_.get());
  EXPECT_EQ(near_device_->transport(), GetParam().fault ? Transport::kFault : GetParam().base);
  EXPECT_FALSE(near_device_->description().empty());
}

TEST_P(QueueContract, ASignaledOperationCoversTheUnsignaledOnesBefore) {
  Link link = make_link();
  const uint64_t count = std::min<uint32_t>(link.near->limits().send_depth, 32);
  Buffer from(*near_domain_, 64 * count);
  Buffer to(*far_domain_, 64 * count);
  Buffer read(*near_domain_, 64);
  Buffer counter(*far_domain_, 8);
  counter.set_word(0, 0);
  from.fill(1);
  std::vector<Segments> pieces;
  for (uint64_t i = 0; i < count; ++i) pieces.push_back({from.segment(64 * i, 64)});
  const Segments word = {read.segment(0, 8)};
  for (uint64_t round = 0; round < 3; ++round) {
    to.clear();
    // Requests of several kinds: the first count - 1 are unsignaled, the last one is signaled.
    for (uint64_t i = 0; i + 1 < count; ++i) {
      post(link.near, i % 4 == 3
                          ? fetch_add(i, word, counter.locator(), 1, 0)
                          : to_remote(Opcode::kWrite, i, pieces[i], to.locator(64 * i, 64), 0));
    }
    post(link.near, to_remote(Opcode::kWrite, 1000 + round, pieces[count - 1],
                              to.locator(64 * (count - 1), 64)));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1000 + round, CompletionKind::kWrite));
    uint64_t adds = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const bool add = i % 4 == 3 && i + 1 < count;
      adds += add ? 1 : 0;
      if (!add) {
        EXPECT_TRUE(holds(to, 64 * i, std::span(from.data() + 64 * i, 64))) << i;
      }
    }
    EXPECT_EQ(counter.word(0), adds * (round + 1));
    EXPECT_EQ(adds == 0 ? 0 : read.word(0), adds == 0 ? 0 : adds * (round + 1) - 1);
    EXPECT_TRUE(quiet(*link.near.sends));  // there is one completion for all of them
  }
}

TEST_P(QueueContract, AListOfAllKindsRunsInOrder) {
  Link link = make_link();
  ASSERT_GE(link.near->limits().send_depth, 8U);
  Buffer near(*near_domain_, 4096);
  Buffer far(*far_domain_, 4096);
  Buffer inbox(*far_domain_, 256);
  near.fill(1);
  far.set_word(0, 5);
  const Segments a = {near.segment(0, 100)};
  const Segments b = {near.segment(100, 100)};
  const Segments old_value = {near.segment(1024, 8)};
  const Segments swapped = {near.segment(1032, 8)};
  const Segments read_back = {near.segment(2048, 100)};
  const Segments after_read = {near.segment(2048, 50)};
  post_receive(link.far, 50, {inbox.segment(0, 128)});
  post_receive(link.far, 51);
  post_receive(link.far, 52, {inbox.segment(128, 128)});

  WorkRequest event = to_remote(Opcode::kWriteImmediate, 4, b, far.locator(512, 100));
  event.immediate = 0xabcd;
  const WorkRequest list[] = {
      to_remote(Opcode::kWrite, 1, a, far.locator(256, 100)),
      to_remote(Opcode::kWrite, 2, b, far.locator(300, 100)),  // overlaps the first WRITE
      to_peer(Opcode::kSend, 3, a),
      event,
      fetch_add(5, old_value, far.locator(0, 8), 10),
      compare_swap(6, swapped, far.locator(0, 8), 15, 99, kSignaled | kFence),
      to_remote(Opcode::kRead, 7, read_back, far.locator(256, 100), kSignaled | kFence),
      to_peer(Opcode::kSend, 8, after_read, kSignaled | kFence),
  };
  const PostResult result = link.near->post_send(list);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.posted, 8U);

  const CompletionKind kinds[] = {CompletionKind::kWrite,    CompletionKind::kWrite,
                                  CompletionKind::kSend,     CompletionKind::kWrite,
                                  CompletionKind::kFetchAdd, CompletionKind::kCompareSwap,
                                  CompletionKind::kRead,     CompletionKind::kSend};
  const std::vector<Completion> sent = take(*link.near.sends, 8);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(succeeded(sent[i], i + 1, kinds[i]));
  const std::vector<Completion> received = take(*link.far.receives, 3);
  EXPECT_TRUE(succeeded(received[0], 50, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(received[1], 51, CompletionKind::kReceiveImmediate));
  EXPECT_TRUE(succeeded(received[2], 52, CompletionKind::kReceive));
  EXPECT_EQ(received[1].immediate, 0xabcdU);

  const Bytes data = pattern(1, 4096);
  Bytes expected(data.begin(), data.begin() + 100);
  std::copy_n(data.begin() + 100, 56, expected.begin() + 44);
  EXPECT_TRUE(holds(far, 256, expected));
  EXPECT_TRUE(holds(near, 2048, expected));
  EXPECT_TRUE(holds(inbox, 0, std::span(data).first(100)));
  EXPECT_TRUE(holds(inbox, 128, std::span(expected).first(50)));
  EXPECT_TRUE(holds(far, 512, std::span(data).subspan(100, 100)));
  EXPECT_EQ(near.word(1024), 5U);
  EXPECT_EQ(near.word(1032), 15U);
  EXPECT_EQ(far.word(0), 99U);
}

TEST_P(QueueContract, AnEmptyListIsPosted) {
  Link link = make_link();
  const PostResult sent = link.near->post_send(std::span<const WorkRequest>());
  EXPECT_TRUE(sent.ok());
  EXPECT_EQ(sent.posted, 0U);
  const PostResult received = link.near->post_receive(std::span<const ReceiveRequest>());
  EXPECT_TRUE(received.ok());
  EXPECT_EQ(received.posted, 0U);
}

// The requests before the refused one are posted, the refused one and all later ones are not. The
// queue pair keeps working.
TEST_P(QueueContract, AListStopsAtTheFirstRefusedRequest) {
  Link link = make_link();
  const QueuePairLimits& limits = link.near->limits();
  Buffer from(*near_domain_, 256);
  Buffer to(*far_domain_, 256);
  Bytes too_much(limits.max_inline + 1);
  from.fill(4);
  const Segments good = {from.segment(0, 16)};
  const Segments word = {from.segment(0, 8)};
  const Segments half_word = {from.segment(0, 4)};
  const Segments two_halves = {from.segment(0, 4), from.segment(4, 4)};
  const Segments large = {{too_much.data(), static_cast<uint32_t>(too_much.size()), {}}};
  const Segments many(limits.max_send_segments + 1, from.segment(0, 1));

  struct Refusal {
    PostError error;
    WorkRequest request;
    absl::StatusCode code;
  };
  const RemoteMemoryLocator target = to.locator(128, 8);
  const RemoteMemoryLocator odd = to.locator(132, 8);
  using absl::StatusCode;
  const Refusal refusals[] = {
      {PostError::kInlineTooLarge, to_remote(Opcode::kWrite, 9, large, target, kSignaled | kInline),
       StatusCode::kInvalidArgument},
      {PostError::kInlineTooLarge, to_peer(Opcode::kSend, 9, large, kInline),
       StatusCode::kInvalidArgument},
      {PostError::kInlineTooLarge, to_remote(Opcode::kRead, 9, word, target, kSignaled | kInline),
       StatusCode::kInvalidArgument},
      {PostError::kInlineTooLarge, fetch_add(9, word, target, 1, kSignaled | kInline),
       StatusCode::kInvalidArgument},
      {PostError::kTooManySegments, to_remote(Opcode::kWrite, 9, many, target),
       StatusCode::kInvalidArgument},
      {PostError::kTooManySegments, to_remote(Opcode::kRead, 9, many, target),
       StatusCode::kInvalidArgument},
      {PostError::kMisalignedAtomic, fetch_add(9, word, odd, 1), StatusCode::kInvalidArgument},
      {PostError::kMisalignedAtomic, compare_swap(9, word, odd, 1, 2),
       StatusCode::kInvalidArgument},
      {PostError::kMisalignedAtomic, fetch_add(9, half_word, target, 1),
       StatusCode::kInvalidArgument},
      {PostError::kMisalignedAtomic, fetch_add(9, two_halves, target, 1),
       StatusCode::kInvalidArgument},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(::testing::Message() << "opcode " << static_cast<int>(refusal.request.opcode)
                                      << ", error " << static_cast<int>(refusal.error));
    to.clear();
    const WorkRequest list[] = {
        to_remote(Opcode::kWrite, 1, good, to.locator(0, 16), 0),
        to_remote(Opcode::kWrite, 2, good, to.locator(32, 16)),
        refusal.request,
        to_remote(Opcode::kWrite, 3, good, to.locator(64, 16)),
    };
    const PostResult result = link.near->post_send(list);
    EXPECT_EQ(result.posted, 2U);
    EXPECT_EQ(result.error, refusal.error);
    const absl::Status status = to_status(result, link.near->peer());
    EXPECT_EQ(status.code(), refusal.code);
    EXPECT_NE(std::string(status.message()).find(kFarLabel), std::string::npos) << status;
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kWrite));
    EXPECT_TRUE(quiet(*link.near.sends));
    EXPECT_TRUE(holds(to, 0, pattern(4, 16)));
    EXPECT_TRUE(holds(to, 32, pattern(4, 16)));
    EXPECT_TRUE(untouched(to, 64, 192));
    EXPECT_EQ(link.near->state(), QueuePairState::kConnected);
  }
  expect_flow(link);
}

TEST_P(QueueContract, AMessageBeyondTheLimitIsRefused) {
  Link link = make_link();
  const uint64_t most = link.near->limits().max_message;
  const uint32_t segments = link.near->limits().max_send_segments;
  // The queue pair refuses the request before it reads any byte, so the memory may be smaller.
  constexpr uint64_t kLongest = 0xffffffff;
  if (most >= kLongest * segments) GTEST_SKIP() << "no list of segments exceeds " << most;
  Buffer from(*near_domain_, 64);
  Segments large;
  for (uint64_t left = most + 1; left > 0; left -= std::min(left, kLongest)) {
    large.push_back(
        {from.data(), static_cast<uint32_t>(std::min(left, kLongest)), from.region().local_key()});
  }
  for (const WorkRequest& request :
       {to_peer(Opcode::kSend, 1, large), to_remote(Opcode::kWrite, 1, large, {}),
        to_remote(Opcode::kRead, 1, large, {})}) {
    const PostResult result = link.near->post_send(request);
    EXPECT_EQ(result.posted, 0U);
    EXPECT_EQ(result.error, PostError::kMessageTooLarge);
    EXPECT_EQ(to_status(result, "x").code(), absl::StatusCode::kInvalidArgument);
  }
  expect_flow(link);
}

TEST_P(QueueContract, NothingCanBeSentBeforeConnect) {
  LinkOptions options;
  options.connected = false;
  Link link = make_link(options);
  EXPECT_EQ(link.near->state(), QueuePairState::kUnconnected);
  const Segments none;
  const PostResult result = link.near->post_send(to_peer(Opcode::kSend, 1, none));
  EXPECT_EQ(result.posted, 0U);
  EXPECT_EQ(result.error, PostError::kNotConnected);
  EXPECT_EQ(to_status(result, "x").code(), absl::StatusCode::kFailedPrecondition);
  connect(link);
  EXPECT_EQ(link.near->state(), QueuePairState::kConnected);
  EXPECT_TRUE(quiet(*link.near.sends));
  expect_flow(link);
}

// SENDs for which no receive is posted stay in the queue until it is full. The full queue refuses
// requests, and loses none. Slots become free only when operations have completed AND their
// completions were polled.
TEST_P(QueueContract, AFullQueueRefusesAndRecovers) {
  LinkOptions options;
  options.near.send_depth = 16;
  options.far.receive_depth = 64;
  Link link = make_link(options);
  const uint64_t depth = link.near->limits().send_depth;
  ASSERT_GE(link.far->limits().receive_depth, 1U);
  Buffer from(*near_domain_, 8 * (depth + 4));
  Buffer to(*far_domain_, 8);
  uint64_t next = 0;
  uint64_t expected = 0;
  for (int round = 0; round < 3; ++round) {
    uint64_t posted = 0;
    while (posted < depth + 4) {
      from.set_word(8 * posted, next);
      const Segments source = {from.segment(8 * posted, 8)};
      // Some requests are unsignaled. The next signaled request's completion frees their slots.
      const WorkRequest request =
          to_peer(Opcode::kSend, next, source,
                  static_cast<uint8_t>(posted % 3 == 2 || posted + 1 == depth ? kSignaled : 0));
      const PostResult result = link.near->post_send(request);
      if (!result.ok()) {
        EXPECT_EQ(result.error, PostError::kQueueFull);
        EXPECT_EQ(result.posted, 0U);
        EXPECT_EQ(to_status(result, "x").code(), absl::StatusCode::kResourceExhausted);
        break;
      }
      ++posted;
      ++next;
    }
    EXPECT_EQ(posted, depth) << "in round " << round;
    for (; expected < next; ++expected) {
      post_receive(link.far, expected, {to.segment()});
      EXPECT_TRUE(succeeded(take_one(*link.far.receives), expected, CompletionKind::kReceive));
      EXPECT_EQ(to.word(0), expected);
    }
    const uint64_t first = next - posted;
    for (uint64_t i = 0; i < posted; ++i) {
      if (i % 3 == 2 || i + 1 == depth) {
        EXPECT_TRUE(succeeded(take_one(*link.near.sends), first + i, CompletionKind::kSend));
      }
    }
    EXPECT_TRUE(quiet(*link.near.sends));
  }
  expect_flow(link);
}

TEST_P(QueueContract, AListThatDoesNotFitIsPostedInPart) {
  LinkOptions options;
  options.near.send_depth = 8;
  Link link = make_link(options);
  const uint32_t depth = link.near->limits().send_depth;
  const Segments none;
  std::vector<WorkRequest> list;
  for (uint64_t id = 0; id < depth + 3; ++id) list.push_back(to_peer(Opcode::kSend, id, none));
  const PostResult result = link.near->post_send(list);
  EXPECT_EQ(result.posted, depth);
  EXPECT_EQ(result.error, PostError::kQueueFull);
  for (uint64_t id = 0; id < depth; ++id) {
    post_receive(link.far, id);
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), id, CompletionKind::kReceive));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kSend));
  }
  EXPECT_TRUE(quiet(*link.near.sends));
  EXPECT_TRUE(quiet(*link.far.receives));
}

// Signaling one request per queue depth is sufficient: no slot is ever lost.
TEST_P(QueueContract, OneSignalPerDepthIsSufficient) {
  LinkOptions options;
  options.near.send_depth = 16;
  Link link = make_link(options);
  const uint64_t depth = link.near->limits().send_depth;
  Buffer from(*near_domain_, 8 * depth);
  Buffer to(*far_domain_, 8 * depth);
  for (uint64_t id = 0; id < 40 * depth; ++id) {
    const uint64_t slot = id % depth;
    from.set_word(8 * slot, id);
    const Segments source = {from.segment(8 * slot, 8)};
    const bool last = slot == depth - 1;
    post(link.near,
         to_remote(Opcode::kWrite, id, source, to.locator(8 * slot, 8), last ? kSignaled : 0));
    if (last) {
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kWrite));
      for (uint64_t i = 0; i < depth; ++i) EXPECT_EQ(to.word(8 * i), id + 1 - depth + i);
    }
  }
  EXPECT_TRUE(quiet(*link.near.sends));
}

TEST_P(QueueContract, ManyMessagesArriveOnceEachAndInOrder) {
  LinkOptions options;
  options.near.send_depth = 32;
  options.far.receive_depth = 32;
  Link link = make_link(options);
  constexpr uint64_t kMessages = 3000;
  const uint64_t slots = link.near->limits().send_depth;
  const uint64_t receives = link.far->limits().receive_depth;
  Buffer from(*near_domain_, 8 * slots);
  Buffer to(*far_domain_, 8 * receives);
  uint64_t posted = 0, sent = 0, posted_receives = 0, received = 0;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((sent < kMessages || received < kMessages) &&
         std::chrono::steady_clock::now() < deadline) {
    while (posted_receives < kMessages && posted_receives - received < receives) {
      post_receive(link.far, posted_receives, {to.segment(8 * (posted_receives % receives), 8)});
      ++posted_receives;
    }
    while (posted < kMessages && posted - sent < slots) {
      from.set_word(8 * (posted % slots), posted * 0x9e3779b97f4a7c15);
      const Segments source = {from.segment(8 * (posted % slots), 8)};
      const bool event = posted % 5 == 4;  // WRITE_WITH_IMM stays in order among the SENDs
      WorkRequest request = to_peer(Opcode::kSend, posted, source);
      if (event) {
        request = to_remote(Opcode::kWriteImmediate, posted, source,
                            to.locator(8 * (posted % receives), 8));
        request.immediate = static_cast<uint32_t>(posted);
      }
      post(link.near, request);
      ++posted;
    }
    Completion completions[8];
    const size_t got = link.near.sends->poll(completions);
    for (size_t i = 0; i < got; ++i) {
      ASSERT_TRUE(succeeded(completions[i], sent,
                            sent % 5 == 4 ? CompletionKind::kWrite : CompletionKind::kSend));
      ++sent;
    }
    const size_t arrived = link.far.receives->poll(completions);
    for (size_t i = 0; i < arrived; ++i) {
      const bool event = received % 5 == 4;
      ASSERT_TRUE(succeeded(completions[i], received,
                            event ? CompletionKind::kReceiveImmediate : CompletionKind::kReceive));
      if (event) {
        EXPECT_EQ(completions[i].immediate, received);
      }
      EXPECT_EQ(to.word(8 * (received % receives)), received * 0x9e3779b97f4a7c15);
      ++received;
    }
    if (got + arrived == 0) std::this_thread::yield();
  }
  EXPECT_EQ(sent, kMessages);
  EXPECT_EQ(received, kMessages);
  EXPECT_TRUE(quiet(*link.far.receives));
}

// A fenced operation uses the results of the READs and atomics before it.
TEST_P(QueueContract, AFenceWaitsForReadsAndAtomics) {
  Link link = make_link();
  ASSERT_GE(link.near->limits().send_depth, 4U);
  constexpr size_t kBytes = 20'000;
  Buffer near(*near_domain_, kBytes + 16);
  Buffer source(*far_domain_, kBytes);
  Buffer target(*far_domain_, kBytes + 16);
  target.set_word(kBytes + 8, 0);
  const Segments data = {near.segment(0, kBytes)};
  const Segments word = {near.segment(kBytes + 8, 8)};
  for (uint64_t round = 0; round < 50; ++round) {
    source.fill(round);
    near.clear();
    const WorkRequest list[] = {
        to_remote(Opcode::kRead, 1, data, source.locator(), 0),
        to_remote(Opcode::kWrite, 2, data, target.locator(0, kBytes), kFence),
        fetch_add(3, word, target.locator(kBytes + 8, 8), 1, 0),
        to_remote(Opcode::kWrite, 4, word, target.locator(kBytes, 8), kSignaled | kFence),
    };
    ASSERT_TRUE(link.near->post_send(list).ok());
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 4, CompletionKind::kWrite));
    EXPECT_TRUE(holds(target, 0, pattern(round, kBytes)));
    EXPECT_EQ(target.word(kBytes), round);  // the value that the FETCH_ADD returned
  }
}

// A READ is not executed before an earlier WRITE. Two threads each WRITE a flag and then READ the
// other's flag: at least one of them must see the other's flag. (Processors reorder a store and a
// later load. The sleep protocol, in which senders wake sleepers, relies on this order.)
TEST_P(QueueContract, AReadFollowsTheWritesBeforeIt) {
  Link links[] = {make_link(), make_link()};
  Buffer flags(*far_domain_, 256);
  Buffer local(*near_domain_, 256);
  const size_t at[] = {0, 128};  // offsets of the two flags
  std::atomic<uint64_t> arrived{0};
  std::atomic<bool> broken{false};
  uint64_t saw[2] = {};
  uint64_t missed = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = start + kPatience;
  // An emulated machine with few processors completes fewer rounds, see below.
  std::atomic<uint64_t> rounds{500};
  // Waits until the two threads have called this function `count` times in total.
  const auto meet = [&](uint64_t count) {
    ++arrived;
    while (arrived < count && !broken) {
      if (std::chrono::steady_clock::now() > deadline) broken = true;
      std::this_thread::yield();
    }
  };
  const auto announce_and_look = [&](int me) {
    Link& link = links[me];
    local.set_word(at[me], 1);
    const Segments one = {local.segment(at[me], 8)};
    const Segments seen = {local.segment(at[me] + 8, 8)};
    for (uint64_t round = 0; round < rounds && !broken; ++round) {
      if (me == 0) {
        flags.set_word(at[0], 0);
        flags.set_word(at[1], 0);
      }
      meet(4 * round + 2);
      const WorkRequest list[] = {
          to_remote(Opcode::kWrite, round, one, flags.locator(at[me], 8), 0),
          to_remote(Opcode::kRead, round, seen, flags.locator(at[1 - me], 8)),
      };
      if (!link.near->post_send(list).ok() ||
          take_one(*link.near.sends).status != CompletionStatus::kSuccess) {
        broken = true;
      }
      saw[me] = local.word(at[me] + 8);
      if (me == 0 && std::chrono::steady_clock::now() > start + kPatience / 4) rounds = round + 1;
      meet(4 * round + 4);
      if (me == 0 && saw[0] + saw[1] == 0) ++missed;
    }
  };
  std::thread other([&] { announce_and_look(1); });
  announce_and_look(0);
  other.join();
  EXPECT_FALSE(broken);
  EXPECT_EQ(missed, 0U);
}

TEST_P(QueueContract, MoreReadsThanMayBeOutstandingAllComplete) {
  Link link = make_link();
  const uint64_t count = link.near->limits().send_depth;
  Buffer into(*near_domain_, 512 * count);
  Buffer from(*far_domain_, 512 * count);
  from.fill(6);
  std::vector<Segments> pieces;
  for (uint64_t i = 0; i < count; ++i) pieces.push_back({into.segment(512 * i, 512)});
  for (int round = 0; round < 4; ++round) {
    into.clear();
    std::vector<WorkRequest> list;
    for (uint64_t i = 0; i < count; ++i) {
      list.push_back(to_remote(Opcode::kRead, i, pieces[i], from.locator(512 * i, 512)));
    }
    const PostResult result = link.near->post_send(list);
    EXPECT_EQ(result.posted, count);
    const std::vector<Completion> completions = take(*link.near.sends, count);
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(succeeded(completions[i], i, CompletionKind::kRead));
    }
    EXPECT_TRUE(holds(into, 0, pattern(6, 512 * count)));
  }
}

TEST_P(QueueContract, ThreadsShareAQueuePairAndItsCompletions) {
  LinkOptions options;
  options.near.send_depth = 64;
  Link link = make_link(options);
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 400;
  Buffer from(*near_domain_, 8 * kThreads * kEach);
  Buffer to(*far_domain_, 8 * kThreads * kEach);
  from.fill(11);
  std::vector<std::atomic<uint32_t>> seen(kThreads * kEach);
  std::atomic<uint64_t> completed{0};
  std::atomic<uint64_t> wrong{0};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto poll = [&] {
    Completion completions[4];
    const size_t got = link.near.sends->poll(completions);
    for (size_t i = 0; i < got; ++i) {
      if (completions[i].status != CompletionStatus::kSuccess ||
          completions[i].id >= kThreads * kEach) {
        ++wrong;
      } else {
        seen[completions[i].id].fetch_add(1);
      }
    }
    completed += got;
    if (got == 0) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kEach && std::chrono::steady_clock::now() < deadline;) {
        const uint64_t id = thread * kEach + i;
        const Segments source = {from.segment(8 * id, 8)};
        const PostResult result =
            link.near->post_send(to_remote(Opcode::kWrite, id, source, to.locator(8 * id, 8)));
        if (result.ok()) ++i;
        if (!result.ok() && result.error != PostError::kQueueFull) ++wrong;
        if (!result.ok() || i % 8 == 0) poll();
      }
      while (completed < kThreads * kEach && std::chrono::steady_clock::now() < deadline) poll();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(completed, kThreads * kEach);
  for (uint64_t id = 0; id < kThreads * kEach; ++id) EXPECT_EQ(seen[id], 1U) << id;
  EXPECT_TRUE(holds(to, 0, pattern(11, 8 * kThreads * kEach)));
  EXPECT_TRUE(quiet(*link.near.sends));
}

// Lists that threads post concurrently are posted one after the other, without mixing their
// requests.
TEST_P(QueueContract, ListsOfThreadsStayWhole) {
  LinkOptions options;
  options.near.send_depth = 64;
  options.far.receive_depth = 64;
  Link link = make_link(options);
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kLists = 100;
  constexpr uint64_t kLength = 4;
  constexpr uint64_t kMessages = kThreads * kLists * kLength;
  ASSERT_GE(link.near->limits().send_depth, kThreads * kLength);
  Buffer from(*near_domain_, 8 * kMessages);
  const uint64_t receives = link.far->limits().receive_depth;
  Buffer to(*far_domain_, 8 * receives);
  std::atomic<uint64_t> in_queue{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t list = 0; list < kLists && !stop; ++list) {
        std::vector<Segments> segments(kLength);
        std::vector<WorkRequest> requests;
        for (uint64_t i = 0; i < kLength; ++i) {
          const uint64_t id = (thread * kLists + list) * kLength + i;
          from.set_word(8 * id, id);
          segments[i] = {from.segment(8 * id, 8)};
          requests.push_back(to_peer(Opcode::kSend, id, segments[i]));
        }
        // Waits until there is room for the whole list, so that no list is posted in part.
        while (in_queue.fetch_add(kLength) + kLength > link.near->limits().send_depth && !stop) {
          in_queue -= kLength;
          std::this_thread::yield();
        }
        if (stop) return;
        const PostResult result = link.near->post_send(requests);
        EXPECT_EQ(result.posted, kLength);
      }
    });
  }
  uint64_t posted_receives = 0, received = 0, sent = 0;
  std::vector<uint64_t> next_list(kThreads, 0);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((received < kMessages || sent < kMessages) &&
         std::chrono::steady_clock::now() < deadline) {
    while (posted_receives < kMessages && posted_receives - received < receives) {
      post_receive(link.far, posted_receives, {to.segment(8 * (posted_receives % receives), 8)});
      ++posted_receives;
    }
    Completion completions[8];
    const size_t got = link.near.sends->poll(completions);
    sent += got;
    in_queue -= got;
    const size_t arrived = link.far.receives->poll(completions);
    for (size_t i = 0; i < arrived; ++i, ++received) {
      const uint64_t id = to.word(8 * (completions[i].id % receives));
      const uint64_t thread = id / (kLists * kLength);
      if (thread >= kThreads) {
        ADD_FAILURE() << "message " << received << " holds " << id;
        continue;
      }
      EXPECT_EQ(id % kLength, received % kLength) << "two lists are mixed";
      EXPECT_EQ(id / kLength % kLists, next_list[thread]);
      if (id % kLength == kLength - 1) ++next_list[thread];
    }
    if (got + arrived == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kMessages);
  EXPECT_EQ(sent, kMessages);
}

// Two queue pairs use one completion queue for their sends and receives.
TEST_P(QueueContract, QueuePairsShareACompletionQueue) {
  const auto near_queue = must(near_domain_->create_completion_queue({.depth = 1024}));
  const auto far_queue = must(far_domain_->create_completion_queue({.depth = 1024}));
  LinkOptions options;
  options.near.send_completions = options.near.receive_completions = near_queue;
  options.far.send_completions = options.far.receive_completions = far_queue;
  Link links[] = {make_link(options), make_link(options)};
  // Each link receives into a segment of its own: their SENDs may be copied at the same time.
  Buffer near(*near_domain_, 96);
  Buffer far(*far_domain_, 96);
  near.fill(1);
  for (uint64_t round = 0; round < 20; ++round) {
    for (size_t link = 0; link < 2; ++link) {
      post_receive(links[link].far, 70, {far.segment(32 * link, 32)});
      post_receive(links[link].near, 71, {near.segment(32 * link, 32)});
    }
    const Segments near_out = {near.segment(64, 16)};
    const Segments far_out = {far.segment(64, 16)};
    for (Link& link : links) {
      post(link.near, to_peer(Opcode::kSend, 72, near_out));
      post(link.far, to_peer(Opcode::kSend, 73, far_out));
    }
    for (CompletionQueue* queue : {near_queue.get(), far_queue.get()}) {
      const bool is_near = queue == near_queue.get();
      uint32_t sends[2] = {}, receives[2] = {};
      for (const Completion& completion : take(*queue, 4)) {
        ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
        const End& first = is_near ? links[0].near : links[0].far;
        const End& second = is_near ? links[1].near : links[1].far;
        ASSERT_TRUE(completion.queue_pair == first->number() ||
                    completion.queue_pair == second->number());
        const int link = completion.queue_pair == first->number() ? 0 : 1;
        if (completion.kind == CompletionKind::kReceive) {
          EXPECT_EQ(completion.id, is_near ? 71U : 70U);
          ++receives[link];
        } else {
          EXPECT_TRUE(succeeded(completion, is_near ? 72U : 73U, CompletionKind::kSend));
          ++sends[link];
        }
      }
      for (int link = 0; link < 2; ++link) {
        EXPECT_EQ(sends[link], 1U);
        EXPECT_EQ(receives[link], 1U);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, QueueContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
