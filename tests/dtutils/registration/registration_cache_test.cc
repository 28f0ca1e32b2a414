#include "dtutils/registration/registration_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "dtutils/diagnostics.h"
#include "tests/dtutils/registration/cache_fixture.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::CacheFixture;
using ::cariama::testing::CountingPinner;
using ::cariama::testing::in_child;
using ::cariama::testing::kAnyTime;
using ::cariama::testing::kTestPage;
using ::cariama::testing::ManualPolicy;
using ::cariama::testing::MappedPages;
using ::cariama::testing::with_policy;
using ::testing::HasSubstr;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

TEST(RegistrationCache, FindsContainingRanges) {
  const CacheFixture it;
  const MappedPages pages(16);
  EXPECT_FALSE(it.touch(pages.page(2) + 100, 5 * kTestPage));  // pages 2 to 7
  EXPECT_TRUE(it.touch(pages.page(2), 6 * kTestPage));
  EXPECT_TRUE(it.touch(pages.page(4) + 7, 9));
  EXPECT_FALSE(it.touch(pages.page(1), 2 * kTestPage));  // overlaps, is not contained
  EXPECT_TRUE(it.touch(pages.page(1), kTestPage));
  EXPECT_FALSE(it.touch(pages.page(7), 2 * kTestPage));
  EXPECT_EQ(it.cache->overlapping(pages.page(2), kTestPage), 2u);
  EXPECT_EQ(it.cache->overlapping(pages.page(7), 1), 2u);
  EXPECT_EQ(it.cache->overlapping(pages.page(9), 7 * kTestPage), 0u);
  const RegistrationStatistics statistics = it.cache->statistics();
  EXPECT_EQ(statistics.hits, 3u);
  EXPECT_EQ(statistics.misses, 3u);
  EXPECT_EQ(statistics.registered_bytes, 10 * kTestPage);
  EXPECT_EQ(it.counts->pinned, 3u);
}

