// A node table of a job has the memory of its look-ups when it is created, and an error for a lack
// of memory names the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "bdd/internal/node_table.h"
#include "dsfabric/collectives.h"
#include "dtutils/allocators/memory_budget.h"
#include "tests/bdd/bdd_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::bdd {
namespace {

using ::cariama::testing::LocalJob;
using ::cariama::testing::must;
using ::cariama::testing::soon;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kSanitizerMaps;

// Refuses further memory of allocators while it exists.
class NoMoreMemory {
 public:
  explicit NoMoreMemory(uint64_t left = 0) {
    MemoryBudget::process().set_limit(MemoryBudget::process().used() + left);
  }
  ~NoMoreMemory() { MemoryBudget::process().set_limit(before_); }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  const uint64_t before_ = MemoryBudget::process().limit();
};

TEST(NodeTableMemory, OfLookUpsIsAllocatedWithTheTable) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const NoMoreMemory limit(uint64_t{8} << 20);
    // 64 MiB of look-ups.
    const auto table = NodeTable::create(
        all, {.bytes = uint64_t{64} << 10, .remote = true, .in_flight = 4096}, soon());
    EXPECT_TRUE(absl::IsResourceExhausted(table.status())) << table.status();
    EXPECT_THAT(
        std::string(table.status().message()),
        AllOf(HasSubstr("memory budget"), HasSubstr("lower TableAccessOptions::in_flight")));
  });
}

// The two caches of nodes take 3 MiB of the heap. The table of the first step leaves the memory of
// the share and of the look-ups to the second one.
TEST(NodeTableMemory, OfTheCachesIsAnErrorOfAllProcesses) {
  if (kSanitizerMaps) GTEST_SKIP() << "the sanitizer maps memory, which the limit would forbid";
  cariama::testing::run_process_job(2, {}, [](Fabric& fabric) {
    Collectives all(fabric);
    const NodeTable::JobOptions options{
        .bytes = uint64_t{64} << 10, .remote = true, .in_flight = 1};
    const auto make = [&] { return NodeTable::create(all, options, soon()); };
    must(must(make())->destroy(soon()));
    struct rlimit old {};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
    // Free memory of the heap, for all that is small.
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    std::vector<std::string>(1024, std::string(1000, ' ')).clear();
    const struct rlimit none { 1, old.rlim_max };
    // Large free blocks, which earlier tests have left.
    std::vector<void*> blocks;
    blocks.reserve(4096);
    if (fabric.rank() == 1) {
      ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
      while (void* const block = std::malloc(size_t{1} << 20)) blocks.push_back(block);
    }
    const absl::Status refused = make().status();
    ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
    for (void* const block : blocks) std::free(block);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("look-ups in a node table"));
    must(must(make())->destroy(soon()));
  });
}

// In rank 1 the memory suffices for its part of the table, but not for the 64 MiB of its look-ups.
// If the parts of refused tables were not freed, it would not suffice for the fourth part.
TEST(NodeTableMemory, OfARefusedTableIsFreed) {
  cariama::testing::run_process_job(2, {}, [](Fabric& fabric) {
    Collectives all(fabric);
    const NodeTable::JobOptions options{
        .bytes = uint64_t{8} << 20, .remote = true, .in_flight = 4096};
    const bool has_limit = fabric.rank() == 1;
    const NoMoreMemory limit(has_limit ? uint64_t{24} << 20 : uint64_t{1} << 40);
    uint64_t first = 0;
    for (int i = 0; i < 4; ++i) {
      const absl::Status refused = NodeTable::create(all, options, soon()).status();
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("operation on a hash table"));
      const uint64_t used = MemoryBudget::process().used();
      if (i == 0) first = used;
      if (!has_limit) {
        EXPECT_LT(used, first + options.bytes / 2);
      }
    }
  });
}

// A look-up is in flight, and a second one, which blocks, needs memory of its own.
TEST(NodeTableMemory, IsNamedByALookUpThatHasNone) {
  LocalJob job({.processes = 2, .transport = cariama::testing::transport_case("sim")});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(NodeTable::create(
        all, {.bytes = uint64_t{64} << 10, .remote = true, .in_flight = 1}, soon()));
    must(all.barrier(soon()));
    if (fabric.rank() == 0) {
      // Of 64 nodes, about half belong to the other process.
      const auto node = [](uint64_t i) { return Node{2 * i + 1, 2 * i + 2}; };
      std::vector<RDMAMemory> memory;
      {
        const NoMoreMemory limit;
        for (;;) {
          auto block = fabric.memory().allocate(4096);
          if (!block.ok()) break;
          memory.push_back(*std::move(block));
        }
        std::string text;
        for (uint64_t i = 0; i < 64 && text.empty(); ++i) {
          static_cast<void>(table->start_find_or_put(node(i), 1));
          try {
            static_cast<void>(table->find_or_put(node(i + 1000)));
          } catch (const std::runtime_error& error) {
            text = error.what();
          }
          table->await_lookup();
          table->poll([](const NodeTable::Lookup&) {});
        }
        EXPECT_THAT(text, AllOf(HasSubstr("bdd: no memory for a look-up"),
                                HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("memory budget")));
      }
      for (RDMAMemory& block : memory) must(fabric.memory().free(std::move(block)));
    }
    must(all.barrier(soon()));
    must(table->destroy(soon()));
  });
}

}  // namespace
}  // namespace cariama::bdd
