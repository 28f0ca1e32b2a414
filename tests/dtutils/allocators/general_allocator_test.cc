#include "dtutils/allocators/general_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "dtutils/error.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/allocators/simulated_queue.h"

namespace cariama {
namespace {

using ::cariama::testing::FakeDomain;
using ::cariama::testing::SimulatedQueue;
using ::testing::HasSubstr;

constexpr size_t kChunk = 65536;

class GeneralAllocatorTest : public ::testing::TestWithParam<Fit> {
 protected:
  GeneralAllocatorTest() {
    RDMAAllocatorOptions options;
    options.chunk_bytes = kChunk;
    options.first_superpage_bytes = 4 * kChunk;
    options.max_superpage_bytes = 16 * kChunk;
    options.budget = &budget_;
    memory_ = *RDMAAllocator::create({std::make_shared<FakeDomain>()}, kAnyNode, options);
  }
  std::unique_ptr<GeneralAllocator> make(GeneralAllocatorOptions options = {}) {
    options.fit = GetParam();
    auto heap = GeneralAllocator::create(memory_, options);
    EXPECT_TRUE(heap.ok()) << heap.status();
    return *std::move(heap);
  }
  static RDMAMemory take(GeneralAllocator& heap, size_t bytes,
                         size_t alignment = GeneralAllocator::kGranule) {
    auto memory = heap.allocate(bytes, alignment);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : RDMAMemory();
  }
  // A second handle to the same bytes.
  static RDMAMemory same(const RDMAMemory& memory) {
    return {memory.get_buffer(), memory.size(), memory.range()};
  }

  MemoryBudget budget_{64 << 20};
  std::shared_ptr<RDMAAllocator> memory_;
};

INSTANTIATE_TEST_SUITE_P(Fits, GeneralAllocatorTest, ::testing::Values(Fit::kBest, Fit::kFirst),
                         [](const auto& info) {
                           return info.param == Fit::kBest ? "Best" : "First";
                         });

TEST_P(GeneralAllocatorTest, PiecesAreUsableAlignedAndReturned) {
  const auto heap = make();
  EXPECT_EQ(heap->statistics().chunks, 0u);
  std::vector<RDMAMemory> pieces;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{10'000},
                             kChunk - 1, kChunk, kChunk + 1, 5 * kChunk, 40 * kChunk}) {
    for (const size_t alignment :
         {size_t{1}, size_t{64}, size_t{4096}, size_t{1} << 16, size_t{1} << 21}) {
      pieces.push_back(take(*heap, bytes, alignment));
      EXPECT_EQ(pieces.back().size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().get_buffer()) % alignment, 0u);
      std::memset(pieces.back().get_buffer(), 1, bytes);
    }
  }
  for (RDMAMemory& piece : pieces) EXPECT_TRUE(heap->free(std::move(piece)).ok());
  const GeneralAllocatorStatistics after = heap->statistics();
  EXPECT_EQ(after.allocations, 0u);
  EXPECT_EQ(after.bytes_in_use, 0u);
  EXPECT_EQ(after.chunks, 0u) << "wholly free chunks are returned";
  EXPECT_EQ(after.bytes, 0u);
  EXPECT_EQ(memory_->statistics().chunks_in_use, 0u);
}

TEST_P(GeneralAllocatorTest, FreedNeighboursServeALargerPiece) {
  const auto heap = make({.max_bytes = kChunk});
  RDMAMemory a = take(*heap, kChunk / 4);
  RDMAMemory b = take(*heap, kChunk / 4);
  RDMAMemory c = take(*heap, kChunk / 4);
  RDMAMemory d = take(*heap, kChunk / 4);
  EXPECT_FALSE(heap->allocate(1).ok());
  const std::byte* const at = b.get_buffer();
  ASSERT_TRUE(heap->free(std::move(b)).ok());
  ASSERT_TRUE(heap->free(std::move(c)).ok());
  RDMAMemory bc = take(*heap, kChunk / 2);
  EXPECT_EQ(bc.get_buffer(), at);
  EXPECT_TRUE(heap->free(std::move(a)).ok() && heap->free(std::move(bc)).ok() &&
              heap->free(std::move(d)).ok());
}

