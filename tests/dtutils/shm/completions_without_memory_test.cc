// Completions for which the ring of a queue has no room, while there is no memory for the overflow
// list: none is lost, and no operation is executed twice.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "dtutils/shm/queue_pair.h"
#include "dtutils/wait.h"
#include "tests/dtutils/shm/control_view.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::shm {
namespace {

using cariama::testing::FailAllocation;
using cariama::testing::failing_bytes;
using ::testing::Each;

// Two connected queue pairs, whose completion queues have room for two completions.
struct NarrowPair {
  static constexpr uint32_t kMessages = 40;

  NarrowPair(ShmNode& near_node, ShmNode& far_node)
      : near(near_node),
        far(far_node),
        sends(must(near.domain->create_completion_queue({.depth = 2}))),
        receives(must(far.domain->create_completion_queue({.depth = 2}))) {
    QueuePairOptions options;
    options.send_completions = sends;
    options.receive_completions = near.completions;
    sender = must(near.domain->create_queue_pair(options));
    options.send_completions = far.completions;
    options.receive_completions = receives;
    receiver = must(far.domain->create_queue_pair(options));
    connect_pair(*sender, *receiver);
  }

  void post_receives() {
    for (uint64_t id = 0; id < kMessages; ++id) {
      const Segment into = far.segment(8 * id, 8);
      EXPECT_TRUE(receiver->post_receive({.id = id, .segments = &into, .segment_count = 1}).ok());
    }
  }
  void send(uint8_t flags) {
    for (uint64_t id = 0; id < kMessages; ++id) {
      near.memory.word(id) = id;
      const Segment from = near.segment(8 * id, 8);
      EXPECT_TRUE(sender
                      ->post_send(WorkRequest{.id = id,
                                              .opcode = Opcode::kSend,
                                              .flags = flags,
                                              .segment_count = 1,
                                              .segments = &from})
                      .ok());
    }
  }
  // Polls the queue until it is empty. Adds each completion to `seen`, by its id.
  static size_t poll_all(CompletionQueue& queue, std::vector<uint32_t>& seen,
                         CompletionStatus status) {
    size_t count = 0;
    Completion completion;
    for (; queue.poll(std::span(&completion, 1)) == 1; ++count) {
      EXPECT_EQ(completion.status, status);
      if (completion.id < seen.size()) ++seen[completion.id];
    }
    return count;
  }
  void expect_each_receive_once(CompletionStatus status) {
    std::vector<uint32_t> seen(kMessages);
    EXPECT_EQ(poll_all(*receives, seen, status), kMessages);
    EXPECT_THAT(seen, Each(1U));
  }

  ShmNode& near;
  ShmNode& far;
  std::shared_ptr<CompletionQueue> sends, receives;
  std::unique_ptr<QueuePair> sender, receiver;
};

// Calls `step` for new pairs, of which each finds no memory one allocation later, until one finds
// all memory that it needs. Calls it again if it has thrown. `prepare` and `check` are called
// before and afterwards.
template <typename Prepare, typename Step, typename Check>
void without_memory(const Prepare& prepare, const Step& step, const Check& check) {
  ShmNode near, far;
  bool all_succeeded = false;
  for (size_t skips = 0; !all_succeeded; ++skips) {
    ASSERT_LT(skips, 1000U);
    NarrowPair pair(near, far);
    prepare(pair);
    bool threw = false;
    {
      const FailAllocation fail(1, skips);
      try {
        step(pair);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      all_succeeded = failing_bytes != 0;
    }
    if (threw) step(pair);
    check(pair);
  }
}

// The peer ends in the middle of its messages. The device repeats what has found no memory.
TEST(ShmCompletionsWithoutMemory, ReceivesOfADeadPeerComplete) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  without_memory(
      [](NarrowPair& pair) {
        pair.post_receives();
        const ControlView view(*pair.receiver);
        for (uint32_t i = 0; i < NarrowPair::kMessages; ++i) {
          EXPECT_TRUE(view.receives.claim(view.address.index + 1).has_value());
        }
      },
      [](NarrowPair& pair) { static_cast<ShmQueuePair&>(*pair.receiver).recover_receives(); },
      [](NarrowPair& pair) { pair.expect_each_receive_once(CompletionStatus::kPeerDied); });
}

// repair() moves the completions that were not polled.
TEST(ShmCompletionsWithoutMemory, ReceivesOutliveARepair) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  without_memory(
      [](NarrowPair& pair) {
        pair.post_receives();
        pair.send(0);
      },
      [](NarrowPair& pair) { must(pair.receiver->repair()); },
      [](NarrowPair& pair) { pair.expect_each_receive_once(CompletionStatus::kSuccess); });
}

