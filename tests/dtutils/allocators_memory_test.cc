// Allocators that find no memory for their own records: no piece is lost, and none is given out
// twice. (Not in the folder of the allocators, whose tests count allocations by operators of their
// own.)
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "gtest/gtest.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/allocators/simulated_queue.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama {
namespace {

using ::cariama::testing::FailAllocation;
using ::cariama::testing::FakeDomain;
using ::cariama::testing::SimulatedQueue;

constexpr size_t kUnit = 65536;

// While an object of this class lives, all allocations of the program fail.
class FailAllAllocations {
 public:
  FailAllAllocations() { testing::failures_elsewhere = 1 << 20; }
  ~FailAllAllocations() { testing::failures_elsewhere = 0; }
  FailAllAllocations(const FailAllAllocations&) = delete;
  FailAllAllocations& operator=(const FailAllAllocations&) = delete;
};

// Returns the result of `call`, or nullopt if it has thrown std::bad_alloc.
template <typename Call>
auto unless_out_of_memory(const Call& call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

class AllocatorsWithoutMemory : public ::testing::Test {
 protected:
  // An allocator of four chunks.
  std::shared_ptr<RDMAAllocator> make_chunks() {
    RDMAAllocatorOptions options;
    options.chunk_bytes = kUnit;
    options.first_superpage_bytes = options.max_superpage_bytes = options.max_bytes = 4 * kUnit;
    options.budget = &budget_;
    auto made = RDMAAllocator::create({std::make_shared<FakeDomain>()}, kAnyNode, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  // An allocator with one chunk.
  std::unique_ptr<GeneralAllocator> make_pieces() {
    auto made = GeneralAllocator::create(make_chunks(), {.max_bytes = kUnit});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  static RDMAMemory take(GeneralAllocator& pieces, size_t bytes = 64) {
    auto memory = pieces.allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : RDMAMemory();
  }
  static Chunk take_chunk(RDMAAllocator& chunks) {
    auto chunk = chunks.allocate_chunk();
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    return chunk.ok() ? *std::move(chunk) : Chunk();
  }

  MemoryBudget budget_{64 << 20};
};

TEST_F(AllocatorsWithoutMemory, APieceThatWasNotAllocatedIsFree) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  const auto pieces = make_pieces();
  RDMAMemory first = take(*pieces);
  const RDMAMemory rest = take(*pieces, kUnit - 64);
  ASSERT_TRUE(pieces->free(std::move(first)).ok());
  std::optional<bool> allocated;
  {
    const FailAllAllocations fail;
    allocated = unless_out_of_memory([&] { return pieces->allocate(64).ok(); });
  }
  EXPECT_FALSE(allocated.has_value());
  EXPECT_EQ(pieces->statistics().bytes_free, 64u);
  EXPECT_EQ(pieces->statistics().allocations, 1u);
  static_cast<void>(take(*pieces));
  EXPECT_EQ(rest.size(), kUnit - 64);
}

TEST_F(AllocatorsWithoutMemory, APieceThatWasNotFreedCanBeFreedAgain) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  const auto pieces = make_pieces();
  RDMAMemory first = take(*pieces);
  const RDMAMemory rest = take(*pieces, kUnit - 64);
  std::optional<bool> freed;
  {
    const FailAllAllocations fail;
    freed = unless_out_of_memory([&] { return pieces->free(std::move(first)).ok(); });
  }
  EXPECT_FALSE(freed.has_value());
  EXPECT_EQ(pieces->statistics().allocations, 2u);
  EXPECT_EQ(pieces->statistics().bytes_in_use, kUnit);
  EXPECT_TRUE(pieces->free(std::move(first)).ok());
  EXPECT_EQ(pieces->statistics().bytes_free, 64u);
  EXPECT_EQ(rest.size(), kUnit - 64);
}

// A destructor calls this function.
TEST_F(AllocatorsWithoutMemory, APieceForWhichThereIsNoMemoryIsKept) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  const auto pieces = make_pieces();
  RDMAMemory first = take(*pieces);
  const RDMAMemory rest = take(*pieces, kUnit - 64);
  {
    const FailAllAllocations fail;
    pieces->free_or_keep(std::move(first));
  }
  EXPECT_EQ(pieces->statistics().allocations, 2u);
  EXPECT_EQ(pieces->statistics().bytes_free, 0u);
  EXPECT_EQ(rest.size(), kUnit - 64);
}

// Two pieces whose transfers have ended are free before the next allocation.
TEST_F(AllocatorsWithoutMemory, PiecesInFlightAreFreedOnce) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  bool all_succeeded = false;
  for (size_t skips = 0; skips < 100 && !all_succeeded; ++skips) {
    SCOPED_TRACE(skips);
    const auto pieces = make_pieces();
    std::vector<RDMAMemory> all;
    for (int i = 0; i < 3; ++i) all.push_back(take(*pieces));
    all.push_back(take(*pieces, kUnit - 3 * 64));
    SimulatedQueue queue;
    for (const size_t i : {size_t{0}, size_t{2}}) {
      queue.post(&all[i]);
      ASSERT_TRUE(pieces->free(std::move(all[i])).ok());
    }
    queue.complete_all();
    std::vector<RDMAMemory> taken;
    taken.reserve(2);  // the allocation that fails is one of the allocator
    {
      const FailAllocation fail(1, skips);
      auto memory = unless_out_of_memory([&] { return pieces->allocate(64); });
      all_succeeded = testing::failing_bytes != 0;
      if (memory.has_value() && memory->ok()) taken.push_back(**std::move(memory));
    }
    while (taken.size() < 2) taken.push_back(take(*pieces));
    EXPECT_NE(taken[0].get_buffer(), taken[1].get_buffer());
    EXPECT_EQ(pieces->statistics().bytes_free, 0u);
    EXPECT_EQ(pieces->statistics().bytes_in_flight, 0u);
    EXPECT_EQ(pieces->statistics().bytes_in_use, kUnit);
    EXPECT_FALSE(pieces->allocate(64).ok());
  }
  EXPECT_TRUE(all_succeeded);
}

// A destructor must not throw.
TEST_F(AllocatorsWithoutMemory, TheEndOfAChunkNeedsNoMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  const auto chunks = make_chunks();
  std::vector<Chunk> all;
  for (int i = 0; i < 4; ++i) all.push_back(take_chunk(*chunks));
  {
    const FailAllAllocations fail;
    all[1].release();
    all[3].release();
  }
  EXPECT_EQ(chunks->statistics().chunks_in_use, 2u);
  std::set<std::byte*> addresses;
  for (const size_t i : {size_t{1}, size_t{3}}) all[i] = take_chunk(*chunks);
  for (const Chunk& chunk : all) addresses.insert(chunk.data());
  EXPECT_EQ(addresses.size(), 4u);
  EXPECT_EQ(chunks->statistics().bytes_in_flight, 0u);
  EXPECT_FALSE(chunks->allocate_chunk().ok());
}

TEST_F(AllocatorsWithoutMemory, ChunksInFlightAreFreedOnce) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  bool all_succeeded = false;
  for (size_t skips = 0; skips < 100 && !all_succeeded; ++skips) {
    SCOPED_TRACE(skips);
    const auto chunks = make_chunks();
    std::vector<Chunk> all;
    for (int i = 0; i < 4; ++i) all.push_back(take_chunk(*chunks));
    SimulatedQueue queue;
    for (const size_t i : {size_t{0}, size_t{2}}) {
      std::vector<RDMAMemory> in_flight;
      in_flight.push_back(all[i].memory());
      queue.post(&in_flight.front());
      all[i].release_after(std::move(in_flight));
    }
    queue.complete_all();
    {
      const FailAllocation fail(1, skips);
      auto chunk = unless_out_of_memory([&] { return chunks->allocate_chunk(); });
      all_succeeded = testing::failing_bytes != 0;
      if (chunk.has_value() && chunk->ok()) all[0] = **std::move(chunk);
    }
    for (Chunk& chunk : all) {
      if (chunk.empty()) chunk = take_chunk(*chunks);
    }
    std::set<std::byte*> addresses;
    for (const Chunk& chunk : all) addresses.insert(chunk.data());
    EXPECT_EQ(addresses.size(), 4u);
    EXPECT_EQ(chunks->statistics().bytes_in_use, 4 * kUnit);
    EXPECT_EQ(chunks->statistics().bytes_in_flight, 0u);
    EXPECT_FALSE(chunks->allocate_chunk().ok());
  }
  EXPECT_TRUE(all_succeeded);
}

TEST_F(AllocatorsWithoutMemory, ASuperpageThatWasNotAddedCountsInNoBudget) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  bool all_succeeded = false;
  for (size_t skips = 0; skips < 100 && !all_succeeded; ++skips) {
    SCOPED_TRACE(skips);
    const auto chunks = make_chunks();
    {
      const FailAllocation fail(1, skips);
      static_cast<void>(unless_out_of_memory([&] { return chunks->allocate_chunk().ok(); }));
      all_succeeded = testing::failing_bytes != 0;
    }
    EXPECT_EQ(budget_.used(), chunks->statistics().bytes);
    EXPECT_EQ(take_chunk(*chunks).size(), kUnit);
    EXPECT_EQ(chunks->statistics().bytes, 4 * kUnit);
  }
  EXPECT_TRUE(all_succeeded);
  EXPECT_EQ(budget_.used(), 0u);
}

}  // namespace
}  // namespace cariama
