// The cells that describe a peer's region: which accesses they permit, and that a reader never sees
// a mixture of two regions.
#include "dtutils/shm/remote_region.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>

#include "dtutils/shm/writable_regions.h"

namespace cariama::shm {
namespace {

constexpr uint32_t kIndex = 5;
constexpr uint64_t kKey = uint64_t{0x1234} << 16 | kIndex;
constexpr uint64_t kBase = 0x10000;
constexpr uint64_t kDelta = 0x500000;
constexpr uint32_t kDomain = 3;

RemoteRegion region(uint64_t length, Access access = Access::kAll) {
  RemoteRegion region;
  region.key = kKey;
  region.base = kBase;
  region.length = length;
  region.delta = kDelta;
  region.access = access;
  region.domain = kDomain;
  region.mapped = true;
  return region;
}

// A region's cell, the one of those that WRITEs use, and the entry of the owner's key table that
// belongs to them.
struct Place {
  std::atomic<uint64_t> owner_key{kKey};
  std::unique_ptr<RemoteRegionCell> cell = std::make_unique<RemoteRegionCell>();
  std::unique_ptr<WritableRegions> writable_regions = *WritableRegions::create();

  // As Link does.
  void set(const RemoteRegion& region) {
    cell->set(region, &owner_key);
    writable_regions->clear(key_index(region.key));
    if (region.write_domain() == kDomain) writable_regions->set(region, &owner_key);
  }
  void clear() {
    cell->clear();
    writable_regions->clear(kIndex);
  }
  [[nodiscard]] bool writable(uint64_t address, uint64_t bytes, uint64_t key = kKey) const {
    const WritableCell& at = writable_regions->cells()[key_index(key)];
    std::byte* target = nullptr;
    const bool found = at.target(key, address, bytes, &target);
    if (bytes == sizeof(uint64_t)) {
      std::byte* same = nullptr;
      EXPECT_EQ(at.word_target(key, address, &same), found);
      EXPECT_EQ(same, target);
    }
    if (!found) return false;
    EXPECT_EQ(reinterpret_cast<uint64_t>(target), address + kDelta);
    return true;
  }
};

TEST(RemoteRegionCell, AWriteStaysWithinTheRegion) {
  Place place;
  place.set(region(100));
  EXPECT_TRUE(place.writable(kBase, 0));
  EXPECT_TRUE(place.writable(kBase, 100));
  EXPECT_TRUE(place.writable(kBase + 99, 1));
  EXPECT_TRUE(place.writable(kBase + 100, 0));
  EXPECT_FALSE(place.writable(kBase, 101));
  EXPECT_FALSE(place.writable(kBase + 100, 1));
  EXPECT_FALSE(place.writable(kBase + 101, 0));
  EXPECT_FALSE(place.writable(kBase - 1, 0));
  EXPECT_FALSE(place.writable(kBase - 1, 1));
  // Sums that wrap around to a small value.
  EXPECT_FALSE(place.writable(kBase - 1, 2));
  EXPECT_FALSE(place.writable(kBase + 1, std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(place.writable(0, kBase + 50));
  EXPECT_FALSE(place.writable(std::numeric_limits<uint64_t>::max(), kBase + 1));
}

TEST(RemoteRegionCell, AWordStaysWithinTheRegion) {
  for (uint64_t length = 1; length <= 20; ++length) {
    Place place;
    place.set(region(length));
    for (uint64_t offset = 0; offset <= 20; ++offset) {
      EXPECT_EQ(place.writable(kBase + offset, 8), offset + 8 <= length) << length << " " << offset;
      EXPECT_FALSE(place.writable(kBase - 1 - offset, 8));
    }
    EXPECT_FALSE(place.writable(0, 8));
    EXPECT_FALSE(place.writable(std::numeric_limits<uint64_t>::max() - 7, 8));
    EXPECT_FALSE(place.writable(std::numeric_limits<uint64_t>::max(), 8));
  }
}

// 0 is the key of a locator that was never set.
TEST(RemoteRegionCell, KeyZeroIsInvalid) {
  Place place;
  EXPECT_FALSE(place.writable(0, 0, 0));  // the cell was never set
  EXPECT_FALSE(place.writable(0, 8, 0));
  EXPECT_FALSE(place.cell->read(0).has_value());
  place.set(region(100));
  place.clear();
  place.owner_key = 0;
  EXPECT_FALSE(place.writable(kBase, 8, 0));
  EXPECT_FALSE(place.cell->read(0).has_value());
  // Only a peer that violates the protocol has a region at index 0.
  RemoteRegion first = region(100);
  first.key = uint64_t{1} << 16;
  place.owner_key = first.key;
  place.set(first);
  EXPECT_FALSE(place.writable(kBase, 8, first.key));
  place.writable_regions->clear(0);
  place.owner_key = 0;
  EXPECT_FALSE(place.writable(kBase, 8, 0));
}

TEST(RemoteRegionCell, PermitsOnlyAccessThatTheOwnerAllows) {
  Place place;
  EXPECT_FALSE(place.writable(kBase, 8));  // the cell was never set
  EXPECT_FALSE(place.cell->read(kKey).has_value());
  place.set(region(100));
  EXPECT_TRUE(place.writable(kBase, 8));
  EXPECT_FALSE(place.writable(kBase, 8, kKey + (1 << 16)));
  EXPECT_FALSE(place.cell->read(kKey + (1 << 16)).has_value());

  place.owner_key = 0;
  EXPECT_FALSE(place.writable(kBase, 8));
  EXPECT_TRUE(place.cell->read(kKey).has_value());
  EXPECT_FALSE(place.cell->is_registered(kKey));
  place.owner_key = kKey;

  for (const Access access : {Access::kLocalWrite, Access::kRemoteRead, Access::kRemoteAtomic}) {
    place.set(region(100, access));
    EXPECT_FALSE(place.writable(kBase, 8)) << static_cast<uint32_t>(access);
  }
  RemoteRegion unmapped = region(100);
  unmapped.mapped = false;
  place.set(unmapped);
  EXPECT_FALSE(place.writable(kBase, 8));
  EXPECT_FALSE(place.cell->read(kKey)->mapped);
  RemoteRegion foreign = region(100);
  foreign.domain = kDomain + 1;
  place.set(foreign);
  EXPECT_FALSE(place.writable(kBase, 8));

  place.set(region(100));
  EXPECT_TRUE(place.writable(kBase, 8));
  place.clear();
  EXPECT_FALSE(place.writable(kBase, 8));
}

// Two regions are stored in the cells in turn. A reader that gets a region gets the one it asked
// for, as a whole. The owner's key table follows neither of them, as if the peer violated the
// protocol.
TEST(RemoteRegionCell, ReadersNeverSeeHalfOfTwoRegions) {
  const auto made = [](uint64_t i) {
    RemoteRegion region;
    region.key = (i + 1) << 16 | kIndex;
    region.base = (i + 1) << 32;
    region.length = (i + 1) << 8;
    region.delta = (i + 1) << 45;
    region.access = Access::kAll;
    region.domain = static_cast<uint32_t>(i);
    region.mapped = true;
    return region;
  };
  constexpr uint64_t kTurns = 100'000;
  const auto cell = std::make_unique<RemoteRegionCell>();
  const std::unique_ptr<WritableRegions> regions = *WritableRegions::create();
  const WritableCell& writable = regions->cells()[kIndex];
  std::atomic<uint64_t> owner_key[2] = {};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> seen{0};
  std::thread reader([&] {
    while (!done.load()) {
      const uint64_t key = cell->key();
      if (key == 0) continue;
      const RemoteRegion want = made((key >> 16) - 1);
      if (const auto got = cell->read(want.key)) {
        ASSERT_EQ(got->base, want.base);
        ASSERT_EQ(got->length, want.length);
        ASSERT_EQ(got->delta, want.delta);
        ASSERT_EQ(got->domain, want.domain);
        seen.fetch_add(1);
      }
      std::byte* target = nullptr;
      if (writable.target(want.key, want.base, want.length, &target)) {
        ASSERT_EQ(reinterpret_cast<uint64_t>(target), want.base + want.delta);
      }
      if (writable.word_target(want.key, want.base, &target)) {
        ASSERT_EQ(reinterpret_cast<uint64_t>(target), want.base + want.delta);
      }
      ASSERT_FALSE(writable.target(want.key, want.base, want.length + 1, &target));
      ASSERT_FALSE(writable.word_target(want.key, want.base + want.length - 7, &target));
    }
  });
  // No key is used twice, which the readers rely on.
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    owner_key[turn % 2] = made(turn).key;
    cell->set(made(turn), &owner_key[turn % 2]);
    regions->set(made(turn), &owner_key[turn % 2]);
  }
  // The last region stays in the cell, so that the reader finds it even if it did not run before.
  const uint64_t before = seen.load();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (seen.load() == before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_NE(seen.load(), before);
  done = true;
  reader.join();
}

}  // namespace
}  // namespace cariama::shm
