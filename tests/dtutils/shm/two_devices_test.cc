// Two devices of one process. Both sides use the same mapping, so that ThreadSanitizer sees every
// access of both.
#include <atomic>
#include <thread>

#include "tests/dtutils/shm/shm_node.h"

namespace cariama {
namespace {

// Writes data and then a flag word. A reader that sees the flag sees the data
// (ArrivalOrder::kWrites).
TEST(ShmTwoDevices, WritesBecomeVisibleInOrder) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  ASSERT_EQ(near.queue_pair->write_order(), ArrivalOrder::kWrites);
  const RemoteMemoryLocator remote = far.region->locator();
  constexpr uint64_t kRounds = 3000;
  std::thread reader([&] {
    std::atomic_ref<uint64_t> flag(far.memory.word(0));
    std::atomic_ref<uint64_t> answer(far.memory.word(8));
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (flag.load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (size_t i = 16; i < 32; ++i) ASSERT_EQ(far.memory.word(i), round);
      answer.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (size_t i = 16; i < 32; ++i) near.memory.word(i) = round;
    near.memory.word(0) = round;
    const Segment data = near.segment(128, 128);
    const Segment flag = near.segment(0, 8);
    const WorkRequest list[2] = {remote_request(Opcode::kWrite, data, remote.slice(128, 128)),
                                 remote_request(Opcode::kWrite, flag, remote.slice(0, 8))};
    ASSERT_TRUE(near.queue_pair->post_send(list).ok());
    // Fetches the answer by a READ, into a word that is used for nothing else.
    const Segment word = near.segment(512, 8);
    do {
      std::this_thread::yield();
      ASSERT_TRUE(
          near.queue_pair->post_send(remote_request(Opcode::kRead, word, remote.slice(64, 8)))
              .ok());
    } while (near.memory.word(64) != round);
  }
  reader.join();
}

// Several threads post on one queue pair, and one thread polls. The sums of the atomics are exact,
// and each operation has one completion.
TEST(ShmTwoDevices, ThreadsShareAQueuePair) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  constexpr int kThreads = 3;
  constexpr uint64_t kOperations = 3000;
  const RemoteMemoryLocator remote = far.region->locator();
  std::vector<std::thread> threads;
  std::vector<std::atomic<int>> completed(kThreads * kOperations);
  std::atomic<uint64_t> done{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const Segment word = near.segment(64 * static_cast<size_t>(thread), 8);
      WorkRequest add = remote_request(Opcode::kFetchAdd, word, remote.slice(0, 8));
      add.operand = 1;
      for (uint64_t i = 0; i < kOperations; ++i) {
        add.id = static_cast<uint64_t>(thread) * kOperations + i;
        add.flags = kSignaled;
        while (!near.queue_pair->post_send(add).ok()) std::this_thread::yield();
      }
    });
  }
  std::vector<Completion> found(64);
  const auto deadline = soon();
  while (done < kThreads * kOperations && std::chrono::steady_clock::now() < deadline) {
    const size_t count = near.completions->poll(found);
    for (size_t i = 0; i < count; ++i) completed[found[i].id].fetch_add(1);
    done += count;
    if (count == 0) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : completed) ASSERT_EQ(count.load(), 1);
  EXPECT_EQ(far.memory.word(0), kThreads * kOperations);
}

// A thread breaks the connection repeatedly while another thread sends. Every operation completes
// once, successfully or with kFlushed, and every message that completed successfully was received.
TEST(ShmTwoDevices, RepairUnderTrafficLosesNoCompletion) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  constexpr uint64_t kRounds = 50;
  uint64_t succeeded = 0;
  uint64_t arrived = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const Segment buffer = far.segment(0, 64);
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(
          far.queue_pair->post_receive({.id = i, .segments = &buffer, .segment_count = 1}).ok());
    }
    std::thread breaker([&] {
      std::this_thread::yield();
      far.queue_pair->fail();
    });
    const Segment word = near.segment(0, 8);
    for (uint64_t i = 0; i < 100; ++i) {
      const WorkRequest send{.id = i,
                             .opcode = Opcode::kSend,
                             .flags = kSignaled,
                             .segment_count = 1,
                             .segments = &word};
      ASSERT_TRUE(near.queue_pair->post_send(send).ok());
    }
    breaker.join();
    const std::vector<Completion> sent = near.poll_for(100);
    ASSERT_EQ(sent.size(), 100u);
    for (const Completion& completion : sent) {
      if (completion.status == CompletionStatus::kSuccess) ++succeeded;
    }
    const std::vector<Completion> received = far.poll_for(100);
    ASSERT_EQ(received.size(), 100u) << "every receive completes";
    for (const Completion& completion : received) {
      if (completion.status == CompletionStatus::kSuccess) ++arrived;
    }
    must(near.queue_pair->repair());
    must(far.queue_pair->repair());
    ASSERT_EQ(near.queue_pair->state(), QueuePairState::kConnected);
  }
  EXPECT_EQ(succeeded, arrived);
}

}  // namespace
}  // namespace cariama