TEST_P(GeneralAllocatorTest, DoubleAndForeignFreesAreErrorsWithoutEffect) {
  const auto heap = make();
  RDMAMemory a = take(*heap, 1000);
  RDMAMemory keep = take(*heap, 1000);
  const GeneralAllocatorStatistics before = heap->statistics();
  const auto expect_refused = [&](RDMAMemory memory, const std::string& why) {
    const std::byte* const at = memory.get_buffer();
    const absl::Status status = heap->free(std::move(memory));
    EXPECT_EQ(memory.get_buffer(), at) << "the handle is unchanged";
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error_scope(status), ErrorScope::kOperation);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(heap->statistics().bytes_in_use, before.bytes_in_use);
    EXPECT_EQ(heap->statistics().bytes_free, before.bytes_free);
  };
  std::byte elsewhere[64];
  expect_refused(RDMAMemory(elsewhere, sizeof(elsewhere), nullptr), "not from this allocator");
  expect_refused(RDMAMemory(), "not from this allocator");
  expect_refused(RDMAMemory(a.get_buffer() + 64, 936, a.range()), "no allocation starts there");
  expect_refused(RDMAMemory(a.get_buffer(), 999, a.range()), "another size");
  RDMAMemory again = same(a);
  ASSERT_TRUE(heap->free(std::move(a)).ok());
  EXPECT_EQ(a.get_buffer(), nullptr) << "the handle is consumed";
  const absl::Status twice = heap->free(std::move(again));
  EXPECT_THAT(std::string(twice.message()), HasSubstr("freed before"));
  // A piece that another allocator took from the same memory is foreign, too.
  const auto other = make();
  EXPECT_FALSE(other->free(std::move(keep)).ok());
  EXPECT_TRUE(heap->free(std::move(keep)).ok());
}

TEST_P(GeneralAllocatorTest, FreedInFlightIsReusedOnlyWhenFlushed) {
  const auto heap = make({.max_bytes = kChunk});
  SimulatedQueue queue;
  RDMAMemory a = take(*heap, kChunk);
  queue.post(&a);
  RDMAMemory again = same(a);
  ASSERT_TRUE(heap->free(std::move(a)).ok());
  EXPECT_EQ(heap->statistics().bytes_in_flight, kChunk);
  EXPECT_EQ(heap->statistics().allocations, 0u);
  EXPECT_FALSE(heap->free(std::move(again)).ok()) << "freed before";
  EXPECT_FALSE(heap->allocate(1).ok());
  queue.complete_all();
  EXPECT_EQ(take(*heap, kChunk).size(), kChunk);
  EXPECT_EQ(heap->statistics().bytes_in_flight, 0u);
}

TEST_P(GeneralAllocatorTest, MemoryInFlightOutlivesTheAllocator) {
  SimulatedQueue queue;
  auto heap = make();
  RDMAMemory a = take(*heap, 100);
  take(*heap, 2 * kChunk);  // not freed: the allocator returns it when it is destroyed
  queue.post(&a);
  ASSERT_TRUE(heap->free(std::move(a)).ok());
  heap.reset();
  EXPECT_EQ(memory_->statistics().chunks_in_use, 0u);
  EXPECT_EQ(memory_->statistics().bytes_in_flight, kChunk);
  queue.complete_all();
  const uint64_t mapped = memory_->statistics().bytes;
  EXPECT_EQ(memory_->trim(), mapped);
}

