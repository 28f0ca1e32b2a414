// The values that a user passes to the hash table: options, and sizes to which it grows. Values
// that no table can have, or that differ between the processes, are errors of all processes.
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dht/hash_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Whatever sizes the processes pass: if they differ, or if the table cannot have the size, all
// processes get the same error, at once, and no key is lost.
TEST(TableOptionsTest, SizesThatNoTableCanGrowToAreRefusedByAll) {
  constexpr uint64_t kHuge = uint64_t{1} << 49;
  const std::vector<uint64_t> sizes{0, 32, 64, 72, 128, kHuge, UINT64_MAX};
  LocalJob job({.processes = 3});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<1>::create(all, {.buckets = 64}, soon()));
    std::mt19937_64 random(fabric.rank());
    std::vector<TableKey<1>> keys(40);
    for (auto& key : keys) key = random_key<1>(random);
    std::vector<TableResult> results(keys.size());
    auto access = must(table->access());
    access->find_or_put(keys, results);
    for (const uint64_t a : sizes) {
      for (const uint64_t b : sizes) {
        for (const uint64_t c : sizes) {
          const bool equal = a == b && b == c;
          if (equal && (a == 64 || a == 72 || a == 128)) continue;
          const std::array<uint64_t, 3> of{a, b, c};
          must(all.barrier(soon()));
          const absl::Status refused = table->grow(of[fabric.rank()], soon());
          EXPECT_EQ(refused.code(), equal ? absl::StatusCode::kInvalidArgument
                                          : absl::StatusCode::kFailedPrecondition)
              << a << " " << b << " " << c << ": " << refused;
          EXPECT_THAT(std::string(refused.message()), HasSubstr("grow"));
          EXPECT_EQ(table->geometry().buckets, 64u);
        }
      }
    }
    must(all.barrier(soon()));
    std::vector<TableResult> found(keys.size());
    access->find(keys, found);
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(found[i], (TableResult{results[i].index, TableOutcome::kFound}));
    }
    must(all.barrier(soon()));
    must(table->grow(60, soon()));  // rounded up to the present size
    must(table->grow(256, soon()));
    access->find(keys, found);
    for (const TableResult& one : found) EXPECT_EQ(one.outcome, TableOutcome::kFound);
    must(all.barrier(soon()));
    access.reset();
    must(table->destroy(soon()));
  });
}

TEST(TableOptionsTest, RefusesWrongOptions) {
  in_one_process([](Collectives& all) {
    const auto code = [&](const TableOptions& options) {
      return HashTable<1>::create(all, options, soon()).status().code();
    };
    EXPECT_EQ(code({.buckets = 64, .chunk = 12}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.buckets = 64, .chunk = 1024}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.bytes = 0}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.buckets = uint64_t{1} << 45}), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(code({.buckets = 64, .atomics = AtomicsBy::kDevice}),
              absl::StatusCode::kInvalidArgument);
    auto table = must(HashTable<1>::create(all, {.buckets = 64}, soon()));
    for (const uint32_t in_flight : {0u, TableAccessOptions::kMaxInFlight + 1, UINT32_MAX}) {
      const absl::Status refused = table->access({.in_flight = in_flight}).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("TableAccessOptions::in_flight"));
    }
    for (const TableOptions& huge : {TableOptions{.buckets = UINT64_MAX},
                                     {.buckets = UINT64_MAX - 6},
                                     {.bytes = UINT64_MAX}}) {
      EXPECT_EQ(code(huge), absl::StatusCode::kInvalidArgument) << huge.buckets;
    }
    EXPECT_EQ(code({.buckets = uint64_t{1} << 48}), absl::StatusCode::kResourceExhausted);
  });
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const absl::Status status =
        HashTable<1>::create(all, {.buckets = 64 + 64 * fabric.rank()}, soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank"), HasSubstr("TableOptions::buckets")));
    const auto atomics = fabric.rank() == 0 ? AtomicsBy::kAutomatic : AtomicsBy::kOwner;
    const absl::Status differ =
        HashTable<1>::create(all, {.buckets = 64, .atomics = atomics}, soon()).status();
    EXPECT_EQ(differ.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(differ.message()), HasSubstr("another TableOptions::atomics"));
    // An option of one process alone: the other one gets its error, at once.
    const uint32_t chunk = fabric.rank() == 0 ? 0 : 12;
    const absl::Status refused =
        HashTable<1>::create(all, {.buckets = 64, .chunk = chunk}, soon()).status();
    EXPECT_EQ(refused.code(), fabric.rank() == 0 ? absl::StatusCode::kUnavailable
                                                 : absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("12 buckets"));
  });
}

// A time that no clock can show is no limit, one below 0 is over at once.
TEST(TableOptionsTest, TimeoutsMayHaveAnyValue) {
  in_one_process([](Collectives& all) {
    using std::chrono::milliseconds;
    for (const milliseconds timeout : {milliseconds::max(), milliseconds::min()}) {
      auto table = must(HashTable<1>::create(
          all, {.buckets = 64, .max_chunks = UINT32_MAX, .force_remote = true, .timeout = timeout},
          soon()));
      auto access = must(table->access());
      const TableOutcome outcome = access->find_or_put({1}).outcome;
      if (timeout > milliseconds::zero()) {
        EXPECT_EQ(outcome, TableOutcome::kInserted);
      }
      access.reset();
      must(table->destroy(soon()));
    }
  });
}

}  // namespace
}  // namespace cariama::testing
