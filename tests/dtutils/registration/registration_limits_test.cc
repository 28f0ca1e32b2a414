// Limits that a registration meets: the watches of the process, and those of the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/mapping_monitor.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/cache_fixture.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::CacheFixture;
using ::cariama::testing::in_child;
using ::cariama::testing::kTestPage;
using ::cariama::testing::ManualPolicy;
using ::cariama::testing::MappedPages;
using internal::explain_no_memory;
using internal::kMiB;
using ::testing::HasSubstr;
using ::testing::Not;

// In a child: the other tests of this process need watches, too.
TEST(RegistrationLimits, IdleRangesGiveUpTheirWatches) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not permit threads after fork";
#endif
  EXPECT_TRUE(in_child([] {
    alarm(60);
    const auto policy = std::make_shared<ManualPolicy>();
    RegistrationOptions options;
    options.policy = policy;
    options.max_idle_ranges = 2 * internal::MappingMonitor::kMaxWatches;
    // The child ends without the destructor, which would end each watch by itself.
    auto& it = *new CacheFixture(options);
    if (!it.cache->watches()) return true;
    const MappedPages pages(internal::MappingMonitor::kMaxWatches + 8);
    size_t page = 0;
    for (; page < internal::MappingMonitor::kMaxWatches; ++page) it.touch(pages.page(page), 1);
    policy->keep = true;
    const bool first = it.touch(pages.page(page), 1);
    return !first && it.touch(pages.page(page), 1) && policy->forgotten_regions == 1;
  }));
}

// The kernel reports one error for RLIMIT_MEMLOCK, for its own memory, and for an adapter that has
// no more regions.
TEST(RegistrationLimits, MemlockIsNamedOnlyIfItIsMet) {
  const std::string met(
      explain_no_memory({.memlock = 64 * kMiB, .locked = 63 * kMiB}, 2 * kMiB).message());
  EXPECT_THAT(met, HasSubstr("RLIMIT_MEMLOCK is 64 MiB, 63 MiB are pinned"));
  EXPECT_THAT(met, HasSubstr("raise it to at least 65 MiB"));
  const std::string other(
      explain_no_memory({.memlock = 64 * kMiB, .locked = 1 * kMiB}, 1 * kMiB).message());
  EXPECT_THAT(other, Not(HasSubstr("at least 2 MiB")));
  EXPECT_THAT(other, HasSubstr("the kernel or the device has no memory"));
  EXPECT_THAT(other, HasSubstr("max_regions"));
}

TEST(RegistrationLimits, LeavePinnedHasIdleRegionsAtTheLimitOfRegions) {
  RegistrationOptions options = testing::with_policy("leave-pinned");
  options.max_regions = 1;
  const CacheFixture it(options);
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const MappedPages pages(2);
  EXPECT_FALSE(it.touch(pages.page(0), 1));
  const auto refused = it.cache->acquire(pages.page(1), 1);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("stay registered"));
}

}  // namespace
}  // namespace cariama
