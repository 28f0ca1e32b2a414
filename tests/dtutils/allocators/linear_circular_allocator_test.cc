#include "dtutils/allocators/linear_circular_allocator.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "tests/dtutils/allocators/count_allocations.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/allocators/simulated_queue.h"

namespace cariama {
namespace {

using ::cariama::testing::FakeDomain;
using ::cariama::testing::SimulatedQueue;

class LinearCircularAllocatorTest : public ::testing::Test {
 protected:
  LinearCircularAllocatorTest() {
    RDMAAllocatorOptions options;
    options.chunk_bytes = 65536;
    options.first_superpage_bytes = 65536;
    options.max_superpage_bytes = 1 << 20;
    options.budget = &budget_;
    memory_ = *RDMAAllocator::create({std::make_shared<FakeDomain>()}, kAnyNode, options);
  }
  std::unique_ptr<LinearCircularAllocator> make(const CircularAllocatorOptions& options) {
    auto ring = LinearCircularAllocator::create(memory_, options);
    EXPECT_TRUE(ring.ok()) << ring.status();
    return *std::move(ring);
  }

  MemoryBudget budget_{16 << 20};
  std::shared_ptr<RDMAAllocator> memory_;
};

TEST_F(LinearCircularAllocatorTest, SegmentsFollowOneAnother) {
  const auto ring = make({.unit_bytes = 4096, .initial_units = 2});
  RDMAMemory* const a = ring->allocate(100);
  RDMAMemory* const b = ring->allocate(1);
  RDMAMemory* const c = ring->allocate(64, 64);
  RDMAMemory* const d = ring->allocate(0);
  RDMAMemory* const e = ring->allocate(3, 1);
  EXPECT_EQ(a->size(), 100u);
  EXPECT_EQ(b->get_buffer(), a->get_buffer() + 104) << "8-byte alignment by default";
  EXPECT_EQ(c->get_buffer(), a->get_buffer() + 128);
  EXPECT_EQ(d->get_buffer(), a->get_buffer() + 192);
  EXPECT_EQ(d->size(), 0u);
  EXPECT_EQ(e->get_buffer(), a->get_buffer() + 192);
  EXPECT_NE(e->range(), nullptr);
}

TEST_F(LinearCircularAllocatorTest, WholeUnitsFitExactly) {
  const auto ring = make({.unit_bytes = 1000, .initial_units = 2, .max_units = 2});
  EXPECT_EQ(ring->max_segment(), 1000u);
  SimulatedQueue queue;
  RDMAMemory* const a = ring->allocate(1000);
  queue.post(a);
  RDMAMemory* const b = ring->allocate(1000);
  queue.post(b);
  EXPECT_NE(a->get_buffer(), b->get_buffer());
  EXPECT_EQ(ring->allocate(1), nullptr);
  queue.complete(1);
  RDMAMemory* const again = ring->allocate(1000);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->get_buffer(), a->get_buffer());
}

TEST_F(LinearCircularAllocatorTest, SegmentLargerThanAUnitIsRefusedWithoutEffect) {
  const auto ring = make({.unit_bytes = 1000, .initial_units = 1, .max_units = 1});
  EXPECT_EQ(ring->allocate(1001), nullptr);
  EXPECT_EQ(ring->allocate(SIZE_MAX), nullptr);
  RDMAMemory* const a = ring->allocate(10);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(ring->allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(ring->allocate(10)->get_buffer(), a->get_buffer() + 16);
}

TEST_F(LinearCircularAllocatorTest, UnitWaitsForItsLastSegmentOnAnyQueue) {
  const auto ring = make({.unit_bytes = 300, .initial_units = 1, .max_units = 1});
  SimulatedQueue a;
  SimulatedQueue b;
  SimulatedQueue c;
  a.post(ring->allocate(100, 1));
  b.post(ring->allocate(100, 1));
  c.post(ring->allocate(100, 1));
  EXPECT_EQ(ring->allocate(1), nullptr);
  a.complete_all();
  c.complete_all();
  EXPECT_EQ(ring->allocate(1), nullptr);
  EXPECT_EQ(ring->allocate(1), nullptr);
  b.complete_all();
  EXPECT_NE(ring->allocate(300), nullptr);
}

// A segment may be allocated long before it is transferred. The allocator checks the segment's
// state when it is about to recycle the unit, not when the unit became full.
TEST_F(LinearCircularAllocatorTest, SegmentTransferredAfterItsUnitWasFullIsNotRecycled) {
  const auto ring = make({.unit_bytes = 100, .initial_units = 3, .max_units = 3});
  SimulatedQueue slow;
  SimulatedQueue fast;
  RDMAMemory* const early = ring->allocate(80);
  RDMAMemory* const next = ring->allocate(80);
  slow.post(early);
  fast.post(next);
  fast.post(ring->allocate(80));
  fast.complete_all();
  EXPECT_EQ(ring->allocate(80), nullptr);
  slow.complete_all();
  EXPECT_NE(ring->allocate(80), nullptr);
}

TEST_F(LinearCircularAllocatorTest, ManySegmentsInAUnit) {
  const auto ring = make({.unit_bytes = 4096, .initial_units = 1, .max_units = 1});
  SimulatedQueue queue;
  std::vector<RDMAMemory*> segments;
  for (int lap = 0; lap < 3; ++lap) {
    segments.clear();
    while (RDMAMemory* const segment = ring->allocate(1, 1)) {
      segments.push_back(segment);
      queue.post(segment);
    }
    ASSERT_EQ(segments.size(), 4096u);
    // Handles do not move until the unit is recycled.
    for (size_t i = 0; i < segments.size(); ++i) {
      ASSERT_EQ(segments[i]->get_buffer(), segments[0]->get_buffer() + i);
    }
    queue.complete(4095);
    ASSERT_EQ(ring->allocate(1, 1), nullptr);
    queue.complete_all();
  }
}

TEST_F(LinearCircularAllocatorTest, GrowsToItsLimit) {
  const auto ring = make({.unit_bytes = 1000, .initial_units = 2, .max_units = 8});
  SimulatedQueue queue;
  size_t segments = 0;
  while (RDMAMemory* const segment = ring->allocate(500, 1)) {
    queue.post(segment);
    ++segments;
  }
  EXPECT_EQ(segments, 16u);
  EXPECT_EQ(ring->units(), 8u);
}

TEST_F(LinearCircularAllocatorTest, MemoryInFlightOutlivesTheRing) {
  SimulatedQueue a;
  SimulatedQueue b;
  auto ring = make({.unit_bytes = 65536, .initial_units = 3, .max_units = 3});
  for (int i = 0; i < 2; ++i) a.post(ring->allocate(40'000));
  a.post(ring->allocate(20'000));  // in the rest of the second unit
  b.post(ring->allocate(60'000));  // in the third unit, which is the current one
  a.complete_all();
  ring.reset();
  EXPECT_EQ(memory_->statistics().bytes_in_flight, 65536u) << "the unit of queue b";
  EXPECT_EQ(memory_->statistics().chunks_in_use, 0u);
  b.complete_all();
  const uint64_t mapped = memory_->statistics().bytes;
  EXPECT_EQ(memory_->trim(), mapped);
}

TEST_F(LinearCircularAllocatorTest, SteadyStateDoesNotAllocate) {
  const auto ring = make({.unit_bytes = 4096, .initial_units = 4, .max_units = 4});
  std::array<SimulatedQueue, 2> queues;
  std::mt19937 random(1);
  size_t before = 0;
  size_t refused = 0;
  for (int i = 0; i < 40000; ++i) {
    if (i == 20000) before = cariama::testing::allocations.load();
    RDMAMemory* const segment = ring->allocate(16 + random() % 3 * 100);
    if (segment != nullptr) {
      queues[random() % 2].post(segment);
    } else {
      ++refused;
      for (SimulatedQueue& queue : queues) queue.complete(queue.outstanding() / 2 + 1);
    }
  }
  EXPECT_EQ(cariama::testing::allocations.load(), before);
  EXPECT_GT(refused, 100u);
}

// No byte of a segment is handed out again before its transfer has completed. A map of the
// intervals in flight is the model.
TEST_F(LinearCircularAllocatorTest, RandomUseNeverOverlapsSegmentsInFlight) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    const auto ring = make({.unit_bytes = 2048, .initial_units = 2, .max_units = 32});
    constexpr size_t kQueues = 3;
    std::array<SimulatedQueue, kQueues> queues;
    struct Segment {
      std::byte* start;
      std::byte* end;
    };
    // Indexed by the operation's number on its queue pair.
    std::array<std::vector<Segment>, kQueues> posted;
    std::array<uint64_t, kQueues> completed{};
    std::map<std::byte*, std::byte*> in_flight;  // start to end
    size_t handed_out = 0;
    for (int step = 0; step < 30000; ++step) {
      if (random() % 4 != 0) {
        const size_t bytes = 1 + random() % (random() % 10 == 0 ? 2048 : 200);
        const size_t alignment = size_t{1} << random() % 7;
        RDMAMemory* const segment = ring->allocate(bytes, alignment);
        if (segment == nullptr) continue;
        ++handed_out;
        std::byte* const start = segment->get_buffer();
        ASSERT_EQ(reinterpret_cast<uintptr_t>(start) % alignment, 0u);
        ASSERT_EQ(segment->size(), bytes);
        const auto next = in_flight.lower_bound(start);
        if (next != in_flight.end()) {
          ASSERT_LE(start + bytes, next->first);
        }
        if (next != in_flight.begin()) {
          ASSERT_LE(std::prev(next)->second, start);
        }
        const size_t queue = random() % kQueues;
        queues[queue].post(segment);
        posted[queue].push_back({start, start + bytes});
        in_flight[start] = start + bytes;
      } else {
        // The first queue is slow.
        const size_t queue = random() % 8 == 0 ? 0 : 1 + random() % (kQueues - 1);
        const uint64_t count = random() % (posted[queue].size() - completed[queue] + 1);
        for (uint64_t i = 0; i < count; ++i) {
          in_flight.erase(posted[queue][completed[queue]++].start);
        }
        queues[queue].complete(count);
      }
    }
    EXPECT_GT(handed_out, 5000u);
    EXPECT_EQ(ring->units(), 32u);
  }
}

}  // namespace
}  // namespace cariama
