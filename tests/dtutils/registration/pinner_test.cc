#include "dtutils/registration/pinner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/read_through.h"
#include "dtutils/registration/registration_cache.h"
#include "dtutils/sim/sim_fabric.h"
#include "dtutils/system_info.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/registration/cache_fixture.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::FakeDomain;
using ::cariama::testing::in_child;
using ::cariama::testing::kTestPage;
using ::cariama::testing::MappedPages;

uint64_t word_through(const MemoryRegion& region, const std::byte* address) {
  uint64_t word = 0;
  const absl::Status read =
      internal::read_through(region, address, std::as_writable_bytes(std::span(&word, 1)));
  EXPECT_TRUE(read.ok()) << read;
  return word;
}

TEST(DomainPinner, RegistersWithTheDomain) {
  auto domain = std::make_shared<FakeDomain>();
  auto cache =
      RegistrationCache::create(std::make_shared<DomainPinner>(domain, Access::kRemoteRead));
  ASSERT_TRUE(cache.ok());
  const MappedPages pages(4);
  {
    const auto acquired = (*cache)->acquire(pages.get(), 5000);
    ASSERT_TRUE(acquired.ok());
    EXPECT_EQ(acquired->region().length(), 2 * kTestPage);
    EXPECT_EQ(acquired->region().access(), Access::kRemoteRead);
  }
  EXPECT_EQ(domain->registrations->live.size(), 1u);
  cache->reset();
  EXPECT_EQ(domain->registrations->ended_while_mapped, 1u);
}

