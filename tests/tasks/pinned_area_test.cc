#include "tasks/internal/pinned_area.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace cariama::tasks {
namespace {

using ::testing::HasSubstr;

struct Segments {
  PinnedArea::RegisterSegment function() {
    return [this](size_t index, const MemorySource& source) {
      EXPECT_EQ(index, sources.size());
      sources.push_back(source);
      return status;
    };
  }
  std::vector<MemorySource> sources;
  absl::Status status;
};

// Releases a block as a peer does.
void release_as_peer(void* block) {
  const uint64_t word = PinnedArea::release_address(reinterpret_cast<uint64_t>(block));
  reinterpret_cast<std::atomic<uint64_t>*>(word)->store(1, std::memory_order_release);
}

TEST(PinnedArea, SegmentsFollowFromAddresses) {
  for (size_t i = 0; i < kMaxSegments; ++i) {
    EXPECT_EQ(segment_of(segment_address(i)), i);
    EXPECT_EQ(segment_of(segment_address(i) + segment_bytes(i) - 1), i);
    if (i > 0) {
      EXPECT_EQ(segment_address(i - 1) + segment_bytes(i - 1), segment_address(i));
    }
  }
  EXPECT_LE(segment_address(kMaxSegments), uintptr_t{0x7ee000000000});
}

TEST(PinnedArea, GrowsBySegments) {
  Segments segments;
  PinnedArea area(size_t{1} << 30, segments.function());
  EXPECT_EQ(area.segment_total(), 0u);
  void* small = area.allocate(1).value();
  EXPECT_EQ(area.segment_total(), kFirstSegmentBytes);
  void* large = area.allocate(3 << 20).value();  // larger than the next segments
  std::memset(large, 1, 3 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 16, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 16, 0u);
  ASSERT_GE(segments.sources.size(), 2u);
  for (size_t i = 0; i < segments.sources.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segments.sources[i].address), segment_address(i));
    EXPECT_EQ(segments.sources[i].length, segment_bytes(i));
  }
  EXPECT_EQ(area.outstanding(), 2u);
  area.release(small);
  area.release(large);
  EXPECT_EQ(area.outstanding(), 0u);
}

TEST(PinnedArea, BlocksAreReused) {
  Segments segments;
  PinnedArea area(size_t{1} << 30, segments.function());
  for (int round = 0; round < 1000; ++round) {
    std::set<void*> blocks;
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(blocks.insert(area.allocate(500).value()).second);
    for (void* block : blocks) area.release(block);
  }
  EXPECT_EQ(area.segment_total(), kFirstSegmentBytes);
}

TEST(PinnedArea, CollectsWhatPeersReleased) {
  Segments segments;
  PinnedArea area(size_t{1} << 30, segments.function());
  for (int i = 0; i < 100'000; ++i) release_as_peer(area.allocate(112).value());
  EXPECT_LE(area.segment_total(), kFirstSegmentBytes) << "released blocks were not collected";
  area.collect();
  EXPECT_EQ(area.outstanding(), 0u);
}

TEST(PinnedArea, TheBudgetIsNamed) {
  Segments segments;
  PinnedArea area(kFirstSegmentBytes, segments.function());
  std::vector<void*> blocks;
  absl::StatusOr<void*> block = area.allocate(4000);
  for (; block.ok(); block = area.allocate(4000)) blocks.push_back(*block);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(block.status().message()), HasSubstr("262144"));
  EXPECT_THAT(std::string(block.status().message()), HasSubstr("pinned_bytes"));
  EXPECT_EQ(blocks.size(), 64u);
  // One block that a peer releases is collected and allocated again.
  release_as_peer(blocks[17]);
  EXPECT_EQ(area.allocate(4000).value(), blocks[17]);
}

TEST(PinnedArea, AFailedRegistrationIsPassedOn) {
  Segments segments;
  segments.status = absl::ResourceExhaustedError("memlock");
  PinnedArea area(size_t{1} << 30, segments.function());
  EXPECT_EQ(area.allocate(8).status().message(), "memlock");
}

TEST(PinnedArea, MarkedBlocksAreReported) {
  Segments segments;
  std::vector<void*> collected;
  PinnedArea area(size_t{1} << 30, segments.function());
  area.on_collect([&](void* block) { collected.push_back(block); });
  void* a = area.allocate(8).value();
  void* b = area.allocate(8).value();
  void* c = area.allocate(8).value();
  area.mark(a);
  area.mark(b);
  area.release(a);
  release_as_peer(b);
  release_as_peer(c);
  area.collect();
  EXPECT_THAT(collected, ::testing::ElementsAre(a, b));
  area.release(area.allocate(8).value());  // a reused block is not marked
  EXPECT_EQ(collected.size(), 2u);
}

// Random allocations and releases, compared with a map: no two blocks overlap, and contents stay.
TEST(PinnedArea, RandomUse) {
  Segments segments;
  PinnedArea area(size_t{64} << 20, segments.function());
  std::mt19937_64 random(5);
  std::map<std::byte*, std::pair<size_t, std::byte>> live;
  for (int step = 0; step < 20'000; ++step) {
    if (live.size() < 100 || random() % 2 == 0) {
      const size_t bytes = size_t{1} << (random() % 13);
      auto* block = static_cast<std::byte*>(area.allocate(bytes).value());
      const auto above = live.lower_bound(block);
      if (above != live.end()) {
        EXPECT_LE(block + bytes, above->first);
      }
      if (above != live.begin()) {
        EXPECT_LE(std::prev(above)->first + std::prev(above)->second.first, block);
      }
      const auto fill = static_cast<std::byte>(random());
      std::memset(block, static_cast<int>(fill), bytes);
      live[block] = {bytes, fill};
    } else {
      auto victim = std::next(live.begin(), static_cast<int>(random() % live.size()));
      const auto [bytes, fill] = victim->second;
      EXPECT_EQ(victim->first[0], fill);
      EXPECT_EQ(victim->first[bytes - 1], fill);
      if (random() % 2 == 0) {
        area.release(victim->first);
      } else {
        release_as_peer(victim->first);
      }
      live.erase(victim);
    }
  }
}

}  // namespace
}  // namespace cariama::tasks
