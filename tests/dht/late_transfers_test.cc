// Operations end by their deadlines while their transfers are in flight. The collective functions
// that clear, move or free a share wait for these transfers.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "dht/hash_table.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;
using Table = HashTable<1>;

// Inserts keys with a time limit of 0, so that compare-and-swaps are in flight when the operations
// have ended. Then calls `step`, and expects that no later transfer changes the table that `step`
// returns. Returns the number of operations that ended by their deadline.
uint64_t end_operations_early(
    uint64_t seed, const ShareAccess& way, bool destroy_access,
    const std::function<std::unique_ptr<Table>(Collectives&, std::unique_ptr<Table>)>& step) {
  uint64_t ended = 0;
  LocalJob job({.processes = 3,
                .transport = transport_case("fault_sim"),
                .seed = seed,
                .faults = [](uint64_t seed_of_rank) {
                  FaultOptions faults;
                  faults.seed = seed_of_rank;
                  faults.late_operation = 0.2;
                  faults.longest_hold = 1000;
                  return faults;
                }});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    TableOptions options = way.options(128);
    options.timeout = std::chrono::milliseconds(0);
    auto table = must(Table::create(all, options, soon()));
    auto access = must(table->access({.in_flight = 4}));
    std::mt19937_64 random(seed * 10 + fabric.rank());
    uint64_t unavailable = 0;
    for (int i = 0; i < 10; ++i) {
      const TableResult put = access->find_or_put(random_key<1>(random));
      if (put.outcome == TableOutcome::kUnavailable) ++unavailable;
    }
    if (destroy_access) access.reset();
    const std::unique_ptr<Table> after = step(all, std::move(table));
    for (int i = 0; i < 10; ++i) EXPECT_EQ(must(after->size(soon())), 0u) << "seed " << seed;
    const auto sum = must(all.all_reduce(unavailable, std::plus<>(), soon()));
    if (fabric.rank() == 0) ended = sum;
    access.reset();
    must(after->destroy(soon()));
  });
  return ended;
}

// ThreadSanitizer multiplies the time of a job by 10, AddressSanitizer by 3.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 5;
#else
constexpr uint64_t kSeeds = 20;
#endif

TEST(LateTransfers, DoNotChangeATableThatWasCleared) {
  for (const ShareAccess& way : kTransfers) {
    uint64_t ended = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      ended +=
          end_operations_early(seed, way, false, [](Collectives&, std::unique_ptr<Table> table) {
            must(table->clear(soon()));
            return table;
          });
    }
    EXPECT_GT(ended, kSeeds) << way;
  }
}

// The memory of a new table of the same size is that of the old one.
TEST(LateTransfers, DoNotChangeMemoryThatWasFreed) {
  for (const ShareAccess& way : kTransfers) {
    uint64_t ended = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      ended +=
          end_operations_early(seed, way, true, [](Collectives& all, std::unique_ptr<Table> table) {
            must(table->destroy(soon()));
            return must(Table::create(all, {.buckets = 128}, soon()));
          });
    }
    EXPECT_GT(ended, kSeeds) << way;
  }
}

// A key of a late transfer is in the files, too: save() counts the keys before it writes them.
TEST(LateTransfers, DoNotChangeATableThatIsSaved) {
  const std::string prefix = ::testing::TempDir() + "late-save" + std::to_string(getpid()) + ".";
  for (const ShareAccess& way : kTransfers) {
    uint64_t ended = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      ended +=
          end_operations_early(seed, way, false, [&](Collectives&, std::unique_ptr<Table> table) {
            const std::string files = prefix + std::to_string(seed);
            const uint64_t saved = must(table->save(files, soon()));
            must(table->grow(128, soon()));  // waits for all transfers
            EXPECT_EQ(must(table->size(soon())), saved) << "seed " << seed;
            must(table->clear(soon()));
            EXPECT_EQ(must(table->load(files, soon())).keys, saved) << "seed " << seed;
            EXPECT_EQ(must(table->size(soon())), saved) << "seed " << seed;
            must(table->clear(soon()));
            std::filesystem::remove(files + "." +
                                    std::to_string(table->core().fabric().rank().value()));
            return table;
          });
    }
    EXPECT_GT(ended, kSeeds) << way;
  }
}

