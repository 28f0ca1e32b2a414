#include "dtutils/internal/free_extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::internal {
namespace {

constexpr Extent kEverywhere{0, SIZE_MAX};

TEST(FreeExtents, JoinsNeighboursOnBothSides) {
  FreeExtents free;
  EXPECT_EQ(free.insert({1000, 100}, kEverywhere), (Extent{1000, 100}));
  EXPECT_EQ(free.insert({1200, 100}, kEverywhere), (Extent{1200, 100}));
  EXPECT_EQ(free.insert({1100, 100}, kEverywhere), (Extent{1000, 300}));
  EXPECT_EQ(free.count(), 1u);
  EXPECT_EQ(free.largest(), 300u);
}

TEST(FreeExtents, DoesNotJoinAcrossBounds) {
  FreeExtents free;
  free.insert({1000, 100}, {1000, 100});
  EXPECT_EQ(free.insert({1100, 100}, {1100, 100}), (Extent{1100, 100}));
  free.insert({900, 100}, {800, 200});
  EXPECT_EQ(free.count(), 3u);
}

TEST(FreeExtents, TakesExactFitsWhole) {
  FreeExtents free;
  free.insert({4096, 64}, kEverywhere);
  EXPECT_EQ(free.take_best(64, 64), 4096u);
  EXPECT_EQ(free.count(), 0u);
  EXPECT_EQ(free.free_bytes(), 0u);
  EXPECT_FALSE(free.take_best(1, 1).has_value());
}

// No free range is lost without memory: it would stay in use until the end of its allocator.
TEST(FreeExtents, AreUnchangedWithoutMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  FreeExtents free;
  const Extent whole{4096 + 64, 16384 - 64};
  free.insert(whole, kEverywhere);
  for (size_t skips = 0; skips < 2; ++skips) {
    {
      const testing::FailAllocation fail(1, skips);
      EXPECT_THROW(static_cast<void>(free.take_best(64, 4096)), std::bad_alloc);  // two are left
    }
    EXPECT_EQ(free.count(), 1u);
    EXPECT_TRUE(free.contains(whole));
    EXPECT_EQ(free.free_bytes(), whole.bytes);
    EXPECT_EQ(free.take_first(whole.bytes, 1), whole.address);
    free.insert(whole, kEverywhere);
  }
  for (size_t skips = 0; skips < 2; ++skips) {
    {
      const testing::FailAllocation fail(1, skips);
      EXPECT_THROW(free.insert({128, 64}, kEverywhere), std::bad_alloc);
    }
    EXPECT_EQ(free.count(), 1u);
    EXPECT_EQ(free.free_bytes(), whole.bytes);
  }
  // One range is left after these, so that they need no memory.
  std::optional<uintptr_t> taken;
  Extent joined;
  {
    const testing::FailAllocation fail(1);
    taken = free.take_best(64, 1);
    joined = free.insert({whole.address, 64}, kEverywhere);
  }
  EXPECT_EQ(taken, whole.address);
  EXPECT_EQ(joined, whole);
}

TEST(FreeExtents, BestTakesTheSmallestAndFirstTheLowest) {
  FreeExtents free;
  free.insert({0x10000, 4096}, kEverywhere);
  free.insert({0x20000, 128}, kEverywhere);
  free.insert({0x30000, 256}, kEverywhere);
  EXPECT_EQ(free.take_best(100, 1), 0x20000u);
  EXPECT_EQ(free.take_first(100, 1), 0x10000u);
  EXPECT_EQ(free.take_best(256, 1), 0x30000u);
}

TEST(FreeExtents, FindsAnAlignedHoleBehindUnalignedOnes) {
  for (const bool best : {true, false}) {
    FreeExtents free;
    // Large enough, but its first page boundary leaves too little.
    free.insert({4096 + 64, 4096}, kEverywhere);
    free.insert({16384, 4096}, kEverywhere);  // fits exactly
    const auto taken = best ? free.take_best(4096, 4096) : free.take_first(4096, 4096);
    EXPECT_EQ(taken, 16384u);
  }
}

TEST(FreeExtents, AlignmentAtTheEndOfTheAddressSpaceDoesNotWrap) {
  FreeExtents free;
  free.insert({UINTPTR_MAX - 4096, 4000}, kEverywhere);
  EXPECT_FALSE(free.take_best(64, 8192).has_value());
  EXPECT_FALSE(free.take_first(64, 8192).has_value());
  EXPECT_TRUE(free.take_first(64, 1).has_value());
}

// The operations of FreeExtents in a simple form: a map of the free extents in order of address.
class Oracle {
 public:
  std::optional<uintptr_t> take(size_t bytes, size_t alignment, bool best) {
    auto chosen = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const uintptr_t start = (it->first + alignment - 1) / alignment * alignment;
      if (start + bytes > it->first + it->second) continue;
      if (chosen == free_.end() || (best && it->second < chosen->second)) chosen = it;
      if (!best) break;
    }
    if (chosen == free_.end()) return std::nullopt;
    const auto [address, size] = *chosen;
    free_.erase(chosen);
    const uintptr_t start = (address + alignment - 1) / alignment * alignment;
    if (start > address) free_[address] = start - address;
    if (start + bytes < address + size) free_[start + bytes] = address + size - start - bytes;
    return start;
  }

