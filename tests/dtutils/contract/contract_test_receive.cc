// Receives: their order, sends without a posted receive, and shared receive queues.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class ReceiveContract : public ContractTest {
 protected:
  static PostResult post_shared(SharedReceiveQueue& queue, uint64_t id, const Segments& segments) {
    return queue.post_receive(
        ReceiveRequest{id, segments.data(), static_cast<uint32_t>(segments.size())});
  }
};

TEST_P(ReceiveContract, MayBePostedBeforeConnect) {
  LinkOptions options;
  options.connected = false;
  Link link = make_link(options);
  Buffer from(*near_domain_, 32);
  Buffer to(*far_domain_, 64);
  from.fill(1);
  post_receive(link.far, 1, {to.segment(0, 32)});
  post_receive(link.far, 2, {to.segment(32, 32)});
  connect(link);
  const Segments source = {from.segment()};
  for (uint64_t id = 1; id <= 2; ++id) {
    post(link.near, to_peer(Opcode::kSend, id, source));
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), id, CompletionKind::kReceive));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kSend));
    EXPECT_TRUE(holds(to, 32 * (id - 1), pattern(1, 32)));
  }
}

TEST_P(ReceiveContract, AreUsedInTheOrderOfPosting) {
  LinkOptions options;
  options.far.receive_depth = 16;
  Link link = make_link(options);
  const uint64_t count = std::min<uint32_t>(link.far->limits().receive_depth, 16);
  Buffer from(*near_domain_, 64);
  Buffer to(*far_domain_, 64 * count);
  from.fill(2);
  for (uint64_t round = 0; round < 5; ++round) {  // each round wraps around the queue
    to.clear();
    for (uint64_t i = 0; i < count; ++i) post_receive(link.far, 100 + i, {to.segment(64 * i, 64)});
    for (uint64_t i = 0; i < count; ++i) {
      const Segments source = {from.segment(0, i + 1)};
      post(link.near, to_peer(Opcode::kSend, i, source));
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), i, CompletionKind::kSend));
    }
    const std::vector<Completion> received = take(*link.far.receives, count);
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(succeeded(received[i], 100 + i, CompletionKind::kReceive));
      EXPECT_EQ(received[i].bytes, i + 1);
      EXPECT_TRUE(holds(to, 64 * i, std::span(from.data(), i + 1)));
      EXPECT_TRUE(untouched(to, 64 * i + i + 1, 64 - i - 1));
    }
  }
}

TEST_P(ReceiveContract, AFullQueueRefuses) {
  LinkOptions options;
  options.far.receive_depth = 8;
  Link link = make_link(options);
  const uint64_t depth = link.far->limits().receive_depth;
  ASSERT_GE(depth, 1U);
  std::vector<ReceiveRequest> list(depth + 2);
  for (uint64_t i = 0; i < list.size(); ++i) list[i].id = i;
  const Segments none;
  for (uint64_t round = 0; round < 3; ++round) {
    const PostResult result = link.far->post_receive(list);
    EXPECT_EQ(result.posted, depth);
    EXPECT_EQ(result.error, PostError::kQueueFull);
    EXPECT_EQ(link.far->post_receive(list[0]).error, PostError::kQueueFull);
    for (uint64_t i = 0; i < depth; ++i) {
      post(link.near, to_peer(Opcode::kSend, i, none));
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), i, CompletionKind::kSend));
      EXPECT_TRUE(succeeded(take_one(*link.far.receives), i, CompletionKind::kReceive));
    }
  }
  expect_flow(link);
}

TEST_P(ReceiveContract, TooManySegmentsAreRefused) {
  LinkOptions options;
  options.far.max_receive_segments = 2;
  Link link = make_link(options);
  Buffer to(*far_domain_, 64);
  const Segments good = {to.segment()};
  const Segments many(link.far->limits().max_receive_segments + 1, to.segment(0, 1));
  const ReceiveRequest list[] = {
      {1, good.data(), 1}, {2, many.data(), static_cast<uint32_t>(many.size())}, {3, nullptr, 0}};
  const PostResult result = link.far->post_receive(list);
  EXPECT_EQ(result.posted, 1U);
  EXPECT_EQ(result.error, PostError::kTooManySegments);
  const Segments none;
  post(link.near, to_peer(Opcode::kSend, 4, none));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 1, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 4, CompletionKind::kSend));
  expect_flow(link);
}

