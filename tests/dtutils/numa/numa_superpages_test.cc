// Placement on two NUMA nodes and on 1 GiB pages. Runs in a VM that is booted with both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/internal/page_query.h"
#include "dtutils/system_info.h"
#include "tests/dtutils/allocators/fake_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::FakeDomain;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

uint64_t free_pages(int node, uint64_t page_bytes) {
  for (const HugePagePool& pool : query_system_info().huge_pages) {
    if (pool.numa_node == node && pool.page_bytes == page_bytes) return pool.free;
  }
  return 0;
}

// Returns the nodes of all pages in the range. Queries each page.
std::set<int> nodes_of(const std::byte* address, size_t length) {
  std::set<int> nodes;
  const size_t page = query_system_info().page_bytes;
  for (size_t offset = 0; offset < length; offset += page) {
    nodes.insert(numa_node_of_memory(address + offset));
  }
  return nodes;
}

class NumaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GE(numa_nodes().size(), 2u) << "run this on a machine with two NUMA nodes";
  }
};

TEST_F(NumaTest, EveryKindOfPageLandsOnItsNode) {
  for (const int node : numa_nodes()) {
    for (const bool shareable : {true, false}) {
      for (const PageKind largest : {PageKind::k2MiB, PageKind::kTransparent, PageKind::kBase}) {
        const auto page = Superpage::obtain({.bytes = 8 * kMiB,
                                             .numa_node = node,
                                             .shareable = shareable,
                                             .largest_page = largest});
        ASSERT_TRUE(page.ok()) << page.status();
        EXPECT_EQ(page->numa_node(), node);
        EXPECT_EQ(nodes_of(page->address(), page->length()), std::set<int>{node});
        if (largest == PageKind::k2MiB) {
          EXPECT_EQ(page->page_kind(), PageKind::k2MiB);
          EXPECT_EQ(internal::query_mapping(page->address())->kernel_page, 2 * kMiB);
        }
        std::memset(page->address(), 1, page->length());
      }
    }
  }
}

// A thread on one node allocates memory on every node. The memory is on the requested node,
// although the thread on the other node touches it first.
TEST_F(NumaTest, PlacementDoesNotDependOnTheCallingThread) {
  for (const NumaNodeInfo& home : query_system_info().nodes) {
    if (home.cpus.empty()) continue;
    std::thread([&home] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(home.cpus.front()), &set);
      ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
      EXPECT_EQ(numa_node_of_this_thread(), home.id);
      for (const int node : numa_nodes()) {
        const auto page = Superpage::obtain({.bytes = 4 * kMiB, .numa_node = node});
        ASSERT_TRUE(page.ok());
        EXPECT_EQ(nodes_of(page->address(), page->length()), std::set<int>{node});
      }
    }).join();
  }
}

// The page size of the paper. The test uses one node only, since clearing 1 GiB takes seconds in
// the VM, and since the kernel may have reserved all of these pages on one node at boot.
TEST_F(NumaTest, OneGibibytePageLandsOnItsNode) {
  int home = kAnyNode;
  for (const int node : numa_nodes()) {
    if (free_pages(node, kGiB) > 0) home = node;
  }
  ASSERT_NE(home, kAnyNode) << "run this on a machine with 1 GiB pages";
  const uint64_t free = free_pages(home, kGiB);
  MemoryBudget budget(kGiB);
  RDMAAllocatorOptions options = RDMAAllocatorOptions::paper();
  options.budget = &budget;
  const auto allocator = RDMAAllocator::create({std::make_shared<FakeDomain>()}, home, options);
  ASSERT_TRUE(allocator.ok());
  const auto chunk = (*allocator)->allocate_chunk();
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(free_pages(home, kGiB), free - 1);
  EXPECT_EQ(internal::query_mapping(chunk->data())->kernel_page, kGiB);
  EXPECT_EQ(nodes_of(chunk->data(), chunk->size()), std::set<int>{home});
  const RDMAAllocatorStatistics statistics = (*allocator)->statistics();
  EXPECT_EQ(statistics.superpages, 1u);
  EXPECT_EQ(statistics.bytes_by_kind[static_cast<size_t>(PageKind::k1GiB)], kGiB);
  EXPECT_EQ(statistics.bytes_off_node, 0u);
}