TEST(RegistrationCache, RefusesEmptyRanges) {
  const CacheFixture it;
  int value = 0;
  EXPECT_EQ(it.cache->acquire(nullptr, 8).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(it.cache->acquire(&value, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(it.touch(&value, sizeof(value)));
  EXPECT_EQ(it.cache->acquire(&value, SIZE_MAX).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(RegistrationCache::create(nullptr).ok());
}

TEST(RegistrationCache, OnDemandDeregistersAfterTheLastUse) {
  const CacheFixture it(with_policy("on-demand"));
  const MappedPages pages(2);
  auto first = it.cache->acquire(pages.get(), pages.bytes());
  auto second = it.cache->acquire(pages.get(), 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(second->was_hit());
  EXPECT_EQ(&first->region(), &second->region());
  first->release();
  EXPECT_EQ(it.counts->bytes, pages.bytes());
  second->release();
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_EQ(it.cache->statistics().peak_bytes, pages.bytes());
}

TEST(RegistrationCache, MessagesOfSeveralLengthsAreOneRegion) {
  const CacheFixture it(with_policy("on-demand"));
  const MappedPages pages(8);
  EXPECT_FALSE(it.touch(pages.get(), 4 * kTestPage));
  const auto shorter = it.cache->acquire(pages.page(1), 2 * kTestPage);
  EXPECT_EQ(shorter->region().length(), 4 * kTestPage);
  const auto much_shorter = it.cache->acquire(pages.page(5), 1);
  EXPECT_EQ(much_shorter->region().length(), kTestPage);
}

TEST(RegistrationCache, ALongerRangeReplacesThoseThatItContains) {
  const CacheFixture it;
  const MappedPages pages(16);
  EXPECT_FALSE(it.touch(pages.page(1), kTestPage));
  EXPECT_FALSE(it.touch(pages.page(3), 2 * kTestPage));
  const auto held = it.cache->acquire(pages.page(6), kTestPage);
  EXPECT_FALSE(it.touch(pages.get(), 8 * kTestPage));
  // The range in use stays.
  EXPECT_EQ(it.counts->bytes, 9 * kTestPage);
  EXPECT_TRUE(it.touch(pages.page(3), 2 * kTestPage));
  // A range that is much longer does not replace it.
  EXPECT_FALSE(it.touch(pages.page(9), kTestPage));
  EXPECT_FALSE(it.touch(pages.page(0), 16 * kTestPage));
  EXPECT_EQ(it.counts->bytes, 18 * kTestPage);
}

TEST(RegistrationCache, TransientUsesLeaveNothingRegistered) {
  const CacheFixture it;
  const MappedPages pages(1);
  EXPECT_TRUE(it.cache->acquire(pages.get(), 1, {.transient = true}).ok());
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_FALSE(it.touch(pages.get(), 1));
  EXPECT_EQ(it.counts->bytes, kTestPage);
}

TEST(RegistrationCache, LeavePinnedFailsAtTheBudget) {
  RegistrationOptions options = with_policy("leave-pinned");
  options.max_bytes = 2 * kTestPage;
  const CacheFixture it(options);
  const MappedPages pages(3);
  EXPECT_FALSE(it.touch(pages.page(0), 1));
  EXPECT_FALSE(it.touch(pages.page(1), 1));
  const auto refused = it.cache->acquire(pages.page(2), 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("8 KiB stay registered"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_bytes to at least 12 KiB"));
}

TEST(RegistrationCache, EvictsTheLeastRecentlyUsedAndKeepsTheBudget) {
  RegistrationOptions options;
  options.max_bytes = 4 * kTestPage;
  const CacheFixture it(options);
  const MappedPages pages(8);
  for (size_t i = 0; i < 4; ++i) EXPECT_FALSE(it.touch(pages.page(i), 1));
  EXPECT_TRUE(it.touch(pages.page(0), 1));
  EXPECT_FALSE(it.touch(pages.page(4), 1));  // evicts page 1
  EXPECT_TRUE(it.touch(pages.page(0), 1));
  EXPECT_FALSE(it.touch(pages.page(1), 1));  // evicts page 2
  EXPECT_EQ(it.cache->statistics().evictions, 2u);
  EXPECT_EQ(it.counts->most_bytes, options.max_bytes);
  const auto held = it.cache->acquire(pages.page(0), 3 * kTestPage);
  ASSERT_TRUE(held.ok());
  const auto refused = it.cache->acquire(pages.page(4), 2 * kTestPage);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_bytes to at least 20 KiB"));
  EXPECT_LE(it.counts->most_bytes, options.max_bytes);
}

// A range is registered as a longer one that was registered before, if there is room for that.
TEST(RegistrationCache, ALongerKnownRangeIsNotNeededAtTheBudget) {
  RegistrationOptions options;
  options.max_bytes = 20 * kTestPage;
  const CacheFixture it(options);
  const MappedPages longer(16);
  const MappedPages other(10);
  EXPECT_FALSE(it.touch(longer.get(), longer.bytes()));
  auto held = it.cache->acquire(other.get(), other.bytes());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(it.touch(longer.get(), 2 * kTestPage));
  EXPECT_EQ(it.counts->bytes, 12 * kTestPage);
  const auto too_long = it.cache->acquire(longer.get(), 11 * kTestPage);
  EXPECT_EQ(too_long.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(it.touch(longer.get(), 10 * kTestPage));
}

TEST(RegistrationCache, KeepsTheBudgetOfRegions) {
  RegistrationOptions options;
  options.max_regions = 2;
  const CacheFixture it(options);
  const MappedPages pages(4);
  const auto first = it.cache->acquire(pages.page(0), 1);
  EXPECT_FALSE(it.touch(pages.page(1), 1));
  EXPECT_FALSE(it.touch(pages.page(2), 1));
  EXPECT_EQ(it.cache->statistics().registered_regions, 2u);
  const auto second = it.cache->acquire(pages.page(2), 1);
  const auto third = it.cache->acquire(pages.page(3), 1);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("max_regions to at least 3"));
}

TEST(RegistrationCache, RemembersABoundedNumberOfRanges) {
  RegistrationOptions options = with_policy("on-demand");
  options.max_idle_ranges = 8;
  const CacheFixture it(options);
  const MappedPages pages(64);
  for (size_t i = 0; i < 64; ++i) EXPECT_FALSE(it.touch(pages.page(i), 1));
  EXPECT_EQ(it.counts->pinned, 64u);
}

TEST(RegistrationCache, ForgetsRanges) {
  RegistrationOptions options;
  options.invalidation = Invalidation::kExplicit;
  const CacheFixture it(options);
  const MappedPages pages(8);
  EXPECT_FALSE(it.touch(pages.page(0), 2 * kTestPage));
  EXPECT_FALSE(it.touch(pages.page(4), 2 * kTestPage));
  auto held = it.cache->acquire(pages.page(4), 1);
  EXPECT_EQ(it.cache->forget(pages.page(1), 4 * kTestPage), 2u);
  EXPECT_EQ(it.counts->bytes, 2 * kTestPage) << "the one in use stays until its use ends";
  EXPECT_FALSE(it.touch(pages.page(4), 2 * kTestPage)) << "a later use registers anew";
  held->release();
  EXPECT_EQ(it.counts->bytes, 2 * kTestPage);
  EXPECT_EQ(it.cache->forget(pages.page(0), 8 * kTestPage), 1u);
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_FALSE(it.touch(pages.page(4), kTestPage));
  EXPECT_EQ(it.cache->overlapping(pages.page(1), SIZE_MAX), 1u);
  EXPECT_EQ(it.cache->forget(pages.page(1), SIZE_MAX), 1u) << "to the end of the address space";
  EXPECT_EQ(it.counts->bytes, 0u);
}

// Each way by which memory can change under a registration.
TEST(RegistrationCache, NoticesChangesOfTheMapping) {
  const CacheFixture it;
  ASSERT_TRUE(it.cache->watches()) << "userfaultfd is refused here";
  const auto map_at = [](std::byte* address, size_t bytes) {
    return mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0);
  };
  MappedPages pages(8);
  const size_t bytes = pages.bytes();
  EXPECT_FALSE(it.touch(pages.get(), bytes));
  EXPECT_TRUE(it.touch(pages.get(), bytes));

  munmap(pages.get(), bytes);
  EXPECT_EQ(map_at(pages.get(), bytes), pages.get());
  EXPECT_FALSE(it.touch(pages.get(), bytes)) << "munmap and mmap at the same address";

  EXPECT_EQ(map_at(pages.get(), bytes), pages.get());
  EXPECT_FALSE(it.touch(pages.get(), bytes)) << "mmap over the range";

  madvise(pages.page(3), kTestPage, MADV_DONTNEED);
  EXPECT_FALSE(it.touch(pages.get(), bytes)) << "MADV_DONTNEED of a part";

  munmap(pages.page(7), kTestPage);
  EXPECT_FALSE(it.touch(pages.get(), bytes - kTestPage)) << "unmapped in part";

  EXPECT_EQ(map_at(pages.page(7), kTestPage), pages.page(7));
  EXPECT_FALSE(it.touch(pages.get(), bytes));
  pages.unmap();
  const MappedPages others(1);
  EXPECT_FALSE(it.touch(others.get(), 1));  // the look-up ends the registration of unmapped memory
  EXPECT_EQ(it.counts->bytes, kTestPage);
  EXPECT_GE(it.cache->statistics().invalidations, 5u);
}

// The kernel refuses mremap() of memory that it keeps as several mappings, as it may after changes
// of parts.
TEST(RegistrationCache, NoticesMovedMemory) {
  const CacheFixture it;
  ASSERT_TRUE(it.cache->watches()) << "userfaultfd is refused here";
  constexpr size_t kBytes = 8 * kTestPage;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(it.touch(memory, kBytes));
  EXPECT_TRUE(it.touch(memory, kBytes));
  void* const moved = mremap(memory, kBytes, 2 * kBytes, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED) << strerror(errno);
  {
    const auto part = it.cache->acquire(moved, kBytes);
    ASSERT_TRUE(part.ok());
    EXPECT_FALSE(part->was_hit()) << "mremap";
    EXPECT_FALSE(it.touch(moved, 2 * kBytes));  // does not replace the part, which is in use
  }
  EXPECT_EQ(mremap(moved, 2 * kBytes, kBytes, 0), moved);
  EXPECT_TRUE(it.touch(moved, kBytes)) << "this part is unchanged";
  EXPECT_EQ(it.cache->overlapping(moved, 2 * kBytes), 1u) << "mremap that shrinks";
  munmap(moved, kBytes);
  const MappedPages others(1);
  EXPECT_FALSE(it.touch(others.get(), 1));
  EXPECT_EQ(it.counts->bytes, kTestPage);
}

TEST(RegistrationCache, NoticesHolesInMemoryFiles) {
  const CacheFixture it;
  const int file = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 4 * kTestPage), 0);
  void* const memory = mmap(nullptr, 4 * kTestPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(it.touch(memory, 4 * kTestPage));
  EXPECT_TRUE(it.touch(memory, 4 * kTestPage));
  madvise(memory, kTestPage, MADV_REMOVE);
  EXPECT_FALSE(it.touch(memory, 4 * kTestPage));
  munmap(memory, 4 * kTestPage);
  close(file);
}

// The kernel raises no event here. If it does some day, docs/registration.md says less.
TEST(RegistrationCache, MemoryFilesAreForgottenBeforeTheyShrink) {
  const CacheFixture it;
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const int file = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kTestPage), 0);
  void* const memory = mmap(nullptr, kTestPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto replace_page = [file] {
    EXPECT_EQ(ftruncate(file, 0), 0);
    EXPECT_EQ(ftruncate(file, kTestPage), 0);
  };
  EXPECT_FALSE(it.touch(memory, kTestPage));
  replace_page();
  EXPECT_TRUE(it.touch(memory, kTestPage)) << "the registration of the old page";
  EXPECT_EQ(it.cache->forget(memory, kTestPage), 1u);
  replace_page();
  EXPECT_FALSE(it.touch(memory, kTestPage));
  munmap(memory, kTestPage);
  close(file);
}

TEST(RegistrationCache, SeveralCachesWatchTheSameMemory) {
  const CacheFixture one;
  const CacheFixture two;
  MappedPages pages(4);
  EXPECT_FALSE(one.touch(pages.get(), pages.bytes()));
  EXPECT_FALSE(two.touch(pages.page(1), kTestPage));
  madvise(pages.page(1), kTestPage, MADV_DONTNEED);
  EXPECT_FALSE(one.touch(pages.get(), pages.bytes()));
  EXPECT_FALSE(two.touch(pages.page(1), kTestPage));
  {
    // The destruction of one cache does not stop the other cache from noticing changes.
    const CacheFixture three;
    EXPECT_FALSE(three.touch(pages.get(), pages.bytes()));
  }
  madvise(pages.page(1), kTestPage, MADV_DONTNEED);
  EXPECT_FALSE(one.touch(pages.get(), pages.bytes()));
  EXPECT_FALSE(two.touch(pages.page(1), kTestPage));
}

TEST(RegistrationCache, MemoryOfFilesOnDiskDoesNotStayRegistered) {
  char name[] = "/tmp/cariama-registration-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  unlink(name);
  struct statfs system {};
  ASSERT_EQ(fstatfs(file, &system), 0);
  if (system.f_type == TMPFS_MAGIC || system.f_type == OVERLAYFS_SUPER_MAGIC) {
    close(file);
    GTEST_SKIP() << "/tmp is not on a disk";
  }
  ASSERT_EQ(ftruncate(file, kTestPage), 0);
  void* const memory = mmap(nullptr, kTestPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  const CacheFixture it;
  EXPECT_FALSE(it.touch(memory, kTestPage));
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_FALSE(it.touch(memory, kTestPage));
  munmap(memory, kTestPage);
  close(file);
}

TEST(RegistrationCache, WithoutNotificationNothingStaysRegistered) {
  RegistrationOptions options;
  options.invalidation = Invalidation::kNone;
  const CacheFixture it(options);
  EXPECT_FALSE(it.cache->watches());
  const MappedPages pages(1);
  EXPECT_FALSE(it.touch(pages.get(), 1));
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_FALSE(it.touch(pages.get(), 1));
}

// The pages behind a registration in use would change unnoticed.
TEST(RegistrationCache, MemoryThatIsNotWatchedIsRegisteredForEachUseAlone) {
  RegistrationOptions options;
  options.invalidation = Invalidation::kNone;
  const CacheFixture it(options);
  const MappedPages pages(2);
  auto whole = it.cache->acquire(pages.get(), pages.bytes());
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_NE(mmap(pages.page(1), kTestPage, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  auto part = it.cache->acquire(pages.page(1), kTestPage);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_FALSE(part->was_hit());
  EXPECT_NE(&part->region(), &whole->region());
  auto again = it.cache->acquire(pages.get(), pages.bytes());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(&again->region(), &whole->region());
  whole->release();
  part->release();
  again->release();
  EXPECT_EQ(it.counts->bytes, 0u);
}

TEST(RegistrationCache, APolicyBelongsToOneCache) {
  for (const char* name : {"lru", "oracle-0", "helper"}) {
    RegistrationOptions options = with_policy(name);
    auto first = std::make_unique<CacheFixture>(options);
    const auto second = RegistrationCache::create(std::make_shared<CountingPinner>(), options);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("a policy for each cache"));
    const MappedPages pages(1);
    EXPECT_FALSE(first->touch(pages.get(), 1)) << "the first cache still uses it";
    first.reset();
    EXPECT_TRUE(RegistrationCache::create(std::make_shared<CountingPinner>(), options).ok());
  }
}

// A predictor must recognise the call site of a use that was late.
TEST(RegistrationCache, TheCallStackIsTheSameWhetherTheMemoryWasRegistered) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->keep = true;
  RegistrationOptions options;
  options.policy = policy;
  const CacheFixture it(options);
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const MappedPages pages(4);
  // Not registered; found by the hint; found by the index. One call site for all of them.
  std::vector<bool> hits;
  for (const auto& [first, count] :
       std::vector<std::pair<size_t, size_t>>{{0, 4}, {0, 4}, {2, 1}}) {
    hits.push_back(it.cache->acquire(pages.page(first), count * kTestPage)->was_hit());
  }
  EXPECT_THAT(hits, ::testing::ElementsAre(false, true, true));
  ASSERT_EQ(policy->stacks.size(), 3u);
  EXPECT_NE(policy->stacks[0][0], 0u);
  EXPECT_EQ(policy->stacks[1], policy->stacks[0]);
  EXPECT_EQ(policy->stacks[2], policy->stacks[0]);
}

// The pieces of a message are registered long after the call that began it has returned.
TEST(RegistrationCache, PiecesHaveTheCallStackOfTheirMessage) {
  const auto policy = std::make_shared<ManualPolicy>();
  RegistrationOptions options;
  options.policy = policy;
  const CacheFixture it(options);
  const MappedPages pages(4);
  CallStack stack{7};
  ChunkedRegistration message(*it.cache, pages.get(), pages.bytes(), kTestPage, {.stack = &stack});
  stack = {8};
  while (!message.done()) ASSERT_TRUE(message.next().ok());
  // The first two pieces, from which the policy learns.
  EXPECT_THAT(policy->stacks, ::testing::ElementsAre(CallStack{7}, CallStack{7}));
}

// The policy's data about a region must survive a moment in which the budget is used up.
TEST(RegistrationCache, ARegionThatFindsNoRoomAheadStaysKnown) {
  const auto policy = std::make_shared<ManualPolicy>();
  const CacheFixture it(with_policy(policy, 2 * kTestPage));
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no region is registered ahead";
  const MappedPages pages(2);
  EXPECT_FALSE(it.touch(pages.get(), kTestPage));
  const RegionName first = policy->last;
  const MappedPages others(2);
  auto all = it.cache->acquire(others.get(), others.bytes());
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(policy->control->register_ahead(first, kAnyTime), RegisterAheadResult::kRefused)
      << "the budget is used up";
  EXPECT_EQ(policy->forgotten_regions, 0);
  all->release();
  EXPECT_EQ(policy->control->register_ahead(first, kAnyTime), RegisterAheadResult::kRegistered);
  EXPECT_EQ(policy->control->register_ahead(first, kAnyTime),
            RegisterAheadResult::kAlreadyRegistered);
  EXPECT_TRUE(it.touch(pages.get(), kTestPage));
}

TEST(RegistrationCache, ThePolicyIsToldTheStateOfARegion) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->keep = true;
  RegistrationOptions options;
  options.policy = policy;
  const CacheFixture it(options);
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const MappedPages pages(1);
  EXPECT_FALSE(it.touch(pages.get(), 1));
  const RegionName region = policy->last;
  auto use = it.cache->acquire(pages.get(), 1);
  EXPECT_EQ(policy->control->deregister_idle(region), DeregisterResult::kInUse);
  use->release();
  EXPECT_EQ(policy->control->deregister_idle(region), DeregisterResult::kDeregistered);
  EXPECT_EQ(policy->control->deregister_idle(region), DeregisterResult::kNotRegistered);
  it.cache->forget(pages.get(), 1);
  EXPECT_EQ(policy->control->deregister_idle(region), DeregisterResult::kUnknown);
  EXPECT_EQ(policy->control->register_ahead(region, kAnyTime), RegisterAheadResult::kUnknown);
}

// Its last use is the oldest one, but it is used next.
TEST(RegistrationCache, MemoryThatIsRegisteredAheadIsNotEvictedFirst) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->keep = true;
  policy->evicts_idle = true;
  const CacheFixture it(with_policy(policy, 2 * kTestPage));
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no region is registered ahead";
  const MappedPages pages(5);
  EXPECT_FALSE(it.touch(pages.page(0), 1));
  const RegionName first = policy->last;
  EXPECT_FALSE(it.touch(pages.page(2), 1));
  static_cast<void>(policy->control->deregister_idle(first));
  static_cast<void>(policy->control->register_ahead(first, kAnyTime));
  EXPECT_FALSE(it.touch(pages.page(4), 1));
  EXPECT_EQ(it.cache->statistics().evictions, 1u);
  EXPECT_TRUE(it.touch(pages.page(0), 1));
}

TEST(RegistrationCache, ARegistrationAheadDoesNotEndThatOfAnEarlierUse) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->evicts_idle = true;
  const CacheFixture it(with_policy(policy, kTestPage));
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no region is registered ahead";
  const MappedPages pages(3);
  std::array<RegionName, 2> regions;
  for (const size_t i : {0, 1}) {
    EXPECT_FALSE(it.touch(pages.page(2 * i), 1));
    regions.at(i) = policy->last;
  }
  constexpr int64_t kHour = 3'600'000'000'000;
  const int64_t now = policy->control->now();
  const auto ahead = [&](size_t region, const ExpectedUse& use) {
    return policy->control->register_ahead(regions.at(region), use);
  };
  EXPECT_EQ(ahead(0, {now + 2 * kHour, now + 3 * kHour}), RegisterAheadResult::kRegistered);
  EXPECT_EQ(ahead(1, {now + 3 * kHour, now + 4 * kHour}), RegisterAheadResult::kRefused);
  EXPECT_EQ(ahead(1, {now + kHour, now + kHour}), RegisterAheadResult::kRegistered);
  // After its use it is an idle region as any other.
  EXPECT_EQ(ahead(0, {now + 2 * kHour, now + 3 * kHour}), RegisterAheadResult::kRefused);
  policy->keep = true;
  EXPECT_TRUE(it.touch(pages.page(2), 1));
  EXPECT_EQ(ahead(0, {now, now}), RegisterAheadResult::kRegistered);
  // The time of that use has passed.
  EXPECT_EQ(ahead(1, {now + kHour, now + kHour}), RegisterAheadResult::kRegistered);
}

// Room for half of it would not help.
TEST(RegistrationCache, ARefusedRegistrationAheadEndsNoOther) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->evicts_idle = true;
  const CacheFixture it(with_policy(policy, 3 * kTestPage));
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no region is registered ahead";
  const MappedPages pages(8);
  EXPECT_FALSE(it.touch(pages.page(0), 2 * kTestPage));
  const RegionName early = policy->last;
  EXPECT_FALSE(it.touch(pages.page(3), 2 * kTestPage));
  const RegionName late = policy->last;
  EXPECT_EQ(policy->control->register_ahead(early, kAnyTime), RegisterAheadResult::kRegistered);
  policy->keep = true;
  EXPECT_FALSE(it.touch(pages.page(6), 1));
  EXPECT_EQ(policy->control->register_ahead(late, {1, INT64_MAX}), RegisterAheadResult::kRefused);
  EXPECT_EQ(it.cache->statistics().evictions, 0u);
  EXPECT_TRUE(it.touch(pages.page(6), 1));
}

// A use must not fail because the policy registers other memory ahead at that moment. The cache
// evicts that registration when it is complete.
TEST(RegistrationCache, AUseTakesTheRoomOfWhatIsBeingRegisteredAhead) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->evicts_idle = true;
  const CacheFixture it(with_policy(policy, kTestPage));
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no region is registered ahead";
  const MappedPages pages(3);
  EXPECT_FALSE(it.touch(pages.get(), kTestPage));
  const RegionName first = policy->last;
  std::binary_semaphore pinning{0};
  std::binary_semaphore go_on{0};
  std::atomic<bool> hold{true};
  it.counts->on_pin = [&](size_t /*bytes*/) {
    if (!hold.exchange(false)) return;
    pinning.release();
    go_on.acquire();
  };
  std::thread ahead([&] {
    EXPECT_EQ(policy->control->register_ahead(first, kAnyTime), RegisterAheadResult::kRegistered);
  });
  pinning.acquire();
  std::thread use([&] { EXPECT_FALSE(it.touch(pages.page(2), kTestPage)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the use meets the full budget
  go_on.release();
  ahead.join();
  use.join();
  EXPECT_LE(it.counts->most_bytes, kTestPage);
  EXPECT_EQ(it.cache->statistics().evictions, 1u);
  it.counts->on_pin = nullptr;
}

// Containers filter userfaultfd. The child has no monitor yet, as it inherits none.
TEST(RegistrationCache, WorksWhereUserfaultfdIsFiltered) {
  EXPECT_TRUE(in_child([] {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(rules), rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      return false;
    }
    std::string said;
    set_diagnostic_sink([&said](const Diagnostic& one) { said = one.what + ": " + one.remedy; });
    const CacheFixture it;
    const MappedPages pages(1);
    const bool first = it.touch(pages.get(), 1);
    const bool second = it.touch(pages.get(), 1);
    return !it.cache->watches() && !first && !second && it.counts->bytes == 0 &&
           said.find("userfaultfd") != std::string::npos;
  }));
}

// A program may lower its limit of descriptors to 0, as sandboxes do: poll(2) then fails.
TEST(RegistrationCache, MemoryCanBeUnmappedWithoutDescriptors) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer does not permit threads after fork";
  EXPECT_TRUE(in_child([] {
    alarm(60);  // an munmap() that waits for ever
    const CacheFixture it;
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return false;
    for (int round = 0; round < 3; ++round) {
      MappedPages pages(1);
      if (it.touch(pages.get(), 1)) return false;
      if (it.cache->watches() && !it.touch(pages.get(), 1)) return false;
      pages.unmap();
    }
    return it.cache->statistics().hits == (it.cache->watches() ? 3u : 0u);
  }));
}

TEST(RegistrationCache, ForkedChildrenUseCachesOfTheirOwn) {
  const CacheFixture it;
  const MappedPages pages(2);
  EXPECT_FALSE(it.touch(pages.get(), 1));
  auto held = it.cache->acquire(pages.page(1), 1);
  EXPECT_TRUE(in_child([&] {
    const auto refused = it.cache->acquire(pages.get(), 1);
    held->release();  // does not end the parent's registration
    return refused.status().code() == absl::StatusCode::kFailedPrecondition &&
           it.counts->unpinned == 0;
  }));
  EXPECT_TRUE(it.touch(pages.get(), 1));
  EXPECT_TRUE(it.touch(pages.page(1), 1));
  if (kThreadSanitizer) return;  // it does not permit threads after fork
  EXPECT_TRUE(in_child([&] {
    const CacheFixture mine;
    const bool first = mine.touch(pages.get(), 1);
    const bool second = mine.touch(pages.get(), 1);
    madvise(pages.get(), kTestPage, MADV_DONTNEED);
    return !first && second && !mine.touch(pages.get(), 1);
  }));
}

TEST(RegistrationCache, SurvivesManyThreads) {
  RegistrationOptions options;
  options.max_bytes = 24 * kTestPage;
  const CacheFixture it(options);
  const MappedPages pages(32);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> wrong{0};
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int round = 0; round < 2000; ++round) {
        const size_t first = random() % 30;
        const size_t count = 1 + random() % 2;
        auto acquired = it.cache->acquire(pages.page(first), count * kTestPage);
        if (!acquired.ok() || acquired->region().address() > pages.page(first) ||
            acquired->region().address() + acquired->region().length() <
                pages.page(first + count)) {
          ++wrong;
        }
        if (round % 64 == 0) it.cache->forget(pages.page(random() % 32), kTestPage);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(it.counts->most_bytes, options.max_bytes);
  it.cache->deregister_all_idle();
  EXPECT_EQ(it.counts->bytes, 0u);
  EXPECT_EQ(it.counts->pinned, it.counts->unpinned);
}

TEST(RegistrationCache, ChunksHoldTwoPieces) {
  const CacheFixture it(with_policy("pipeline"));
  const MappedPages pages(64);
  ChunkedRegistration pieces(*it.cache, pages.get(), pages.bytes(), 4 * kTestPage);
  size_t bytes = 0;
  for (size_t i = 0; !pieces.done(); ++i) {
    const auto piece = pieces.next();
    ASSERT_TRUE(piece.ok());
    EXPECT_EQ(piece->address, pages.page(4 * i));
    bytes += piece->bytes;
  }
  EXPECT_EQ(bytes, pages.bytes());
  EXPECT_EQ(it.counts->most_bytes, 8 * kTestPage);
}

}  // namespace
}  // namespace cariama