TEST(DomainPinner, PassesErrorsOn) {
  auto domain = std::make_shared<FakeDomain>();
  domain->registrations->refuse_from = 1;
  auto cache = RegistrationCache::create(std::make_shared<DomainPinner>(domain, Access::kAll));
  const MappedPages pages(4);
  auto first = (*cache)->acquire(pages.page(0), 1);
  ASSERT_TRUE(first.ok());
  const auto second = (*cache)->acquire(pages.page(2), 1);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  // The failed registration leaves nothing behind.
  EXPECT_EQ((*cache)->statistics().registered_bytes, kTestPage);
  EXPECT_EQ((*cache)->statistics().registered_regions, 1u);
  domain->registrations->refuse_from = SIZE_MAX;
  EXPECT_TRUE((*cache)->acquire(pages.page(2), 1).ok());
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kForksWithThreads = false;
#elif defined(__has_feature)
constexpr bool kForksWithThreads = !__has_feature(thread_sanitizer);
#else
constexpr bool kForksWithThreads = true;
#endif
// The caches of children have threads, and other tests may have started some in this process.
// ThreadSanitizer does not permit both.
#define SKIP_WITHOUT_THREADS_AFTER_FORK() \
  if (!kForksWithThreads) GTEST_SKIP() << "ThreadSanitizer permits no threads after fork"

// shm pins nothing, so a user with a small RLIMIT_MEMLOCK can lend it as much as root.
TEST(DomainPinner, TheMemlockLimitIsNoBudgetWhereNothingIsPinned) {
  SKIP_WITHOUT_THREADS_AFTER_FORK();
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(1);
    if (geteuid() == 0 && seteuid(65534) != 0) _exit(2);
    auto device = open_device({.transport = Transport::kShm});
    if (!device.ok()) _exit(3);
    auto domain = (*device)->create_domain();
    if (!domain.ok()) _exit(4);
    auto cache = RegistrationCache::create(
        std::make_shared<DomainPinner>(*domain, Access::kLocalWrite | Access::kRemoteRead));
    if (!cache.ok()) _exit(5);
    const MappedPages pages(256);
    _exit((*cache)->acquire(pages.get(), pages.bytes()).ok() ? 0 : 6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Root without CAP_IPC_LOCK (a container, for example) has the limit, too.
TEST(DomainPinner, TheMemlockLimitIsTheBudgetOfProcessesWithoutTheCapability) {
  SKIP_WITHOUT_THREADS_AFTER_FORK();
  for (const bool capable : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit{1 << 20, 1 << 20};
      if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(1);
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct sets[2];
      if (syscall(SYS_capget, &header, sets) != 0) _exit(2);
      if (capable && (sets[0].effective >> CAP_IPC_LOCK & 1) == 0) _exit(0);
      if (!capable) sets[0].effective &= ~(1U << CAP_IPC_LOCK);
      if (syscall(SYS_capset, &header, sets) != 0) _exit(3);
      auto cache = RegistrationCache::create(
          std::make_shared<DomainPinner>(std::make_shared<FakeDomain>(), Access::kAll));
      if (!cache.ok()) _exit(4);
      const MappedPages pages(230);  // more than 80 % of the limit
      const absl::Status status = (*cache)->acquire(pages.get(), pages.bytes()).status();
      if (status.ok() != capable) _exit(5);
      const std::string text(status.message());
      const bool explained = text.find("80 % of RLIMIT_MEMLOCK") != std::string::npos &&
                             text.find("ulimit -l 1150") != std::string::npos;
      _exit(capable || explained ? 0 : 6);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << capable;
  }
}

TEST(MemoryLimits, ErrorsNameTheLimitAndTheValueNeeded) {
  internal::MemoryLimits limits;
  limits.memlock = 64 << 10;
  limits.locked = 16 << 10;
  std::string text(internal::explain_no_memory(limits, 1 << 20).message());
  EXPECT_THAT(text, ::testing::HasSubstr("RLIMIT_MEMLOCK is 64 KiB"));
  EXPECT_THAT(text, ::testing::HasSubstr("ulimit -l 1040"));
  limits.max_map_count = 65530;
  limits.mappings = 65529;
  text = std::string(internal::explain_no_memory(limits, 1 << 20).message());
  EXPECT_THAT(text, ::testing::HasSubstr("vm.max_map_count is 65530"));
  EXPECT_THAT(text, ::testing::HasSubstr("vm.max_map_count=131060"));
}

TEST(MemoryLimits, TheMemlockLimitIsNoCauseWithTheCapability) {
  for (const bool capable : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit{1 << 20, 1 << 20};
      if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(1);
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct sets[2];
      if (syscall(SYS_capget, &header, sets) != 0) _exit(2);
      if (!capable) sets[0].effective &= ~(1U << CAP_IPC_LOCK);
      if (syscall(SYS_capset, &header, sets) != 0) _exit(3);
      if (capable && !query_memory_lock_limit().may_exceed) _exit(0);
      const absl::Status error =
          internal::explain_no_memory(internal::query_memory_limits(), 2 << 20);
      _exit((error.message().find("MEMLOCK") == absl::string_view::npos) == capable ? 0 : 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << capable;
  }
}

TEST(DomainPinner, RefusesMemoryThatIsNotMapped) {
  SimFabric cluster;
  auto shm = open_device({.transport = Transport::kShm});
  ASSERT_TRUE(shm.ok()) << shm.status();
  for (const std::shared_ptr<Device>& device :
       {std::shared_ptr<Device>(*shm), std::shared_ptr<Device>(cluster.create_endpoint())}) {
    auto domain = device->create_domain();
    ASSERT_TRUE(domain.ok()) << domain.status();
    auto cache = RegistrationCache::create(std::make_shared<DomainPinner>(*domain, Access::kAll));
    ASSERT_TRUE(cache.ok()) << cache.status();
    const MappedPages pages(3);
    ASSERT_EQ(munmap(pages.page(1), kTestPage), 0);
    const auto hole = (*cache)->acquire(pages.page(0), 3 * kTestPage);
    EXPECT_EQ(hole.status().code(), absl::StatusCode::kInvalidArgument);
    char range[64];
    std::snprintf(range, sizeof(range), "12 KiB at %p", static_cast<void*>(pages.page(0)));
    EXPECT_THAT(std::string(hole.status().message()), ::testing::HasSubstr(range));
    EXPECT_EQ((*cache)->acquire(pages.page(1), 8).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ((*cache)->statistics().registered_bytes, 0u);
    EXPECT_TRUE((*cache)->acquire(pages.page(0), 8).ok());
    EXPECT_TRUE((*cache)->acquire(pages.page(2), kTestPage).ok());
  }
}

TEST(DomainPinner, TheDomainTellsWhetherItPins) {
  auto pins = std::make_shared<FakeDomain>();
  EXPECT_TRUE(DomainPinner(pins, Access::kAll).counts_against_memlock());
  SimFabric cluster;
  const std::shared_ptr<Device> simulated = cluster.create_endpoint();
  for (const std::shared_ptr<Device>& device :
       {simulated, make_fault_device(simulated, FaultOptions::benign(1))}) {
    auto domain = device->create_domain();
    ASSERT_TRUE(domain.ok()) << domain.status();
    EXPECT_FALSE(DomainPinner(*domain, Access::kAll).counts_against_memlock());
  }
}

TEST(IoUringPinner, PinsUntilTheEnd) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  MappedPages pages(2);
  std::memset(pages.get(), 0x11, pages.bytes());
  auto region = (*pinner)->pin(pages.get(), pages.bytes());
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_FALSE(IoUringPinner::accounted_only(**region));
  EXPECT_EQ(word_through(**region, pages.page(1)), 0x1111111111111111u);
  std::byte* const address = pages.get();
  pages.unmap();
  // A stale registration reads pages that are no longer mapped at the address.
  EXPECT_EQ(word_through(**region, address), 0x1111111111111111u);
}

TEST(IoUringPinner, AccountsForReadOnlyMemoryAndRefusesHoles) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  const MappedPages pages(4);
  mprotect(pages.page(0), kTestPage, PROT_READ);
  auto read_only = (*pinner)->pin(pages.page(0), kTestPage);
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  EXPECT_TRUE(IoUringPinner::accounted_only(**read_only));
  munmap(pages.page(2), kTestPage);
  EXPECT_EQ((*pinner)->pin(pages.page(1), 3 * kTestPage).status().code(),
            absl::StatusCode::kInvalidArgument);
  // All slots are free again.
  std::vector<std::shared_ptr<MemoryRegion>> regions;
  for (int i = 0; i < 4; ++i) {
    auto one = (*pinner)->pin(pages.page(1), kTestPage);
    ASSERT_TRUE(one.ok()) << one.status();
    regions.push_back(*one);
  }
  EXPECT_EQ((*pinner)->pin(pages.page(1), kTestPage).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(IoUringPinner, SaysThatTheProgramHasClosedItsDescriptor) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not permit threads after fork";
#endif
  EXPECT_TRUE(in_child([] {
    auto pinner = IoUringPinner::create(4);
    const MappedPages pages(1);
    if (!pinner.ok() || close_range(3, ~0U, 0) != 0) return false;
    const absl::Status refused = (*pinner)->pin(pages.get(), kTestPage).status();
    return refused.message().find("do not close descriptors") != absl::string_view::npos;
  }));
}

TEST(IoUringPinner, AccountsForMemoryOfFiles) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  char name[] = "/tmp/cariama-pinner-XXXXXX";
  const FileDescriptor file(mkstemp(name));
  ASSERT_TRUE(file.valid());
  unlink(name);
  struct statfs system {};
  ASSERT_EQ(fstatfs(file.get(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "/tmp is not on a disk";
  ASSERT_EQ(ftruncate(file.get(), kTestPage), 0);
  void* const memory = mmap(nullptr, kTestPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  {
    auto region = (*pinner)->pin(static_cast<std::byte*>(memory), kTestPage);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE(IoUringPinner::accounted_only(**region));
  }
  munmap(memory, kTestPage);
}

// A write of the parent after fork() must not give the parent a copy of a pinned page.
TEST(IoUringPinner, PinnedPagesStayThoseOfTheParentAfterFork) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  const MappedPages pages(1);
  std::memset(pages.get(), 0x11, pages.bytes());
  auto region = (*pinner)->pin(pages.get(), pages.bytes());
  ASSERT_TRUE(region.ok()) << region.status();
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  std::memset(pages.get(), 0x22, pages.bytes());
  EXPECT_EQ(word_through(**region, pages.get()), 0x2222222222222222u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::memset(pages.get(), 0x33, pages.bytes());
  EXPECT_EQ(word_through(**region, pages.get()), 0x3333333333333333u);
}

// The child has the descriptor of its parent's ring.
TEST(IoUringPinner, AForkedChildDoesNotChangeThePinsOfItsParent) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not permit threads after fork";
#endif
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  const MappedPages pages(2);
  std::memset(pages.get(), 0x11, pages.bytes());
  auto region = (*pinner)->pin(pages.page(0), kTestPage);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(in_child([&] {
    const absl::Status refused = (*pinner)->pin(pages.page(1), kTestPage).status();
    region->reset();
    pinner->reset();
    return absl::IsFailedPrecondition(refused);
  }));
  EXPECT_EQ(word_through(**region, pages.page(0)), 0x1111111111111111u);
}

TEST(IoUringPinner, RefusesImpossibleLengths) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  const MappedPages pages(1);
  EXPECT_TRUE(absl::IsInvalidArgument((*pinner)->pin(pages.get(), SIZE_MAX / 2).status()));
}

// Pins, uses and unmaps `size` bytes of memory, through a cache.
void expect_pinned(void* memory, size_t size) {
  auto pinner = IoUringPinner::create(4);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  auto* const bytes = static_cast<std::byte*>(memory);
  std::memset(bytes, 0x22, size);
  {
    auto cache = RegistrationCache::create(*pinner).value();
    auto used = cache->acquire(bytes + size / 2, 5 * kTestPage);
    ASSERT_TRUE(used.ok()) << used.status();
    EXPECT_FALSE(IoUringPinner::accounted_only(used->region()));
    EXPECT_EQ(word_through(used->region(), bytes + size / 2), 0x2222222222222222u);
    used->release();
    EXPECT_TRUE(cache->acquire(bytes + size / 2, 5 * kTestPage)->was_hit());
    munmap(memory, size);
    const auto again = cache->acquire(bytes + size / 2, 5 * kTestPage);
    // Another thread's memory may be mapped there by now.
    EXPECT_TRUE(again.ok() ? !again->was_hit() : absl::IsInvalidArgument(again.status()));
  }
}

TEST(IoUringPinner, PinsMemoryFiles) {
  constexpr size_t kBytes = 64 * kTestPage;
  const FileDescriptor file(memfd_create("cariama-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  expect_pinned(memory, kBytes);
}

// Skipped where the pool of huge pages is empty: this test does not resize it.
TEST(IoUringPinner, PinsHugePages) {
  constexpr size_t kBytes = size_t{2} << 20;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no huge page of 2 MiB is free (vm.nr_hugepages)";
  expect_pinned(memory, kBytes);
}

TEST(IoUringPinner, PinsMemoryFilesOfHugePages) {
  constexpr size_t kBytes = size_t{2} << 20;
  const FileDescriptor file(memfd_create("cariama-test", MFD_CLOEXEC | MFD_HUGETLB));
  void* memory = MAP_FAILED;
  if (file.valid() && ftruncate(file.get(), kBytes) == 0) {
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  }
  if (memory == MAP_FAILED) GTEST_SKIP() << "no huge page of 2 MiB is free (vm.nr_hugepages)";
  expect_pinned(memory, kBytes);
}

// The limit counts for users without CAP_IPC_LOCK, so the child becomes one.
TEST(IoUringPinner, TheErrorNamesTheMemlockLimit) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(1);
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(1);
    auto pinner = IoUringPinner::create(64);
    const MappedPages pages(512);
    std::string text = "io_uring is refused";
    if (pinner.ok()) {
      const auto region = (*pinner)->pin(pages.get(), pages.bytes());
      text = std::string(region.status().message());
    }
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[512] = {};
  EXPECT_GT(read(ends[0], text, sizeof(text) - 1), 0);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, ::testing::HasSubstr("RLIMIT_MEMLOCK is 1 MiB"));
  EXPECT_THAT(text, ::testing::HasSubstr("raise it to at least 2 MiB (ulimit -l 2048)"));
}

// Thousands of rounds of unmapping, discarding and moving memory between uses: each use must read
// through its registration what the program wrote at the address.
TEST(IoUringPinner, NoStaleRegistrationIsEverUsed) {
  auto pinner = IoUringPinner::create(1024);
  ASSERT_TRUE(pinner.ok()) << pinner.status();
  RegistrationOptions options;
  options.max_bytes = 48 * kTestPage;
  auto created = RegistrationCache::create(*pinner, options);
  RegistrationCache& cache = **created;
  ASSERT_TRUE(cache.watches());
  constexpr size_t kPages = 64;
  const MappedPages arena(kPages);
  std::mt19937 random(17);
  const auto map_at = [](std::byte* address, size_t bytes) {
    mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  };
  uint64_t stale = 0;
  uint64_t next_word = 1;
  for (int round = 0; round < 5000; ++round) {
    const size_t first = random() % (kPages - 8);
    const size_t count = 1 + random() % 8;
    std::byte* const start = arena.page(first);
    switch (random() % 6) {
      case 0:
        munmap(start, count * kTestPage);
        map_at(start, count * kTestPage);
        break;
      case 1:
        madvise(start, count * kTestPage, MADV_DONTNEED);
        break;
      case 2:
        map_at(start, count * kTestPage);
        break;
      case 3: {
        // The pages of the range move over those at the start of the arena.
        if (first < 8) break;
        // The kernel unmaps the destination first, and then refuses a source of several mappings:
        // monitored and unmonitored pages are different mappings.
        if (mremap(start, count * kTestPage, count * kTestPage, MREMAP_MAYMOVE | MREMAP_FIXED,
                   arena.get()) == MAP_FAILED) {
          map_at(arena.get(), count * kTestPage);
        }
        map_at(start, count * kTestPage);
        break;
      }
      default:
        break;
    }
    const size_t used = random() % (kPages - 4);
    const size_t used_pages = 1 + random() % 4;
    for (size_t i = 0; i < used_pages; ++i) {
      std::memcpy(arena.page(used + i), &++next_word, sizeof(next_word));
    }
    const auto acquired = cache.acquire(arena.page(used), used_pages * kTestPage);
    ASSERT_TRUE(acquired.ok()) << acquired.status();
    for (size_t i = 0; i < used_pages; ++i) {
      uint64_t expected = 0;
      std::memcpy(&expected, arena.page(used + i), sizeof(expected));
      if (word_through(acquired->region(), arena.page(used + i)) != expected) ++stale;
    }
  }
  EXPECT_EQ(stale, 0u);
  const RegistrationStatistics statistics = cache.statistics();
  EXPECT_GT(statistics.hits, 100u);
  EXPECT_GT(statistics.invalidations, 100u);
  EXPECT_LE(statistics.peak_bytes, options.max_bytes);
}

}  // namespace
}  // namespace cariama
