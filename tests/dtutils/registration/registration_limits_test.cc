// Limits that a registration meets: the watches of the process, and those of the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "dtutils/diagnostics.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/mapping_monitor.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/registration/helper_thread.h"
#include "dtutils/registration/pinner.h"
#include "dtutils/registration/registration_cache.h"
#include "dtutils/statistics.h"
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

TEST(RegistrationLimits, TheErrorCountsOnlyWhatCannotBeEvicted) {
  RegistrationOptions options;
  options.max_bytes = 3 * kTestPage;
  const CacheFixture it(options);
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const MappedPages pages(6);
  EXPECT_FALSE(it.touch(pages.page(0), 2 * kTestPage));
  const absl::Status refused = it.cache->acquire(pages.page(2), 4 * kTestPage).status();
  EXPECT_THAT(refused.ToString(), HasSubstr("the budget is 12 KiB, 0 B are in use"));
  EXPECT_THAT(refused.ToString(), HasSubstr("max_bytes to at least 16 KiB"));
  // Nothing was evicted in vain.
  EXPECT_TRUE(it.touch(pages.page(0), 2 * kTestPage));
}

// As where no memory is left for the text of an error.
TEST(RegistrationLimits, AnExceptionLeavesTheRangeUsable) {
  struct ThrowingPolicy final : RegistrationPolicy {
    [[nodiscard]] std::string_view name() const override { return "throwing"; }
    [[nodiscard]] bool ended(const RegionUse& /*use*/) override { return true; }
    [[nodiscard]] bool evicts() const override {
      if (throws) throw std::bad_alloc();
      return true;
    }
    bool throws = false;
  };
  const auto policy = std::make_shared<ThrowingPolicy>();
  const CacheFixture it(testing::with_policy(policy, kTestPage));
  const MappedPages pages(3);
  EXPECT_FALSE(it.touch(pages.page(0), 1));
  policy->throws = true;
  EXPECT_THROW(static_cast<void>(it.cache->acquire(pages.page(2), 1)), std::bad_alloc);
  policy->throws = false;
  EXPECT_FALSE(it.touch(pages.page(2), 1));
  EXPECT_EQ(it.counts->bytes, it.cache->watches() ? kTestPage : 0);
}

TEST(RegistrationLimits, ARoundedNumberOfBytesIsGivenExactly) {
  EXPECT_THAT(
      internal::explain_full_budget({.max_bytes = kMiB, .evicts = true}, kMiB + 4096).ToString(),
      HasSubstr("max_bytes to at least 1.0 MiB (1052672 bytes)"));
}

