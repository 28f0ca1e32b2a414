// Failure and repair: every request is reported exactly once, and the free slots are exact
// afterwards.
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

class RepairTest : public testing::VerbsTest {
 protected:
  // A WRITE of 8 bytes.
  [[nodiscard]] WorkRequest write(uint64_t id, uint8_t flags) {
    return {.id = id,
            .opcode = Opcode::kWrite,
            .flags = flags,
            .segment_count = 1,
            .segments = &segment_,
            .remote_address = to_->region->locator().address,
            .remote_key = to_->region->remote_key()};
  }
  void SetUp() override {
    VerbsTest::SetUp();
    if (IsSkipped()) return;
    from_ = std::make_unique<testing::VerbsBuffer>(*domain_, 8);
    to_ = std::make_unique<testing::VerbsBuffer>(*domain_, 8);
    segment_ = from_->segment(0, 8);
  }

  std::unique_ptr<testing::VerbsBuffer> from_;
  std::unique_ptr<testing::VerbsBuffer> to_;
  Segment segment_;
};

TEST_F(RepairTest, FlushesAllRequestsAndThenTrafficFlows) {
  for (int round = 0; round < 3; ++round) {
    testing::VerbsEnd near = make_end();
    testing::VerbsEnd far = make_end();
    connect(near, far);
    for (uint64_t id = 100; id < 116; ++id) ASSERT_TRUE(near.pair->post_receive({.id = id}).ok());
    WorkRequest bad = write(1, kSignaled);
    bad.remote_key = {bad.remote_key.value ^ 0x5500};
    std::vector<WorkRequest> list = {bad};
    for (uint64_t id = 2; id <= 16; ++id) list.push_back(write(id, id % 2 == 0 ? kSignaled : 0));
    ASSERT_EQ(near.pair->post_send(list).posted, 16U);
    std::vector<Completion> sends = testing::take_completions(*near.sends, 16);
    ASSERT_EQ(sends.size(), 16U);
    EXPECT_EQ(sends[0].id, 1U);
    EXPECT_EQ(sends[0].status, CompletionStatus::kRemoteAccess);
    EXPECT_EQ(sends[0].kind, CompletionKind::kWrite);
    for (uint64_t id = 2; id <= 16; ++id) {
      EXPECT_EQ(sends[id - 1].id, id);
      EXPECT_EQ(sends[id - 1].status, CompletionStatus::kFlushed);
      EXPECT_EQ(sends[id - 1].kind, CompletionKind::kWrite);
    }
    EXPECT_EQ(near.pair->state(), QueuePairState::kError);
    const std::vector<Completion> receives = testing::take_completions(*near.receives, 16);
    ASSERT_EQ(receives.size(), 16U);
    for (uint64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(receives[i].id, 100 + i);
      EXPECT_EQ(receives[i].status, CompletionStatus::kFlushed);
      EXPECT_EQ(receives[i].kind, CompletionKind::kReceive);
    }
    for (int again = 0; again < 3; ++again) {
      repair(near, far);
      EXPECT_EQ(near.pair->state(), QueuePairState::kConnected);
      expect_write_arrives(near, 5000, again);
      expect_write_arrives(far, 5000, again + 10);
      EXPECT_EQ(near.pair->state(), QueuePairState::kConnected);
    }
    EXPECT_TRUE(testing::stays_empty(*near.sends));
    EXPECT_TRUE(testing::stays_empty(*near.receives));
  }
}

TEST_F(RepairTest, RequestsPostedInTheErrorStateAreFlushed) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  connect(near, far);
  near.pair->fail();
  EXPECT_EQ(near.pair->state(), QueuePairState::kError);
  for (uint64_t id = 0; id < 16; ++id) {
    ASSERT_TRUE(near.pair->post_send(write(id, id % 3 == 0 ? kSignaled : 0)).ok());
    ASSERT_TRUE(near.pair->post_receive({.id = 50 + id}).ok());
  }
  EXPECT_EQ(near.pair->post_send(write(99, kSignaled)).error, PostError::kQueueFull);
  EXPECT_EQ(near.pair->post_receive({.id = 99}).error, PostError::kQueueFull);
  const std::vector<Completion> sends = testing::take_completions(*near.sends, 16);
  const std::vector<Completion> receives = testing::take_completions(*near.receives, 16);
  ASSERT_EQ(sends.size(), 16U);
  ASSERT_EQ(receives.size(), 16U);
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(sends[i].id, i);
    EXPECT_EQ(sends[i].status, CompletionStatus::kFlushed);
    EXPECT_EQ(receives[i].id, 50 + i);
    EXPECT_EQ(receives[i].status, CompletionStatus::kFlushed);
  }
  repair(near, far);
  expect_write_arrives(near, 100, 1);
}

TEST_F(RepairTest, CompletionsThatWereNotPolledSurviveARepair) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  connect(near, far);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(near.pair->post_send(write(id, kSignaled)).ok());
  near.pair->fail();
  for (uint64_t id = 5; id <= 8; ++id) ASSERT_TRUE(near.pair->post_send(write(id, 0)).ok());
  repair(near, far);
  // Nothing was polled before: all eight are reported now, in order. Requests of the repaired
  // connection are reported after them.
  ASSERT_TRUE(near.pair->post_send(write(9, kSignaled)).ok());
  const std::vector<Completion> sends = testing::take_completions(*near.sends, 9);
  ASSERT_EQ(sends.size(), 9U);
  for (uint64_t i = 0; i < 9; ++i) EXPECT_EQ(sends[i].id, i + 1);
  for (uint64_t i = 4; i < 8; ++i) EXPECT_EQ(sends[i].status, CompletionStatus::kFlushed);
  EXPECT_EQ(sends[8].status, CompletionStatus::kSuccess);
  EXPECT_EQ(near.pair->state(), QueuePairState::kConnected);
}

