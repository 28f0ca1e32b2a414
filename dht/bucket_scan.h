// Search of a run of buckets for a key or an empty bucket, by vector compares where the CPU has
// them (AVX2). Not for users: hash_table.h calls it.
#ifndef CARIAMA_DHT_BUCKET_SCAN_H_
#define CARIAMA_DHT_BUCKET_SCAN_H_

#include <cstddef>
#include <cstdint>

#include "dht/export.h"

namespace cariama {

// Returns the first i < count for which word 0 of bucket i (buckets[i * words]) is 0 or equals
// `word`, or `count`. Thread-safe. Other threads and processes may write the buckets meanwhile, so
// the caller must load the bucket again, atomically, before it acts on the result.
[[nodiscard]] CARIAMA_DHT_EXPORT size_t scan_buckets(const uint64_t* buckets, size_t count,
                                                     size_t words, uint64_t word);

// Returns the number of buckets whose word 0 is not 0. Thread-safe.
[[nodiscard]] size_t count_occupied(const uint64_t* buckets, size_t count, size_t words);

}  // namespace cariama

#endif  // CARIAMA_DHT_BUCKET_SCAN_H_
