// The hash table on every transport: processes put the same keys at the same time, and the table is
// compared with a sequential set.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "dht/hash_table.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

class HashTableContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

// The results of one process: the result of its operation on each key.
struct SeenResult {
  uint64_t index = UINT64_MAX;
  uint64_t inserted = 0;
};

// All processes put all `keys`, each in its own order, one by one, asynchronously or in batches.
// Then every process finds all of them, and reads them by index.
template <size_t W>
void race_for(Collectives& all, HashTable<W>& table, const std::vector<TableKey<W>>& keys,
              uint64_t seed) {
  Fabric& fabric = all.fabric();
  auto access = must(table.access({.in_flight = 5}));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 100 + fabric.rank());
  // The first quarter in the same order: races for the same bucket.
  std::shuffle(order.begin() + static_cast<ptrdiff_t>(keys.size() / 4), order.end(), random);

  std::vector<TableResult> results(keys.size());
  const size_t third = keys.size() / 3;
  for (size_t i = 0; i < third; ++i) results[order[i]] = access->find_or_put(keys[order[i]]);
  std::vector<TableKey<W>> batch;
  for (size_t i = third; i < 2 * third; ++i) batch.push_back(keys[order[i]]);
  std::vector<TableResult> of_batch(batch.size());
  access->find_or_put(batch, of_batch);
  for (size_t i = 0; i < batch.size(); ++i) results[order[third + i]] = of_batch[i];
  const auto on_end = [&](uint64_t tag, const TableResult& result, const TableKey<W>& key) {
    results[tag] = result;
    EXPECT_EQ(key, keys[tag]);
  };
  for (size_t i = 2 * third; i < keys.size(); ++i) {
    ASSERT_TRUE(fabric.wait_polling(
        [&] {
          if (access->start_find_or_put(keys[order[i]], order[i])) return true;
          access->poll(on_end);
          return false;
        },
        soon()));
  }
  ASSERT_TRUE(fabric.wait_polling(
      [&] {
        access->poll(on_end);
        return access->active() == 0;
      },
      soon()));
  access->poll(on_end);

  uint64_t inserted = 0;
  uint64_t indices = 0;
  for (const TableResult& result : results) {
    ASSERT_TRUE(result.outcome == TableOutcome::kInserted || result.outcome == TableOutcome::kFound)
        << access->status();
    if (result.outcome == TableOutcome::kInserted) ++inserted;
    indices = indices * 31 + result.index;
  }
  // Every key was inserted exactly once, and all processes have the same indices.
  EXPECT_EQ(must(all.all_reduce(inserted, std::plus<>(), soon())), keys.size());
  for (const auto& other : must(all.all_gather(indices, soon()))) EXPECT_EQ(other, indices);
  EXPECT_EQ(must(table.size(soon())), keys.size());

  std::vector<uint64_t> to_read;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i % 4 == 0) {
      EXPECT_EQ(access->find(keys[i]), (TableResult{results[i].index, TableOutcome::kFound}));
      TableKey<W> key;
      EXPECT_EQ(access->read(results[i].index, key), TableOutcome::kFound);
      EXPECT_EQ(key, keys[i]);
    }
    to_read.push_back(results[i].index);
  }
  std::vector<TableKey<W>> read(keys.size());
  EXPECT_EQ(access->read(to_read, read), TableOutcome::kFound);
  EXPECT_EQ(read, keys);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(access->find(random_key<W>(random)).outcome, TableOutcome::kAbsent);
  }
  // The owners together have exactly these keys.
  std::map<TableKey<W>, uint64_t> oracle;
  for (size_t i = 0; i < keys.size(); ++i) oracle[keys[i]] = results[i].index;
  uint64_t visited = 0;
  table.for_each_local([&](uint64_t index, const TableKey<W>& key) {
    EXPECT_EQ(oracle.at(key), index);
    EXPECT_EQ(table.owner_of(key), fabric.rank());
    EXPECT_EQ(table.owner_of_index(index), fabric.rank());
    ++visited;
  });
  EXPECT_EQ(must(all.all_reduce(visited, std::plus<>(), soon())), keys.size());
}

