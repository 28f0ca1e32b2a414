// The notification of changed mappings, seen from the thread that changes one: it never waits for a
// lock that it holds itself (docs/registration.md, obligation 4). The monitor's thread only reads
// events.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/diagnostics.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::CountingPinner;
using ::cariama::testing::kTestPage;
using ::cariama::testing::MappedPages;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

std::unique_ptr<RegistrationCache> make_watching_cache(RegistrationOptions options = {}) {
  options.max_bytes = uint64_t{1} << 30;
  return RegistrationCache::create(std::make_shared<CountingPinner>(), std::move(options)).value();
}

bool touch(RegistrationCache& cache, const void* address, size_t bytes) {
  auto acquired = cache.acquire(address, bytes);
  EXPECT_TRUE(acquired.ok()) << acquired.status();
  return acquired.ok() && acquired->was_hit();
}

// A child has a monitor of its own, and an end of its own if it hangs. ThreadSanitizer does not
// permit threads after fork.
class MappingNotification : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "needs glibc's malloc, and threads after fork";
    if (!make_watching_cache()->watches()) GTEST_SKIP() << "userfaultfd is refused";
  }
};

// The exit code of a child that runs `body`: 0 if it returned true.
template <typename Body>
int exit_code_in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a munmap() that waits for ever
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// free() returns the top of the heap to the kernel while it holds the lock of the only arena. A
// monitor that allocated would wait for this lock, and free() for the monitor.
TEST_F(MappingNotification, FreeMayUnmapWhileItHoldsTheLockOfMalloc) {
  EXPECT_EQ(exit_code_in_child([] {
              mallopt(M_ARENA_MAX, 1);
              mallopt(M_MMAP_THRESHOLD, 32 << 20);
              mallopt(M_TRIM_THRESHOLD, 0);
              mallopt(M_TOP_PAD, 0);
              const auto cache = make_watching_cache();
              // Each block is larger than all before, so that it fits into no gap of the heap and
              // is its top. The first one may have later allocations of the cache above it.
              constexpr size_t kRounds = 200;
              for (size_t round = 0; round < kRounds; ++round) {
                const size_t size = (size_t{4} << 20) + round * kTestPage;
                auto* const block = static_cast<char*>(std::malloc(size));
                const auto address = reinterpret_cast<uintptr_t>(block);
                block[0] = 1;
                // The pages that are of the block alone, and are unmapped with it.
                const uintptr_t from = (address + kTestPage) / kTestPage * kTestPage;
                const auto* const pages = reinterpret_cast<const char*>(from);
                const size_t bytes = (address + size - from) / kTestPage * kTestPage;
                if (touch(*cache, pages, bytes) || !touch(*cache, pages, bytes)) return false;
                std::free(block);
              }
              return cache->statistics().invalidations >= kRounds - 10;
            }),
            0);
}

// The cache calls on_change with its lock held.
TEST_F(MappingNotification, MemoryMayBeUnmappedUnderTheLockOfTheCache) {
  EXPECT_EQ(exit_code_in_child([] {
              for (int round = 0; round < 200; ++round) {
                MappedPages unmapped(4);
                const MappedPages used(4);
                std::atomic<bool> armed{false};
                RegistrationOptions options;
                options.on_change = [&](int64_t, uint64_t) {
                  if (armed.exchange(false)) unmapped.unmap();
                };
                const auto cache = make_watching_cache(std::move(options));
                touch(*cache, unmapped.get(), unmapped.bytes());
                armed = true;
                touch(*cache, used.get(), used.bytes());
                if (armed || unmapped.get() != nullptr) return false;
                if (!touch(*cache, used.get(), used.bytes())) return false;
              }
              return true;
            }),
            0);
}

// A handler may unmap memory. In the monitor's thread it would wait for itself. In the helper's
// thread it would stop the cache, whose lock the helper may have.
TEST_F(MappingNotification, TheThreadsOfTheCacheRunNoSignalHandler) {
  static std::atomic<int> handled;
  handled = 0;
  EXPECT_EQ(exit_code_in_child([] {
              RegistrationOptions options;
              options.policy = make_registration_policy("helper").value();
              const auto cache = make_watching_cache(std::move(options));
              struct sigaction action {};
              action.sa_handler = [](int) { ++handled; };
              sigset_t usual;
              sigemptyset(&usual);
              sigaddset(&usual, SIGUSR1);
              if (sigaction(SIGUSR1, &action, nullptr) != 0) return false;
              // Now the process has two other threads: the monitor's and the helper's.
              pthread_sigmask(SIG_BLOCK, &usual, nullptr);
              kill(getpid(), SIGUSR1);
              for (int round = 0; round < 100; ++round) {
                MappedPages pages(1);
                touch(*cache, pages.get(), 1);
                pages.unmap();
                touch(*cache, &round, 1);  // waits until the monitor has processed the event
              }
              sigset_t pending;
              sigpending(&pending);
              if (handled != 0 || sigismember(&pending, SIGUSR1) != 1) return false;
              pthread_sigmask(SIG_UNBLOCK, &usual, nullptr);
              return handled == 1;
            }),
            0);
}