  Extent insert(Extent extent, Extent bounds) {
    const auto after = free_.find(extent.end());
    if (after != free_.end() && extent.end() < bounds.end()) {
      extent.bytes += after->second;
      free_.erase(after);
    }
    auto before = free_.lower_bound(extent.address);
    if (before != free_.begin() && extent.address > bounds.address) {
      --before;
      if (before->first + before->second == extent.address) {
        extent = {before->first, before->second + extent.bytes};
        free_.erase(before);
      }
    }
    free_[extent.address] = extent.bytes;
    return extent;
  }

  [[nodiscard]] const std::map<uintptr_t, size_t>& free() const { return free_; }

 private:
  std::map<uintptr_t, size_t> free_;
};

class FreeExtentsRandom : public ::testing::TestWithParam<uint32_t> {};

// Every answer equals that of the oracle, over two adjacent regions and many sizes and alignments.
TEST_P(FreeExtentsRandom, AgreesWithAnOracle) {
  std::mt19937 random(GetParam());
  const auto below = [&random](size_t bound) { return static_cast<size_t>(random() % bound); };
  FreeExtents free;
  Oracle oracle;
  const std::vector<Extent> regions = {{0x100000, 0x8000}, {0x108000, 0x4000}};
  for (const Extent& region : regions) {
    ASSERT_EQ(free.insert(region, region), oracle.insert(region, region));
  }
  struct Taken {
    Extent extent;
    Extent region;
  };
  std::vector<Taken> taken;
  for (int step = 0; step < 20000; ++step) {
    if (below(100) < 52) {
      const size_t bytes = 1 + below(below(4) == 0 ? 0x2000 : 200);
      const size_t alignment = size_t{1} << below(11);
      const bool best = below(2) == 0;
      const auto expected = oracle.take(bytes, alignment, best);
      const auto got = best ? free.take_best(bytes, alignment) : free.take_first(bytes, alignment);
      ASSERT_EQ(got, expected) << "step " << step << ", " << bytes << " bytes at " << alignment;
      if (got) taken.push_back({{*got, bytes}, regions[*got < regions[1].address ? 0 : 1]});
    } else if (!taken.empty()) {
      std::swap(taken[below(taken.size())], taken.back());
      const Taken back = taken.back();
      taken.pop_back();
      ASSERT_EQ(free.insert(back.extent, back.region), oracle.insert(back.extent, back.region));
    }
    size_t bytes = 0;
    size_t largest = 0;
    for (const auto& [address, size] : oracle.free()) {
      bytes += size;
      largest = std::max(largest, size);
    }
    ASSERT_EQ(free.free_bytes(), bytes);
    ASSERT_EQ(free.largest(), largest);
    ASSERT_EQ(free.count(), oracle.free().size());
  }
  for (const Taken& back : taken) free.insert(back.extent, back.region);
  for (const Extent& region : regions) {
    EXPECT_TRUE(free.contains(region));
    free.erase(region);
  }
  EXPECT_EQ(free.count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FreeExtentsRandom, ::testing::Range(1u, 6u));

}  // namespace
}  // namespace cariama::internal