// A SEND waits for a receive, as often and as long as the retry options allow. Later requests on
// the queue pair wait, too.
TEST_P(ReceiveContract, TheSenderWaitsForALateReceive) {
  Link link = make_link();
  ASSERT_GE(link.near->limits().send_depth, 3U);
  Buffer from(*near_domain_, 5000);
  Buffer to(*far_domain_, 5000);
  Buffer written(*far_domain_, 16);
  from.fill(3);
  const Segments source = {from.segment()};
  const Segments piece = {from.segment(0, 8)};
  for (const bool with_event : {false, true}) {
    SCOPED_TRACE(with_event);
    to.clear();
    written.clear();
    post(link.near, with_event ? to_remote(Opcode::kWriteImmediate, 1, source, to.locator())
                               : to_peer(Opcode::kSend, 1, source));
    post(link.near, to_remote(Opcode::kWrite, 2, piece, written.locator(0, 8)));
    post(link.near, to_peer(Opcode::kSend, 3, piece));
    EXPECT_TRUE(quiet(*link.near.sends));
    EXPECT_TRUE(quiet(*link.far.receives));
    EXPECT_TRUE(untouched(written, 0, 16)) << "a later WRITE has overtaken the waiting request";

    post_receive(link.far, 10, with_event ? Segments{} : Segments{to.segment()});
    EXPECT_TRUE(
        succeeded(take_one(*link.far.receives), 10,
                  with_event ? CompletionKind::kReceiveImmediate : CompletionKind::kReceive));
    EXPECT_TRUE(holds(to, 0, pattern(3, 5000)));
    EXPECT_EQ(take_one(*link.near.sends).id, 1U);
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kWrite));
    EXPECT_TRUE(holds(written, 0, std::span(from.data(), 8)));
    EXPECT_TRUE(quiet(*link.near.sends));

    post_receive(link.far, 11, {written.segment(8, 8)});
    EXPECT_TRUE(succeeded(take_one(*link.far.receives), 11, CompletionKind::kReceive));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kSend));
    EXPECT_TRUE(holds(written, 8, std::span(from.data(), 8)));
  }
}

// The directions of a connection are independent: the far end sends while the near end's SEND waits
// for a receive.
TEST_P(ReceiveContract, AWaitingSendDoesNotStopTheOtherDirection) {
  Link link = make_link();
  Buffer near(*near_domain_, 64);
  Buffer far(*far_domain_, 64);
  near.fill(1);
  far.fill(2);
  const Segments out = {near.segment(0, 32)};
  const Segments back = {far.segment(0, 32)};
  post(link.near, to_peer(Opcode::kSend, 1, out));
  post_receive(link.near, 2, {near.segment(32, 32)});
  post(link.far, to_peer(Opcode::kSend, 3, back));
  EXPECT_TRUE(succeeded(take_one(*link.near.receives), 2, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.far.sends), 3, CompletionKind::kSend));
  EXPECT_TRUE(holds(near, 32, pattern(2, 32)));
  post_receive(link.far, 4, {far.segment(32, 32)});
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 4, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kSend));
  EXPECT_TRUE(holds(far, 32, pattern(1, 32)));
}

