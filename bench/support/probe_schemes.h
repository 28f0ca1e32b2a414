// Dependent round trips of hashing schemes, as the slides of Oortwijn et al. compare them: counted
// in one process, on random keys. No scheme but linear probing exists as a distributed table.
#ifndef CARIAMA_BENCH_SUPPORT_PROBE_SCHEMES_H_
#define CARIAMA_BENCH_SUPPORT_PROBE_SCHEMES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace cariama::bench {

struct RoundTrips {
  double find = 0;    // of a key that is there
  double insert = 0;  // of a key that is not there, compare-and-swaps and writes included
};

// Fills a table of `buckets` buckets up to `load`. Returns the means of the last twentieth of the
// inserts, and of finds of random keys. Schemes:
//   linear       reads of `chunk` buckets until one holds the key or an empty bucket; a
//                compare-and-swap
//   hopscotch    a neighbourhood of `chunk` buckets in one read; an insert moves keys until its
//                empty bucket is in the neighbourhood: 2 round trips for each (a compare-and-swap
//                of the copy, one of the original)
//   cuckoo-2-4   2 hash functions, buckets of 4 slots: a find reads the second bucket if the first
//                does not have the key; an insert reads both, then moves keys: 3 round trips for
//                each (a read of the other bucket, 2 compare-and-swaps)
//   chained      buckets of one key with a list: one read for each element
// Errors: INVALID_ARGUMENT (no such scheme), RESOURCE_EXHAUSTED (the scheme cannot reach the load).
[[nodiscard]] absl::StatusOr<RoundTrips> simulate_scheme(std::string_view scheme, uint64_t buckets,
                                                         double load, uint32_t chunk);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_PROBE_SCHEMES_H_
