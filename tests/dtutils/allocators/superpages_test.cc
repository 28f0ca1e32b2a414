#include "dtutils/allocators/superpages.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/huge_pages.h"
#include "dtutils/internal/page_query.h"
#include "dtutils/system_info.h"
#include "tests/dtutils/allocators/fake_domain.h"
#include "tests/dtutils/allocators/huge_page_pool.h"

namespace cariama {
namespace {

using internal::kMiB;

using RaisedPool = ::cariama::testing::HugePagePool;
using ::testing::HasSubstr;

bool is_mapped(const std::byte* address) {
  unsigned char present = 0;
  return mincore(const_cast<std::byte*>(address), 1, &present) == 0;
}

size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// Writes a word to a sysfs file, and restores the previous word on destruction.
class Setting {
 public:
  Setting(std::string path, const std::string& word) : path_(std::move(path)) {
    std::string words;
    std::getline(std::ifstream(path_) >> std::ws, words);
    const size_t open = words.find('[');
    if (open == std::string::npos) return;
    before_ = words.substr(open + 1, words.find(']') - open - 1);
    done_ = write(word);
  }
  ~Setting() {
    if (done_) write(before_);
  }
  [[nodiscard]] bool done() const { return done_; }

 private:
  bool write(const std::string& word) const {
    std::ofstream file(path_);
    file << word << std::flush;
    return file.good();
  }
  std::string path_;
  std::string before_;
  bool done_ = false;
};

TEST(Superpage, IsSealedPopulatedAndSharedByItsDescriptor) {
  const auto page = Superpage::obtain({.bytes = 4 * kMiB});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->length(), 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(page->address()) % (2 * kMiB), 0u);
  EXPECT_EQ(page->source().address, page->address());
  EXPECT_EQ(page->source().length, page->length());
  EXPECT_EQ(page->source().descriptor, page->descriptor());

  ASSERT_GE(page->descriptor(), 0);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(fcntl(page->descriptor(), F_GET_SEALS) & kSeals, kSeals);
  EXPECT_NE(ftruncate(page->descriptor(), 0), 0) << "otherwise a peer could truncate the memory";
  EXPECT_EQ(errno, EPERM);