// A find ends with its first chunk. The second one, requested in advance, is then still in flight;
// the owner may free its share as soon as the function has returned.
TEST(LateTransfers, AFunctionThatBlocksLeavesNone) {
  LocalJob job({.processes = 2, .transport = transport_case("sim")});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(Table::create(
        all,
        {.buckets = 4096, .chunk = 64, .prefetch = TablePrefetch::kEager, .force_remote = true},
        soon()));
    auto access = must(table->access());
    std::mt19937_64 random(fabric.rank());
    std::vector<TableKey<1>> keys(64);
    std::vector<TableResult> results(keys.size());
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(access->find(random_key<1>(random)).outcome, TableOutcome::kAbsent);
      EXPECT_EQ(access->active(), 0u);
      for (TableKey<1>& key : keys) key = random_key<1>(random);
      access->find(keys, results);
      EXPECT_EQ(access->active(), 0u);
    }
    EXPECT_EQ(access->statistics().chunks_read, 2 * 20 * (1 + keys.size()));
    must(all.barrier(soon()));
    access.reset();
    must(table->destroy(soon()));
  });
}

// The owner answers only after the operation has ended, and the thread of the access does not poll:
// the table stays as it is, and is not saved, until that thread polls.
void name_late_transfers_of_another_thread(const ShareAccess& way) {
  LocalJobOptions options;
  options.fabric.threads = 2;
  LocalJob job(options);
  std::atomic<bool> may_answer{false};
  Table* shared = nullptr;  // of rank 0
  job.run([&](Fabric& fabric, uint32_t thread) {
    const bool user = fabric.rank() == 0 && thread == 1;
    std::optional<Collectives> all;
    std::unique_ptr<Table> table;
    if (thread == 0) {
      all.emplace(fabric);
      TableOptions of_table = way.options(128);
      of_table.timeout = std::chrono::milliseconds(50);
      table = must(Table::create(*all, of_table, soon()));
      if (fabric.rank() == 0) shared = table.get();
    }
    job.meet(4);
    std::unique_ptr<TableAccess<1>> access;
    if (user) {
      access = must(shared->access());
      std::mt19937_64 random(1);
      // Connects, while the owner answers.
      TableKey<1> key = random_key<1>(random);
      while (shared->owner_of(key) != 1) key = random_key<1>(random);
      EXPECT_TRUE(
          wait_until([&] { return access->find(key).outcome == TableOutcome::kAbsent; }, soon()));
      // The service thread of the owner is busy from now on.
      const auto busy = make_call([open = &may_answer] {
        static_cast<void>(wait_until([open] { return open->load(); }, soon()));
      });
      must(internal::send_call(fabric, 1, internal::kService, OutgoingCall::of(busy),
                               WhenFull::kRetry));
      EXPECT_EQ(access->find_or_put(key).outcome, TableOutcome::kUnavailable);
      may_answer = true;
    }
    job.meet(4);
    if (thread == 0) {
      const absl::Status cleared = table->clear(deadline_after(std::chrono::seconds(2)));
      EXPECT_TRUE(absl::IsUnavailable(cleared)) << cleared;
      EXPECT_THAT(std::string(cleared.message()), HasSubstr("not cleared: transfers of rank 0"));
      const absl::Status saved =
          table->save(::testing::TempDir() + "never", deadline_after(std::chrono::seconds(2)))
              .status();
      EXPECT_TRUE(absl::IsUnavailable(saved)) << saved;
      EXPECT_THAT(std::string(saved.message()), HasSubstr("not saved: transfers of rank 0"));
    }
    job.meet(4);
    if (user) {
      EXPECT_TRUE(wait_until(
          [&] {
            access->poll([](uint64_t, const TableResult&, const TableKey<1>&) {});
            return access->find({1}).outcome != TableOutcome::kUnavailable;
          },
          soon()));
    }
    job.meet(4);
    if (thread == 0) {
      must(table->clear(soon()));
      EXPECT_EQ(must(table->size(soon())), 0u);
    }
    job.meet(4);
    access.reset();
    job.meet(4);
    if (thread == 0) must(table->destroy(soon()));
  });
}

TEST(LateTransfers, OfAnotherThreadAreNamed) {
  name_late_transfers_of_another_thread(kTransfers[1]);
  name_late_transfers_of_another_thread(kTransfers[3]);
}

}  // namespace
}  // namespace cariama::testing