TEST_P(GeneralAllocatorTest, LimitsAreErrorsWithRemedy) {
  const auto heap = make({.max_bytes = 2 * kChunk});
  const auto refused = heap->allocate(3 * kChunk);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_bytes"));
  EXPECT_EQ(heap->allocate(SIZE_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(heap->allocate(64, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(heap->allocate(64, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(heap->allocate(64, size_t{1} << 40).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(heap->allocate(2 * kChunk).ok());

  budget_.set_limit(0);
  const auto poor = make();
  EXPECT_THAT(std::string(poor->allocate(20 * kChunk).status().message()),
              HasSubstr("memory budget is 0 B"));
  EXPECT_EQ(GeneralAllocator::create(nullptr, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(GeneralAllocatorTest, ConfiguredChunksAreTakenWhereTheLimitAllows) {
  const auto heap = make({.chunk_bytes = 3 * kChunk, .max_bytes = 4 * kChunk});
  take(*heap, 1);
  EXPECT_EQ(heap->statistics().bytes, 3 * kChunk);
  take(*heap, 3 * kChunk - 64);
  EXPECT_EQ(heap->statistics().bytes, 3 * kChunk);
  take(*heap, 64);
  EXPECT_EQ(heap->statistics().bytes, 4 * kChunk) << "a smaller chunk, since 3 more do not fit";
}

TEST_P(GeneralAllocatorTest, StatisticsShowFragmentation) {
  const auto heap = make({.max_bytes = kChunk});
  std::vector<RDMAMemory> pieces;
  for (size_t i = 0; i < 16; ++i) pieces.push_back(take(*heap, kChunk / 16));
  EXPECT_EQ(heap->statistics().bytes_in_use_high_water, kChunk);
  EXPECT_EQ(heap->statistics().fragmentation(), 0);
  for (size_t i = 0; i < 16; i += 2) ASSERT_TRUE(heap->free(std::move(pieces[i])).ok());
  const GeneralAllocatorStatistics now = heap->statistics();
  EXPECT_EQ(now.bytes_free, kChunk / 2);
  EXPECT_EQ(now.free_pieces, 8u);
  EXPECT_EQ(now.largest_free_piece, kChunk / 16);
  EXPECT_DOUBLE_EQ(now.fragmentation(), 1 - 1.0 / 8);
}

TEST_P(GeneralAllocatorTest, FitDecidesWhereAPieceGoes) {
  const auto heap = make({.max_bytes = kChunk});
  std::vector<RDMAMemory> pieces;
  for (const size_t bytes : {4096u, 64u, 1024u, 64u, 2048u, 64u})
    pieces.push_back(take(*heap, bytes));
  const RDMAMemory rest = take(*heap, kChunk - heap->statistics().bytes_in_use);
  const std::byte* const wanted =
      GetParam() == Fit::kBest ? pieces[2].get_buffer() : pieces[0].get_buffer();
  for (const size_t hole : {0u, 2u, 4u}) ASSERT_TRUE(heap->free(std::move(pieces[hole])).ok());
  const RDMAMemory piece = take(*heap, 1000);
  EXPECT_EQ(piece.get_buffer(), wanted);
  EXPECT_EQ(rest.size(), kChunk - 4096 - 1024 - 2048 - 3 * 64);
}

// Pieces never overlap, lie inside a registration and keep their contents; the statistics add up.
TEST_P(GeneralAllocatorTest, RandomUseAgreesWithAnIntervalMap) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    const auto heap = make({.max_bytes = 64 * kChunk});
    SimulatedQueue queue;
    struct Piece {
      RDMAMemory memory;
      std::byte mark;
    };
    std::map<std::byte*, Piece> live;
    uint64_t bytes = 0;
    const auto rounded = [](size_t size) { return (std::max<size_t>(size, 1) + 63) / 64 * 64; };
    for (int step = 0; step < 6000; ++step) {
      if (random() % 100 < 54) {
        const size_t size = random() % (random() % 40 == 0 ? 3 * kChunk : 4000);
        const size_t alignment = size_t{1} << random() % 14;
        auto memory = heap->allocate(size, alignment);
        if (!memory.ok()) {
          ASSERT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
          queue.complete_all();
          continue;
        }
        std::byte* const start = memory->get_buffer();
        ASSERT_EQ(reinterpret_cast<uintptr_t>(start) % alignment, 0u);
        const auto next = live.lower_bound(start);
        if (next != live.end()) {
          ASSERT_LE(start + rounded(size), next->first);
        }
        if (next != live.begin()) {
          const RDMAMemory& before = std::prev(next)->second.memory;
          ASSERT_LE(before.get_buffer() + rounded(before.size()), start);
        }
        const auto mark = static_cast<std::byte>(random());
        std::memset(start, static_cast<int>(mark), size);
        live[start] = {*std::move(memory), mark};
        bytes += rounded(size);
      } else if (!live.empty()) {
        const auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
        RDMAMemory memory = std::move(it->second.memory);
        for (size_t i = 0; i < memory.size(); ++i) {
          ASSERT_EQ(memory.get_buffer()[i], it->second.mark);
        }
        if (random() % 3 == 0) queue.post(&memory);
        RDMAMemory again = same(memory);
        ASSERT_TRUE(heap->free(std::move(memory)).ok());
        ASSERT_FALSE(heap->free(std::move(again)).ok());
        bytes -= rounded(again.size());
        live.erase(it);
        if (random() % 16 == 0) queue.complete(queue.outstanding() / 2);
      }
      const GeneralAllocatorStatistics now = heap->statistics();
      ASSERT_EQ(now.bytes_in_use, bytes);
      ASSERT_EQ(now.allocations, live.size());
      ASSERT_EQ(now.bytes, now.bytes_in_use + now.bytes_in_flight + now.bytes_free);
    }
    for (auto& [start, piece] : live) ASSERT_TRUE(heap->free(std::move(piece.memory)).ok());
    queue.complete_all();
    // The next allocation recycles the pieces whose transfers have completed.
    ASSERT_TRUE(heap->free(take(*heap, 1)).ok());
    EXPECT_EQ(heap->statistics().chunks, 0u);
  }
}

TEST_P(GeneralAllocatorTest, ThreadsShareIt) {
  const auto heap = make();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(id);
      SimulatedQueue queue;
      std::vector<RDMAMemory> mine;
      for (int step = 0; step < 3000; ++step) {
        if (random() % 2 == 0 || mine.empty()) {
          auto memory = heap->allocate(1 + random() % 5000);
          if (!memory.ok()) {
            failures.fetch_add(1);
            continue;
          }
          std::memset(memory->get_buffer(), static_cast<int>(id), memory->size());
          mine.push_back(*std::move(memory));
        } else {
          std::swap(mine[random() % mine.size()], mine.back());
          RDMAMemory memory = std::move(mine.back());
          mine.pop_back();
          for (size_t i = 0; i < memory.size(); ++i) {
            if (memory.get_buffer()[i] != static_cast<std::byte>(id)) failures.fetch_add(1);
          }
          if (random() % 4 == 0) queue.post(&memory);
          if (!heap->free(std::move(memory)).ok()) failures.fetch_add(1);
          queue.complete(queue.outstanding());
        }
      }
      for (RDMAMemory& memory : mine) {
        if (!heap->free(std::move(memory)).ok()) failures.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(heap->statistics().allocations, 0u);
  EXPECT_EQ(heap->statistics().bytes_in_use, 0u);
}

}  // namespace
}  // namespace cariama
