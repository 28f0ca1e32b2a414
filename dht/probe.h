// The search of a share that this process accesses directly: loads of its buckets, and
// compare-and-swaps that put a key. Not for users: TableAccess (hash_table.h) uses it, and the
// service of an owner that executes operations (owner_calls.h).
#ifndef CARIAMA_DHT_PROBE_H_
#define CARIAMA_DHT_PROBE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dht/bucket_scan.h"
#include "dht/table_layout.h"
#include "dht/table_options.h"

namespace cariama::internal {

inline uint64_t load_word(const uint64_t* word) {
  // Relaxed: a word has one value besides 0, and no other memory depends on it.
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
}

// Returns true if all words of a bucket are set. They are loaded one after another, so an insert
// may set all of them after word 0 was loaded as 0.
template <size_t W>
[[nodiscard]] inline bool is_complete(const TableKey<W>& stored) {
  uint64_t all = kWordPresent;
  for (const uint64_t word : stored) all &= word;
  return all != 0;
}

// The result of examining a bucket for a key. kHere: the bucket contains the key. kPut: this
// operation has put the key there. kEnd: a word is not set (only without kSet), so the key is
// absent. kOther: the bucket contains another key.
enum class Verdict : uint8_t { kHere, kPut, kEnd, kOther };

// Examines the words of a bucket, whose word 0 is `found`, 0 or equal to the key's; sets those that
// are 0 (kSet).
template <bool kSet, size_t W>
[[nodiscard]] inline Verdict resolve(uint64_t* bucket, uint64_t found, const TableKey<W>& stored) {
  bool set_last = false;
  for (size_t i = 0;;) {
    if (found == 0) {
      if constexpr (!kSet) return Verdict::kEnd;
      set_last = std::atomic_ref<uint64_t>(bucket[i]).compare_exchange_strong(
          found, stored[i], std::memory_order_relaxed);
    }
    if (!set_last && found != stored[i]) return Verdict::kOther;
    if (++i == W) return set_last ? Verdict::kPut : Verdict::kHere;
    set_last = false;
    found = load_word(bucket + i);
  }
}

// Finds the key on its probe path, which begins at `home`, behind the first `probed` buckets; kPut:
// puts it there. The words `stored` are encoded. Thread-safe, also between processes.
template <bool kPut, size_t W>
[[nodiscard]] TableResult probe_share(const TableGeometry& geometry, uint64_t* share,
                                      const TableKey<W>& stored, TablePlace home, uint64_t probed) {
  while (probed < geometry.probe_limit) {
    const uint64_t from = home.position + probed;
    const uint64_t at = from < geometry.buckets ? from : from - geometry.buckets;
    const uint64_t run = std::min(geometry.probe_limit - probed, geometry.buckets - at);
    const uint64_t skipped = scan_buckets(share + at * W, run, W, stored[0]);
    probed += skipped;
    if (skipped == run) continue;
    uint64_t* const bucket = share + (at + skipped) * W;
    const uint64_t index = geometry.index_of(home.owner, at + skipped);
    // Loads word 0 again, because the loads of the scan are not atomic, and the word may have been
    // set since.
    const uint64_t found = load_word(bucket);
    ++probed;
    if (found != 0 && found != stored[0]) continue;
    switch (resolve<kPut>(bucket, found, stored)) {
      case Verdict::kHere:
        return {index, TableOutcome::kFound};
      case Verdict::kPut:
        return {index, TableOutcome::kInserted};
      case Verdict::kEnd:
        return {UINT64_MAX, TableOutcome::kAbsent};
      case Verdict::kOther:
        break;
    }
  }
  return {UINT64_MAX, kPut ? TableOutcome::kFull : TableOutcome::kAbsent};
}

}  // namespace cariama::internal

#endif  // CARIAMA_DHT_PROBE_H_
