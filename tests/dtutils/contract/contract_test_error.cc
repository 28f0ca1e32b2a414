// Errors of single operations. Each ends in the documented status, with a text that names
// operation, peer and remedy. Another queue pair is not affected, and after repair() traffic flows
// again.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class ErrorContract : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped()) return;
    neighbour_ = make_link();
    near_ = std::make_unique<Buffer>(*near_domain_, 4096);
    far_ = std::make_unique<Buffer>(*far_domain_, 4096);
  }

  // Posts `bad`, which must fail with one of `statuses` and may name bytes 1024 to 1087 of far_.
  // The request posted before it is executed, and the requests posted after it are not. Then
  // neighbour_ must still work, and after repair() so must `link`.
  void expect_failure(Link& link, const WorkRequest& bad, const Statuses& statuses) {
    const Segments data = {near_->segment(2048, 64)};
    near_->fill(55);
    far_->clear();
    const WorkRequest before = to_remote(Opcode::kWrite, 1, data, far_->locator(0, 64), 0);
    WorkRequest request = bad;
    request.id = 2;
    ASSERT_TRUE(link.near->post_send(before).ok());
    ASSERT_TRUE(link.near->post_send(request).ok());
    EXPECT_TRUE(failed(take_one(*link.near.sends), 2, statuses, link.near));
    EXPECT_EQ(link.near->state(), QueuePairState::kError);
    EXPECT_TRUE(holds(*far_, 0, std::span(near_->data() + 2048, 64)));

    post(link.near, to_remote(Opcode::kWrite, 3, data, far_->locator(128, 64), 0));
    post(link.near, to_remote(Opcode::kWrite, 4, data, far_->locator(192, 64)));
    EXPECT_TRUE(failed(take_one(*link.near.sends), 3, CompletionStatus::kFlushed, link.near));
    EXPECT_TRUE(failed(take_one(*link.near.sends), 4, CompletionStatus::kFlushed, link.near));
    EXPECT_TRUE(untouched(*far_, 128, 128));

    expect_flow(neighbour_);
    repair(link);
    expect_flow(link);
    // A failed operation may have written a part of the bytes that it names.
    EXPECT_TRUE(untouched(*far_, 64, 1024 - 64))
        << "an operation from before the repair was executed late";
    EXPECT_TRUE(untouched(*far_, 1024 + 64, 4096 - 1024 - 64));
  }

  void expect_failure(Link& link, const WorkRequest& bad, CompletionStatus status) {
    expect_failure(link, bad, Statuses{status});
  }

  // Calls expect_failure() for every one-sided operation that `wanted` selects, signaled and
  // unsignaled.
  void expect_remote_failures(const RemoteMemoryLocator& remote, CompletionStatus status,
                              const std::function<bool(Opcode)>& wanted) {
    Link link = make_link();
    const Segments local = {near_->segment(0, 8)};
    for (const Opcode opcode : {Opcode::kWrite, Opcode::kWriteImmediate, Opcode::kRead,
                                Opcode::kFetchAdd, Opcode::kCompareSwap}) {
      if (!wanted(opcode)) continue;
      for (const uint8_t flags : {kSignaled, uint8_t{0}}) {
        SCOPED_TRACE(::testing::Message() << "opcode " << static_cast<int>(opcode)
                                          << (flags == kSignaled ? "" : ", unsignaled"));
        if (opcode == Opcode::kWriteImmediate) post_receive(link.far, 1);
        expect_failure(link, to_remote(opcode, 2, local, remote, flags), status);
      }
    }
  }

  static bool any(Opcode) { return true; }
  static bool is_write(Opcode opcode) {
    return opcode == Opcode::kWrite || opcode == Opcode::kWriteImmediate;
  }
  static bool is_read(Opcode opcode) { return opcode == Opcode::kRead; }
  static bool is_atomic(Opcode opcode) {
    return opcode == Opcode::kFetchAdd || opcode == Opcode::kCompareSwap;
  }

  Link neighbour_;
  std::unique_ptr<Buffer> near_;
  std::unique_ptr<Buffer> far_;
};

