// Keys for tests of the distributed hash table.
#ifndef CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_
#define CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "dht/table_layout.h"

namespace cariama::testing {

inline constexpr uint64_t kKeyMask = ~kWordPresent;

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

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DHT_TABLE_TEST_SUPPORT_H_
