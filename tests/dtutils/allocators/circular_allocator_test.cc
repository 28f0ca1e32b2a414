#include "dtutils/allocators/circular_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <list>
#include <random>
#include <set>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "tests/dtutils/allocators/count_allocations.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/allocators/simulated_queue.h"

namespace cariama {
namespace {

using internal::kKiB;

using ::cariama::testing::FakeDomain;
using ::cariama::testing::SimulatedQueue;

class CircularAllocatorTest : public ::testing::Test {
 protected:
  CircularAllocatorTest() {
    RDMAAllocatorOptions options;
    options.chunk_bytes = 64 * kKiB;
    options.first_superpage_bytes = 64 * kKiB;
    options.max_superpage_bytes = 1024 * kKiB;
    options.budget = &budget_;
    memory_ = *RDMAAllocator::create({std::make_shared<FakeDomain>()}, kAnyNode, options);
  }
  std::unique_ptr<CircularAllocator> make(const CircularAllocatorOptions& options) {
    auto ring = CircularAllocator::create(memory_, options);
    EXPECT_TRUE(ring.ok()) << ring.status();
    return *std::move(ring);
  }
  // Allocates and posts `count` units. Fails the test if the ring refuses one of them.
  static std::vector<RDMAMemory*> use(CircularAllocator& ring, SimulatedQueue& queue,
                                      size_t count) {
    std::vector<RDMAMemory*> used;
    for (size_t i = 0; i < count; ++i) {
      RDMAMemory* const unit = ring.allocate();
      EXPECT_NE(unit, nullptr);
      if (unit == nullptr) break;
      queue.post(unit);
      used.push_back(unit);
    }
    return used;
  }

  MemoryBudget budget_{16 * 1024 * kKiB};
  std::shared_ptr<RDMAAllocator> memory_;
};

TEST_F(CircularAllocatorTest, RefusesInvalidOptions) {
  const auto code = [this](const CircularAllocatorOptions& options) {
    return CircularAllocator::create(memory_, options).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({.unit_bytes = 0}), kInvalid);
  EXPECT_EQ(code({.initial_units = 0}), kInvalid);
  EXPECT_EQ(code({.initial_units = 9, .max_units = 8}), kInvalid);
  EXPECT_EQ(code({.unit_bytes = SIZE_MAX - 5}), kInvalid);
  EXPECT_EQ(CircularAllocator::create(nullptr, {}).status().code(), kInvalid);
  budget_.set_limit(64 * kKiB);
  EXPECT_EQ(code({.unit_bytes = 32 * kKiB, .initial_units = 3}),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_->statistics().chunks_in_use, 0u)
      << "the chunk that was allocated for the first two units is returned";
}

TEST_F(CircularAllocatorTest, UnitsAreDisjointAlignedAndAsLargeAsAsked) {
  const auto ring = make({.unit_bytes = 100, .initial_units = 1000});
  SimulatedQueue queue;
  std::set<std::byte*> starts;
  for (const RDMAMemory* unit : use(*ring, queue, 1000)) {
    EXPECT_EQ(unit->size(), 100u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(unit->get_buffer()) % 64, 0u);
    EXPECT_NE(unit->range(), nullptr);
    std::memset(unit->get_buffer(), 1, unit->size());
    EXPECT_TRUE(starts.insert(unit->get_buffer()).second);
  }
  for (auto it = std::next(starts.begin()); it != starts.end(); ++it) {
    EXPECT_GE(*it - *std::prev(it), 100);
  }
}

TEST_F(CircularAllocatorTest, WrapsAroundWhileTransfersComplete) {
  const auto ring = make({.initial_units = 4, .max_units = 4});
  SimulatedQueue queue;
  const std::vector<RDMAMemory*> first = use(*ring, queue, 4);
  for (int lap = 0; lap < 3; ++lap) {
    queue.complete_all();
    EXPECT_EQ(use(*ring, queue, 4), first);
  }
}

TEST_F(CircularAllocatorTest, NeverHandsOutAUnitInFlight) {
  const auto ring = make({.initial_units = 4, .max_units = 4});
  SimulatedQueue queue;
  const std::vector<RDMAMemory*> units = use(*ring, queue, 4);
  EXPECT_EQ(ring->allocate(), nullptr);
  EXPECT_TRUE(ring->growth_status().ok());
  queue.complete(1);
  EXPECT_EQ(ring->allocate(), units[0]);
  queue.post(units[0]);
  EXPECT_EQ(ring->allocate(), nullptr);
  queue.complete_all();
  EXPECT_EQ(ring->allocate(), units[1]);
}

TEST_F(CircularAllocatorTest, UnitSentOnTwoQueuesWaitsForBoth) {
  const auto ring = make({.initial_units = 1, .max_units = 1});
  SimulatedQueue a;
  SimulatedQueue b;
  RDMAMemory* const unit = ring->allocate();
  a.post(unit);
  b.post(unit);
  b.complete_all();
  EXPECT_EQ(ring->allocate(), nullptr);
  a.complete_all();
  EXPECT_EQ(ring->allocate(), unit);
  // A recycled unit has no recorded uses, so recording the next transfer takes the fast path.
  const FlushCell other;
  EXPECT_TRUE(unit->simple_use(&other));
}

TEST_F(CircularAllocatorTest, UnitsWithoutTransferAreHandedOutAgain) {
  const auto ring = make({.initial_units = 3, .max_units = 3});
  RDMAMemory* const first = ring->allocate();
  EXPECT_NE(ring->allocate(), first);
  EXPECT_NE(ring->allocate(), first);
  EXPECT_EQ(ring->allocate(), first);
}

TEST_F(CircularAllocatorTest, GrowsExponentiallyToItsLimit) {
  const auto ring = make({.initial_units = 4, .max_units = 20});
  SimulatedQueue queue;
  std::vector<size_t> sizes = {ring->units()};
  while (RDMAMemory* const unit = ring->allocate()) {
    queue.post(unit);
    if (ring->units() != sizes.back()) sizes.push_back(ring->units());
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 8, 16, 20}));
  EXPECT_EQ(queue.outstanding(), 20u) << "the ring hands out every unit before it refuses";
  EXPECT_TRUE(ring->growth_status().ok());
}