TEST_P(ErrorContract, WrongRemoteKey) {
  Buffer target(*far_domain_, 64);
  RemoteMemoryLocator wrong = target.locator();
  // Changes bits that every transport uses: the index and the check bits.
  wrong.key.value ^= 0x5a5a5a5a;
  expect_remote_failures(wrong, CompletionStatus::kRemoteAccess, any);
  EXPECT_TRUE(untouched(target, 0, 64));
}

TEST_P(ErrorContract, ALocalKeyIsNoRemoteKey) {
  Buffer target(*far_domain_, 64);
  // Some devices give both keys of a region the same value, so that they cannot distinguish them.
  if (target.region().local_key().value == target.region().remote_key().value) {
    GTEST_LOG_(INFO) << "this device gives both keys the same value";
    return;
  }
  RemoteMemoryLocator wrong = target.locator();
  wrong.key.value = target.region().local_key().value;
  expect_remote_failures(wrong, CompletionStatus::kRemoteAccess, is_write);
  EXPECT_TRUE(untouched(target, 0, 64));
}

TEST_P(ErrorContract, RevokedRemoteKey) {
  Buffer target(*far_domain_, 64);
  const RemoteMemoryLocator revoked = target.locator();
  Link link = make_link();
  const Segments local = {near_->segment(0, 64)};
  // The initiator uses the key once, so that it may have cached the region.
  post(link.near, to_remote(Opcode::kWrite, 1, local, revoked));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  target.deregister();
  target.clear();
  expect_failure(link, to_remote(Opcode::kWrite, 2, local, revoked),
                 CompletionStatus::kRemoteAccess);
  expect_remote_failures(revoked, CompletionStatus::kRemoteAccess, is_read);
  // The same memory registered again has another key, and the old key stays revoked.
  for (int i = 0; i < 5; ++i) target.register_again(*far_domain_, Access::kAll);
  EXPECT_NE(target.locator().key, revoked.key);
  expect_remote_failures(revoked, CompletionStatus::kRemoteAccess, is_write);
  EXPECT_TRUE(untouched(target, 0, 64));
  post(link.near, to_remote(Opcode::kWrite, 3, local, target.locator()));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kWrite));
}

TEST_P(ErrorContract, RangeOutsideTheRemoteRegion) {
  Buffer target(*far_domain_, 4096);
  const RemoteMemoryLocator region = target.locator();
  const auto at = [&](uint64_t address) {
    RemoteMemoryLocator remote = region;
    remote.address = address;
    return remote;
  };
  const auto is_plain = [](Opcode opcode) { return is_write(opcode) || is_read(opcode); };
  expect_remote_failures(at(region.address + 4089), CompletionStatus::kRemoteAccess, is_plain);
  expect_remote_failures(at(region.address + 4096), CompletionStatus::kRemoteAccess, any);
  expect_remote_failures(at(region.address - 8), CompletionStatus::kRemoteAccess, any);
  // The sum of address and length must not wrap around to an address within the region.
  expect_remote_failures(at(std::numeric_limits<uint64_t>::max() - 3),
                         CompletionStatus::kRemoteAccess, is_plain);
  EXPECT_TRUE(untouched(target, 0, 4096));
}

