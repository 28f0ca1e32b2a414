// The collective functions of the hash table: wrong use, tables that were not destroyed, agreement.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dht/agreement.h"
#include "dht/hash_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TableCollectives, ATableThatOutlivesTheFabricSaysSo) {
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        const auto self = must(fabric->init_thread(0));
        Collectives all(*fabric);
        const auto table = must(HashTable<1>::create(all, {.buckets = 1000}, soon()));
        fabric.reset();
      },
      ::testing::KilledBySignal(SIGABRT), "a HashTable is destroyed after the Fabric");
}

// Rank 0 destroys its table object without destroy(), as after an error. Rank 1 continues to use
// rank 0's share.
TEST(TableCollectives, AShareOutlivesATableThatWasNotDestroyed) {
  LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<1>::create(all, {.buckets = 4096}, soon()));
    std::mt19937_64 random(1);
    std::vector<TableKey<1>> keys(2000);
    for (auto& key : keys) key = random_key<1>(random);
    std::vector<TableResult> results(keys.size());
    if (fabric.rank() == 1) must(table->access())->find_or_put(keys, results);
    must(all.barrier(soon()));
    if (fabric.rank() == 0) {
      const size_t bytes = table->geometry().buckets * sizeof(uint64_t);
      table.reset();
      // Zeroed memory, which the allocator could take from the share.
      const auto other = must(RemoteMemory::allocate(fabric, 0, bytes, soon()));
      must(all.barrier(soon()));
      must(all.barrier(soon()));
      return;
    }
    must(all.barrier(soon()));
    std::vector<TableResult> found(keys.size());
    must(table->access())->find(keys, found);
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(found[i], (TableResult{results[i].index, TableOutcome::kFound}));
    }
    must(all.barrier(soon()));
  });
}

// Each error is the same in both processes, and the table is as it was.
TEST(TableCollectives, CollectiveFunctionsNameTheProcessThatUsesThemWrongly) {
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<1>::create(all, {.buckets = 256}, soon()));
    const auto expect_refused = [](const absl::Status& status, const std::string& text,
                                   const std::string& why) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(text + ": rank 1"), HasSubstr(why)));
    };
    std::unique_ptr<TableAccess<1>> access;
    if (fabric.rank() == 1) {
      access = must(table->access());
      ASSERT_TRUE(access->start_find_or_put({7}, 1));
    }
    expect_refused(table->clear(soon()), "not cleared", " has results");
    expect_refused(table->grow(512, soon()), "did not grow to 512 buckets per process",
                   " has results");
    if (access != nullptr) {
      EXPECT_EQ(access->poll([](uint64_t, const TableResult&, const TableKey<1>&) {}), 1u);
    }
    must(table->grow(512, soon()));
    EXPECT_EQ(must(table->size(soon())), 1u);
    expect_refused(table->destroy(soon()), "not destroyed", " has accesses");
    access.reset();
    expect_refused(fabric.rank() == 0 ? table->clear(soon()) : table->destroy(soon()),
                   fabric.rank() == 0 ? "not cleared" : "not destroyed",
                   " calls another function than rank 0");
    EXPECT_EQ(must(table->size(soon())), 1u);
    must(table->destroy(soon()));
  });
}

TEST(TableCollectives, AnOperationInProgressWinsInAgreements) {
  LocalJob job({.processes = 2});
  std::atomic<bool> late{false};
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const absl::Status full = absl::ResourceExhaustedError("full");
    if (fabric.rank() == 0) {
      const Deadline soon_over = deadline_after(std::chrono::milliseconds(10));
      EXPECT_TRUE(absl::IsDeadlineExceeded(agree(all, full, "nothing", soon_over)));
      late = true;
      EXPECT_EQ(agree(all, full, "nothing", soon()), full);
    } else {
      EXPECT_TRUE(wait_until([&] { return late.load(); }, soon()));
      const absl::Status other = agree(all, absl::OkStatus(), "nothing", soon());
      EXPECT_TRUE(absl::IsResourceExhausted(other)) << other;
      EXPECT_THAT(std::string(other.message()), HasSubstr("full"));
    }
  });
}

}  // namespace
}  // namespace cariama::testing