// Sends that waited for a receive are executed while the sender polls.
TEST(ShmCompletionsWithoutMemory, SendsThatWaitAreExecutedOnce) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  ShmNode near, far;
  for (size_t skips = 0; skips < 20; ++skips) {
    NarrowPair pair(near, far);
    pair.send(kSignaled);
    pair.post_receives();
    std::vector<uint32_t> sent(NarrowPair::kMessages);
    {
      const FailAllocation fail(1, skips);
      try {
        static_cast<void>(NarrowPair::poll_all(*pair.sends, sent, CompletionStatus::kSuccess));
      } catch (const std::bad_alloc&) {
      }
    }
    const auto all_sent = [&] {
      static_cast<void>(NarrowPair::poll_all(*pair.sends, sent, CompletionStatus::kSuccess));
      return std::accumulate(sent.begin(), sent.end(), 0U) >= NarrowPair::kMessages;
    };
    EXPECT_TRUE(wait_until(all_sent, soon())) << skips;
    EXPECT_THAT(sent, Each(1U)) << skips;
    pair.expect_each_receive_once(CompletionStatus::kSuccess);
    for (uint64_t id = 0; id < NarrowPair::kMessages; ++id) EXPECT_EQ(far.memory.word(id), id);
  }
}

// A send that cannot be deferred is not posted at all, and later ones are not behind it.
TEST(ShmCompletionsWithoutMemory, ASendThatIsNotDeferredIsNotExecuted) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  ShmNode near, far;
  bool all_succeeded = false;
  for (size_t skips = 0; !all_succeeded; ++skips) {
    ASSERT_LT(skips, 1000U);
    NarrowPair pair(near, far);
    bool threw = false;
    {
      const Segment from = near.segment(0, 8);
      const WorkRequest send{
          .opcode = Opcode::kSend, .flags = kSignaled, .segment_count = 1, .segments = &from};
      const FailAllocation fail(1, skips);
      try {
        EXPECT_TRUE(pair.sender->post_send(send).ok());
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      all_succeeded = failing_bytes != 0;
    }
    if (!threw) continue;
    pair.post_receives();
    pair.send(0);
    pair.expect_each_receive_once(CompletionStatus::kSuccess);
    for (uint64_t id = 0; id < NarrowPair::kMessages; ++id) EXPECT_EQ(far.memory.word(id), id);
    Completion none;
    EXPECT_EQ(pair.sends->poll(std::span(&none, 1)), 0U);
  }
}

// A destructor that finds no memory would end the process.
TEST(ShmCompletionsWithoutMemory, QueuePairsAreDestroyed) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  ShmNode near, far;
  bool all_succeeded = false;
  for (size_t skips = 0; !all_succeeded; ++skips) {
    ASSERT_LT(skips, 1000U);
    NarrowPair pair(near, far);
    pair.post_receives();
    pair.send(0);
    {
      const FailAllocation fail(1, skips);
      pair.sender.reset();
      pair.receiver.reset();
      all_succeeded = failing_bytes != 0;
    }
    // Their places and their memory are used again.
    NarrowPair next(near, far);
    next.post_receives();
    next.send(0);
    next.expect_each_receive_once(CompletionStatus::kSuccess);
  }
}

TEST(ShmCompletionsWithoutMemory, ADeviceIsDestroyedWithAllThatItHas) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  bool all_succeeded = false;
  for (size_t skips = 0; !all_succeeded; ++skips) {
    ASSERT_LT(skips, 1000U);
    auto near = std::make_unique<ShmNode>();
    auto far = std::make_unique<ShmNode>();
    auto pair = std::make_unique<NarrowPair>(*near, *far);
    pair->post_receives();
    pair->send(0);
    const FailAllocation fail(1, skips);
    pair.reset();
    near.reset();
    far.reset();
    all_succeeded = failing_bytes != 0;
  }
}

}  // namespace
}  // namespace cariama::shm