TEST_P(ErrorContract, ALongTransferMayNotLeaveTheRemoteRegion) {
  Link link = make_link();
  constexpr size_t kBytes = 100'000;
  Buffer local(*near_domain_, kBytes);
  Buffer target(*far_domain_, kBytes - 1);
  const Segments segments = {local.segment()};
  expect_failure(link, to_remote(Opcode::kWrite, 1, segments, target.locator()),
                 CompletionStatus::kRemoteAccess);
  expect_failure(link, to_remote(Opcode::kRead, 1, segments, target.locator()),
                 CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(untouched(local, 0, kBytes));
}

TEST_P(ErrorContract, MissingRemoteAccess) {
  const auto all_but = [](Access denied) {
    return static_cast<Access>(static_cast<uint32_t>(Access::kAll) &
                               ~static_cast<uint32_t>(denied));
  };
  Buffer no_read(*far_domain_, 64, all_but(Access::kRemoteRead));
  Buffer no_write(*far_domain_, 64, all_but(Access::kRemoteWrite));
  Buffer no_atomic(*far_domain_, 64, all_but(Access::kRemoteAtomic));
  expect_remote_failures(no_read.locator(), CompletionStatus::kRemoteAccess, is_read);
  expect_remote_failures(no_write.locator(), CompletionStatus::kRemoteAccess, is_write);
  expect_remote_failures(no_atomic.locator(), CompletionStatus::kRemoteAccess, is_atomic);
  EXPECT_TRUE(untouched(no_write, 0, 64));
  EXPECT_TRUE(untouched(no_atomic, 0, 64));
}

// Atomics on memory without a descriptor are either executed correctly or refused.
TEST_P(ErrorContract, AtomicsOnUserMemoryWorkOrAreRefused) {
  Link link = make_link();
  Buffer target(*far_domain_, 64, Access::kAll, Buffer::Backing::kUser);
  const RemoteMemoryLocator word = target.locator(8, 8);
  const Segments local = {near_->segment(0, 8)};
  target.set_word(8, 1);
  post(link.near, fetch_add(2, local, word, 1));
  const Completion completion = take_one(*link.near.sends);
  if (completion.status == CompletionStatus::kSuccess) {
    EXPECT_EQ(near_->word(0), 1U);
    EXPECT_EQ(target.word(8), 2U);
    post(link.near, compare_swap(3, local, word, 2, 7));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kCompareSwap));
    EXPECT_EQ(target.word(8), 7U);
  } else {
    EXPECT_TRUE(failed(completion, 2, CompletionStatus::kRemoteInvalid, link.near));
    repair(link);
    expect_failure(link, compare_swap(3, local, word, 1, 7), CompletionStatus::kRemoteInvalid);
    EXPECT_EQ(target.word(8), 1U);
  }
  EXPECT_TRUE(untouched(target, 0, 8));
  EXPECT_TRUE(untouched(target, 16, 48));
  expect_flow(link);
}