TEST(RegistrationLimits, ACacheWithoutRegionsIsRefused) {
  RegistrationOptions options;
  options.max_regions = 0;
  const absl::Status refused =
      RegistrationCache::create(std::make_shared<testing::CountingPinner>(), options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

TEST(RegistrationLimits, TheCountersOfACacheAreInTheStatistics) {
  const auto misses = [](std::string_view instance) {
    uint64_t sum = 0;
    for (const Statistic& one : statistics_snapshot()) {
      const bool counts = one.kind == "registration_cache" && one.name == "misses";
      if (counts && one.instance == instance) sum += one.value;
    }
    return sum;
  };
  const uint64_t closed = misses(kClosed);
  {
    const CacheFixture it(testing::with_policy("on-demand"));
    const uint64_t before = misses("on-demand");
    const MappedPages pages(1);
    EXPECT_FALSE(it.touch(pages.get(), 1));
    EXPECT_EQ(misses("on-demand"), before + 1);
  }
  EXPECT_EQ(misses(kClosed), closed + 1);
}

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

// Each error leaves the cache as it was: the next acquire() asks the pinner again.
TEST(RegistrationLimits, APinnerMayThrowOrReturnNoRegion) {
  class BadPinner final : public Pinner {
   public:
    [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* /*address*/,
                                                                    size_t /*bytes*/) override {
      ++calls;
      if (calls <= 2) throw std::bad_alloc();
      if (calls == 3) throw std::runtime_error("no device");
      return std::shared_ptr<MemoryRegion>();
    }
    int calls = 0;
  };
  const auto pinner = std::make_shared<BadPinner>();
  const auto cache = RegistrationCache::create(pinner, {.max_bytes = kMiB}).value();
  const MappedPages pages(1);
  const auto error = [&] { return cache->acquire(pages.get(), 1).status(); };
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = error();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_THAT(std::string(error().message()), HasSubstr("the pinner threw no device"));
  EXPECT_THAT(std::string(error().message()), HasSubstr("the pinner returned no region"));
  EXPECT_EQ(pinner->calls, 4);
  EXPECT_EQ(cache->statistics().registered_bytes, 0u);
}

// The first cache of the child finds no free descriptor, the second one does.
TEST(RegistrationLimits, ACacheWatchesAgainWhenDescriptorsAreFree) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not permit threads after fork";
#endif
  if (!CacheFixture().cache->watches()) GTEST_SKIP() << "the system refuses userfaultfd";
  EXPECT_TRUE(in_child([] {
    alarm(60);
    std::string remedy;
    set_diagnostic_sink([&remedy](const Diagnostic& one) { remedy = one.what + one.remedy; });
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{0, limit.rlim_max};
    // UndefinedBehaviorSanitizer opens a pipe when it meets a class for the first time.
    static_cast<void>(std::generic_category().message(EMFILE));
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return false;
    const bool first = CacheFixture().cache->watches();
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    const bool second = CacheFixture().cache->watches();
    return !first && second && remedy.find("raise ulimit -n") != std::string::npos;
  }));
}

// Arguments of the program that cannot work are errors of the function that needs them.
TEST(RegistrationLimits, OptionsOutOfRangeAreErrors) {
  const auto error = [](const auto& change) {
    RegistrationOptions options;
    HelperOptions helper;
    change(helper);
    options.policy = std::make_shared<HelperPolicy>(helper);
    const auto cache =
        RegistrationCache::create(std::make_shared<testing::CountingPinner>(), options);
    EXPECT_TRUE(cache.ok() || absl::IsInvalidArgument(cache.status())) << cache.status();
    return std::string(cache.status().message());
  };
  using std::chrono::microseconds;
  EXPECT_EQ(error([](HelperOptions& helper) { helper = HelperOptions::improved(); }), "");
  EXPECT_THAT(error([](HelperOptions& helper) { helper.queue_records = 1u << 31; }),
              HasSubstr("queue_records is 2147483648: use 1 to 1048576"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.queue_records = 0; }),
              HasSubstr("queue_records is 0"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.predictor.window = 5; }),
              HasSubstr("predictor.window is 5: use 0 to 4"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.poll_interval = microseconds(0); }),
              HasSubstr("poll_interval is 0 us"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.horizon = microseconds::max(); }),
              HasSubstr("horizon is"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.give_up_after = std::nan(""); }),
              HasSubstr("give_up_after is nan"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.predictor.spread = -1; }),
              HasSubstr("predictor.spread is -1"));
  EXPECT_THAT(error([](HelperOptions& helper) { helper.predictor_kind = PredictorKind{9}; }),
              HasSubstr("predictor_kind is 9"));
}

// The tail of a known range can no longer be registered, for example after mprotect(2).
TEST(RegistrationLimits, AMessageIsRegisteredWithoutTheTailOfItsKnownRange) {
  class ShortPinner final : public Pinner {
   public:
    [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                    size_t bytes) override {
      if (bytes > longest) return absl::InvalidArgumentError("the tail has no access");
      return pinner.pin(address, bytes);
    }
    size_t longest = SIZE_MAX;
    testing::CountingPinner pinner;
  };
  const auto pinner = std::make_shared<ShortPinner>();
  const auto cache = RegistrationCache::create(pinner, testing::with_policy("on-demand")).value();
  const MappedPages pages(2);
  EXPECT_TRUE(cache->acquire(pages.get(), 2 * kTestPage).ok());
  pinner->longest = kTestPage;
  const absl::StatusOr<RegistrationUse> use = cache->acquire(pages.get(), kTestPage);
  EXPECT_TRUE(use.ok()) << use.status();
}

TEST(RegistrationLimits, APinnerNeedsADomain) {
  const auto cache =
      RegistrationCache::create(std::make_shared<DomainPinner>(nullptr, Access::kAll)).value();
  const MappedPages pages(1);
  const absl::Status refused = cache->acquire(pages.get(), 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
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