// The requested node's pool is empty and the other node's is not. The allocation takes smaller
// pages on the requested node instead of large pages on the other node, and causes no SIGBUS.
TEST_F(NumaTest, LocalityHasPriorityOverPageSize) {
  const int node = numa_nodes().front();
  const uint64_t free = free_pages(node, 2 * kMiB);
  ASSERT_GT(free, 0u) << "run this on a machine with 2 MiB pages";
  ASSERT_GT(free_pages(numa_nodes().back(), 2 * kMiB), 4u);
  const auto all = Superpage::obtain({.bytes = free * 2 * kMiB, .numa_node = node});
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->page_kind(), PageKind::k2MiB);
  ASSERT_EQ(free_pages(node, 2 * kMiB), 0u);
  const auto next = Superpage::obtain({.bytes = 4 * kMiB, .numa_node = node});
  ASSERT_TRUE(next.ok());
  EXPECT_GE(next->page_kind(), PageKind::kTransparent);
  EXPECT_EQ(nodes_of(next->address(), next->length()), std::set<int>{node});
  std::memset(next->address(), 1, next->length());
  // Without a requested node, the other node's huge pages are used.
  const auto anywhere = Superpage::obtain({.bytes = 4 * kMiB});
  ASSERT_TRUE(anywhere.ok());
  EXPECT_EQ(anywhere->page_kind(), PageKind::k2MiB);
}

// Mapping and unmapping huge pages, and failed attempts because too few are left, must not touch
// memory that another thread maps at the same time: none of it is unmapped or overwritten.
TEST_F(NumaTest, HugePagesLeaveOtherMappingsAlone) {
  constexpr size_t kBytes = 64 * 1024;
  constexpr size_t kMost = 20000;
  constexpr size_t kHuge = 2 * kMiB;
  // Takes all pages of the pools but one: 2 MiB can be allocated, 4 MiB cannot.
  uint64_t free = 0;
  for (const int node : numa_nodes()) free += free_pages(node, kHuge);
  ASSERT_GT(free, 1u) << "run this on a machine with 2 MiB pages";
  const auto rest = Superpage::obtain({.bytes = (free - 1) * kHuge});
  ASSERT_TRUE(rest.ok()) << rest.status();
  ASSERT_EQ(rest->page_kind(), PageKind::k2MiB);
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
  for (int i = 0; i < 100; ++i) {
    const bool there = i % 2 == 0;
    const auto page =
        Superpage::obtain({.bytes = there ? kHuge : 2 * kHuge, .shareable = i % 4 < 2});
    EXPECT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->page_kind() == PageKind::k2MiB, there);
    std::memset(page->address(), 0xff, page->length());
  }
  stop.store(true);
  neighbour.join();
  EXPECT_FALSE(others.empty());
  for (std::byte* const other : others) {
    unsigned char present = 0;
    ASSERT_EQ(mincore(other, 1, &present), 0) << "the other thread's memory is not mapped any more";
    std::byte* written = nullptr;
    std::memcpy(&written, other, sizeof written);
    ASSERT_EQ(written, other);
    munmap(other, kBytes);
  }
}

TEST_F(NumaTest, AnAllocatorOfANodeGivesMemoryOfThatNode) {
  MemoryBudget budget(kGiB);
  for (const int node : numa_nodes()) {
    RDMAAllocatorOptions options;
    options.budget = &budget;
    const auto allocator = RDMAAllocator::create({std::make_shared<FakeDomain>()}, node, options);
    ASSERT_TRUE(allocator.ok());
    std::vector<Chunk> chunks;
    for (int i = 0; i < 4; ++i) {
      auto chunk = (*allocator)->allocate_chunk();
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      EXPECT_EQ(nodes_of(chunk->data(), chunk->size()), std::set<int>{node});
      chunks.push_back(*std::move(chunk));
    }
    EXPECT_EQ((*allocator)->statistics().bytes_off_node, 0u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace cariama