TEST_P(ErrorContract, WrongLocalKey) {
  Link link = make_link();
  Segments wrong = {near_->segment(0, 64)};
  wrong[0].key.value ^= 0x5a5a5a5a;
  for (const Opcode opcode : {Opcode::kSend, Opcode::kWrite, Opcode::kRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    if (opcode == Opcode::kSend) post_receive(link.far, 1, {far_->segment(1024, 64)});
    expect_failure(link, to_remote(opcode, 2, wrong, far_->locator(1024, 64)), local_protection());
  }
}

TEST_P(ErrorContract, KeysOfOtherDomainsAndEndedRegionsAreWrong) {
  Link link = make_link();
  const auto other_domain = must(near_device_->create_domain());
  Buffer foreign(*other_domain, 64);
  const Segments from_other_domain = {foreign.segment()};
  expect_failure(link, to_remote(Opcode::kWrite, 2, from_other_domain, far_->locator(1024, 64)),
                 local_protection());

  Buffer ended(*near_domain_, 64);
  const Segments from_ended = {ended.segment()};
  post(link.near, to_remote(Opcode::kWrite, 3, from_ended, far_->locator(1024, 64)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kWrite));
  ended.deregister();
  expect_failure(link, to_remote(Opcode::kWrite, 2, from_ended, far_->locator(1024, 64)),
                 local_protection());

  const auto other_far_domain = must(far_device_->create_domain());
  Buffer foreign_target(*other_far_domain, 64);
  const Segments local = {near_->segment(0, 64)};
  expect_failure(link, to_remote(Opcode::kWrite, 2, local, foreign_target.locator()),
                 CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(untouched(foreign_target, 0, 64));
}

TEST_P(ErrorContract, LocalRangeOutsideItsRegion) {
  Link link = make_link();
  const LocalKey key = near_->region().local_key();
  const Segments cases[] = {
      {{near_->data() + 4089, 8, key}},
      {{near_->data() - 8, 8, key}},
      {{near_->data() + 4096, 1, key}},
      {near_->segment(0, 8), {near_->data() + 4096, 8, key}},  // the second of two
  };
  for (const Segments& bad : cases) {
    expect_failure(link, to_remote(Opcode::kWrite, 2, bad, far_->locator(1024, 64)),
                   local_protection());
    expect_failure(link, to_remote(Opcode::kRead, 2, bad, far_->locator(1024, 64)),
                   local_protection());
  }
}

TEST_P(ErrorContract, LocalMemoryMustBeWritableForResults) {
  Link link = make_link();
  Buffer read_only(*near_domain_, 64, Access::kRemoteRead);
  const Segments into = {read_only.segment(0, 8)};
  expect_failure(link, to_remote(Opcode::kRead, 2, into, far_->locator(1024, 8)),
                 local_protection());
  expect_failure(link, fetch_add(2, into, far_->locator(1024, 8), 0), local_protection());
  EXPECT_TRUE(untouched(read_only, 0, 64));
  // Reading from memory without kLocalWrite is always allowed.
  post(link.near, to_remote(Opcode::kWrite, 3, into, far_->locator(1024, 8)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kWrite));
}

// Options of a link whose sender must not give up (kRetryExceeded) before the answer of a receiver
// comes that waits for processor time.
LinkOptions patient() {
  LinkOptions options;
  options.connect.ack_timeout = std::chrono::seconds(1);
  return options;
}

TEST_P(ErrorContract, ReceiveTooSmall) {
  Link link = make_link(patient());
  Buffer inbox(*far_domain_, 4096);
  for (const size_t bytes : {size_t{65}, size_t{4096}}) {
    SCOPED_TRACE(bytes);
    inbox.clear();
    post_receive(link.far, 10, {inbox.segment(0, 40), inbox.segment(128, 24)});
    post_receive(link.far, 11, {inbox.segment(256, 64)});
    const Segments source = {near_->segment(0, bytes)};
    expect_failure(link, to_peer(Opcode::kSend, 2, source), sent_too_much());
  }
}

// A message that is longer than the receive's buffers, as the receiver sees it.
TEST_P(ErrorContract, TheReceiverLearnsThatItsBufferWasTooSmall) {
  Link link = make_link(patient());
  Buffer inbox(*far_domain_, 256);
  post_receive(link.far, 10, {inbox.segment(0, 64)});
  post_receive(link.far, 11, {inbox.segment(128, 64)});
  const Segments source = {near_->segment(0, 65)};
  post(link.near, to_peer(Opcode::kSend, 2, source));
  EXPECT_TRUE(failed(take_one(*link.far.receives), 10, received_too_much(), link.far));
  EXPECT_TRUE(failed(take_one(*link.far.receives), 11, CompletionStatus::kFlushed, link.far));
  EXPECT_TRUE(failed(take_one(*link.near.sends), 2, sent_too_much(), link.near));
  EXPECT_EQ(link.far->state(), QueuePairState::kError);
  EXPECT_TRUE(untouched(inbox, 64, 192)) << "bytes beyond the receive buffer were written";
  expect_flow(neighbour_);
  repair(link);
  expect_flow(link);
}

TEST_P(ErrorContract, ReceiveIntoForbiddenMemory) {
  Link link = make_link();
  Buffer read_only(*far_domain_, 64, Access::kRemoteRead);
  Segments wrong_key = {far_->segment(1024, 64)};
  wrong_key[0].key.value ^= 0x5a5a5a5a;
  const Segments cases[] = {
      wrong_key, {read_only.segment()}, {{far_->data() + 4090, 64, far_->region().local_key()}}};
  const Segments source = {near_->segment(0, 64)};
  for (const Segments& forbidden : cases) {
    post_receive(link.far, 10, forbidden);
    post(link.near, to_peer(Opcode::kSend, 2, source));
    EXPECT_TRUE(failed(take_one(*link.far.receives), 10, local_protection(), link.far));
    EXPECT_TRUE(
        failed(take_one(*link.near.sends), 2, CompletionStatus::kRemoteOperation, link.near));
    EXPECT_TRUE(untouched(read_only, 0, 64));
    expect_flow(neighbour_);
    repair(link);
    expect_flow(link);
  }
}

TEST_P(ErrorContract, ReceiverNotReadyInTime) {
  LinkOptions options;
  options.connect.receiver_retry_count = 2;
  options.connect.receiver_retry_delay = std::chrono::microseconds(100);
  Link link = make_link(options);
  const Segments source = {near_->segment(0, 64)};
  expect_failure(link, to_peer(Opcode::kSend, 2, source), CompletionStatus::kReceiverNotReady);
  WorkRequest event = to_remote(Opcode::kWriteImmediate, 2, source, far_->locator(1024, 64));
  expect_failure(link, event, CompletionStatus::kReceiverNotReady);
}

// The first failure has the reason as its status. All later requests are flushed, once each, in
// order.
TEST_P(ErrorContract, AFailureWithinAListFlushesTheRest) {
  Link link = make_link();
  ASSERT_GE(link.near->limits().send_depth, 6U);
  Buffer target(*far_domain_, 512);
  Buffer inbox(*far_domain_, 64);
  near_->fill(8);
  const Segments source = {near_->segment(0, 64)};
  RemoteMemoryLocator wrong = target.locator();
  wrong.key.value ^= 0x5a5a5a5a;
  post_receive(link.far, 30, {inbox.segment()});
  const WorkRequest list[] = {
      to_remote(Opcode::kWrite, 10, source, target.locator(0, 64), 0),
      to_remote(Opcode::kWrite, 11, source, wrong, 0),
      to_remote(Opcode::kWrite, 12, source, target.locator(64, 64), 0),
      to_peer(Opcode::kSend, 13, source),
      to_remote(Opcode::kRead, 14, source, target.locator(0, 64), 0),
      to_remote(Opcode::kWrite, 15, source, target.locator(128, 64)),
  };
  const PostResult result = link.near->post_send(list);
  ASSERT_EQ(result.posted, 6U);
  EXPECT_TRUE(failed(take_one(*link.near.sends), 11, CompletionStatus::kRemoteAccess, link.near));
  for (uint64_t id = 12; id <= 15; ++id) {
    EXPECT_TRUE(failed(take_one(*link.near.sends), id, CompletionStatus::kFlushed, link.near));
  }
  EXPECT_TRUE(quiet(*link.near.sends));
  EXPECT_TRUE(holds(target, 0, pattern(8, 64)));
  EXPECT_TRUE(untouched(target, 64, 448));
  EXPECT_TRUE(untouched(inbox, 0, 64));
  expect_flow(neighbour_);
  repair(link);
  expect_flow(link);
}

TEST_P(ErrorContract, FailFlushesEverythingOutstanding) {
  LinkOptions options;
  options.near.send_depth = 16;
  options.near.receive_depth = 16;
  Link link = make_link(options);
  const uint64_t sends = link.near->limits().send_depth;
  const uint64_t receives = link.near->limits().receive_depth;
  const Segments none;
  for (int round = 0; round < 3; ++round) {
    // The far end has no receive posted, so the sends stay in flight.
    for (uint64_t i = 0; i < sends; ++i) {
      post(link.near, to_peer(Opcode::kSend, i, none, i % 2 == 0 ? kSignaled : uint8_t{0}));
    }
    for (uint64_t i = 0; i < receives; ++i) post_receive(link.near, 100 + i);
    EXPECT_EQ(link.near->state(), QueuePairState::kConnected);
    link.near->fail();
    EXPECT_EQ(link.near->state(), QueuePairState::kError);
    const std::vector<Completion> sent = take(*link.near.sends, sends);
    for (uint64_t i = 0; i < sends; ++i) {
      EXPECT_TRUE(failed(sent[i], i, CompletionStatus::kFlushed, link.near));
    }
    const std::vector<Completion> received = take(*link.near.receives, receives);
    for (uint64_t i = 0; i < receives; ++i) {
      EXPECT_TRUE(failed(received[i], 100 + i, CompletionStatus::kFlushed, link.near));
    }
    // Requests that are posted in the error state are flushed as well, once each.
    post(link.near, to_peer(Opcode::kSend, 50, none));
    post(link.near, to_peer(Opcode::kSend, 51, none, 0));
    post_receive(link.near, 52);
    EXPECT_TRUE(failed(take_one(*link.near.sends), 50, CompletionStatus::kFlushed, link.near));
    EXPECT_TRUE(failed(take_one(*link.near.sends), 51, CompletionStatus::kFlushed, link.near));
    EXPECT_TRUE(failed(take_one(*link.near.receives), 52, CompletionStatus::kFlushed, link.near));
    link.near->fail();  // a second call changes nothing
    EXPECT_TRUE(quiet(*link.near.sends));
    EXPECT_TRUE(quiet(*link.near.receives));
    expect_flow(neighbour_);
    repair(link);
    expect_flow(link);
  }
}

// The near end sends although the far end has failed, which the near end does not know yet.
TEST_P(ErrorContract, TrafficTowardsAFailedEndEndsWithAnError) {
  LinkOptions options;
  options.connect.retry_count = 3;
  options.connect.ack_timeout = std::chrono::milliseconds(10);
  Link link = make_link(options);
  const Segments source = {near_->segment(0, 64)};
  link.far->fail();
  post(link.near, to_peer(Opcode::kSend, 1, source));
  post(link.near, to_remote(Opcode::kWrite, 2, source, far_->locator(0, 64)));
  const Completion first = take_one(*link.near.sends);
  EXPECT_EQ(first.id, 1U);
  EXPECT_NE(first.status, CompletionStatus::kSuccess);
  EXPECT_FALSE(to_status(first, link.near->peer()).ok());
  EXPECT_TRUE(failed(take_one(*link.near.sends), 2, CompletionStatus::kFlushed, link.near));
  EXPECT_TRUE(untouched(*far_, 0, 64));
  expect_flow(neighbour_);
  repair(link);
  expect_flow(link);
}

TEST_P(ErrorContract, RepairIsValidWithoutAnErrorAndRepeatedly) {
  Link link = make_link();
  const std::string near_address = link.near->address();
  RemoteMemoryLocator wrong = far_->locator(0, 8);
  wrong.key.value ^= 0x5a5a5a5a;
  const Segments source = {near_->segment(0, 8)};
  for (int round = 0; round < 10; ++round) {
    repair(link);
    repair(link);
    expect_flow(link);
    if (round % 2 == 0) {
      post(link.near, to_remote(Opcode::kWrite, 1, source, wrong));
      EXPECT_TRUE(
          failed(take_one(*link.near.sends), 1, CompletionStatus::kRemoteAccess, link.near));
    }
  }
  EXPECT_EQ(link.near->address(), near_address);
  // No slot of the send queue was lost.
  const uint64_t depth = link.near->limits().send_depth;
  for (uint64_t i = 0; i < depth; ++i) {
    post(link.near, to_remote(Opcode::kWrite, i, source, far_->locator(8 * (i % 512), 8),
                              i + 1 == depth ? kSignaled : 0));
  }
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), depth - 1, CompletionKind::kWrite));
}

