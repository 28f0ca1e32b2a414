#include "dtutils/allocators/rdma_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "tests/dtutils/allocators/fake_domain.h"

namespace cariama {
namespace {

using internal::kKiB;
using internal::kMiB;

using ::cariama::testing::FakeDomain;
using ::cariama::testing::Registrations;
using ::testing::HasSubstr;

// Uses small sizes and a budget of its own, so that a test reaches the limits quickly.
class RDMAAllocatorTest : public ::testing::Test {
 protected:
  std::shared_ptr<RDMAAllocator> make(RDMAAllocatorOptions options) {
    options.budget = &budget_;
    auto allocator = RDMAAllocator::create({domain_, second_}, kAnyNode, options);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return *std::move(allocator);
  }
  static RDMAAllocatorOptions small() {
    RDMAAllocatorOptions options;
    options.chunk_bytes = 64 * kKiB;
    options.first_superpage_bytes = 256 * kKiB;
    options.max_superpage_bytes = kMiB;
    return options;
  }
  static Chunk take(RDMAAllocator& allocator, size_t bytes = 0) {
    auto chunk = allocator.allocate_chunk(bytes);
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    return *std::move(chunk);
  }

  MemoryBudget budget_{64 * kMiB, "budget of the test"};
  std::shared_ptr<FakeDomain> domain_ = std::make_shared<FakeDomain>();
  std::shared_ptr<FakeDomain> second_ = std::make_shared<FakeDomain>();
};

TEST_F(RDMAAllocatorTest, RefusesInvalidOptions) {
  const auto code = [](std::vector<std::shared_ptr<ProtectionDomain>> domains, int node,
                       const RDMAAllocatorOptions& options) {
    return RDMAAllocator::create(std::move(domains), node, options).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}, 0, {}), kInvalid);
  EXPECT_EQ(code({domain_, nullptr}, 0, {}), kInvalid);
  EXPECT_EQ(code({domain_}, 4711, {}), kInvalid);
  EXPECT_EQ(code({domain_}, -2, {}), kInvalid);
  RDMAAllocatorOptions options;
  options.chunk_bytes = 1000;
  EXPECT_EQ(code({domain_}, 0, options), kInvalid);
  options.chunk_bytes = 0;
  EXPECT_EQ(code({domain_}, 0, options), kInvalid);
  options = {};
  options.first_superpage_bytes = 3 * kMiB;  // not a multiple of the chunk size
  EXPECT_EQ(code({domain_}, 0, options), kInvalid);
  options = {};
  options.max_superpage_bytes = 0;
  EXPECT_EQ(code({domain_}, 0, options), kInvalid);
  EXPECT_EQ(code({domain_}, kAnyNode, {}), absl::StatusCode::kOk);
}

TEST_F(RDMAAllocatorTest, MapsNothingBeforeTheFirstChunkAndLittleThen) {
  const auto allocator = make({});
  EXPECT_EQ(budget_.used(), 0u);
  const Chunk chunk = take(*allocator);
  EXPECT_EQ(chunk.size(), 2 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.data()) % (2 * kMiB), 0u);
  EXPECT_EQ(budget_.used(), 2 * kMiB);
}

TEST_F(RDMAAllocatorTest, RegistersEachSuperpageOnceWithEachDomain) {
  const auto allocator = make(small());
  const std::vector<Chunk> chunks = [&] {
    std::vector<Chunk> taken;
    for (int i = 0; i < 4; ++i) taken.push_back(take(*allocator));
    return taken;
  }();
  EXPECT_EQ(domain_->registrations->total, 1u);
  EXPECT_EQ(second_->registrations->total, 1u);
  EXPECT_EQ(domain_->registrations->unsealed, 0u);
  for (const Chunk& chunk : chunks) {
    const RDMAMemory memory = chunk.memory(4096, 100);
    EXPECT_EQ(memory.get_buffer(), chunk.data() + 4096);
    EXPECT_EQ(memory.size(), 100u);
    EXPECT_EQ(memory.local_key(domain_.get()), LocalKey{1});
    EXPECT_EQ(memory.locator(second_.get()).key, (RemoteKey{1 + (uint64_t{1} << 32)}));
    EXPECT_NE(chunk.range()->region(domain_.get()), chunk.range()->region(second_.get()));
    std::memset(chunk.data(), 0x77, chunk.size());
  }
}

