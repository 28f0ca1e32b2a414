// The hash table within one host: exactness against sequential sets under races of threads and
// processes, full tables, growth, chunk sizes.
#include "dht/hash_table.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "dsfabric/send_call.h"
#include "dtutils/internal/shared_copy.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::testing {
namespace {

constexpr const ShareAccess& kMapped = kShareAccesses[0];
constexpr size_t kShrink = internal::kUnderThreadSanitizer ? 8 : 1;

template <size_t W>
void fill_and_compare(Collectives& all, const TableOptions& options, double load) {
  auto table = must(HashTable<W>::create(all, options, soon()));
  auto access = must(table->access());
  std::mt19937_64 random(W);
  const auto count = static_cast<size_t>(static_cast<double>(table->geometry().buckets) * load);
  std::vector<TableKey<W>> keys(count);
  std::vector<TableResult> results(count);
  std::unordered_set<uint64_t> indices;
  for (auto& key : keys) key = random_key<W>(random);
  for (size_t i = 0; i < count / 2; ++i) results[i] = access->find_or_put(keys[i]);
  access->find_or_put(std::span(keys).subspan(count / 2), std::span(results).subspan(count / 2));
  for (const TableResult& result : results) {
    ASSERT_EQ(result.outcome, TableOutcome::kInserted);
    EXPECT_TRUE(indices.insert(result.index).second);
  }
  std::vector<TableResult> again(count);
  access->find_or_put(keys, again);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(again[i], (TableResult{results[i].index, TableOutcome::kFound}));
  }
  access->find(keys, again);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(again[i], (TableResult{results[i].index, TableOutcome::kFound}));
    TableKey<W> key;
    ASSERT_EQ(access->read(results[i].index, key), TableOutcome::kFound);
    ASSERT_EQ(key, keys[i]);
  }
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(access->find(random_key<W>(random)).outcome, TableOutcome::kAbsent);
  }
  EXPECT_EQ(table->local_size(), count);
  const TableStatistics statistics = access->statistics();
  EXPECT_EQ(statistics.inserted, count);
  EXPECT_EQ(statistics.operations, 4 * count + 1000);
}