// repair() leaves one completion of each outstanding request in the completion queue.
TEST_P(ErrorContract, RepairAccountsForEverythingOutstanding) {
  Link link = make_link();
  const uint64_t count = std::min<uint32_t>(link.near->limits().send_depth, 8);
  const Segments none;
  for (uint64_t i = 0; i < count; ++i) post(link.near, to_peer(Opcode::kSend, i, none, 0));
  post_receive(link.near, 100);
  must(link.near->repair());
  must(link.far->repair());
  const std::vector<Completion> flushed = take(*link.near.sends, count);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(failed(flushed[i], i, CompletionStatus::kFlushed, link.near));
  }
  EXPECT_TRUE(failed(take_one(*link.near.receives), 100, CompletionStatus::kFlushed, link.near));
  EXPECT_TRUE(quiet(*link.near.sends));
  EXPECT_TRUE(quiet(*link.near.receives));
  expect_flow(link);
}

// A completion queue that others use contains no completion of a destroyed queue pair: neither one
// that was not polled yet, nor one that the fault decorator delays.
TEST_P(ErrorContract, ADestroyedQueuePairLeavesNoCompletion) {
  const auto completions = must(near_domain_->create_completion_queue({.depth = 1024}));
  for (uint64_t round = 0; round < 20; ++round) {
    LinkOptions options;
    options.near = {.send_completions = completions,
                    .receive_completions = completions,
                    .send_depth = 16,
                    .receive_depth = 16};
    Link stays = make_link(options);
    Link goes = make_link(options);
    const Segments source = {near_->segment(0, 64)};
    for (uint64_t id = 0; id < 4; ++id) {
      post(goes.near, to_remote(Opcode::kWrite, id, source, far_->locator(0, 64)));
      post_receive(goes.near, 100 + id);
    }
    post(stays.near, to_remote(Opcode::kWrite, 77, source, far_->locator(0, 64)));
    const Completion first = take_one(*completions);  // others have arrived, too
    goes.near->fail();
    goes.near.pair.reset();
    const uint32_t number = stays.near->number();
    const bool stayed = first.queue_pair == number;
    EXPECT_TRUE(stayed || take_one(*completions).queue_pair == number);
    EXPECT_TRUE(quiet(*completions)) << "round " << round;
  }
}