TEST_F(CircularAllocatorTest, GrowsLinearlyIfConfigured) {
  const auto ring = make({.initial_units = 4, .max_units = 14, .growth = Growth::kLinear});
  SimulatedQueue queue;
  std::vector<size_t> sizes = {ring->units()};
  while (RDMAMemory* const unit = ring->allocate()) {
    queue.post(unit);
    if (ring->units() != sizes.back()) sizes.push_back(ring->units());
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 8, 12, 14}));
}

TEST_F(CircularAllocatorTest, GrowsInsideItsChunkFirst) {
  const auto ring = make({.unit_bytes = 1024, .initial_units = 4, .max_units = 128});
  SimulatedQueue queue;
  use(*ring, queue, 64);
  EXPECT_EQ(memory_->statistics().chunks_in_use, 1u);
  use(*ring, queue, 1);
  EXPECT_EQ(ring->units(), 128u);
  EXPECT_EQ(memory_->statistics().chunks_in_use, 2u);
}

TEST_F(CircularAllocatorTest, UnitsLargerThanAChunkWork) {
  const auto ring = make({.unit_bytes = 100 * kKiB, .initial_units = 2, .max_units = 4});
  SimulatedQueue queue;
  for (const RDMAMemory* unit : use(*ring, queue, 4)) {
    std::memset(unit->get_buffer(), 1, unit->size());
  }
}

// The paper's trade-off between one ring for all queue pairs and one ring per queue pair. The slow
// queue pair has one transfer in flight, and the fast one completes each transfer immediately.
TEST_F(CircularAllocatorTest, SlowQueuePairStallsASharedRingOnly) {
  constexpr CircularAllocatorOptions kOptions{.initial_units = 8, .max_units = 8};
  constexpr size_t kTransfers = 1000;
  const auto fast_transfers = [](CircularAllocator& ring, SimulatedQueue& fast) {
    size_t done = 0;
    for (; done < kTransfers; ++done) {
      RDMAMemory* const unit = ring.allocate();
      if (unit == nullptr) break;
      fast.post(unit);
      fast.complete_all();
    }
    return done;
  };
  {
    const auto shared = make(kOptions);
    SimulatedQueue slow;
    SimulatedQueue fast;
    use(*shared, slow, 1);
    EXPECT_EQ(fast_transfers(*shared, fast), 7u)
        << "the ring stalls when it reaches the unit of the slow queue pair";
    EXPECT_EQ(shared->allocate(), nullptr);
    slow.complete_all();
    EXPECT_EQ(fast_transfers(*shared, fast), kTransfers);
  }
  {
    const auto of_slow = make(kOptions);
    const auto of_fast = make(kOptions);
    SimulatedQueue slow;
    SimulatedQueue fast;
    use(*of_slow, slow, 1);
    EXPECT_EQ(fast_transfers(*of_fast, fast), kTransfers);
    EXPECT_EQ(of_fast->units(), 8u);
  }
}