// Two queue pairs take receives from one pool. The completion names the queue pair that received.
TEST_P(ReceiveContract, QueuePairsShareReceives) {
  const auto pool = must(far_domain_->create_shared_receive_queue({.depth = 32}));
  ASSERT_GE(pool->depth(), 1U);
  LinkOptions options;
  options.far.shared_receives = pool;
  Link links[] = {make_link(options), make_link(options)};
  EXPECT_EQ(links[0].far->limits().receive_depth, 0U);
  constexpr uint64_t kMessages = 300;  // sent on each link
  const uint64_t slots = pool->depth();
  Buffer to(*far_domain_, 16 * slots);
  Buffer from(*near_domain_, 2 * 16 * kMessages);

  std::vector<uint64_t> free_slots;
  for (uint64_t slot = 0; slot < slots; ++slot) free_slots.push_back(slot);
  uint64_t posted[2] = {}, sent[2] = {}, received[2] = {};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto done = [&] {
    return sent[0] + sent[1] == 2 * kMessages && received[0] + received[1] == 2 * kMessages;
  };
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    while (!free_slots.empty()) {
      const uint64_t slot = free_slots.back();
      if (!post_shared(*pool, slot, {to.segment(16 * slot, 16)}).ok()) break;
      free_slots.pop_back();
    }
    for (uint64_t i = 0; i < 2; ++i) {
      Link& link = links[i];
      if (posted[i] < kMessages && posted[i] - sent[i] < link.near->limits().send_depth) {
        const uint64_t at = 16 * (i * kMessages + posted[i]);
        from.set_word(at, i);
        from.set_word(at + 8, posted[i]);
        const Segments source = {from.segment(at, 16)};
        post(link.near, to_peer(Opcode::kSend, posted[i]++, source));
      }
      Completion completion;
      if (link.near.sends->poll(std::span(&completion, 1)) == 1) {
        ASSERT_TRUE(succeeded(completion, sent[i]++, CompletionKind::kSend));
      }
      if (link.far.receives->poll(std::span(&completion, 1)) == 1) {
        ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
        ASSERT_EQ(completion.queue_pair, link.far->number());
        ASSERT_LT(completion.id, slots);
        EXPECT_EQ(completion.bytes, 16U);
        EXPECT_EQ(to.word(16 * completion.id), i);
        EXPECT_EQ(to.word(16 * completion.id + 8), received[i]++);  // in the sender's order
        free_slots.push_back(completion.id);
      }
    }
  }
  EXPECT_TRUE(done());
  for (Link& link : links) EXPECT_TRUE(quiet(*link.far.receives));
}

TEST_P(ReceiveContract, ASharedQueueReplacesTheOwnOneAndHasItsDepth) {
  const auto pool = must(far_domain_->create_shared_receive_queue({.depth = 4}));
  LinkOptions options;
  options.far.shared_receives = pool;
  Link link = make_link(options);
  const ReceiveRequest own{1, nullptr, 0};
  EXPECT_EQ(link.far->post_receive(own).error, PostError::kUnsupported);

  std::vector<ReceiveRequest> list(pool->depth() + 1);
  for (uint64_t i = 0; i < list.size(); ++i) list[i].id = i;
  const PostResult result = pool->post_receive(list);
  EXPECT_EQ(result.posted, pool->depth());
  EXPECT_EQ(result.error, PostError::kQueueFull);

  const Segments none;
  std::set<uint64_t> used;
  for (uint64_t i = 0; i < pool->depth(); ++i) {
    WorkRequest request = to_remote(Opcode::kWriteImmediate, i, none, {});
    request.immediate = static_cast<uint32_t>(i);
    post(link.near, request);
    const Completion received = take_one(*link.far.receives);
    EXPECT_EQ(received.status, CompletionStatus::kSuccess);
    EXPECT_EQ(received.immediate, i);
    used.insert(received.id);
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), i, CompletionKind::kWrite));
  }
  EXPECT_EQ(used.size(), pool->depth());
  EXPECT_EQ(*used.rbegin(), pool->depth() - 1);
}

