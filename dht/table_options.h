// Options, results and counters of the distributed hash table (hash_table.h).
#ifndef CARIAMA_DHT_TABLE_OPTIONS_H_
#define CARIAMA_DHT_TABLE_OPTIONS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsfabric/global_memory.h"

namespace cariama {

// The result of one operation.
enum class TableOutcome : uint8_t {
  kFound,     // the key was in the table, at `index`
  kInserted,  // this operation put the key into the table, at `index`
  kAbsent,    // find(): not in the table. read(): the bucket is empty or does not exist
  kFull,      // the key is absent, and no bucket within the probe limit is empty; nothing is lost
  // The owner of the key is dead or does not answer, or the operation had no memory or descriptors:
  // status() of the access returns the reason; TableAccess (hash_table.h) lists the errors. A
  // find_or_put with this result may have put the key, or may still put it, so that a later
  // find_or_put of the key returns kFound.
  kUnavailable,
  kInvalidKey,  // a word of the key is 2^63 or more; nothing was looked up or put
};

// 16 bytes: returned in registers.
struct TableResult {
  uint64_t index = UINT64_MAX;  // of the bucket; valid with kFound and kInserted
  TableOutcome outcome = TableOutcome::kUnavailable;

  friend bool operator==(const TableResult&, const TableResult&) = default;
};
static_assert(sizeof(TableResult) == 16);

// The time at which an access requests the next chunk of a probe path.
enum class TablePrefetch : uint8_t {
  kNone,  // after the first chunk was scanned
  // Together with the first chunk, as W. Oortwijn's table does (master's thesis, Twente 2015): one
  // read more per operation, unless the first chunk is the whole probe path.
  kEager,
  // Together with the first chunk, if the measured load predicts that a chunk is full: load > 1 -
  // sqrt(1 / (2 C - 1)), the efficiency bound of the same thesis.
  kLoad,
};

// Which process executes an operation on a share that is not mapped.
enum class OperationsBy : uint8_t {
  // kOwner for find_or_put() if the owners execute the compare-and-swaps (AtomicsBy), which is so
  // in a job that uses verbs: one round trip replaces those of an insert. Otherwise, and in a
  // fabric without service threads, kInitiator.
  kAutomatic,
  // The calling process, by READs of chunks and compare-and-swaps, which the owner's service thread
  // executes in a job that uses verbs (AtomicsBy).
  kInitiator,
  // The service thread of the owner, which does nothing else meanwhile. A call carries operations
  // that have begun since the last poll or while other calls were in flight: at most 64, and at
  // most 2^21 divided by the probe limit, 16 with the default limit of 2^17 buckets. Short receive
  // units lower the number further.
  kOwner,
};

inline constexpr std::array<OperationsBy, 3> kAllOperationsBy = {
    OperationsBy::kAutomatic, OperationsBy::kInitiator, OperationsBy::kOwner};
[[nodiscard]] constexpr std::string_view operations_by_name(OperationsBy by) {
  return by == OperationsBy::kAutomatic   ? "auto"
         : by == OperationsBy::kInitiator ? "initiator"
                                          : "owner";
}

// `buckets` (or `bytes`), the product of `chunk` and `max_chunks`, and `atomics` must be equal in
// all processes: create() compares them. The other options may differ.
struct TableOptions {
  // Buckets of each process. 0: as many as fit `bytes`. Rounded up to a multiple of 8.
  uint64_t buckets = 0;
  uint64_t bytes = uint64_t{64} << 20;  // of each process; used if `buckets` is 0
  // Buckets that one read returns, a multiple of 8 (one cache line of one-word buckets), at most
  // kMaxChunk. 0: follows the measured load (chunk_for_load()).
  uint32_t chunk = 0;
  TablePrefetch prefetch = TablePrefetch::kLoad;
  // An operation examines at most max_chunks * C buckets, where C is `chunk`, or kMaxChunk if
  // `chunk` is 0; then the result is kFull. 0: 256.
  uint32_t max_chunks = 0;
  // Access all shares as shares that are not mapped. The operations are then those of a table
  // between hosts whose owners execute nothing, unless `operations` or `atomics` say otherwise. The
  // times are not those of a network: over shm the CPU copies the chunks.
  bool force_remote = false;
  // kDevice is refused: CPUs change the buckets of mapped shares, and the compare-and-swap of a
  // device is not atomic with those of CPUs.
  AtomicsBy atomics = AtomicsBy::kAutomatic;
  OperationsBy operations = OperationsBy::kAutomatic;
  // An operation that takes longer ends with kUnavailable; a time beyond the range of the clock is
  // no limit. Of a time between two polls of its access, at most one second counts: the thread may
  // have been stopped. The first operation on a share connects to its owner and asks it for the
  // address, both together for at most FabricOptions::timeout instead.
  std::chrono::milliseconds timeout{30'000};

  static constexpr uint32_t kMaxChunk = 512;
};

struct TableAccessOptions {
  // Operations on shares that are not mapped which one access has in flight, and asynchronous
  // operations that are active; from 1 to kMaxInFlight. Each that this process executes by
  // transfers takes registered memory for a chunk of the largest size (two with kEager and kLoad):
  // 8 W C bytes. So does each operation that has ended by its deadline while a transfer is in
  // flight; there are at most in_flight of these for each owner that does not answer.
  uint32_t in_flight = 32;

  static constexpr uint32_t kMaxInFlight = 65'536;
};

// Counters of one access. The counters of the remote path count operations on shares that are not
// mapped.
struct TableStatistics {
  uint64_t operations = 0;  // find, find_or_put and read, on all shares; each counts once
  uint64_t inserted = 0;    // keys that this access has put
  uint64_t full = 0;
  uint64_t unavailable = 0;
  // Remote path.
  uint64_t remote_finds = 0;        // operations that ended with kFound or kAbsent
  uint64_t remote_inserts = 0;      // operations that ended with kInserted
  uint64_t remote_reads = 0;        // read() calls that took a round trip
  uint64_t chunks_read = 0;         // also those that were requested in advance and not needed
  uint64_t bytes_read = 0;          // bytes of these chunks
  uint64_t find_round_trips = 0;    // dependent round trips of the remote_finds
  uint64_t insert_round_trips = 0;  // dependent round trips of the remote_inserts
  uint64_t cas_retries = 0;         // claims that another key won
  uint64_t owner_operations = 0;    // that were sent to the owners, to execute them (OperationsBy)
  uint64_t owner_calls = 0;         // the calls that carried them
  double load = 0;                  // measured load of the chunks that were read
  uint32_t chunk = 0;               // chunk size in use, in buckets
};

// The result of HashTable::load.
struct TableLoadResult {
  uint64_t keys = 0;          // that all processes loaded
  bool indices_kept = false;  // every key has the index that it had when it was saved
};

// Returns the chunk size for a load, in buckets: the value of a table of nine steps. A search for
// an absent key then takes at most 1.05 reads on average at loads up to 0.7, and at most 1.15 up to
// 0.9 (simulated linear probing with uniform hashes: docs/reachability.md).
[[nodiscard]] constexpr uint32_t chunk_for_load(double load) {
  if (load < 0.45) return 8;
  if (load < 0.60) return 16;
  if (load < 0.70) return 32;
  if (load < 0.79) return 64;
  if (load < 0.85) return 96;
  if (load < 0.88) return 128;
  if (load < 0.905) return 160;
  if (load < 0.92) return 256;
  return TableOptions::kMaxChunk;
}

}  // namespace cariama

#endif  // CARIAMA_DHT_TABLE_OPTIONS_H_