TEST(HashTableTest, HoldsWhatASetHoldsAtLoad99) {
  in_one_process([](Collectives& all) {
    fill_and_compare<1>(all, {.buckets = 400'000 / kShrink}, 0.99);
    fill_and_compare<2>(all, {.buckets = 100'000 / kShrink}, 0.99);
    fill_and_compare<3>(all, {.buckets = 50'000 / kShrink}, 0.99);
    fill_and_compare<1>(all, {.buckets = 40'000 / kShrink, .force_remote = true}, 0.99);
    fill_and_compare<2>(all, {.buckets = 20'000 / kShrink, .force_remote = true}, 0.99);
    fill_and_compare<2>(all, kTransfers[2].options(20'000 / kShrink), 0.99);
    fill_and_compare<3>(all, kTransfers[3].options(20'000 / kShrink), 0.99);
  });
}

TEST(HashTableTest, AFullTableLosesNothing) {
  for (const ShareAccess& way : kShareAccesses) {
    in_one_process([&](Collectives& all) {
      auto table = must(HashTable<1>::create(all, way.options(256), soon()));
      auto access = must(table->access());
      std::mt19937_64 random(1);
      std::vector<TableKey<1>> keys(256);
      for (auto& key : keys) {
        key = random_key<1>(random);
        EXPECT_EQ(access->find_or_put(key).outcome, TableOutcome::kInserted);
      }
      for (int i = 0; i < 20; ++i) {
        const auto key = random_key<1>(random);
        EXPECT_EQ(access->find_or_put(key).outcome, TableOutcome::kFull);
        EXPECT_EQ(access->find(key).outcome, TableOutcome::kAbsent);
      }
      EXPECT_EQ(access->statistics().full, 20u);
      for (const auto& key : keys) {
        EXPECT_EQ(access->find_or_put(key).outcome, TableOutcome::kFound);
      }
    });
  }
}

TEST(HashTableTest, TheProbeLimitIsMaxChunksTimesC) {
  for (const ShareAccess& way : kShareAccesses) {
    in_one_process([&](Collectives& all) {
      TableOptions options = way.options(1024);
      options.chunk = 8;
      options.max_chunks = 3;
      auto table = must(HashTable<2>::create(all, options, soon()));
      auto access = must(table->access());
      std::mt19937_64 random(1);
      const auto keys = keys_of_equal_word<2>(30, random);
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(access->find_or_put(keys[i]).outcome,
                  i < 24 ? TableOutcome::kInserted : TableOutcome::kFull);
      }
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(access->find(keys[i]).outcome,
                  i < 24 ? TableOutcome::kFound : TableOutcome::kAbsent);
      }
    });
  }
}

TEST(HashTableTest, GrowthKeepsAllKeys) {
  LocalJob job({.processes = 3});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, {.buckets = 512}, soon()));
    std::mt19937_64 random(fabric.rank());
    std::vector<TableKey<2>> keys(450);
    for (auto& key : keys) key = random_key<2>(random);
    std::vector<TableResult> results(keys.size());
    auto access = must(table->access());
    access->find_or_put(keys, results);
    must(table->grow(2048, soon()));
    EXPECT_EQ(table->geometry().buckets, 2048u);
    EXPECT_EQ(must(table->size(soon())), 3 * keys.size());
    access->find_or_put(keys, results);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(results[i].outcome, TableOutcome::kFound);
      TableKey<2> key;
      EXPECT_EQ(access->read(results[i].index, key), TableOutcome::kFound);
      EXPECT_EQ(key, keys[i]);
    }
    EXPECT_EQ(table->grow(1024, soon()).code(), absl::StatusCode::kInvalidArgument);
    // A process that cannot grow does not harm the others.
    EXPECT_EQ(table->grow(uint64_t{1} << 40, soon()).code(), absl::StatusCode::kResourceExhausted);
    access->find(keys, results);
    for (const TableResult& result : results) EXPECT_EQ(result.outcome, TableOutcome::kFound);
    access.reset();
    must(table->destroy(soon()));
  });
}

TEST(HashTableTest, TheChunkFollowsTheLoad) {
  in_one_process([](Collectives& all) {
    auto table =
        must(HashTable<1>::create(all, {.buckets = 64 << 10, .force_remote = true}, soon()));
    auto access = must(table->access());
    std::mt19937_64 random(1);
    const auto fill_to = [&](double load) {
      const auto count = static_cast<size_t>(load * static_cast<double>(table->geometry().buckets));
      std::vector<TableKey<1>> keys(count - access->statistics().inserted);
      for (auto& key : keys) key = random_key<1>(random);
      std::vector<TableResult> results(keys.size());
      access->find_or_put(keys, results);
      return access->statistics();
    };
    EXPECT_EQ(access->statistics().chunk, 8u);
    TableStatistics before = fill_to(0.3);
    EXPECT_EQ(before.chunk, 8u);
    uint32_t chunk = before.chunk;
    for (const double load : {0.5, 0.6, 0.7, 0.8, 0.9, 0.95}) {
      const TableStatistics now = fill_to(load);
      EXPECT_GE(now.chunk, chunk);
      EXPECT_NEAR(now.load, load, 0.05);
      chunk = now.chunk;
      if (load > 0.9) break;
      // The bound for loads up to 0.9, and that for loads up to 0.5.
      const double inserts =
          static_cast<double>(now.insert_round_trips - before.insert_round_trips) /
          static_cast<double>(now.remote_inserts - before.remote_inserts);
      EXPECT_LE(inserts, load <= 0.5 ? 2.05 : 2.2) << load;
      before = now;
    }
    EXPECT_GE(chunk, 256u);
  });
}

// Asynchronous operations have the same limit and lose no result, whether the share is mapped or
// not.
TEST(HashTableTest, AnAsynchronousOperationIsActiveUntilItsResultIsDelivered) {
  for (const ShareAccess& way : kShareAccesses) {
    in_one_process([&](Collectives& all) {
      auto table = must(HashTable<1>::create(all, way.options(256), soon()));
      auto access = must(table->access({.in_flight = 4}));
      uint64_t started = 0;
      uint64_t delivered = 0;
      while (access->start_find_or_put({started}, started)) ++started;
      EXPECT_EQ(started, 4u);
      EXPECT_FALSE(access->start_read(0, 0));
      EXPECT_FALSE(access->start_find({0}, 0));
      EXPECT_EQ(access->statistics().operations, 4u);  // those that were refused do not count
      const auto restart = [&](uint64_t, const TableResult& result, const TableKey<1>&) {
        EXPECT_EQ(result.outcome, TableOutcome::kInserted);
        ++delivered;
        // Without a limit, poll() would not return before the table is full.
        if (access->start_find_or_put({started}, started)) ++started;
      };
      while (delivered < 20) EXPECT_LE(access->poll(restart), 4u);
      const auto count = [&](uint64_t, const TableResult&, const TableKey<1>&) { ++delivered; };
      while (access->active() != 0) access->poll(count);
      EXPECT_EQ(delivered, started);
      access->await_ended();  // none is in flight
      // A wait ends with a result that the next poll() delivers.
      EXPECT_EQ(access->is_mapped(TableKey<1>{0}), !way.remote);
      ASSERT_TRUE(access->start_find_or_put({0}, 0));
      access->await_ended();
      uint64_t index = 0;
      EXPECT_EQ(access->poll([&](uint64_t, const TableResult& result, const TableKey<1>&) {
        EXPECT_EQ(result.outcome, TableOutcome::kFound);
        index = result.index;
      }),
                1u);
      EXPECT_EQ(access->is_mapped(index), !way.remote);
      TableKey<1> key{1};
      EXPECT_EQ(access->read(index, key), TableOutcome::kFound);
      EXPECT_EQ(key, TableKey<1>{0});
      EXPECT_EQ(access->statistics().remote_reads, way.remote ? 1u : 0u);
    });
  }
}

// The factor by which the races of processes have more keys: CARIAMA_TABLE_KEYS, 1 by default, 25
// in the soak test (ctest -C soak -L soak).
size_t times_as_many() {
  const char* const more = std::getenv("CARIAMA_TABLE_KEYS");
  return more == nullptr ? 1 : std::strtoull(more, nullptr, 10);
}

// Every process puts all `keys` in the same order, half of them in one batch. Each key is inserted
// once, and all processes get the same index for it.
template <size_t W>
void race_for(Collectives& all, HashTable<W>& table, const std::vector<TableKey<W>>& keys) {
  auto access = must(table.access());
  std::vector<TableResult> results(keys.size());
  must(all.barrier(soon()));
  const size_t half = keys.size() / 2;
  for (size_t i = 0; i < half; ++i) results[i] = access->find_or_put(keys[i]);
  access->find_or_put(std::span(keys).subspan(half), std::span(results).subspan(half));
  uint64_t inserted = 0;
  uint64_t indices = 0;
  for (const TableResult& result : results) {
    ASSERT_NE(result.index, UINT64_MAX);
    if (result.outcome == TableOutcome::kInserted) ++inserted;
    indices = indices * 31 + result.index;
  }
  EXPECT_EQ(must(all.all_reduce(inserted, std::plus<>(), soon())), keys.size());
  for (const auto& other : must(all.all_gather(indices, soon()))) EXPECT_EQ(other, indices);
  EXPECT_EQ(must(table.size(soon())), keys.size());
}

// Random keys up to load 0.85, and some whose word 0 is equal. Random keys fill shares unevenly:
// one of a few hundred buckets would be full.
template <size_t W>
void race_of(Fabric& fabric, Collectives& all, size_t count, uint64_t seed,
             const ShareAccess& way) {
  const uint64_t buckets = std::max<uint64_t>(count * 10 / 9 / fabric.size(), 1000);
  auto table = must(HashTable<W>::create(all, way.options(buckets), soon()));
  std::mt19937_64 random(seed);
  std::vector<TableKey<W>> keys(table->geometry().buckets * fabric.size() * 17 / 20);
  for (auto& key : keys) key = random_key<W>(random);
  if constexpr (W > 1) {
    const auto equal = keys_of_equal_word<W>(100, random);
    std::copy(equal.begin(), equal.end(), keys.begin() + 50);
  }
  race_for<W>(all, *table, keys);
  must(table->destroy(soon()));
}

// Fills each share to load 0.99, with keys of one home and of homes at the end of the share. Then
// every process visits its share, and compares it with a set of all keys.
template <size_t W>
void race_to_load_99(Fabric& fabric, Collectives& all, uint64_t buckets, uint64_t seed,
                     const ShareAccess& way) {
  auto table = must(HashTable<W>::create(all, way.options(buckets), soon()));
  std::mt19937_64 random(seed);
  const uint64_t of_each = table->geometry().buckets * 99 / 100;
  const auto keys = keys_for_each_owner<W>(of_each, table->geometry(), random);
  race_for<W>(all, *table, keys);
  std::set<TableKey<W>> oracle;
  for (const auto& key : keys) {
    if (table->owner_of(key) == fabric.rank()) oracle.insert(key);
  }
  EXPECT_EQ(oracle.size(), of_each);
  table->for_each_local(
      [&](uint64_t index, const TableKey<W>& key) { EXPECT_EQ(oracle.erase(key), 1u) << index; });
  EXPECT_TRUE(oracle.empty());
  must(all.barrier(soon()));
  must(table->destroy(soon()));
}

TEST(HashTableTest, ProcessesRaceForTheSameKeys) {
  const size_t scale = times_as_many();
  for (const int processes : {2, 4}) {
    run_process_job(processes, {}, [&](Fabric& fabric) {
      Collectives all(fabric);
      race_of<1>(fabric, all, scale * 100'000 / kShrink, 1, kMapped);
      race_of<2>(fabric, all, scale * 100'000 / kShrink, 2, kMapped);
      race_of<3>(fabric, all, scale * 20'000 / kShrink, 3, kMapped);
      for (const ShareAccess& way : kTransfers) {
        race_of<2>(fabric, all, scale * 10'000 / kShrink, 4, way);
      }
    });
  }
  run_process_job(8, {}, [&](Fabric& fabric) {
    Collectives all(fabric);
    race_of<2>(fabric, all, scale * 40'000 / kShrink, 5, kMapped);
  });
}

TEST(HashTableTest, ProcessesRaceToLoad99) {
  const size_t scale = times_as_many();
  for (const int processes : {2, 4, 8}) {
    run_process_job(processes, {}, [&](Fabric& fabric) {
      Collectives all(fabric);
      const uint64_t buckets = scale * 32'768 / kShrink / fabric.size();
      race_to_load_99<1>(fabric, all, buckets, 1, kMapped);
      race_to_load_99<2>(fabric, all, buckets, 2, kMapped);
      race_to_load_99<1>(fabric, all, buckets / 8, 3, kTransfers[0]);
      race_to_load_99<2>(fabric, all, buckets / 8, 4, kTransfers[0]);
      race_to_load_99<2>(fabric, all, buckets / 8, 5, kTransfers[3]);
    });
  }
}

// Threads of one process, each with its access. They put the same keys in the same order, so they
// race for the same bucket again and again. One race is too short to find rare mistakes: a scan
// that loaded a bucket twice failed in one of ten.
void let_threads_race() {
  constexpr uint32_t kThreads = 3;
  LocalJob job({.processes = 1, .fabric = {.threads = kThreads}});
  std::unique_ptr<HashTable<2>> table;
  std::atomic<uint64_t> inserted{0};
  std::vector<uint64_t> indices(kThreads);
  job.run([&](Fabric& fabric, uint32_t thread) {
    Collectives all(fabric);
    if (thread == 0) table = must(HashTable<2>::create(all, {.buckets = 20'000}, soon()));
    job.meet(kThreads);
    auto access = must(table->access());
    std::mt19937_64 random(1);
    auto keys = keys_of_equal_word<2>(200, random);
    while (keys.size() < 16'000) keys.push_back(random_key<2>(random));
    for (const auto& key : keys) {
      const TableResult result = access->find_or_put(key);
      inserted += result.outcome == TableOutcome::kInserted ? 1 : 0;
      indices[thread] = indices[thread] * 31 + result.index;
    }
    job.meet(kThreads);
    access.reset();
    job.meet(kThreads);
    if (thread == 0) table.reset();
  });
  EXPECT_EQ(inserted, 16'000u);
  for (const uint64_t other : indices) EXPECT_EQ(other, indices[0]);
}

TEST(HashTableTest, ThreadsRaceForTheSameKeys) {
  constexpr int kRaces = internal::kUnderThreadSanitizer ? 2 : 40;
  for (int race = 0; race < kRaces; ++race) let_threads_race();
}

// The owner takes part in the operations, and the calls that this thread runs use the same access.
void use_an_access_in_calls(const ShareAccess& way) {
  constexpr uint64_t kKeys = 3000 / kShrink;
  static TableAccess<2>* access_here;
  static std::vector<int>* ended;
  static std::mt19937_64* randoms;
  static std::atomic<bool> ready, finished;
  ready = finished = false;
  access_here = nullptr;
  LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, way.options(16384), soon()));
    if (fabric.rank() == 1) {
      EXPECT_TRUE(wait_until([] { return ready.load(); }, soon()));
      while (!finished) {
        must(call(fabric, 0, [] {
          if (access_here == nullptr) return;  // rank 0 has finished
          const auto tag = ended->size();
          ended->push_back(0);
          if (!access_here->start_find_or_put(random_key<2>(*randoms), tag)) ++ended->at(tag);
          access_here->poll(
              [](uint64_t of, const TableResult&, const TableKey<2>&) { ++ended->at(of); });
        }));
      }
    } else {
      std::mt19937_64 random(5);
      std::vector<int> counts;
      auto access = must(table->access());
      randoms = &random;
      ended = &counts;
      access_here = access.get();
      ready = true;
      const auto on_end = [&](uint64_t tag, const TableResult& result, const TableKey<2>&) {
        EXPECT_EQ(result.outcome, TableOutcome::kInserted);
        ++counts.at(tag);
      };
      while (counts.size() < kKeys) {
        const auto tag = counts.size();
        counts.push_back(0);
        if (!access->start_find_or_put(random_key<2>(random), tag)) ++counts.at(tag);
        access->poll(on_end);
        fabric.process_calls();
      }
      finished = true;
      while (access->active() != 0) {
        access->await_ended();
        access->poll(on_end);
      }
      for (const int count : counts) ASSERT_EQ(count, 1);
      EXPECT_NE(fabric.statistics().calls_run, 0u);
      access_here = nullptr;
    }
    must(all.barrier(soon()));
    must(table->destroy(soon()));
  });
}

TEST(HashTableTest, CallsUseTheAccessOfTheThreadThatRunsThem) {
  for (size_t way = 1; way < kTransfers.size(); ++way) use_an_access_in_calls(kTransfers[way]);
}

TEST(HashTableTest, IndicesOfNoKeyAreAbsent) {
  in_one_process([](Collectives& all) {
    for (const ShareAccess& way : kShareAccesses) {
      auto table = must(HashTable<2>::create(all, way.options(1000), soon()));
      auto access = must(table->access());
      TableKey<2> key{1, 2};
      const TableResult put = access->find_or_put(key);
      EXPECT_EQ(put.outcome, TableOutcome::kInserted);
      const uint64_t empty = put.index == 0 ? 1 : put.index - 1;
      const std::vector<uint64_t> indices{UINT64_MAX, 1000, uint64_t{1} << 40, empty};
      for (const uint64_t index : indices) {
        EXPECT_EQ(access->read(index, key), TableOutcome::kAbsent);
        EXPECT_EQ(access->read(std::span(&index, 1), std::span(&key, 1)), TableOutcome::kAbsent);
        EXPECT_EQ(access->is_mapped(index), index == empty && !way.remote);
        ASSERT_TRUE(access->start_read(index, 7));
        while (access->active() != 0) {
          access->poll([](uint64_t tag, const TableResult& result, const TableKey<2>&) {
            EXPECT_EQ(tag, 7u);
            EXPECT_EQ(result.outcome, TableOutcome::kAbsent);
          });
        }
      }
      access.reset();
      must(table->destroy(soon()));
    }
  });
}

// A reader that has loaded word 0 before an insert, and word 1 after it, sees such a bucket.
TEST(HashTableTest, ABucketWithoutItsFirstWordIsAbsent) {
  in_one_process([](Collectives& all) {
    for (const ShareAccess& way : kShareAccesses) {
      SCOPED_TRACE(way);
      auto table = must(HashTable<2>::create(all, way.options(64), soon()));
      table->core().local_words()[2 * 5 + 1] = kWordPresent | 9;
      auto access = must(table->access());
      TableKey<2> key;
      const uint64_t index = 5;
      EXPECT_EQ(access->read(index, key), TableOutcome::kAbsent);
      EXPECT_EQ(access->read(std::span(&index, 1), std::span(&key, 1)), TableOutcome::kAbsent);
      ASSERT_TRUE(access->start_read(index, 7));
      while (access->active() != 0) {
        access->poll([](uint64_t, const TableResult& result, const TableKey<2>&) {
          EXPECT_EQ(result.outcome, TableOutcome::kAbsent);
        });
      }
      table->for_each_local([](uint64_t at, const TableKey<2>&) { ADD_FAILURE() << at; });
      access.reset();
      must(table->destroy(soon()));
    }
  });
}

// A bucket has no room for bit 63 of a word: {2^63 + 1} would be the key {1}.
TEST(HashTableTest, WordsOfMoreThan63BitsAreNoKey) {
  in_one_process([](Collectives& all) {
    for (const ShareAccess& way : kShareAccesses) {
      auto table = must(HashTable<2>::create(all, way.options(1000), soon()));
      auto access = must(table->access());
      EXPECT_EQ(access->find_or_put({1, 2}).outcome, TableOutcome::kInserted);
      constexpr uint64_t kBit = uint64_t{1} << 63;
      const TableResult invalid{UINT64_MAX, TableOutcome::kInvalidKey};
      const std::vector<TableKey<2>> keys{{kBit | 1, 2}, {1, 2}, {1, kBit | 2}};
      std::vector<TableResult> results(keys.size());
      access->find_or_put(keys, results);
      EXPECT_EQ(results[0], invalid);
      EXPECT_EQ(results[1].outcome, TableOutcome::kFound);
      EXPECT_EQ(results[2], invalid);
      for (const TableKey<2>& key : {keys[0], keys[2]}) {
        EXPECT_EQ(access->find_or_put(key), invalid);
        EXPECT_EQ(access->find(key), invalid);
        ASSERT_TRUE(access->start_find_or_put(key, 7));
        while (access->active() != 0) {
          access->poll([&](uint64_t tag, const TableResult& result, const TableKey<2>&) {
            EXPECT_EQ(tag, 7u);
            EXPECT_EQ(result, invalid);
          });
        }
      }
      EXPECT_EQ(access->statistics().operations, 2u);
      EXPECT_EQ(access->statistics().inserted, 1u);
      access.reset();
      must(table->destroy(soon()));
    }
  });
}

// A process has records of the neighbours in the tree of the collectives, and of the owners of the
// keys that it has used; an owner has one of the process.
TEST(HashTableTest, AProcessHasRecordsOfTheOwnersThatItHasUsed) {
  constexpr uint32_t kProcesses = 12;
  const std::vector<uint32_t> used{7, 11};  // no neighbours of rank 0
  LocalJob job({.processes = kProcesses, .transport = transport_case("sim")});
  std::vector<uint64_t> more(kProcesses);
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<1>::create(all, {.buckets = 64, .force_remote = true}, soon()));
    must(all.barrier(soon()));
    const uint64_t before = fabric.statistics().peer_records;
    EXPECT_LE(before, 4u);
    must(all.barrier(soon()));
    if (fabric.rank() == 0) {
      auto access = must(table->access());
      std::mt19937_64 random(1);
      for (const uint32_t owner : used) {
        TableKey<1> key = random_key<1>(random);
        while (table->owner_of(key) != owner) key = random_key<1>(random);
        EXPECT_EQ(access->find_or_put(key).outcome, TableOutcome::kInserted);
        EXPECT_EQ(access->find(key).outcome, TableOutcome::kFound);
      }
    }
    must(all.barrier(soon()));
    more[fabric.rank()] = fabric.statistics().peer_records - before;
    must(table->destroy(soon()));
  });
  std::vector<uint64_t> expected(kProcesses);
  expected[0] = used.size();
  for (const uint32_t owner : used) expected[owner] = 1;
  EXPECT_EQ(more, expected);
}

// The thread does other work, or is stopped, while the owners answer.
TEST(HashTableTest, TimeBetweenTwoPollsHardlyCounts) {
  LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    TableOptions options = kTransfers[1].options(4096);
    options.timeout = std::chrono::seconds(3);
    auto table = must(HashTable<2>::create(all, options, soon()));
    if (fabric.rank() == 0) {
      auto access = must(table->access({.in_flight = 64}));
      std::mt19937_64 random(1);
      uint64_t ended = 0;
      const auto on_end = [&](uint64_t, const TableResult& result, const TableKey<2>&) {
        EXPECT_EQ(result.outcome, TableOutcome::kInserted) << access->status();
        ++ended;
      };
      for (int i = 0; i < 64; ++i) {
        ASSERT_TRUE(access->start_find_or_put(random_key<2>(random), 0));
        // One of the operations is started before the poll that reads the clock.
        for (int polls = 0; polls < i; ++polls) access->poll(on_end);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(3300));
      for (int i = 0; i < 64; ++i) {
        static_cast<void>(access->start_find_or_put(random_key<2>(random), 0));
        access->poll(on_end);
      }
      while (access->active() != 0) {
        access->await_ended();
        access->poll(on_end);
      }
      EXPECT_GE(ended, 64u);
    }
    must(all.barrier(soon()));
    must(table->destroy(soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