TEST_F(RDMAAllocatorTest, DeregistersBeforeUnmapping) {
  const std::shared_ptr<Registrations> registrations = domain_->registrations;
  {
    auto allocator = make(small());
    const Chunk a = take(*allocator, kMiB);
    const Chunk b = take(*allocator, 3 * kMiB);
    allocator.reset();  // the chunks keep the allocator's memory alive
    std::memset(b.data(), 1, b.size());
    EXPECT_EQ(registrations->live.size(), 2u);
  }
  EXPECT_TRUE(registrations->live.empty());
  EXPECT_EQ(registrations->ended_while_mapped, 2u);
  EXPECT_EQ(registrations->ended_unmapped, 0u);
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(RDMAAllocatorTest, GrowsExponentiallyToTheLargestSuperpage) {
  const auto allocator = make(small());
  std::vector<Chunk> chunks;
  std::vector<uint64_t> sizes;
  uint64_t before = 0;
  while (sizes.size() < 6) {
    chunks.push_back(take(*allocator));
    const uint64_t now = allocator->statistics().bytes;
    if (now != before) sizes.push_back(now - before);
    before = now;
  }
  EXPECT_EQ(sizes, (std::vector<uint64_t>{256 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, kMiB, kMiB}));
}

TEST_F(RDMAAllocatorTest, GrowsLinearlyIfConfigured) {
  RDMAAllocatorOptions options = small();
  options.growth = Growth::kLinear;
  const auto allocator = make(options);
  std::vector<Chunk> chunks;
  for (int i = 0; i < 40; ++i) chunks.push_back(take(*allocator));
  EXPECT_EQ(allocator->statistics().superpages, 10u);
  EXPECT_EQ(allocator->statistics().bytes, 40 * 64 * kKiB);
}

TEST_F(RDMAAllocatorTest, PaperOptionsAreOneGibibyte) {
  const RDMAAllocatorOptions options = RDMAAllocatorOptions::paper();
  EXPECT_EQ(options.first_superpage_bytes, size_t{1} << 30);
  EXPECT_EQ(options.max_superpage_bytes, size_t{1} << 30);
  EXPECT_EQ(options.chunk_bytes, 2 * kMiB);
}

TEST_F(RDMAAllocatorTest, ExactFitsAreUsedToTheEnd) {
  RDMAAllocatorOptions options = small();
  options.max_bytes = 256 * kKiB;
  const auto allocator = make(options);
  for (int round = 0; round < 3; ++round) {
    const Chunk whole = take(*allocator, 256 * kKiB);
    EXPECT_FALSE(allocator->allocate_chunk().ok());
  }
  const Chunk a = take(*allocator, 192 * kKiB);
  const Chunk b = take(*allocator, 64 * kKiB);
  EXPECT_EQ(allocator->statistics().superpages, 1u);
}

TEST_F(RDMAAllocatorTest, ReturnedNeighboursAreJoined) {
  RDMAAllocatorOptions options = small();
  options.max_bytes = 256 * kKiB;
  const auto allocator = make(options);
  // Returning four adjacent chunks in any order makes the whole superpage available again.
  std::vector<int> order = {0, 1, 2, 3};
  do {
    std::vector<Chunk> chunks(4);
    for (Chunk& chunk : chunks) chunk = take(*allocator);
    for (const int i : order) chunks[static_cast<size_t>(i)].release();
    EXPECT_FALSE(take(*allocator, 256 * kKiB).empty());
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(domain_->registrations->total, 1u);
}

TEST_F(RDMAAllocatorTest, ChunksLargerThanASuperpageWork) {
  const auto allocator = make(small());
  {
    const Chunk large = take(*allocator, 5 * kMiB + 1);
    EXPECT_EQ(large.size(), 5 * kMiB + 64 * kKiB);
    std::memset(large.data(), 0x11, large.size());
    EXPECT_EQ(large.memory().locator(domain_.get()).length, large.size());
  }
  // The returned superpage serves later chunks without a new registration.
  const size_t registered = domain_->registrations->total;
  std::vector<Chunk> chunks;
  for (int i = 0; i < 80; ++i) chunks.push_back(take(*allocator));
  EXPECT_EQ(domain_->registrations->total, registered);
}

TEST_F(RDMAAllocatorTest, BudgetRefusesWithUseAndRemedy) {
  budget_.set_limit(512 * kKiB);
  const auto allocator = make(small());
  std::vector<Chunk> chunks;
  for (int i = 0; i < 8; ++i) chunks.push_back(take(*allocator));
  const auto refused = allocator->allocate_chunk();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr("budget of the test is 512 KiB, 512 KiB are in use, 64 KiB more are needed"));
  chunks.pop_back();
  EXPECT_TRUE(allocator->allocate_chunk().ok()) << "a returned chunk is allocated again";
  budget_.set_limit(64 * kMiB);
  EXPECT_TRUE(allocator->allocate_chunk(kMiB).ok())
      << "the allocator grows again after the limit was raised";
}

TEST_F(RDMAAllocatorTest, UsesTheLastOfTheBudget) {
  // After the first 256 KiB, less is left than the next superpage would take.
  budget_.set_limit(64 * kKiB * 7);
  const auto allocator = make(small());
  std::vector<Chunk> chunks;
  for (int i = 0; i < 7; ++i) chunks.push_back(take(*allocator));
  EXPECT_EQ(budget_.used(), budget_.limit());
  EXPECT_FALSE(allocator->allocate_chunk().ok());
}

TEST_F(RDMAAllocatorTest, OwnLimitRefusesWithRemedy) {
  RDMAAllocatorOptions options = small();
  options.max_bytes = 300 * kKiB;
  const auto allocator = make(options);
  const Chunk chunk = take(*allocator, 256 * kKiB);
  const auto refused = allocator->allocate_chunk();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_bytes"));
}

TEST_F(RDMAAllocatorTest, AbsurdSizesAreRefused) {
  const auto allocator = make(small());
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 8}) {
    EXPECT_EQ(allocator->allocate_chunk(bytes).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  budget_.set_limit(UINT64_MAX);
  EXPECT_EQ(allocator->allocate_chunk(SIZE_MAX / 8).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(RDMAAllocatorTest, FailedRegistrationLeavesNothingBehind) {
  second_->registrations->refuse_from = 1;
  const auto allocator = make(small());
  const Chunk first = take(*allocator, 256 * kKiB);
  const auto refused = allocator->allocate_chunk();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("raise ulimit -l"));
  EXPECT_EQ(domain_->registrations->live.size(), 1u)
      << "the registration with the first domain must be undone";
  EXPECT_EQ(domain_->registrations->ended_unmapped, 0u);
  EXPECT_EQ(budget_.used(), 256 * kKiB);
  second_->registrations->refuse_from = SIZE_MAX;
  EXPECT_TRUE(allocator->allocate_chunk().ok());
}

TEST_F(RDMAAllocatorTest, ChunkInFlightIsNotReusedBeforeItsFlush) {
  RDMAAllocatorOptions options = small();
  options.max_bytes = 256 * kKiB;
  const auto allocator = make(options);
  FlushCell slow;
  FlushCell fast;
  Chunk chunk = take(*allocator, 256 * kKiB);
  RDMAMemory a = chunk.memory(0, 64);
  RDMAMemory b = chunk.memory(64, 64);
  a.set_last_use(&slow, 0);
  b.set_last_use(&fast, 0);
  std::vector<RDMAMemory> in_flight;
  in_flight.push_back(std::move(a));
  in_flight.push_back(std::move(b));
  chunk.release_after(std::move(in_flight));
  EXPECT_TRUE(chunk.empty());
  EXPECT_EQ(allocator->statistics().bytes_in_flight, 256 * kKiB);
  EXPECT_EQ(allocator->statistics().chunks_in_use, 0u);
  fast.flushed = 1;
  EXPECT_FALSE(allocator->allocate_chunk().ok());
  EXPECT_EQ(allocator->trim(), 0u);
  slow.flushed = 1;
  EXPECT_TRUE(allocator->allocate_chunk().ok());
  EXPECT_EQ(allocator->statistics().bytes_in_flight, 0u);
}

TEST_F(RDMAAllocatorTest, TrimReturnsUnusedSuperpages) {
  const auto allocator = make(small());
  Chunk a = take(*allocator, 256 * kKiB);
  const Chunk b = take(*allocator, kMiB);
  const Chunk c = take(*allocator, 64 * kKiB);
  a.release();
  const uint64_t used = budget_.used();
  EXPECT_EQ(allocator->trim(), 256 * kKiB);
  EXPECT_EQ(budget_.used(), used - 256 * kKiB);
  EXPECT_EQ(allocator->statistics().bytes, budget_.used());
  EXPECT_EQ(domain_->registrations->live.size(), 2u);
  EXPECT_EQ(domain_->registrations->ended_unmapped, 0u);
  EXPECT_EQ(allocator->trim(), 0u);
  std::memset(b.data(), 1, b.size());
  std::memset(c.data(), 1, c.size());
  EXPECT_TRUE(allocator->allocate_chunk(kMiB).ok());
}

TEST_F(RDMAAllocatorTest, StatisticsAddUp) {
  const auto allocator = make(small());
  {
    const Chunk a = take(*allocator, 100 * kKiB);
    const Chunk b = take(*allocator);
    const RDMAAllocatorStatistics now = allocator->statistics();
    EXPECT_EQ(now.chunks_in_use, 2u);
    EXPECT_EQ(now.bytes_in_use, 192 * kKiB);
    EXPECT_EQ(now.superpages, 1u);
    EXPECT_EQ(now.bytes_off_node, 0u) << "no node was requested";
    uint64_t sum = 0;
    for (const uint64_t bytes : now.bytes_by_kind) sum += bytes;
    EXPECT_EQ(sum, now.bytes);
  }
  EXPECT_EQ(allocator->statistics().chunks_in_use, 0u);
  EXPECT_EQ(allocator->statistics().bytes_in_use, 0u);
  EXPECT_EQ(allocator->statistics().bytes_in_use_high_water, 192 * kKiB);
}

// Chunks never overlap and lie inside a registration, and the statistics equal a model of the
// chunks that the test holds.
TEST_F(RDMAAllocatorTest, RandomUseAgreesWithAnIntervalMap) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    const auto allocator = make(small());
    std::map<std::byte*, Chunk> live;
    uint64_t bytes = 0;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 100 < 55) {
        auto chunk =
            allocator->allocate_chunk(1 + random() % (random() % 50 == 0 ? 2 * kMiB : 300 * kKiB));
        if (!chunk.ok()) {
          ASSERT_EQ(chunk.status().code(), absl::StatusCode::kResourceExhausted);
          live.clear();
          bytes = 0;
          continue;
        }
        const auto next = live.lower_bound(chunk->data());
        if (next != live.end()) {
          ASSERT_LE(chunk->data() + chunk->size(), next->first);
        }
        if (next != live.begin()) {
          const Chunk& before = std::prev(next)->second;
          ASSERT_LE(before.data() + before.size(), chunk->data());
        }
        const MemoryRegion* const region = chunk->range()->region(domain_.get());
        ASSERT_GE(chunk->data(), region->address());
        ASSERT_LE(chunk->data() + chunk->size(), region->address() + region->length());
        bytes += chunk->size();
        live.emplace(chunk->data(), *std::move(chunk));
      } else if (!live.empty()) {
        const auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
        bytes -= it->second.size();
        live.erase(it);
      }
      ASSERT_EQ(allocator->statistics().bytes_in_use, bytes);
      ASSERT_EQ(allocator->statistics().chunks_in_use, live.size());
      ASSERT_EQ(allocator->statistics().bytes, budget_.used());
    }
    live.clear();
    // All chunks are returned and joined: every superpage is whole and can be trimmed.
    const uint64_t mapped = allocator->statistics().bytes;
    EXPECT_EQ(allocator->trim(), mapped);
    EXPECT_EQ(budget_.used(), 0u);
  }
}

