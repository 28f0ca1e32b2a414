// Obligation 1 of docs/registration.md, for two threads: one thread unmaps registered memory while
// another thread maps memory at the same addresses and acquires it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/cache_fixture.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::CacheFixture;
using ::cariama::testing::kTestPage;
using ::cariama::testing::MappedPages;

constexpr int kRounds = 2000;

// Returns in how many rounds the second thread got a registration of the pages that the first
// thread unmapped. `forgets`: the first thread calls forget() before it unmaps.
int count_stale(Invalidation invalidation, bool forgets) {
  RegistrationOptions options;
  options.invalidation = invalidation;
  const CacheFixture it(options);
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  void* const memory = mmap(nullptr, kTestPage, kProtection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::barrier both(2);
  int stale = 0;
  std::thread unmaps([&] {
    for (int round = 0; round < kRounds; ++round) {
      it.touch(memory, kTestPage);
      both.arrive_and_wait();
      if (forgets) it.cache->forget(memory, kTestPage);
      munmap(memory, kTestPage);
      both.arrive_and_wait();
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    both.arrive_and_wait();
    while (mmap(memory, kTestPage, kProtection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                -1, 0) != memory) {
    }
    if (it.touch(memory, kTestPage)) ++stale;
    both.arrive_and_wait();
  }
  unmaps.join();
  munmap(memory, kTestPage);
  return stale;
}

TEST(UnmappingRace, MemoryIsNeverStale) {
  EXPECT_EQ(count_stale(Invalidation::kAutomatic, false), 0);
}

TEST(UnmappingRace, ForgottenMemoryIsNeverStale) {
  RecordProperty("stale_rounds_without_forget",
                 std::to_string(count_stale(Invalidation::kOneThread, false)));
  EXPECT_EQ(count_stale(Invalidation::kOneThread, true), 0);
}

// At each moment one of them changes watched memory.
TEST(UnmappingRace, ThreadsThatDiscardMemoryAllTheTimeHoldUpNoUse) {
  const CacheFixture it;
  if (!it.cache->watches()) GTEST_SKIP() << "without userfaultfd there is no event to wait for";
  const MappedPages pages(6);
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::vector<std::thread> others;
  for (const size_t page : {0, 2}) {
    EXPECT_FALSE(it.touch(pages.page(page), kTestPage));
    others.emplace_back([&, page] {
      while (!stop.load()) {
        madvise(pages.page(page), kTestPage, MADV_DONTNEED);
        ++rounds;
      }
    });
  }
  while (rounds.load() < 1000) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(it.cache->acquire(pages.page(4), kTestPage).ok());
  stop.store(true);
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace cariama