// The far end is destroyed while operations are outstanding. Operations posted later fail, too.
TEST_P(ErrorContract, APeerThatIsDestroyedEndsEverythingTowardsIt) {
  LinkOptions options;
  options.connect.retry_count = 3;
  options.connect.ack_timeout = std::chrono::milliseconds(10);
  Link link = make_link(options);
  const uint64_t count = std::min<uint32_t>(link.near->limits().send_depth / 2, 8);
  ASSERT_GE(count, 1U);
  const Segments source = {near_->segment(0, 64)};
  for (uint64_t i = 0; i < count; ++i) post(link.near, to_peer(Opcode::kSend, i, source));
  post_receive(link.near, 100);
  link.far.pair.reset();
  const std::vector<Completion> ended = take(*link.near.sends, count);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(ended[i].id, i);
    EXPECT_NE(ended[i].status, CompletionStatus::kSuccess);
    EXPECT_FALSE(to_status(ended[i], link.near->peer()).ok());
  }
  EXPECT_TRUE(failed(take_one(*link.near.receives), 100, CompletionStatus::kFlushed, link.near));
  post(link.near, to_remote(Opcode::kWrite, 50, source, far_->locator(0, 64)));
  EXPECT_TRUE(failed(take_one(*link.near.sends), 50, CompletionStatus::kFlushed, link.near));
  EXPECT_EQ(link.near->state(), QueuePairState::kError);
  expect_flow(neighbour_);
}