TEST_F(RepairTest, FreesTheSlotsOfUnsignaledRequestsThatSucceeded) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  connect(near, far);
  // Ten unsignaled requests, which have no completion of their own if they succeed.
  for (uint64_t id = 0; id < 10; ++id) ASSERT_TRUE(near.pair->post_send(write(id, 0)).ok());
  repair(near, far);
  Completion completion;
  while (near.sends->poll({&completion, 1}) == 1) {
    EXPECT_EQ(completion.status,
              CompletionStatus::kFlushed);  // requests that had not been executed before repair()
  }
  for (uint64_t id = 0; id < 16; ++id) {
    ASSERT_TRUE(near.pair->post_send(write(id, id == 15 ? kSignaled : 0)).ok()) << id;
  }
  EXPECT_EQ(near.pair->post_send(write(16, kSignaled)).error, PostError::kQueueFull);
  ASSERT_EQ(testing::take_completions(*near.sends, 1).size(), 1U);
}

TEST_F(RepairTest, WorksBeforeTheFirstConnection) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  ASSERT_TRUE(near.pair->post_receive({.id = 7}).ok());
  near.pair->fail();
  const std::vector<Completion> receives = testing::take_completions(*near.receives, 1);
  ASSERT_EQ(receives.size(), 1U);
  EXPECT_EQ(receives[0].status, CompletionStatus::kFlushed);
  ASSERT_TRUE(near.pair->repair().ok());
  EXPECT_EQ(near.pair->post_send(write(1, kSignaled)).error, PostError::kNotConnected);
  connect(near, far);
  expect_write_arrives(near, 100, 1);
}

TEST_F(RepairTest, OtherQueuePairsOnTheCompletionQueueKeepWorking) {
  auto completions = testing::value_of(domain_->create_completion_queue({.depth = 256}));
  const QueuePairOptions options{.send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 16,
                                 .receive_depth = 16};
  testing::VerbsEnd broken = make_end(options);
  testing::VerbsEnd broken_far = make_end(options);
  testing::VerbsEnd sound = make_end(options);
  testing::VerbsEnd sound_far = make_end(options);
  connect(broken, broken_far);
  connect(sound, sound_far);

  // A thread posts on the sound connection and polls the common queue, also during each repair.
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> flushed{0};
  uint64_t sound_posted = 0;
  uint64_t sound_done = 0;
  std::thread worker([&] {
    while (!stop.load() || sound_done < sound_posted) {
      if (!stop.load() && sound.pair->post_send(write(sound_posted, kSignaled)).ok()) {
        ++sound_posted;
      }
      Completion completion;
      if (completions->poll({&completion, 1}) == 0) {
        std::this_thread::yield();
        continue;
      }
      if (completion.queue_pair == sound.pair->number()) {
        EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
        EXPECT_EQ(completion.id, sound_done);
        ++sound_done;
      } else {
        EXPECT_EQ(completion.queue_pair, broken.pair->number());
        EXPECT_EQ(completion.status, CompletionStatus::kFlushed);
        ++flushed;
      }
    }
  });
  constexpr uint64_t kRounds = 20;
  for (uint64_t round = 0; round < kRounds; ++round) {
    broken.pair->fail();
    for (uint64_t id = 0; id < 8; ++id) {
      while (broken.pair->post_send(write(id, 0)).error == PostError::kQueueFull) {
        std::this_thread::yield();
      }
    }
    repair(broken, broken_far);
  }
  stop = true;
  worker.join();
  for (const Completion& completion :
       testing::take_completions(*completions, 8 * kRounds - flushed.load())) {
    EXPECT_EQ(completion.queue_pair, broken.pair->number());
    ++flushed;
  }
  EXPECT_EQ(flushed.load(), 8 * kRounds);
  EXPECT_GT(sound_done, 0U);
}

TEST_F(RepairTest, ADestroyedQueuePairLeavesNothingInTheCommonQueue) {
  auto completions = testing::value_of(domain_->create_completion_queue({.depth = 256}));
  const QueuePairOptions options{.send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 16,
                                 .receive_depth = 16};
  testing::VerbsEnd stays = make_end(options);
  testing::VerbsEnd stays_far = make_end(options);
  connect(stays, stays_far);
  for (int round = 0; round < 20; ++round) {
    testing::VerbsEnd goes = make_end(options);
    testing::VerbsEnd goes_far = make_end();
    connect(goes, goes_far);
    for (uint64_t id = 0; id < 8; ++id) {
      ASSERT_TRUE(goes.pair->post_send(write(id, kSignaled)).ok());
      ASSERT_TRUE(goes.pair->post_receive({.id = id}).ok());
    }
    ASSERT_TRUE(stays.pair->post_send(write(77, kSignaled)).ok());
    if (round % 2 == 0) goes.pair->fail();
    goes.pair.reset();
    const std::vector<Completion> left = testing::take_completions(*completions, 1);
    ASSERT_EQ(left.size(), 1U);
    EXPECT_EQ(left[0].id, 77U);
    EXPECT_EQ(left[0].queue_pair, stays.pair->number());
  }
  EXPECT_TRUE(testing::stays_empty(*completions));
}

}  // namespace
}  // namespace cariama