template <size_t W>
void race(const TransportCase& transport, uint32_t processes, const TableOptions& options,
          uint64_t seed) {
  LocalJob job({.processes = processes, .transport = transport, .seed = seed});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<W>::create(all, options, soon()));
    std::mt19937_64 random(seed);
    std::vector<TableKey<W>> keys;
    // Adversarial keys: one home, the end of the share, equal word 0.
    for (const auto& key : keys_at_the_end<W>(8, table->geometry(), 3, random)) keys.push_back(key);
    if constexpr (W > 1) {
      for (const auto& key : keys_of_equal_word<W>(20, random)) keys.push_back(key);
    }
    const size_t most = table->geometry().buckets * processes * 6 / 10;
    while (keys.size() < most) keys.push_back(random_key<W>(random));
    race_for<W>(all, *table, keys, seed);
    must(all.barrier(soon()));
    must(table->clear(soon()));
    EXPECT_EQ(must(table->size(soon())), 0u);
    race_for<W>(all, *table, keys, seed + 1);
    must(table->destroy(soon()));
  });
}

// Fills each share to load 0.99, with keys of one home and of homes at the end of the share. Then
// the processes put different keys, more than the shares have room for: a full share loses no key.
template <size_t W>
void race_to_the_last_bucket(const TransportCase& transport, uint32_t processes,
                             const TableOptions& options, uint64_t seed) {
  LocalJob job({.processes = processes, .transport = transport, .seed = seed});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<W>::create(all, options, soon()));
    const TableGeometry& geometry = table->geometry();
    const uint64_t of_each = geometry.buckets * 99 / 100;
    std::mt19937_64 random(seed);
    const auto keys = keys_for_each_owner<W>(of_each, geometry, random);
    race_for<W>(all, *table, keys, seed);
    must(all.barrier(soon()));

    std::mt19937_64 own(seed * 100 + fabric.rank());
    const auto more = keys_for_each_owner<W>(geometry.buckets - of_each, geometry, own);
    {
      auto access = must(table->access({.in_flight = 5}));
      std::vector<TableResult> results(more.size());
      access->find_or_put(more, results);
      uint64_t inserted = 0;
      for (const TableResult& result : results) {
        if (result.outcome == TableOutcome::kInserted) {
          ++inserted;
        } else {
          EXPECT_EQ(result.outcome, TableOutcome::kFull);
        }
      }
      EXPECT_EQ(must(all.all_reduce(inserted, std::plus<>(), soon())),
                processes * (geometry.buckets - of_each));
      EXPECT_EQ(must(table->size(soon())), processes * geometry.buckets);
      results.resize(keys.size());
      access->find_or_put(keys, results);
      for (size_t i = 0; i < keys.size(); ++i) {
        ASSERT_EQ(results[i].outcome, TableOutcome::kFound);
        TableKey<W> key;
        EXPECT_EQ(access->read(results[i].index, key), TableOutcome::kFound);
        EXPECT_EQ(key, keys[i]);
      }
    }
    must(table->destroy(soon()));
  });
}

TEST_P(HashTableContract, OneWordKeysAreInsertedOnce) {
  race<1>(GetParam(), 3, {.buckets = 128}, 1);
}
TEST_P(HashTableContract, TwoWordKeysAreInsertedOnce) {
  race<2>(GetParam(), 3, {.buckets = 128}, 2);
}
TEST_P(HashTableContract, ThreeWordKeysAreInsertedOnce) {
  race<3>(GetParam(), 2, {.buckets = 128, .prefetch = TablePrefetch::kEager}, 3);
}
TEST_P(HashTableContract, TransfersForMappedShares) {
  race<1>(GetParam(), 2,
          {.buckets = 128, .chunk = 8, .prefetch = TablePrefetch::kEager, .force_remote = true}, 4);
  race<2>(GetParam(), 2, {.buckets = 128, .prefetch = TablePrefetch::kNone, .force_remote = true},
          5);
}
TEST_P(HashTableContract, OwnersExecuteCompareAndSwaps) {
  race<2>(GetParam(), 2, kTransfers[1].options(96), 6);
}
TEST_P(HashTableContract, OwnersExecuteOperations) {
  race<2>(GetParam(), 2, kTransfers[2].options(96), 10);
  race<3>(GetParam(), 3, kTransfers[3].options(96), 11);
}
TEST_P(HashTableContract, SharesFillToTheLastBucket) {
  race_to_the_last_bucket<1>(GetParam(), 3, {.buckets = 200}, 7);
  race_to_the_last_bucket<2>(
      GetParam(), 2,
      {.buckets = 200, .chunk = 8, .prefetch = TablePrefetch::kEager, .force_remote = true}, 8);
  race_to_the_last_bucket<2>(GetParam(), 2, kTransfers[1].options(104), 9);
  race_to_the_last_bucket<2>(GetParam(), 2, kTransfers[3].options(104), 12);
}

INSTANTIATE_TEST_SUITE_P(On, HashTableContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
