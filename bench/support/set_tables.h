// The tables that bench_dht compares with: the ceiling, a raw compare-and-swap table in the same
// memory; and concurrent sets of other libraries.
#ifndef CARIAMA_BENCH_SUPPORT_SET_TABLES_H_
#define CARIAMA_BENCH_SUPPORT_SET_TABLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dht/table_layout.h"

namespace cariama::bench {

// The ceiling that the memory allows: linear probing bucket by bucket in shared memory, one
// compare-and-swap per insert, no index, no statistics, no failure handling. Keys of more than one
// word: the words after the first are stored after the claim, and a reader spins until they are
// there.
template <size_t W>
class RawTable {
 public:
  // `shares`: the memory of each process, of `buckets` buckets.
  RawTable(std::vector<uint64_t*> shares, uint64_t buckets)
      : shares_(std::move(shares)), buckets_(buckets) {}

  // Returns true if the key was inserted.
  bool find_or_put(const TableKey<W>& key) {
    uint64_t hash = hash_of(key);
    uint64_t* const share = shares_[owner_of(hash)];
    for (uint64_t at = position_of(hash);; at = at + 1 == buckets_ ? 0 : at + 1) {
      uint64_t* const bucket = share + at * W;
      std::atomic_ref<uint64_t> word(bucket[0]);
      const uint64_t wanted = key[0] | kWordPresent;
      uint64_t found = word.load(std::memory_order_acquire);
      if (found == 0 && word.compare_exchange_strong(found, wanted, std::memory_order_acq_rel)) {
        for (size_t i = 1; i < W; ++i) {
          std::atomic_ref<uint64_t>(bucket[i]).store(key[i] | kWordPresent,
                                                     std::memory_order_release);
        }
        return true;
      }
      if (found != wanted) continue;
      bool equal = true;
      for (size_t i = 1; i < W && equal; ++i) {
        std::atomic_ref<uint64_t> rest(bucket[i]);
        uint64_t there = rest.load(std::memory_order_acquire);
        while (there == 0) there = rest.load(std::memory_order_acquire);
        equal = there == (key[i] | kWordPresent);
      }
      if (equal) return false;
    }
  }
  // Puts all keys, and prefetches the home of the key `kDistance` positions ahead.
  void find_or_put(std::span<const TableKey<W>> keys) {
    constexpr size_t kDistance = 24;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kDistance < keys.size()) {
        // The prefetch is not a function of its own: gcc 12 removes calls of a function whose only
        // effect is a prefetch.
        const uint64_t hash = hash_of(keys[i + kDistance]);
        __builtin_prefetch(shares_[owner_of(hash)] + position_of(hash) * W, 1);
      }
      find_or_put(keys[i]);
    }
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static uint64_t hash_of(const TableKey<W>& key) {
    uint64_t hash = key[0];
    for (size_t i = 1; i < W; ++i) hash = (hash ^ hash >> 32) * 0x9e37'79b9'7f4a'7c15 ^ key[i];
    hash *= 0xff51'afd7'ed55'8ccd;
    return (hash ^ hash >> 32) * 0xc4ce'b9fe'1a85'ec53;
  }
  [[nodiscard]] size_t owner_of(uint64_t hash) const {
    return shares_.size() == 1 ? 0 : static_cast<size_t>(Wide{hash} * shares_.size() >> 64);
  }
  [[nodiscard]] uint64_t position_of(uint64_t hash) const {
    return static_cast<uint64_t>(Wide{hash * shares_.size()} * buckets_ >> 64);
  }

  std::vector<uint64_t*> shares_;
  uint64_t buckets_;
};

// A set of 63-bit keys that several threads of one process use.
class SharedSet {
 public:
  virtual ~SharedSet() = default;
  // Puts all keys.
  virtual void put(std::span<const TableKey<1>> keys) = 0;
};
// absl::flat_hash_set with one mutex, with room for `keys`.
[[nodiscard]] std::unique_ptr<SharedSet> make_locked_set(size_t keys);
// tbb::concurrent_unordered_set, or nullptr if the program was built without oneTBB.
[[nodiscard]] std::unique_ptr<SharedSet> make_tbb_set(size_t keys);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_SET_TABLES_H_
