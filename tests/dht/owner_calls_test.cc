// Operations that their owners execute: how many a call carries, and what an owner does with a call
// that is malformed.
#include "dht/internal/owner_calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "dht/hash_table.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

constexpr const ShareAccess& kByOwner = kTransfers[3];

TEST(OwnerCallsTest, OperationsThatBeginTogetherTravelTogether) {
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, kByOwner.options(4096), soon()));
    auto access = must(table->access({.in_flight = 64}));
    if (fabric.rank() == 0) {
      std::mt19937_64 random(1);
      const auto key = [&] {
        TableKey<2> key = random_key<2>(random);
        while (table->owner_of(key) != 1) key = random_key<2>(random);
        return key;
      };
      for (uint64_t i = 1; i <= 10; ++i) {
        EXPECT_EQ(access->find_or_put(key()).outcome, TableOutcome::kInserted);
        EXPECT_EQ(access->statistics().owner_calls, i);
      }
      std::vector<TableKey<2>> keys(64);
      for (auto& one : keys) one = key();
      for (uint64_t i = 0; i < keys.size(); ++i) ASSERT_TRUE(access->start_find_or_put(keys[i], i));
      const auto on_end = [&](uint64_t tag, const TableResult& result, const TableKey<2>& of) {
        EXPECT_EQ(result.outcome, TableOutcome::kInserted);
        EXPECT_EQ(of, keys[tag]);
      };
      while (access->active() != 0) {
        access->await_ended();
        access->poll(on_end);
      }
      const TableStatistics statistics = access->statistics();
      EXPECT_EQ(statistics.owner_calls, 11u);
      EXPECT_EQ(statistics.owner_operations, 74u);
      EXPECT_EQ(statistics.remote_inserts, 74u);
      EXPECT_EQ(statistics.insert_round_trips, 74u);
      EXPECT_EQ(statistics.chunks_read, 0u);
    }
    must(all.barrier(soon()));
    access.reset();
    must(table->destroy(soon()));
  });
}

// An owner that executes finds the key of each operation, whatever the others of its call do.
TEST(OwnerCallsTest, ABatchOfEqualKeysInsertsOne) {
  in_one_process([](Collectives& all) {
    auto table = must(HashTable<3>::create(all, kByOwner.options(256), soon()));
    auto access = must(table->access({.in_flight = 64}));
    const std::vector<TableKey<3>> keys(100, TableKey<3>{1, 2, 3});
    std::vector<TableResult> results(keys.size());
    access->find_or_put(keys, results);
    EXPECT_EQ(std::count_if(
                  results.begin(), results.end(),
                  [](const TableResult& one) { return one.outcome == TableOutcome::kInserted; }),
              1);
    for (const TableResult& one : results) EXPECT_EQ(one.index, results[0].index);
    EXPECT_EQ(table->local_size(), 1u);
  });
}

// The shortest receive unit has room for one operation with the widest key.
TEST(OwnerCallsTest, CallsFitIntoAnyReceiveUnit) {
  LocalJobOptions options{.processes = 2};
  options.fabric.receive_unit_bytes = 256;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<8>::create(all, kByOwner.options(256), soon()));
    auto access = must(table->access());
    std::mt19937_64 random(fabric.rank());
    std::vector<TableKey<8>> keys(100);
    for (auto& key : keys) key = random_key<8>(random);
    std::vector<TableResult> results(keys.size());
    access->find_or_put(keys, results);
    std::vector<uint64_t> indices;
    for (const TableResult& result : results) {
      ASSERT_EQ(result.outcome, TableOutcome::kInserted) << access->status();
      indices.push_back(result.index);
    }
    std::vector<TableKey<8>> read(keys.size());
    EXPECT_EQ(access->read(indices, read), TableOutcome::kFound);
    EXPECT_EQ(read, keys);
    must(all.barrier(soon()));
    access.reset();
    must(table->destroy(soon()));
  });
}

// More calls than the owner has receives posted: those without one are sent again.
TEST(OwnerCallsTest, ManyAccessesShareOneReceive) {
  LocalJobOptions options{.processes = 2};
  options.fabric.receive_units = 1;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, kByOwner.options(4096), soon()));
    std::vector<std::unique_ptr<TableAccess<2>>> accesses(4);
    for (auto& access : accesses) access = must(table->access({.in_flight = 256}));
    std::mt19937_64 random(fabric.rank());
    uint64_t inserted = 0;
    const auto on_end = [&](uint64_t, const TableResult& result, const TableKey<2>&) {
      inserted += result.outcome == TableOutcome::kInserted;
    };
    constexpr uint64_t kKeys = 200;
    for (uint64_t i = 0; i < kKeys; ++i) {
      for (auto& access : accesses) {
        ASSERT_TRUE(access->start_find_or_put(random_key<2>(random), i));
      }
    }
    for (auto& access : accesses) {
      while (access->active() != 0) {
        for (auto& other : accesses) other->poll(on_end);
      }
    }
    EXPECT_EQ(inserted, 4 * kKeys);
    accesses.clear();
    must(table->destroy(soon()));
  });
}

