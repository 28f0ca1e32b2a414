// Receive queues from which several senders ("takers") claim: each request is claimed once, and
// none is lost, even if a taker dies between its steps.
#include "dtutils/shm/receive_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/dtutils/testing/device_node.h"

namespace cariama::shm {
namespace {

class ShmReceiveQueue : public ::testing::Test {
 protected:
  static constexpr uint32_t kDepth = 5;  // not a power of two

  ShmReceiveQueue() {
    control_ = must(ControlSegment::create(Uuid{}));
    regions_ = must(RegionTable::create(control_));
    queue_ = ReceiveQueue::create(control_, kDepth, 1);
    view_ = ReceiveQueueView(control_->base() + queue_->offset(), 8, kDepth, 1);
  }
  bool post(uint64_t id) {
    const ReceiveRequest request{.id = id};
    return queue_->post(std::span(&request, 1), *regions_, 1).ok();
  }

  std::shared_ptr<ControlSegment> control_;
  std::unique_ptr<RegionTable> regions_;
  std::shared_ptr<ReceiveQueue> queue_;
  ReceiveQueueView view_;
};

TEST_F(ShmReceiveQueue, TakesInTheOrderOfPosting) {
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < kDepth; ++i) ASSERT_TRUE(post(round * kDepth + i));
    EXPECT_FALSE(post(0)) << "more than its depth";
    for (uint64_t i = 0; i < kDepth; ++i) {
      const auto slot = view_.claim(7);
      ASSERT_TRUE(slot.has_value());
      EXPECT_EQ(queue_->finish(*slot, 7).value().id, round * kDepth + i);
    }
    EXPECT_FALSE(view_.claim(7).has_value());
  }
}

TEST_F(ShmReceiveQueue, FinishesEachClaimedSlotOnce) {
  ASSERT_TRUE(post(1));
  EXPECT_FALSE(queue_->finish(0, 7).has_value()) << "the slot was not claimed";
  const auto slot = view_.claim(7);
  ASSERT_TRUE(slot.has_value());
  EXPECT_FALSE(queue_->finish(*slot, 8).has_value()) << "another taker claimed it";
  EXPECT_FALSE(queue_->finish(kDepth, 7).has_value()) << "no such slot";
  EXPECT_EQ(queue_->finish(*slot, 7).value().id, 1u);
  EXPECT_FALSE(queue_->finish(*slot, 7).has_value()) << "it was finished before";
}

// The taker marks the slot but dies before it advances the head: the next taker advances it.
TEST_F(ShmReceiveQueue, ATakerThatDiesHalfWayDoesNotBlockOthers) {
  for (uint64_t id = 0; id < kDepth; ++id) ASSERT_TRUE(post(id));
  for (uint64_t round = 0; round < 50; ++round) {
    const uint64_t head = view_.header()->head.load();
    const auto lost = view_.claim(7);
    ASSERT_TRUE(lost.has_value());
    view_.header()->head.store(head);
    std::vector<uint32_t> rest;
    while (auto slot = view_.claim(8)) rest.push_back(*slot);
    EXPECT_EQ(rest.size(), kDepth - 1);
    EXPECT_EQ(queue_->claimed_by(7), std::vector<uint32_t>{*lost});
    queue_->repost(*lost, 7);
    std::set<uint64_t> ids;
    for (uint32_t slot : rest) ids.insert(queue_->finish(slot, 8).value().id);
    while (auto id = queue_->take_back()) ids.insert(*id);
    EXPECT_EQ(ids.size(), kDepth) << "each request exactly once";
    for (uint64_t id : ids) ASSERT_TRUE(post(id));
  }
}

// The head lags behind by a whole lap of the ring.
TEST_F(ShmReceiveQueue, CatchesUpWithARingThatWrapped) {
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(post(i));
    const uint64_t head = view_.header()->head.load();
    const auto slot = view_.claim(7);
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(queue_->finish(*slot, 7).value().id, i);
    if (i % 20 < 18) view_.header()->head.store(head);
  }
}

TEST_F(ShmReceiveQueue, ThreadsTakeEachRequestOnce) {
  constexpr uint64_t kRequests = 20000;
  constexpr uint32_t kTakers = 3;
  std::vector<std::atomic<uint32_t>> taken(kRequests);
  std::atomic<uint64_t> done{0};
  std::vector<std::thread> takers;
  for (uint32_t claimant = 1; claimant <= kTakers; ++claimant) {
    takers.emplace_back([&, claimant] {
      while (done.load() < kRequests) {
        const auto slot = view_.claim(claimant);
        if (!slot.has_value()) {
          std::this_thread::yield();
          continue;
        }
        const auto request = queue_->finish(*slot, claimant);
        ASSERT_TRUE(request.has_value());
        taken[request->id].fetch_add(1);
        done.fetch_add(1);
      }
    });
  }
  for (uint64_t id = 0; id < kRequests;) {
    if (post(id)) {
      ++id;
    } else {
      std::this_thread::yield();
    }
  }
  for (std::thread& taker : takers) taker.join();
  for (const auto& count : taken) ASSERT_EQ(count.load(), 1u);
}

}  // namespace
}  // namespace cariama::shm