// An unprivileged user may watch its own accesses only (UFFD_USER_MODE_ONLY), which suffices.
TEST_F(MappingNotification, NoticesChangesWithoutPrivileges) {
  EXPECT_EQ(exit_code_in_child([] {
              if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return false;
              const auto cache = make_watching_cache();
              if (!cache->watches()) return false;
              const MappedPages pages(1);
              return !touch(*cache, pages.get(), 1) && touch(*cache, pages.get(), 1) &&
                     mmap(pages.get(), kTestPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == pages.get() &&
                     !touch(*cache, pages.get(), 1);
            }),
            0);
}

// A sink may call the cache. The memory cannot be watched, because another userfaultfd does.
TEST_F(MappingNotification, ADiagnosticIsReportedWithoutTheLockOfTheCache) {
  EXPECT_EQ(exit_code_in_child([] {
              const MappedPages pages(1);
              const FileDescriptor other(static_cast<int>(
                  syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
              uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
              uffdio_register watch{};
              watch.range = {reinterpret_cast<uintptr_t>(pages.get()), kTestPage};
              watch.mode = UFFDIO_REGISTER_MODE_MISSING;
              if (ioctl(other.get(), UFFDIO_API, &api) != 0 ||
                  ioctl(other.get(), UFFDIO_REGISTER, &watch) != 0) {
                return false;
              }
              const std::vector<Diagnostic> earlier = reported_diagnostics();
              const bool is_first = std::none_of(
                  earlier.begin(), earlier.end(),
                  [](const Diagnostic& one) { return one.key == "registration.unwatched"; });
              const auto cache = make_watching_cache();
              int reports = 0;
              set_diagnostic_sink([&](const Diagnostic&) {
                ++reports;
                static_cast<void>(cache->statistics());
              });
              return !touch(*cache, pages.get(), 1) && !touch(*cache, pages.get(), 1) &&
                     reports == (is_first ? 1 : 0);
            }),
            0);
}

// Programs close all descriptors that they do not know, before they become a daemon.
TEST_F(MappingNotification, WatchedMemoryStaysWatchedIfTheProgramClosesAllDescriptors) {
  EXPECT_EQ(exit_code_in_child([] {
              const auto cache = make_watching_cache();
              const MappedPages pages(1);
              const MappedPages others(1);
              if (touch(*cache, pages.get(), 1) || !touch(*cache, pages.get(), 1)) return false;
              syscall(SYS_close_range, 3, ~0U, 0);
              for (int round = 0; round < 2; ++round) {
                void* const again = mmap(pages.get(), kTestPage, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                if (again != pages.get()) return false;
                // A new registration cannot be watched any more, and ends with its use.
                if (touch(*cache, pages.get(), 1) || touch(*cache, others.get(), 1)) return false;
              }
              return cache->statistics().invalidations == 1 &&
                     cache->statistics().registered_bytes == 0;
            }),
            0);
}

// Returns the flags of the mapping at the address: "uw" if a userfaultfd watches its writes.
std::string mapping_flags(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &from, &to) == 2) {
      const auto here = reinterpret_cast<uintptr_t>(address);
      inside = from <= here && here < to;
    }
    if (inside && line.starts_with("VmFlags:")) return line + ' ';
  }
  return {};
}

TEST_F(MappingNotification, AHoleDoesNotWatchItsNeighbours) {
  const MappedPages pages(2048);
  const auto cache = make_watching_cache();
  std::byte* const hole = pages.page(1024);
  touch(*cache, pages.get(), 1);
  EXPECT_NE(mapping_flags(pages.get()).find(" uw "), std::string::npos);
  ASSERT_EQ(munmap(hole, kTestPage), 0);
  touch(*cache, hole, 1);  // the pinner of this test does not look at the memory
  EXPECT_EQ(mapping_flags(hole - kTestPage).find(" uw "), std::string::npos);
  EXPECT_EQ(mapping_flags(hole + kTestPage).find(" uw "), std::string::npos);
}

// Returns how often the threads of a process gave up their cores by themselves.
uint64_t voluntary_switches(pid_t process) {
  uint64_t sum = 0;
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream status(task.path() / "status");
    std::string word;
    uint64_t count = 0;
    while (status >> word) {
      if (word == "voluntary_ctxt_switches:" && status >> count) sum += count;
    }
  }
  return sum;
}

// poll(2) fails if a program lowers its limit of descriptors to 0. A monitor that then looked every
// millisecond would wake a hundred times here.
TEST_F(MappingNotification, TheMonitorSleepsWithoutDescriptors) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  FileDescriptor ready(ends[0]);
  FileDescriptor tell(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const auto cache = make_watching_cache();
    const rlimit none{0, 0};
    MappedPages pages(1);
    touch(*cache, pages.get(), 1);
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) _exit(1);
    pages.unmap();  // now the monitor sleeps in its next wait
    if (write(tell.get(), "", 1) != 1) _exit(1);
    while (true) pause();
  }
  tell.reset();
  char byte = 0;
  EXPECT_EQ(read(ready.get(), &byte, 1), 1);
  const uint64_t before = voluntary_switches(child);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(voluntary_switches(child), before + 20);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace cariama