// Threads allocate, mark, check and return chunks. Some chunks are returned while a transfer is in
// flight.
TEST_F(RDMAAllocatorTest, ThreadsShareIt) {
  const auto allocator = make(small());
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  std::array<FlushCell, 8> cells;
  for (uint32_t id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(id);
      std::vector<Chunk> mine;
      for (int step = 0; step < 1500; ++step) {
        if (random() % 2 == 0 || mine.empty()) {
          auto chunk = allocator->allocate_chunk(1 + random() % (200 * kKiB));
          if (!chunk.ok()) {
            mine.clear();
            continue;
          }
          std::memset(chunk->data(), static_cast<int>(id), 64);
          mine.push_back(*std::move(chunk));
        } else {
          std::swap(mine[random() % mine.size()], mine.back());
          for (int i = 0; i < 64; ++i) {
            if (mine.back().data()[i] != static_cast<std::byte>(id)) failures.fetch_add(1);
          }
          if (random() % 4 == 0) {
            FlushCell& cell = cells[id];
            std::vector<RDMAMemory> in_flight;
            in_flight.push_back(mine.back().memory(0, 64));
            in_flight.back().set_last_use(&cell, cell.flushed.load() + random() % 2);
            mine.back().release_after(std::move(in_flight));
            cell.flushed.fetch_add(1, std::memory_order_release);
          }
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(allocator->statistics().chunks_in_use, 0u);
  EXPECT_EQ(allocator->statistics().bytes_in_use, 0u);
  const uint64_t bytes = allocator->statistics().bytes;
  EXPECT_EQ(budget_.used(), bytes);
  // Every last use is flushed now, so all memory is free.
  for (FlushCell& cell : cells) cell.flushed.fetch_add(2);
  EXPECT_EQ(allocator->trim(), bytes);
  EXPECT_EQ(budget_.used(), 0u);
}

}  // namespace
}  // namespace cariama
