// How registrations end: by a use that did not make them, by deregister_all_idle(), in a child.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/cache_fixture.h"
#include "tests/dtutils/registration/pinning_domain.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama {
namespace {

using ::cariama::testing::CacheFixture;
using ::cariama::testing::in_child;
using ::cariama::testing::kAnyTime;
using ::cariama::testing::kTestPage;
using ::cariama::testing::ManualPolicy;
using ::cariama::testing::MappedPages;

// A piece of one message may lie in memory that another message has registered.
TEST(RegistrationEnd, ATransientUseEndsOnlyItsOwnRegistration) {
  const auto policy = std::make_shared<ManualPolicy>();
  policy->keep = true;
  RegistrationOptions options;
  options.policy = policy;
  const CacheFixture it(options);
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  const MappedPages pages(4);
  EXPECT_FALSE(it.touch(pages.get(), pages.bytes()));
  const RegionName registered = policy->last;
  {
    const auto piece = it.cache->acquire(pages.page(2), kTestPage, {.transient = true});
    ASSERT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(piece->was_hit());
  }
  EXPECT_EQ(policy->control->register_ahead(registered, kAnyTime),
            RegisterAheadResult::kAlreadyRegistered);
  EXPECT_TRUE(it.touch(pages.get(), pages.bytes()));
  // The policy decides about its region after each use: it may have waited for the end of this one.
  EXPECT_EQ(policy->stacks.size(), 3u);
}

// Meanwhile another thread deregisters other memory.
TEST(RegistrationEnd, DeregisterAllIdleCountsItsOwnDeregistrations) {
  RegistrationOptions options;
  options.max_regions = 3;
  const CacheFixture it(options);
  const MappedPages pages(8);
  for (const size_t page : {0, 2, 4, 6}) EXPECT_FALSE(it.touch(pages.page(page), kTestPage));
  ASSERT_EQ(it.cache->statistics().evictions, 1u);
  bool first = true;
  it.counts->on_unpin = [&](size_t /*bytes*/) {
    // Called without the lock of the cache.
    if (std::exchange(first, false)) {
      std::thread([&] { EXPECT_EQ(it.cache->forget(pages.page(6), kTestPage), 1u); }).join();
    }
  };
  EXPECT_EQ(it.cache->deregister_all_idle(), 2 * kTestPage);
  it.counts->on_unpin = nullptr;
  EXPECT_EQ(it.cache->statistics().evictions, 1u);
  EXPECT_EQ(it.counts->bytes, 0u);
}

// A child has a copy of the cache in which a thread waits that the child does not have.
TEST(RegistrationEnd, AChildMayDestroyACacheForWhichAThreadOfItsParentWaits) {
  CacheFixture it;
  const MappedPages pages(1);
  std::binary_semaphore pinning{0};
  std::binary_semaphore go_on{0};
  it.counts->on_pin = [&](size_t /*bytes*/) {
    pinning.release();
    go_on.acquire();
  };
  std::thread registering([&] { EXPECT_FALSE(it.touch(pages.get(), 1)); });
  pinning.acquire();
  std::atomic<pid_t> waiter{0};
  std::thread waiting([&] {
    waiter = static_cast<pid_t>(syscall(SYS_gettid));
    EXPECT_FALSE(it.touch(pages.get(), 1));
  });
  // The lock of the cache is free, so the thread sleeps only in its wait for the registration.
  while (waiter == 0 || testing::process_state(waiter) != 'S') std::this_thread::yield();
  EXPECT_TRUE(in_child([&] {
    alarm(20);
    it.cache.reset();
    return true;
  }));
  go_on.release();
  registering.join();
  waiting.join();
  it.counts->on_pin = nullptr;
}

}  // namespace
}  // namespace cariama