// ---- Calls that no honest process sends ---------------------------------------------------------

struct Share {
  std::vector<uint64_t> memory = std::vector<uint64_t>(64 * 2);
  const CalledShare called{reinterpret_cast<uint64_t>(memory.data()), 64, 64, 2};
};

uint64_t first_word(OwnerCalls::Mode mode, uint64_t position) {
  return position | uint64_t{static_cast<uint8_t>(mode)} << 48;
}

TEST(OwnerCallsTest, AMalformedCallExecutesNothing) {
  using Mode = OwnerCalls::Mode;
  Share share;
  const TableKey<2> key = encode_key<2>({5, 6});
  const std::vector<uint64_t> good{first_word(Mode::kPut, 3), key[0], key[1]};
  const auto refused = [&](std::vector<uint64_t> tail) {
    std::vector<uint64_t> call = good;
    call.insert(call.end(), tail.begin(), tail.end());
    EXPECT_TRUE(execute_operations(share.called, call).empty());
    EXPECT_EQ(std::count(share.memory.begin(), share.memory.end(), 0), 128);
  };
  refused({first_word(Mode::kPut, 3), key[0]});                    // cut short
  refused({first_word(Mode::kPut, 3)});                            // no key
  refused({first_word(Mode::kFind, 64), key[0], key[1]});          // no such bucket
  refused({first_word(Mode::kRead, UINT64_MAX >> 16)});            // no such bucket
  refused({first_word(static_cast<Mode>(3), 3), key[0], key[1]});  // no such operation
  refused({UINT64_MAX, key[0], key[1]});                           // no such operation
  refused({first_word(Mode::kPut, 3), key[0], 6});                 // no encoded key
  refused({first_word(Mode::kPut, 3), 0, key[1]});                 // no encoded key
  EXPECT_TRUE(execute_operations(share.called, {}).empty());
  const uint64_t inserted = uint64_t{static_cast<uint8_t>(TableOutcome::kInserted)} << 48 | 3;
  EXPECT_EQ(execute_operations(share.called, good), std::vector<uint64_t>{inserted});
}

// Random calls of well-formed operations, against a map.
TEST(OwnerCallsTest, ExecutesWhatAMapDoes) {
  using Mode = OwnerCalls::Mode;
  Share share;
  const TableGeometry geometry{.buckets = 64, .probe_limit = 64};
  std::map<TableKey<2>, uint64_t> oracle;  // key → bucket
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> call;
    struct Operation {
      Mode mode;
      TableKey<2> key;
      bool known;  // the position of a kRead is that of the key
    };
    std::vector<Operation> operations;
    for (uint64_t i = random() % 8 + 1; i-- > 0;) {
      const auto mode = static_cast<Mode>(random() % 3);
      const TableKey<2> key = {random() % 50, 7};
      const TableKey<2> stored = encode_key<2>(key);
      const auto known = oracle.find(key);
      operations.push_back({mode, key, known != oracle.end()});
      if (mode == Mode::kRead) {
        call.push_back(first_word(mode, known == oracle.end() ? random() % 64 : known->second));
      } else {
        call.push_back(first_word(mode, geometry.home_of(stored[0]).position));
        call.insert(call.end(), stored.begin(), stored.end());
      }
    }
    const std::vector<uint64_t> answer = execute_operations(share.called, call);
    size_t at = 0;
    for (const auto& [mode, key, was_known] : operations) {
      ASSERT_LT(at, answer.size());
      const auto outcome = static_cast<TableOutcome>(answer[at] >> 48);
      const uint64_t position = answer[at++] & 0xffff'ffff'ffff;
      const auto known = oracle.find(key);
      if (mode == Mode::kRead) {
        const TableKey<2> stored{answer.at(at), answer.at(at + 1)};
        at += 2;
        if (!was_known) continue;  // any bucket
        EXPECT_EQ(outcome, TableOutcome::kFound);
        EXPECT_EQ(stored, encode_key<2>(key));
      } else if (known != oracle.end()) {
        EXPECT_EQ(outcome, TableOutcome::kFound);
        EXPECT_EQ(position, known->second);
      } else if (mode == Mode::kFind) {
        EXPECT_EQ(outcome, TableOutcome::kAbsent);
      } else {
        EXPECT_EQ(outcome, TableOutcome::kInserted);
        for (const auto& [other, bucket] : oracle) EXPECT_NE(bucket, position);
        oracle[key] = position;
      }
    }
    EXPECT_EQ(at, answer.size());
  }
  EXPECT_EQ(oracle.size(), 50u);
}

}  // namespace
}  // namespace cariama::testing