TEST_F(CircularAllocatorTest, ExhaustedBudgetIsReportedAndGrowthContinuesLater) {
  const auto ring = make({.unit_bytes = 32 * kKiB, .initial_units = 2, .max_units = 100});
  budget_.set_limit(0);
  SimulatedQueue queue;
  const std::vector<RDMAMemory*> units = use(*ring, queue, 2);
  EXPECT_EQ(ring->allocate(), nullptr);
  EXPECT_EQ(ring->growth_status().code(), absl::StatusCode::kResourceExhausted);
  // A further allocate() at the same unit does not ask the budget again. The ring still advances
  // when the unit's transfer completes, and tries to grow at the next stall.
  budget_.set_limit(UINT64_MAX);
  EXPECT_EQ(ring->allocate(), nullptr);
  queue.complete(1);
  EXPECT_EQ(ring->allocate(), units[0]);
  queue.post(units[0]);
  EXPECT_NE(ring->allocate(), nullptr);
  EXPECT_GT(ring->units(), 2u);
  EXPECT_TRUE(ring->growth_status().ok());
}

TEST_F(CircularAllocatorTest, MemoryInFlightOutlivesTheRing) {
  SimulatedQueue queue;
  auto ring = make({.unit_bytes = 16 * kKiB, .initial_units = 8, .max_units = 8});
  use(*ring, queue, 8);
  queue.complete(5);  // the last three units, in the second of two chunks, are still in flight
  ring.reset();
  EXPECT_EQ(memory_->statistics().chunks_in_use, 0u);
  EXPECT_EQ(memory_->statistics().bytes_in_flight, 64 * kKiB);
  const uint64_t mapped = memory_->statistics().bytes;
  EXPECT_EQ(memory_->trim(), mapped - 64 * kKiB);
  queue.complete_all();
  EXPECT_EQ(memory_->trim(), 64 * kKiB);
}

TEST_F(CircularAllocatorTest, SteadyStateDoesNotAllocate) {
  const auto ring = make({.initial_units = 16, .max_units = 16});
  SimulatedQueue queue;
  const size_t before = cariama::testing::allocations.load();
  size_t refused = 0;
  for (int i = 0; i < 10000; ++i) {
    RDMAMemory* const unit = ring->allocate();
    if (unit != nullptr) {
      queue.post(unit);
    } else {
      ++refused;
      queue.complete(5);
    }
  }
  EXPECT_EQ(cariama::testing::allocations.load(), before);
  EXPECT_GT(refused, 100u);
}

// Compares the ring with a model that is a std::list: same units, same order, same refusals, for
// several queue pairs that complete at different rates.
TEST_F(CircularAllocatorTest, RandomUseAgreesWithAList) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    constexpr size_t kInitial = 3;
    constexpr size_t kLimit = 40;
    const bool linear = seed % 2 == 0;
    const auto ring = make({.unit_bytes = 3000,
                            .initial_units = kInitial,
                            .max_units = kLimit,
                            .growth = linear ? Growth::kLinear : Growth::kExponential});
    std::array<SimulatedQueue, 3> queues;

    struct Unit {
      RDMAMemory* handle = nullptr;  // nullptr until the ring hands the unit out
      int queue = -1;                // queue pair of the unit's last transfer, -1: none
      uint64_t number = 0;           // sequence number of that transfer on its queue pair
    };
    std::array<uint64_t, 3> posted{};
    std::array<uint64_t, 3> completed{};
    std::list<Unit> oracle(kInitial);
    auto next = oracle.begin();
    for (int step = 0; step < 20000; ++step) {
      if (random() % 3 != 0) {
        bool expect = next->queue < 0 || next->number < completed[static_cast<size_t>(next->queue)];
        if (!expect && oracle.size() < kLimit) {
          const size_t more = std::min(linear ? kInitial : oracle.size(), kLimit - oracle.size());
          for (size_t i = 0; i < more; ++i) next = oracle.insert(next, Unit{});
          expect = true;
        }
        RDMAMemory* const unit = ring->allocate();
        ASSERT_EQ(unit != nullptr, expect) << "seed " << seed << " step " << step;
        ASSERT_EQ(ring->units(), oracle.size());
        if (unit == nullptr) continue;
        if (next->handle != nullptr) {
          ASSERT_EQ(unit, next->handle);
        } else {
          for (const Unit& known : oracle) ASSERT_NE(known.handle, unit);
        }
        const size_t queue = random() % queues.size();
        *next = {unit, static_cast<int>(queue), posted[queue]++};
        queues[queue].post(unit);
        if (++next == oracle.end()) next = oracle.begin();
      } else {
        const size_t queue = random() % queues.size();
        const uint64_t count = random() % (posted[queue] - completed[queue] + 1);
        completed[queue] += count;
        queues[queue].complete(count);
      }
    }
    EXPECT_EQ(ring->units(), kLimit);
  }
}

}  // namespace
}  // namespace cariama
