// The public part of the split deque with real threads and real memory orders. Frames are plain
// memory, so ThreadSanitizer reports a memory order that is too weak.
// split_deque_interleavings_test.cc explores all interleavings of sequentially consistent accesses.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tasks/internal/split_deque.h"

namespace cariama::tasks {
namespace {

struct NativeMemory {
  uint64_t load(const std::atomic<uint64_t>& word) const {
    return word.load(std::memory_order_acquire);
  }
  void store(std::atomic<uint64_t>& word, uint64_t value) const {
    word.store(value, std::memory_order_release);
  }
  uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const {
    word.compare_exchange_strong(expected, desired);
    return expected;
  }
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kTasks = 20'000;
#else
constexpr uint64_t kTasks = 200'000;
#endif
constexpr size_t kDepth = 16;
constexpr size_t kFrameWords = 8;

struct Deque {
  PublicPart public_part{};
  std::array<std::array<uint64_t, kFrameWords>, kDepth> frames{};
  std::vector<std::atomic<uint32_t>> taken = std::vector<std::atomic<uint32_t>>(kTasks + 1);
  std::atomic<uint64_t> torn{0};
  std::atomic<bool> done{false};
};

void steal_until_done(Deque& deque) {
  while (!deque.done.load(std::memory_order_acquire)) {
    const uint64_t seen = deque.public_part.state.load(std::memory_order_acquire);
    const PublicState state = PublicState::decode(seen);
    if (state.count == 0) {
      std::this_thread::yield();
      continue;
    }
    const uint64_t entry = deque.public_part.slots[state.first][0].load(std::memory_order_acquire);
    uint64_t expected = seen;
    if (!deque.public_part.state.compare_exchange_strong(expected, claim_oldest(seen))) continue;
    // Plain reads: they must not race with the owner's writes.
    const std::array<uint64_t, kFrameWords> frame = deque.frames[entry & 0xff];
    for (const uint64_t word : frame) {
      if (word != entry >> 8) ++deque.torn;
    }
    deque.public_part.copied.fetch_add(1, std::memory_order_release);
    ++deque.taken[entry >> 8];
  }
}

TEST(SplitDequeStress, EveryTaskIsTakenOnceAndWhole) {
  Deque deque;
  NativeMemory memory;
  PublicPartOwner<NativeMemory> public_part(memory, deque.public_part);
  std::vector<std::thread> thieves;
  for (int i = 0; i < 2; ++i) thieves.emplace_back(steal_until_done, std::ref(deque));

  std::array<uint64_t, kDepth> entries{};
  size_t top = 0;
  size_t floor = 0;
  uint64_t next = 0;
  uint64_t stolen = 0;
  uint64_t random = 1;
  const auto draw = [&random](uint64_t below) {
    random = random * 6364136223846793005 + 1442695040888963407;
    return (random >> 33) % below;
  };
  const auto take = [&](size_t position) {
    const uint64_t task = entries[position];
    for (const uint64_t word : deque.frames[position]) {
      if (word != task) ++deque.torn;
    }
    ++deque.taken[task];
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool late = false;
  const auto wait = [&] {
    std::this_thread::yield();
    late = std::chrono::steady_clock::now() > deadline;
  };
  uint64_t publications = 0;
  while (!late && (next < kTasks || top > 0)) {
    const bool pushes = next < kTasks && top < kDepth && draw(2) == 0;
    if (pushes) {
      entries[top] = ++next;
      deque.frames[top].fill(next);
      ++top;
      continue;
    }
    if (top > floor && draw(3) == 0 && public_part.count() == 0) {
      const auto count = static_cast<uint32_t>(1 + draw(std::min<uint64_t>(top - floor, 8)));
      public_part.publish(
          [&](uint32_t i) {
            return PublicEntry{entries[floor + i] << 8 | (floor + i), 0, 0, 0};
          },
          count);
      floor += count;
      // Sometimes wait until thieves have taken all entries, so that steals happen with any
      // schedule.
      while (publications % 256 == 0 && public_part.count() != 0 && !late) wait();
      ++publications;
      continue;
    }
    if (top == 0) continue;
    if (top > floor) {
      take(--top);
      continue;
    }
    if (public_part.take_back()) {
      floor = --top;
      take(top);
      continue;
    }
    // All remaining entries were stolen: wait until their frames have been copied, then reuse them.
    stolen += top;
    while (public_part.copied() != stolen && !late) wait();
    top = floor = 0;
  }
  deque.done.store(true, std::memory_order_release);
  for (std::thread& thief : thieves) thief.join();
  EXPECT_FALSE(late) << "a steal did not end";
  EXPECT_EQ(deque.torn.load(), 0u);
  for (uint64_t task = 1; task <= kTasks; ++task) {
    ASSERT_EQ(deque.taken[task].load(), 1u) << task;
  }
  EXPECT_GT(stolen, 0u);
}

}  // namespace
}  // namespace cariama::tasks
