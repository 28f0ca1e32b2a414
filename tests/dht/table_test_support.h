// Keys and jobs for tests of the distributed hash table.
#ifndef CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_
#define CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <vector>

#include "dht/table_layout.h"
#include "dht/table_options.h"
#include "dsfabric/collectives.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {

inline constexpr uint64_t kKeyMask = ~kWordPresent;

// The ways in which a process accesses a share.
struct ShareAccess {
  bool remote;
  AtomicsBy atomics;
  OperationsBy operations;

  [[nodiscard]] TableOptions options(uint64_t buckets) const {
    return {
        .buckets = buckets, .force_remote = remote, .atomics = atomics, .operations = operations};
  }
};
inline std::ostream& operator<<(std::ostream& out, const ShareAccess& access) {
  return out << (!access.remote                              ? "mapped"
                 : access.operations == OperationsBy::kOwner ? "by the owner"
                 : access.atomics != AtomicsBy::kOwner       ? "one-sided"
                 : access.operations == OperationsBy::kInitiator
                     ? "with compare-and-swaps by the owner"
                     : "with find_or_put by the owner");
}
inline constexpr std::array<ShareAccess, 4> kTransfers{{
    {true, AtomicsBy::kAutomatic, OperationsBy::kInitiator},
    {true, AtomicsBy::kOwner, OperationsBy::kInitiator},
    {true, AtomicsBy::kOwner, OperationsBy::kAutomatic},
    {true, AtomicsBy::kAutomatic, OperationsBy::kOwner},
}};
inline constexpr std::array<ShareAccess, 3> kShareAccesses{{
    {false, AtomicsBy::kAutomatic, OperationsBy::kAutomatic},
    kTransfers[0],
    kTransfers[3],
}};

// Runs body(all) in a job of one process.
template <typename Body>
void in_one_process(const Body& body) {
  LocalJob job({.processes = 1});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    body(all);
  });
}

template <size_t W>
[[nodiscard]] TableKey<W> random_key(std::mt19937_64& random) {
  TableKey<W> key;
  for (uint64_t& word : key) word = random() & kKeyMask;
  return key;
}

// Returns keys with pairwise different last words whose word 0 is equal once it is stored, so that
// they also have the same home. Requires: W > 1.
template <size_t W>
[[nodiscard]] std::vector<TableKey<W>> keys_of_equal_word(size_t count, std::mt19937_64& random) {
  static_assert(W > 1);
  const uint64_t word = random() & kKeyMask;
  const uint64_t middle = random() & kKeyMask;
  std::vector<TableKey<W>> keys(count);
  for (size_t i = 0; i < count; ++i) {
    keys[i].fill(middle);
    keys[i][W - 1] = i;
    keys[i][0] = word ^ hash_of_rest(keys[i].data(), W);
  }
  return keys;
}

// Returns different keys whose probe paths begin within the last `within` buckets of a share, or
// all in one bucket if `within` is 1.
template <size_t W>
[[nodiscard]] std::vector<TableKey<W>> keys_at_the_end(size_t count, const TableGeometry& geometry,
                                                       uint64_t within, std::mt19937_64& random) {
  std::vector<TableKey<W>> keys;
  while (keys.size() < count) {
    const TableKey<W> key = random_key<W>(random);
    if (geometry.home_of(encode_key<W>(key)[0]).position >= geometry.buckets - within) {
      keys.push_back(key);
    }
  }
  return keys;
}

// Returns different keys, `of_each` for each owner, in random order. A quarter of an owner's keys,
// at most 64, have the last bucket of the share as their home; a further quarter, at most 256, one
// of its last 64 buckets. So long probe paths begin at the end of the share and continue at its
// beginning.
template <size_t W>
[[nodiscard]] std::vector<TableKey<W>> keys_for_each_owner(uint64_t of_each,
                                                           const TableGeometry& geometry,
                                                           std::mt19937_64& random) {
  const uint64_t at_last = std::min<uint64_t>(64, of_each / 4);
  const uint64_t near_last = at_last + std::min<uint64_t>(256, of_each / 4);
  std::vector<uint64_t> counts(geometry.processes);
  std::vector<TableKey<W>> keys;
  while (keys.size() < of_each * geometry.processes) {
    const TableKey<W> key = random_key<W>(random);
    const TablePlace home = geometry.home_of(encode_key<W>(key)[0]);
    uint64_t& count = counts[home.owner];
    const uint64_t within = count < at_last ? 1 : count < near_last ? 64 : geometry.buckets;
    if (count == of_each || home.position < geometry.buckets - within) continue;
    ++count;
    keys.push_back(key);
  }
  std::shuffle(keys.begin(), keys.end(), random);
  return keys;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_