  std::memset(page->address(), 0x5a, page->length());
  void* const other = mmap(nullptr, page->length(), PROT_READ, MAP_SHARED, page->descriptor(), 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_EQ(std::memcmp(other, page->address(), page->length()), 0);
  munmap(other, page->length());
}

TEST(Superpage, AnonymousHasNoDescriptor) {
  const auto page = Superpage::obtain({.bytes = 100'000, .shareable = false});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->descriptor(), -1);
  EXPECT_GE(page->length(), 100'000u);
  EXPECT_LT(page->length(), 100'000u + 65536u) << "rounded to base pages, no further";
  std::memset(page->address(), 1, page->length());
}

TEST(Superpage, OwnsItsMemoryAndDescriptor) {
  const size_t files = open_files();
  const std::byte* address = nullptr;
  {
    auto page = Superpage::obtain({.bytes = 3 * kMiB});
    ASSERT_TRUE(page.ok());
    address = page->address();
    Superpage moved = *std::move(page);
    EXPECT_EQ(moved.address(), address);
    EXPECT_EQ(open_files(), files + 1);
    EXPECT_TRUE(is_mapped(address));
  }
  EXPECT_FALSE(is_mapped(address));
  EXPECT_EQ(open_files(), files)
      << "failed attempts with larger pages must close their descriptors, too";
}

TEST(SuperpageDeathTest, GuardPagesCatchOverruns) {
  for (const bool shareable : {true, false}) {
    const auto page = Superpage::obtain({.bytes = 65536, .shareable = shareable});
    ASSERT_TRUE(page.ok());
    volatile std::byte* const start = page->address();
    EXPECT_DEATH(start[-1] = std::byte{1}, "");
    EXPECT_DEATH(start[page->length()] = std::byte{1}, "");
  }
}

// Failed attempts (no huge pages) and repeated mapping and unmapping of superpages must not touch
// memory that another thread maps at the same time, at whatever address the kernel places it.
TEST(Superpage, LeavesOtherMappingsAlone) {
  constexpr size_t kBytes = 64 * 1024;
  constexpr size_t kMost = 20000;
  std::atomic<bool> stop{false};
  std::vector<std::byte*> others;
  std::thread neighbour([&] {
    while (!stop.load() && others.size() < kMost) {
      void* const other = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      ASSERT_NE(other, MAP_FAILED);
      std::memcpy(other, &other, sizeof other);
      others.push_back(static_cast<std::byte*>(other));
    }
  });
  for (int i = 0; i < 300; ++i) {
    const auto page = Superpage::obtain({.bytes = 2 * kMiB, .shareable = i % 2 == 0});
    EXPECT_TRUE(page.ok()) << page.status();
  }
  stop.store(true);
  neighbour.join();
  for (std::byte* const other : others) {
    ASSERT_TRUE(is_mapped(other));
    std::byte* written = nullptr;
    std::memcpy(&written, other, sizeof written);
    ASSERT_EQ(written, other);
    munmap(other, kBytes);
  }
}

TEST(Superpage, RefusesInvalidRequests) {
  const auto nothing = Superpage::obtain({});
  EXPECT_EQ(nothing.status().code(), absl::StatusCode::kInvalidArgument);
  const auto nowhere = Superpage::obtain({.bytes = 4096, .numa_node = 4711});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("NUMA node 4711"));
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr(numa_nodes_text()));
}

TEST(Superpage, MoreThanTheMachineHasIsAnError) {
  const size_t files = open_files();
  const auto page = Superpage::obtain({.bytes = SIZE_MAX / 8});
  EXPECT_EQ(page.status().code(), absl::StatusCode::kResourceExhausted) << page.status();
  EXPECT_EQ(error_scope(page.status()), ErrorScope::kProcess);
  EXPECT_EQ(open_files(), files);
}

TEST(Superpage, IsOnTheReportedNode) {
  for (const int node : numa_nodes()) {
    for (const bool shareable : {true, false}) {
      const auto page =
          Superpage::obtain({.bytes = 2 * kMiB, .numa_node = node, .shareable = shareable});
      ASSERT_TRUE(page.ok());
      // The node may be full: then the page reports kAnyNode.
      if (page->numa_node() == kAnyNode) continue;
      EXPECT_EQ(page->numa_node(), node);
      const int shown = numa_node_of_memory(page->address() + kMiB);
      if (shown != -1) {
        EXPECT_EQ(shown, node);
      }
    }
  }
}

// The page kind that Superpage reports is the kind that smaps shows, on any machine.
TEST(Superpage, ReportsThePageKindThatTheKernelShows) {
  for (const bool shareable : {true, false}) {
    for (const PageKind largest :
         {PageKind::k1GiB, PageKind::k2MiB, PageKind::kTransparent, PageKind::kBase}) {
      const auto page =
          Superpage::obtain({.bytes = 8 * kMiB, .shareable = shareable, .largest_page = largest});
      ASSERT_TRUE(page.ok());
      const auto mapping = internal::query_mapping(page->address());
      ASSERT_TRUE(mapping.has_value());
      EXPECT_EQ(mapping->end - mapping->start, page->length()) << "not merged with a neighbour";
      switch (page->page_kind()) {
        case PageKind::k1GiB:
          FAIL() << "8 MiB on a 1 GiB page";
        case PageKind::k2MiB:
          EXPECT_EQ(mapping->kernel_page, 2 * kMiB);
          break;
        case PageKind::kTransparent:
          EXPECT_EQ(mapping->anonymous_huge + mapping->shared_huge_mapped, 8 * kMiB);
          break;
        case PageKind::kBase:
          EXPECT_LT(mapping->kernel_page, 2 * kMiB);
          EXPECT_LT(mapping->anonymous_huge + mapping->shared_huge_mapped, 8 * kMiB);
          break;
      }
      if (largest == PageKind::kTransparent) {
        EXPECT_GE(page->page_kind(), PageKind::kTransparent);
      }
    }
  }
}

// ctest runs the tests SuperpageOfTheMachine* while no other test runs (tests/CMakeLists.txt). They
// change the machine's pools of huge pages or its settings, or count the free pages. Fabrics of
// other tests take pages from the pools, and return them.
TEST(SuperpageOfTheMachine, TakesHugePagesFromThePool) {
  const RaisedPool pool(2 * kMiB, 4);
  if (!pool.ready()) GTEST_SKIP() << pool.why();
  for (const bool shareable : {true, false}) {
    const uint64_t free = pool.free();
    {
      const auto page = Superpage::obtain({.bytes = 4 * kMiB, .shareable = shareable});
      ASSERT_TRUE(page.ok());
      EXPECT_EQ(page->page_kind(), PageKind::k2MiB);
      EXPECT_EQ(internal::query_mapping(page->address())->kernel_page, 2 * kMiB);
      EXPECT_EQ(pool.free(), free - 2);
      std::memset(page->address(), 1, page->length());
    }
    EXPECT_EQ(pool.free(), free);
  }
}

// The pool has fewer free pages than needed. The attempt fails by the error of a system call, never
// by a SIGBUS, and takes no page from the pool.
TEST(SuperpageOfTheMachine, StepsDownWhenThePoolIsTooSmall) {
  const RaisedPool pool(2 * kMiB, 2);
  if (!pool.ready()) GTEST_SKIP() << pool.why();
  const uint64_t free = pool.free();
  for (const bool shareable : {true, false}) {
    const auto page = Superpage::obtain({.bytes = (free + 1) * 2 * kMiB,
                                         .numa_node = numa_nodes().front(),
                                         .shareable = shareable});
    ASSERT_TRUE(page.ok());
    EXPECT_GE(page->page_kind(), PageKind::kTransparent);
    EXPECT_EQ(pool.free(), free);
    std::memset(page->address(), 1, page->length());
  }
}

// The pool is used up while a program runs. The allocator continues with smaller pages, and the
// memory that it has provided before stays as it is.
TEST(SuperpageOfTheMachine, AnAllocatorGrowsWhenThePoolIsUsedUp) {
  constexpr size_t kPage = 2 * kMiB;
  const RaisedPool pool(kPage, 2);
  if (!pool.ready()) GTEST_SKIP() << pool.why();
  const auto allocator = RDMAAllocator::create(
      {std::make_shared<testing::FakeDomain>()}, kAnyNode,
      {.chunk_bytes = kPage, .first_superpage_bytes = kPage, .max_superpage_bytes = kPage});
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  const auto before = (*allocator)->allocate_chunk();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(internal::query_mapping(before->data())->kernel_page, kPage);
  std::memset(before->data(), 1, before->size());
  const auto others =
      Superpage::obtain({.bytes = pool.free() * kPage, .largest_page = PageKind::k2MiB});
  ASSERT_TRUE(others.ok()) << others.status();
  ASSERT_EQ(pool.free(), 0u);
  const auto after = (*allocator)->allocate_chunk();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_LT(internal::query_mapping(after->data())->kernel_page, kPage);
  std::memset(after->data(), 2, after->size());
  for (size_t i = 0; i < before->size(); ++i) ASSERT_EQ(before->data()[i], std::byte{1}) << i;
}

TEST(SuperpageOfTheMachine, SizeThatIsNoMultipleOfHugePagesStaysOffThePool) {
  const RaisedPool pool(2 * kMiB, 4);
  if (!pool.ready()) GTEST_SKIP() << pool.why();
  const auto page = Superpage::obtain({.bytes = 2 * kMiB + 4096});
  ASSERT_TRUE(page.ok());
  EXPECT_GE(page->page_kind(), PageKind::kTransparent);
}

// Returns true if the kernel joins the pages of 4 MiB of shared memory on request.
bool kernel_collapses() {
  const auto page = Superpage::obtain({.bytes = 4 * kMiB, .largest_page = PageKind::kBase});
  return page.ok() && madvise(page->address(), page->length(), MADV_COLLAPSE) == 0;
}

// The default of shmem_enabled is "never", which MADV_COLLAPSE does not heed.
TEST(SuperpageOfTheMachine, SharedMemoryIsCollapsed) {
  if (!kernel_collapses()) GTEST_SKIP() << "MADV_COLLAPSE fails: " << std::strerror(errno);
  // No multiple of 2 MiB: the rest has base pages.
  constexpr size_t kBytes = 300 * kMiB + 4096;
  const auto page = Superpage::obtain({.bytes = kBytes, .largest_page = PageKind::kTransparent});
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->page_kind(), PageKind::kTransparent);
  EXPECT_EQ(internal::query_mapping(page->address())->shared_huge_mapped, 300 * kMiB);
}

// madvise(MADV_HUGEPAGE) on a memfd returns 0 with either setting; only smaps shows the difference.
TEST(SuperpageOfTheMachine, TransparentSharedMemoryCountsOnlyIfShown) {
  const std::string file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  {
    const Setting off(file, "deny");
    if (!off.done()) GTEST_SKIP() << "shmem_enabled can be changed by root only";
    const auto page =
        Superpage::obtain({.bytes = 4 * kMiB, .largest_page = PageKind::kTransparent});
    ASSERT_TRUE(page.ok());
    EXPECT_EQ(page->page_kind(), PageKind::kBase);
  }
  const Setting on(file, "advise");
  if (!on.done()) GTEST_SKIP() << "this kernel has no transparent huge pages in shared memory";
  const auto page = Superpage::obtain({.bytes = 4 * kMiB, .largest_page = PageKind::kTransparent});
  ASSERT_TRUE(page.ok());
  const auto mapping = internal::query_mapping(page->address());
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(page->page_kind() == PageKind::kTransparent, mapping->shared_huge_mapped == 4 * kMiB);
}

TEST(SuperpageOfTheMachine, TransparentPrivateMemory) {
  const Setting on("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
  const auto page = Superpage::obtain(
      {.bytes = 4 * kMiB, .shareable = false, .largest_page = PageKind::kTransparent});
  ASSERT_TRUE(page.ok());
  const auto mapping = internal::query_mapping(page->address());
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(page->page_kind() == PageKind::kTransparent, mapping->anonymous_huge == 4 * kMiB);
}

TEST(SuperpageOfTheMachineDeathTest, ReportsSmallerPagesOnceWithTheirRemedy) {
  // Runs in a newly executed process, in which no diagnostic has been reported before.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [] {
    std::map<std::string, int> said;
    std::string remedies;
    set_diagnostic_sink([&](const Diagnostic& d) {
      ++said[d.key];
      remedies += d.remedy + "\n";
    });
    // More memory than the pool of 2 MiB pages has free, so that obtain() must step down.
    uint64_t free = 0;
    for (const HugePagePool& pool : query_system_info().huge_pages) {
      if (pool.numa_node == -1 && pool.page_bytes == 2 * kMiB) free = pool.free;
    }
    for (int i = 0; i < 3; ++i) {
      if (!Superpage::obtain({.bytes = (free + 1) * 2 * kMiB}).ok()) std::_Exit(1);
    }
    // One report for all steps from 2 MiB pages to the pages that the kernel gave.
    if (said.size() != 1 || said.begin()->second != 1) std::_Exit(2);
    if (said.begin()->first.rfind("pages.", 0) != 0) std::_Exit(3);
    if (remedies.find("hugepages-2048kB/nr_hugepages") == std::string::npos) std::_Exit(4);
    std::_Exit(reported_diagnostics().size() == said.size() ? 0 : 5);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cariama