// The peer's device and everything created from it is destroyed while operations are outstanding.
TEST_P(ErrorContract, APeerWhoseDeviceIsDestroyedEndsEverythingTowardsIt) {
  auto device = make_device();
  auto domain = must(device->create_domain());
  LinkOptions options;
  options.connected = false;
  options.connect.retry_count = 3;
  options.connect.ack_timeout = std::chrono::milliseconds(10);
  Link link = make_link(options);
  link.far.sends = must(domain->create_completion_queue({.depth = 256}));
  link.far.receives = link.far.sends;
  link.far.pair = must(domain->create_queue_pair({.send_completions = link.far.sends,
                                                  .receive_completions = link.far.receives,
                                                  .send_depth = 16,
                                                  .receive_depth = 16}));
  connect(link, options.connect);
  auto target = std::make_unique<Buffer>(*domain, 4096);
  const RemoteMemoryLocator remote = target->locator();
  const Segments source = {near_->segment(0, 64)};
  post_receive(link.near, 100);
  post(link.near, to_remote(Opcode::kWrite, 1, source, remote.slice(0, 64)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  post(link.near, to_peer(Opcode::kSend, 2, source));
  link.far = End();
  target.reset();
  domain.reset();
  device.reset();
  // Some transports detect the destruction. On others an operation is needed to detect it.
  const Completion first = take_one(*link.near.sends);
  EXPECT_EQ(first.id, 2U);
  EXPECT_EQ(to_status(first, link.near->peer()).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(failed(take_one(*link.near.receives), 100, CompletionStatus::kFlushed, link.near));
  post(link.near, to_remote(Opcode::kWrite, 3, source, remote.slice(0, 64)));
  EXPECT_TRUE(failed(take_one(*link.near.sends), 3, CompletionStatus::kFlushed, link.near));
  expect_flow(neighbour_);
}

// A completion queue of exactly the needed depth takes the completions of all requests that its
// queue pair can have outstanding.
TEST_P(ErrorContract, ACompletionQueueHoldsEverythingThatCanFail) {
  LinkOptions options;
  options.near.send_depth = options.near.receive_depth = 32;
  const Link probe = make_link(options);
  const uint64_t sends = probe.near->limits().send_depth;
  const uint64_t receives = probe.near->limits().receive_depth;
  const auto queue = must(
      near_domain_->create_completion_queue({.depth = static_cast<uint32_t>(sends + receives)}));
  EXPECT_GE(queue->depth(), sends + receives);
  options.near.send_completions = options.near.receive_completions = queue;
  Link link = make_link(options);
  const Segments none;
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < sends; ++i) post(link.near, to_peer(Opcode::kSend, i, none));
    for (uint64_t i = 0; i < receives; ++i) post_receive(link.near, 1000 + i);
    link.near->fail();
    uint64_t next_send = 0, next_receive = 1000;
    for (const Completion& completion : take(*queue, sends + receives)) {
      uint64_t& next = completion.id < 1000 ? next_send : next_receive;
      EXPECT_TRUE(failed(completion, next++, CompletionStatus::kFlushed, link.near));
    }
    EXPECT_EQ(next_send, sends);
    EXPECT_EQ(next_receive, 1000 + receives);
    repair(link);
  }
  expect_flow(link);
}

// A bad request of one thread fails the queue pair that the other threads use. Each posted request
// completes once, successfully or flushed.
TEST_P(ErrorContract, AFailureAmongThreadsLosesNoCompletion) {
  LinkOptions options;
  options.near.send_depth = 64;
  Link link = make_link(options);
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kEach = 100;
  constexpr uint64_t kBad = 150;  // posted by the second thread
  RemoteMemoryLocator wrong = far_->locator(0, 8);
  wrong.key.value ^= 0x5a5a5a5a;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::atomic<uint32_t>> seen(kThreads * kEach);
    std::atomic<uint64_t> completed{0}, unexpected{0};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const auto poll = [&] {
      Completion completion;
      if (link.near.sends->poll(std::span(&completion, 1)) == 0) {
        std::this_thread::yield();
        return;
      }
      if (completion.id < seen.size()) ++seen[completion.id];
      const CompletionStatus expected =
          completion.id == kBad ? CompletionStatus::kRemoteAccess : CompletionStatus::kFlushed;
      if (completion.status == CompletionStatus::kSuccess) {
        if (completion.id == kBad) ++unexpected;
      } else if (completion.status != expected) {
        ++unexpected;
      }
      ++completed;
    };
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const Segments source = {near_->segment(8 * thread, 8)};
        for (uint64_t i = 0; i < kEach && std::chrono::steady_clock::now() < deadline;) {
          const uint64_t id = thread * kEach + i;
          const PostResult result = link.near->post_send(
              to_remote(i % 2 == 0 ? Opcode::kWrite : Opcode::kRead, id, source,
                        id == kBad ? wrong : far_->locator(8 * thread, 8)));
          if (result.ok()) {
            ++i;
          } else if (result.error != PostError::kQueueFull) {
            ++unexpected;
          }
          if (!result.ok() || i % 4 == 0) poll();
        }
        while (completed < kThreads * kEach && std::chrono::steady_clock::now() < deadline) poll();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(completed, kThreads * kEach);
    EXPECT_EQ(unexpected, 0U);
    for (uint64_t id = 0; id < seen.size(); ++id) EXPECT_EQ(seen[id], 1U) << id;
    EXPECT_EQ(link.near->state(), QueuePairState::kError);
    expect_flow(neighbour_);
    repair(link);
    expect_flow(link);
  }
}

INSTANTIATE_TEST_SUITE_P(On, ErrorContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