// A queue pair that fails does not flush the receives of the shared queue.
TEST_P(ReceiveContract, SharedReceivesSurviveAFailingQueuePair) {
  const auto pool = must(far_domain_->create_shared_receive_queue({.depth = 16}));
  LinkOptions options;
  options.far.shared_receives = pool;
  Link broken = make_link(options);
  Link healthy = make_link(options);
  const uint64_t count = std::min<uint32_t>(pool->depth(), 8);
  Buffer to(*far_domain_, 64 * count);
  Buffer from(*near_domain_, 64);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(post_shared(*pool, i, {to.segment(64 * i, 64)}).ok());
  }
  broken.far->fail();
  broken.near->fail();
  EXPECT_EQ(broken.far->state(), QueuePairState::kError);
  EXPECT_TRUE(quiet(*broken.far.receives)) << "receives of a shared queue must not be flushed";

  std::set<uint64_t> used;
  const auto exchange = [&](Link& link, uint64_t round) {
    from.fill(round);
    const Segments source = {from.segment()};
    post(link.near, to_peer(Opcode::kSend, round, source));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kSend));
    const Completion received = take_one(*link.far.receives);
    EXPECT_EQ(received.status, CompletionStatus::kSuccess);
    EXPECT_EQ(received.queue_pair, link.far->number());
    ASSERT_LT(received.id, count);
    EXPECT_TRUE(holds(to, 64 * received.id, pattern(round, 64)));
    used.insert(received.id);
  };
  for (uint64_t i = 0; i + 1 < count; ++i) exchange(healthy, i);
  repair(broken);
  exchange(broken, count);  // takes the last receive
  EXPECT_EQ(used.size(), count) << "each receive was used once";
}

// Several threads send, and several threads share the receiving side: one completion queue, one
// pool.
TEST_P(ReceiveContract, ThreadsShareReceives) {
  constexpr uint64_t kThreads = 2;  // number of senders and of receivers
  constexpr uint64_t kMessages = 400;
  const auto pool = must(far_domain_->create_shared_receive_queue({.depth = 32}));
  const auto queue = must(far_domain_->create_completion_queue({.depth = 1024}));
  LinkOptions options;
  options.far.shared_receives = pool;
  options.far.receive_completions = queue;
  std::vector<Link> links;
  for (uint64_t i = 0; i < kThreads; ++i) links.push_back(make_link(options));
  const uint64_t slots = pool->depth();
  Buffer to(*far_domain_, 8 * slots);
  Buffer from(*near_domain_, 8 * kThreads * kMessages);
  for (uint64_t slot = 0; slot < slots; ++slot) {
    EXPECT_TRUE(post_shared(*pool, slot, {to.segment(8 * slot, 8)}).ok());
  }
  std::vector<std::atomic<uint32_t>> seen(kThreads * kMessages);
  std::atomic<uint64_t> received{0}, wrong{0};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {  // the sender
      Link& link = links[i];
      uint64_t posted = 0, sent = 0;
      while (sent < kMessages && in_time()) {
        if (posted < kMessages && posted - sent < link.near->limits().send_depth) {
          const uint64_t id = i * kMessages + posted;
          from.set_word(8 * id, id);
          const Segments source = {from.segment(8 * id, 8)};
          if (link.near->post_send(to_peer(Opcode::kSend, posted, source)).ok()) ++posted;
        }
        Completion completion;
        if (link.near.sends->poll(std::span(&completion, 1)) == 1) {
          if (completion.status != CompletionStatus::kSuccess || completion.id != sent) ++wrong;
          ++sent;
        } else {
          std::this_thread::yield();
        }
      }
    });
    threads.emplace_back([&] {  // the receiver
      while (received < kThreads * kMessages && in_time()) {
        Completion completion;
        if (queue->poll(std::span(&completion, 1)) == 0) {
          std::this_thread::yield();
          continue;
        }
        if (completion.status != CompletionStatus::kSuccess || completion.id >= slots) {
          ++wrong;
          continue;
        }
        const uint64_t id = to.word(8 * completion.id);
        const uint64_t link = completion.queue_pair == links[0].far->number() ? 0 : 1;
        if (id >= seen.size() || id / kMessages != link) {
          ++wrong;
        } else {
          ++seen[id];
        }
        if (!post_shared(*pool, completion.id, {to.segment(8 * completion.id, 8)}).ok()) ++wrong;
        ++received;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(received, kThreads * kMessages);
  for (uint64_t id = 0; id < seen.size(); ++id) EXPECT_EQ(seen[id], 1U) << id;
}

INSTANTIATE_TEST_SUITE_P(On, ReceiveContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
