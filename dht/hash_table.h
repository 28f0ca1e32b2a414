// A distributed find-or-put hash table: a set of keys of W words of 63 bits in the registered
// memory of all processes of a job. Each key has an index, by which any process can read the key.
// Tables of states or of BDD nodes need this.
//
//   Collectives all(fabric);
//   auto table = HashTable<2>::create(all, {.bytes = 1 << 30}, deadline);  // collective
//   auto access = (*table)->access();                        // one per thread
//   TableResult put = (*access)->find_or_put({low, high});   // kInserted, kFound, kFull
//   TableKey<2> key;
//   (*access)->read(put.index, key);                         // key == {low, high}
//   (*access)->find_or_put(keys, results);                   // a batch: many in flight
//
// Keys cannot be removed one by one; clear() removes all. The set is exact: among all operations
// with equal keys, in all processes, exactly one returns kInserted, and all of them return the same
// index.
//
// Where the share of the owner is mapped (this process's share, and those of processes of the same
// host over shm), an operation consists of loads and at most W compare-and-swaps, inline. On all
// other shares an operation consists of one-sided transfers, or the owner's service thread executes
// it (OperationsBy). By default owners execute find_or_put() in a job that uses verbs, and the
// owner's threads take no part in find() and read(). table_engine.h has the protocol and its proof.
//
// Cost in round trips, one after another, on a share that is not mapped. An operation that the
// owner executes takes one, in a call that it shares with others. By transfers a find is one read
// of a chunk of C buckets, and another for each further chunk of the probe path; an insert is the
// same and W compare-and-swaps. C follows the measured load (chunk_for_load() has the mean number
// of chunks). read() is one round trip.
//
// Memory: 8 W bytes for each bucket; 8.25 bytes for each process of the job, and 0.1 KB for each
// other process whose share this process has used. The first operation on a
// share gets its address by a call to the owner's service. Each operation slot of an access takes
// registered memory for one or two chunks (TableAccessOptions), unless owners execute all
// operations. reserve() allocates in_flight slots; without it a slot is allocated when an operation
// first needs it. A load above 0.9 costs time: an insert examines 50 buckets at load 0.9, 200 at
// 0.95.
//
// Failures. With FailurePolicy::kAbort every process exits when one dies. With kContinue, the
// default of FabricOptions, the keys of the dead process are lost: operations on keys and indices
// that it owned return kUnavailable. All other keys stay available. On mapped shares an access
// detects a failure after at most kOperationsPerCheck operations. Until then, operations on the
// share of the dead process use its memory, which is still mapped. save() and load() let a job
// resume.
#ifndef CARIAMA_DHT_HASH_TABLE_H_
#define CARIAMA_DHT_HASH_TABLE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dht/probe.h"
#include "dht/table_core.h"
#include "dht/table_engine.h"
#include "dht/table_layout.h"
#include "dht/table_options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/global_memory.h"
#include "dtutils/error.h"
#include "dtutils/wait.h"

namespace cariama {

// One thread's access to a HashTable. The table must outlive it. Only the thread that created it
// may use it, and destroy it: its transfers are those of that thread. The constructor takes no
// memory for transfers (reserve()). The destructor blocks until the transfers in flight have ended,
// except for what an owner executes; asynchronous operations that were not polled are dropped.
//
// Errors. Operations return no Status: the outcome is kUnavailable, and status() is the reason of
// the last one. UNAVAILABLE: the owner is dead. DEADLINE_EXCEEDED: the owner does not answer, or
// has not yet answered an earlier operation that has ended by its deadline. RESOURCE_EXHAUSTED:
// this process has no memory or descriptors for the operation. If the owner executes it also
// FAILED_PRECONDITION (the owner has no such share any more) and INTERNAL (it ran out of memory, or
// its answer is malformed).
//
// The functions that wait use the thread's wait hook. A hook may run other code that uses the same
// access, so operations may nest. An operation stores its result in the caller's frame, so a task
// must not migrate during an operation: no OtherTasksMayRun (tasks/await.h) may be in scope.
template <size_t W>
class TableAccess {
 public:
  using Key = TableKey<W>;
  // Operations on mapped shares between two checks for failed processes.
  static constexpr uint32_t kOperationsPerCheck = 4096;
  // Keys of a batch whose buckets are prefetched.
  static constexpr size_t kPrefetchDistance = 24;

  TableAccess(TableCore& core, std::unique_ptr<GlobalMemory> memory,
              const TableAccessOptions& options)
      : core_(core), engine_(core, std::move(memory), options) {}

  // Allocates the memory of in_flight operations on shares that are not mapped now, in place of the
  // first time that so many are in flight. Error: RESOURCE_EXHAUSTED. Without reserve(), and for
  // operations beyond in_flight (nested ones, and those that have ended by their deadlines), a lack
  // of memory ends the operation with kUnavailable, and status() is RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status reserve() { return engine_.reserve(); }

  // ---- One operation at a time. On mapped shares they do not block; on others they block for the
  // round trips that the head of this file states, at most TableOptions::timeout.

  // Puts `key` into the table unless the table contains it. All functions with a key return
  // kInvalidKey if a word of the key is 2^63 or more.
  [[nodiscard]] TableResult find_or_put(const Key& key) { return operate<true>(key); }
  // Returns kFound with the index, or kAbsent.
  [[nodiscard]] TableResult find(const Key& key) { return operate<false>(key); }
  // Sets `key` to the key with this index. Returns kFound, kAbsent if the bucket is empty or does
  // not exist, or kUnavailable. An index is valid until the table is cleared or grown: after that,
  // another key may have it.
  [[nodiscard]] TableOutcome read(uint64_t index, Key& key) {
    const TablePlace place = core_.geometry().place_of(index);
    if (!core_.geometry().contains(place)) [[unlikely]]
      return TableOutcome::kAbsent;
    const uint64_t* const share = core_.mapped(place.owner).load(std::memory_order_relaxed);
    if (share == nullptr || --until_check_ == 0) [[unlikely]] {
      return read_slowly(index, key);
    }
    return load_key(share + place.position * W, key);
  }

  // ---- Batches: result i is that of key i. Many operations are in flight; on mapped shares the
  // buckets are prefetched. Block until all have ended. Equal keys in one batch are allowed.
  // Require: results.size() >= keys.size(), and abort with a message otherwise; the memory of the
  // results does not move meanwhile.

  void find_or_put(std::span<const Key> keys, std::span<TableResult> results) {
    operate_all<true>(keys, results);
  }
  void find(std::span<const Key> keys, std::span<TableResult> results) {
    operate_all<false>(keys, results);
  }
  // Sets keys[i] to the key with index indices[i]. Returns kFound if all keys were found, else
  // kAbsent or kUnavailable.
  [[nodiscard]] TableOutcome read(std::span<const uint64_t> indices, std::span<Key> keys);

  // ---- Asynchronous operations. start_*() returns false if in_flight operations are active: then
  // call poll(). An operation is active until poll() has delivered its result. `tag` is returned
  // with the result. The first operation on the share of an owner blocks: it connects to the owner
  // and asks it for the address of the share, both together at most for FabricOptions::timeout. The
  // transfers of an operation that has ended by its deadline may be in flight longer. While they
  // are, new operations on the share of the same owner end at once with kUnavailable; those on
  // other shares are not affected.

  [[nodiscard]] bool start_find_or_put(const Key& key, uint64_t tag) {
    return start<true>(key, tag);
  }
  [[nodiscard]] bool start_find(const Key& key, uint64_t tag) { return start<false>(key, tag); }
  [[nodiscard]] bool start_read(uint64_t index, uint64_t tag);
  // Advances all operations, and calls on_end(tag, result, key) for each asynchronous one that has
  // ended; on_end may start operations, whose results the next poll() delivers. Returns the number
  // of calls. Never blocks. Takes time in proportion to in_flight. Operations that owners execute
  // leave with the next poll(). Receives no messages: in a fabric without service threads whose
  // owners execute something (AtomicsBy, OperationsBy), wait by Fabric::wait_polling around poll().
  template <typename OnEnd>
  size_t poll(OnEnd&& on_end) {
    engine_.poll();
    const size_t most = engine_.ended();
    size_t ended = 0;
    TableEngine::Ended next;
    for (; ended < most && engine_.take_ended(next); ++ended) {
      Key key;
      decode_key(next.stored.data(), W, key.data());
      on_end(next.tag, next.result, key);
    }
    return ended;
  }
  // Blocks until an asynchronous operation has ended whose result poll() has not delivered, or
  // until none is in flight. Every operation ends at the latest after TableOptions::timeout.
  void await_ended() { engine_.await_ended(); }
  // Returns true if this process has mapped the share of the owner of this index or key, so that
  // operations on it are loads and stores. False before the first operation on the share, and when
  // a failure of the owner was detected.
  [[nodiscard]] bool is_mapped(uint64_t index) const {
    return is_mapped_at(core_.geometry().place_of(index));
  }
  [[nodiscard]] bool is_mapped(const Key& key) const {
    return is_mapped_at(core_.geometry().home_of(encode_key<W>(key)[0]));
  }
  // Returns the number of operations that are in flight, or whose results poll() has not delivered.
  [[nodiscard]] size_t active() const { return engine_.active(); }

  // Returns the reason of the last kUnavailable.
  [[nodiscard]] const absl::Status& status() const { return engine_.status(); }
  [[nodiscard]] TableStatistics statistics() const {
    TableStatistics statistics = engine_.statistics();
    statistics.operations += checked_ + (kOperationsPerCheck - until_check_);
    statistics.inserted += inserted_;
    return statistics;
  }

 private:
  static TableOutcome load_key(const uint64_t* bucket, Key& key) {
    Key stored;
    for (size_t i = 0; i < W; ++i) stored[i] = internal::load_word(bucket + i);
    decode_key(stored.data(), W, key.data());
    return internal::is_complete<W>(stored) ? TableOutcome::kFound : TableOutcome::kAbsent;
  }

  [[nodiscard]] bool is_mapped_at(TablePlace place) const {
    return core_.geometry().contains(place) &&
           core_.mapped(place.owner).load(std::memory_order_relaxed) != nullptr;
  }

  template <bool kPut>
  [[nodiscard]] TableResult operate(const Key& key) {
    if (!is_key<W>(key)) [[unlikely]]
      return {UINT64_MAX, TableOutcome::kInvalidKey};
    const Key stored = encode_key<W>(key);
    const TablePlace home = core_.geometry().home_of(stored[0]);
    return operate_at<kPut>(stored, home);
  }

  template <bool kPut>
  [[nodiscard]] TableResult operate_at(Key stored, TablePlace home) {
    uint64_t* const share = core_.mapped(home.owner).load(std::memory_order_relaxed);
    if (share == nullptr || --until_check_ == 0) [[unlikely]] {
      return operate_slowly<kPut>(stored, home);
    }
    return probe<kPut>(core_.geometry(), share, stored, home);
  }

  template <bool kPut>
  [[nodiscard]] TableResult probe(const TableGeometry& geometry, uint64_t* share, Key stored,
                                  TablePlace home) {
    // Most probe paths end within a cache line, for which a vector compare is not faster.
    constexpr uint64_t kNear = W == 1 ? 6 : 4;
    const uint64_t near = std::min(home.position + kNear, geometry.buckets);
    for (uint64_t at = home.position; at < near; ++at) {
      const uint64_t found = internal::load_word(share + at * W);
      if (found != 0 && found != stored[0]) continue;
      switch (internal::resolve<kPut>(share + at * W, found, stored)) {
        case internal::Verdict::kHere:
          return {geometry.index_of(home.owner, at), TableOutcome::kFound};
        case internal::Verdict::kPut:
          ++inserted_;
          return {geometry.index_of(home.owner, at), TableOutcome::kInserted};
        case internal::Verdict::kEnd:
          return {UINT64_MAX, TableOutcome::kAbsent};
        case internal::Verdict::kOther:
          break;
      }
    }
    return probe_far<kPut>(share, stored, home, near - home.position);
  }

  // Continues a probe path after its first `probed` buckets. The arguments are passed by value, so
  // that the inline path keeps them in registers.
  template <bool kPut>
  [[nodiscard, gnu::noinline]] TableResult probe_far(uint64_t* share, Key stored, TablePlace home,
                                                     uint64_t probed);
  template <bool kPut>
  [[nodiscard, gnu::noinline, gnu::cold]] TableResult operate_slowly(Key stored, TablePlace home);
  [[nodiscard, gnu::noinline, gnu::cold]] TableOutcome read_slowly(uint64_t index, Key& key);
  template <bool kPut>
  void operate_all(std::span<const Key> keys, std::span<TableResult> results);
  // Starts an operation of a batch. Blocks while in_flight operations are active, at most until one
  // of them ends by its deadline.
  void start_in_batch(TableEngine::Mode mode, const uint64_t* stored, uint64_t index,
                      const TableEngine::Target& target);
  template <bool kPut>
  [[nodiscard]] bool start(const Key& key, uint64_t tag);
  // Returns the mapped buckets of `owner`, or nullptr. Every kOperationsPerCheck operations it also
  // checks for failed processes.
  [[nodiscard]] uint64_t* mapped_share(uint32_t owner);

  static constexpr TableEngine::Mode mode_of(bool put) {
    return put ? TableEngine::Mode::kPut : TableEngine::Mode::kFind;
  }

  TableCore& core_;
  uint32_t until_check_ = kOperationsPerCheck;
  uint64_t checked_ = 0;  // operations on mapped shares before the last check
  uint64_t inserted_ = 0;
  TableEngine engine_;
};

// The table. Every process has an object. All processes call the functions that are marked
// "Collective" in the same order, each process in one thread, and while no process has an operation
// in progress. If other threads use the table, put a barrier before such a call.
//
// An operation that has ended by its deadline with kUnavailable may have a transfer in flight. So
// clear(), grow(), save(), load() and destroy() first wait until the owners have answered all
// transfers, at most for half of the time until the deadline. If a transfer is still in flight
// then, the function ends with UNAVAILABLE in all processes, the table is as it was, and the
// function may be called again. The function polls the accesses of the calling thread. Another
// thread that has started asynchronous operations calls TableAccess::poll() before, until active()
// returns 0. One whose operation has ended by its deadline calls it until the function has
// returned: active() does not count such operations.
//
// After DEADLINE_EXCEEDED, size() and destroy() may be called again. After that error of another
// collective function the processes may disagree about the table and the Collectives object: end
// the fabric. No memory that another process may use has been freed.
template <size_t W>
class HashTable {
 public:
  using Key = TableKey<W>;
  static_assert(W >= 1 && W <= kMaxKeyWords);

  // Allocates the shares. Collective; blocks. `all` is a kProcesses object and outlives the table.
  // Every process gets an error if one does. Errors: INVALID_ARGUMENT (options), RESOURCE_EXHAUSTED
  // (no registered memory), UNAVAILABLE (a process is dead, or has no memory, or its options are
  // invalid), FAILED_PRECONDITION (W, or an option that must be equal, differs: the text names the
  // process and the option), DEADLINE_EXCEEDED.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<HashTable>> create(
      Collectives& all, const TableOptions& options, Deadline deadline) {
    auto core = TableCore::create(all, W, options, deadline);
    if (!core.ok()) return core.status();
    return std::unique_ptr<HashTable>(new HashTable(*std::move(core)));
  }

  // Creates the access of the calling thread. Thread-safe. Errors: INVALID_ARGUMENT (in_flight is
  // 0 or above kMaxInFlight), and those of GlobalMemory::create.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<TableAccess<W>>> access(
      const TableAccessOptions& options = {}) {
    if (options.in_flight == 0 || options.in_flight > TableAccessOptions::kMaxInFlight) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "an access to a hash table cannot have " +
                            std::to_string(options.in_flight) + " operations in flight",
                        "set TableAccessOptions::in_flight to 1 up to " +
                            std::to_string(TableAccessOptions::kMaxInFlight));
    }
    auto memory = GlobalMemory::create(core_->fabric(), {.atomics = core_->options().atomics});
    if (!memory.ok()) return memory.status();
    return std::make_unique<TableAccess<W>>(*core_, *std::move(memory), options);
  }

  // The table owns the result of geometry(), which grow() changes.
  [[nodiscard]] const TableGeometry& geometry() const { return core_->geometry(); }
  [[nodiscard]] const TableOptions& options() const { return core_->options(); }
  // Returns the process that owns a key or an index.
  [[nodiscard]] Rank owner_of(const Key& key) const {
    return geometry().home_of(encode_key<W>(key)[0]).owner;
  }
  [[nodiscard]] Rank owner_of_index(uint64_t index) const {
    return geometry().place_of(index).owner;
  }

  // Calls visit(index, key) for each key that this process owns, in the order of indices. Visits a
  // key that is put meanwhile, or not. Local: reads this process's memory only. `visit` may put
  // keys into the table, but not grow or clear it.
  template <typename Visit>
  void for_each_local(Visit&& visit) const {
    const std::span<const uint64_t> words = core_->local_words();
    const uint32_t rank = core_->fabric().rank();
    for (uint64_t at = 0; at < geometry().buckets; ++at) {
      Key stored;
      for (size_t i = 0; i < W; ++i) stored[i] = internal::load_word(&words[at * W + i]);
      if (!internal::is_complete<W>(stored)) continue;
      Key key;
      decode_key(stored.data(), W, key.data());
      visit(geometry().index_of(rank, at), key);
    }
  }
  // Returns the number of occupied buckets of this process, counted as by size(). Reads all its
  // buckets.
  [[nodiscard]] uint64_t local_size() const { return core_->local_size(); }

  // Returns the number of occupied buckets of all processes. Also counts a bucket that an operation
  // of a dead process has begun to fill. Collective. Errors: UNAVAILABLE (a process is dead, unless
  // the Collectives object leaves out the dead), DEADLINE_EXCEEDED.
  [[nodiscard]] absl::StatusOr<uint64_t> size(Deadline deadline) const {
    return core_->size(deadline);
  }
  // Removes all keys. Collective. All indices become invalid. Errors: FAILED_PRECONDITION (poll()
  // has not delivered all results in the calling thread of a process; or another process calls
  // another function), UNAVAILABLE (transfers are in flight; or a process is dead: then the shares
  // of some processes may be empty already), DEADLINE_EXCEEDED.
  [[nodiscard]] absl::Status clear(Deadline deadline) { return core_->clear(deadline); }
  // Increases the size of each share to `buckets` buckets, equal in all processes, and moves the
  // keys. Requires: the shares do not shrink. Collective. All indices become invalid. Each process
  // moves its own keys in its own memory, and needs memory for old and new share together. After an
  // error other than DEADLINE_EXCEEDED the table is as it was. Errors: RESOURCE_EXHAUSTED (no
  // memory, or a key finds no bucket in the new share), FAILED_PRECONDITION (`buckets` differs
  // between processes; and as clear()), INVALID_ARGUMENT (in all processes: the shares would
  // shrink, or exceed 2^48 buckets), UNAVAILABLE, DEADLINE_EXCEEDED.
  [[nodiscard]] absl::Status grow(uint64_t buckets, Deadline deadline) {
    return core_->grow(buckets, deadline);
  }
  // Writes the keys of each process to the file PREFIX.RANK. Returns the number of keys of all
  // processes. Collective. A file appears under its name only when it is complete and on the disk,
  // and all files of one save have a common number; nevertheless use a new prefix for each save,
  // and remove the older files after it has returned OK. Errors: those of open(2) and write(2),
  // UNAVAILABLE (transfers are in flight; or a process failed or is dead), FAILED_PRECONDITION
  // (another process calls another function), DEADLINE_EXCEEDED.
  [[nodiscard]] absl::StatusOr<uint64_t> save(const std::string& prefix, Deadline deadline) const {
    return core_->save(prefix, deadline);
  }
  // Adds the keys that save() has written. Collective. All processes must reach all files. The
  // number of processes and the sizes may differ from those of the saved table; if they are equal
  // and this table is empty, the keys get their indices back. After an error the table may have a
  // part of the keys. Errors: DATA_LOSS (a file is damaged: the text names it and the offset),
  // FAILED_PRECONDITION (files of different saves, keys of another width, another process calls
  // another function), RESOURCE_EXHAUSTED (the table is full), UNAVAILABLE, those of open(2) and
  // read(2).
  [[nodiscard]] absl::StatusOr<TableLoadResult> load(const std::string& prefix, Deadline deadline);
  // Frees the memory after all processes have called it. Collective. No access may exist any more:
  // FAILED_PRECONDITION otherwise. After OK, only the destructor may be called. After an error
  // nothing is freed. The destructor of a table that was not destroyed leaves this process's share
  // allocated until the fabric ends, because other processes may use it.
  [[nodiscard]] absl::Status destroy(Deadline deadline) { return core_->destroy(deadline); }

  // The table without the type of its keys. No part of the interface.
  [[nodiscard]] TableCore& core() const { return *core_; }

 private:
  explicit HashTable(std::unique_ptr<TableCore> core) : core_(std::move(core)) {}

  std::unique_ptr<TableCore> core_;
};

// ---- Implementation -----------------------------------------------------------------------------

template <size_t W>
template <bool kPut>
TableResult TableAccess<W>::probe_far(uint64_t* share, Key stored, TablePlace home,
                                      uint64_t probed) {
  const TableResult result =
      internal::probe_share<kPut>(core_.geometry(), share, stored, home, probed);
  inserted_ += result.outcome == TableOutcome::kInserted;
  engine_.statistics().full += result.outcome == TableOutcome::kFull;
  return result;
}

template <size_t W>
uint64_t* TableAccess<W>::mapped_share(uint32_t owner) {
  if (until_check_ == 0) {
    checked_ += kOperationsPerCheck;
    until_check_ = kOperationsPerCheck;
    core_.detach_failed();
  }
  uint64_t* const share = core_.mapped(owner).load(std::memory_order_acquire);
  return share != nullptr ? share : engine_.attach(owner);
}

template <size_t W>
template <bool kPut>
TableResult TableAccess<W>::operate_slowly(Key stored, TablePlace home) {
  uint64_t* const share = mapped_share(home.owner);
  if (share != nullptr) return probe<kPut>(core_.geometry(), share, stored, home);
  return engine_.execute(mode_of(kPut), stored.data(), 0);
}

template <size_t W>
TableOutcome TableAccess<W>::read_slowly(uint64_t index, Key& key) {
  const TablePlace place = core_.geometry().place_of(index);
  const uint64_t* const share = mapped_share(place.owner);
  if (share != nullptr) {
    return load_key(share + place.position * W, key);
  }
  Key stored;
  const TableResult result = engine_.execute(TableEngine::Mode::kRead, stored.data(), index);
  if (result.outcome == TableOutcome::kFound) decode_key(stored.data(), W, key.data());
  return result.outcome;
}

template <size_t W>
void TableAccess<W>::start_in_batch(TableEngine::Mode mode, const uint64_t* stored, uint64_t index,
                                    const TableEngine::Target& target) {
  ++*target.left;
  while (!engine_.start(mode, stored, index, target)) engine_.wait_for_room();
}

template <size_t W>
template <bool kPut>
void TableAccess<W>::operate_all(std::span<const Key> keys, std::span<TableResult> results) {
  // Copies, so that the compiler need not assume that the results overlap with the originals.
  const TableGeometry geometry = core_.geometry();
  const std::atomic<uint64_t*>* const shares = &core_.mapped(0);
  const size_t count = keys.size();
  if (results.size() < count) [[unlikely]]
    TableCore::refuse_short_results(count, results.size());
  size_t left = 0;       // operations in flight on shares that are not mapped
  bool started = false;  // some
  for (size_t first = 0; first < count;) {
    if (until_check_ <= 1) {
      checked_ -= until_check_;  // these operations have not been executed
      until_check_ = 0;
      static_cast<void>(mapped_share(core_.fabric().rank()));
    }
    const size_t end = first + std::min<size_t>(count - first, until_check_ - 1);
    until_check_ -= static_cast<uint32_t>(end - first);
    const auto prefetch = [&](size_t i) {
      const TablePlace home = geometry.home_of(encode_key<W>(keys[i])[0]);
      const uint64_t* const share = shares[home.owner].load(std::memory_order_relaxed);
      if (share != nullptr) __builtin_prefetch(share + home.position * W, kPut ? 1 : 0);
    };
    for (size_t i = first; i < std::min(end, first + kPrefetchDistance); ++i) prefetch(i);
    for (size_t i = first; i < end; ++i) {
      if (i + kPrefetchDistance < end) prefetch(i + kPrefetchDistance);
      if (!is_key<W>(keys[i])) [[unlikely]] {
        --checked_;
        results[i] = {UINT64_MAX, TableOutcome::kInvalidKey};
        continue;
      }
      // The place is computed again, which takes less time than storing the places in a ring.
      const Key stored = encode_key<W>(keys[i]);
      const TablePlace home = geometry.home_of(stored[0]);
      uint64_t* share = shares[home.owner].load(std::memory_order_relaxed);
      if (share == nullptr) [[unlikely]] {
        share = mapped_share(home.owner);
        if (share == nullptr) {
          --checked_;  // the engine counts it
          started = true;
          start_in_batch(mode_of(kPut), stored.data(), 0,
                         TableEngine::Target{&results[i], nullptr, &left});
          continue;
        }
      }
      results[i] = probe<kPut>(geometry, share, stored, home);
    }
    first = end;
  }
  if (started) engine_.wait_for_all(&left);
}

template <size_t W>
TableOutcome TableAccess<W>::read(std::span<const uint64_t> indices, std::span<Key> keys) {
  // Results of remote reads, a part of the batch at a time.
  constexpr size_t kPart = 64;
  TableOutcome all = TableOutcome::kFound;
  for (size_t first = 0; first < indices.size(); first += kPart) {
    const size_t count = std::min(kPart, indices.size() - first);
    std::array<TableResult, kPart> results;
    std::array<Key, kPart> stored;
    for (size_t i = 0; i < count; ++i) {
      const TablePlace place = core_.geometry().place_of(indices[first + i]);
      if (!core_.geometry().contains(place)) [[unlikely]]
        continue;
      const uint64_t* const share = core_.mapped(place.owner).load(std::memory_order_relaxed);
      if (share != nullptr) __builtin_prefetch(share + place.position * W);
    }
    size_t left = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t index = indices[first + i];
      const TablePlace place = core_.geometry().place_of(index);
      const uint32_t owner = place.owner;
      results[i].outcome = TableOutcome::kFound;
      if (!core_.geometry().contains(place)) [[unlikely]] {
        results[i].outcome = TableOutcome::kAbsent;
        continue;
      }
      if (core_.mapped(owner).load(std::memory_order_relaxed) == nullptr || --until_check_ == 0)
          [[unlikely]] {
        static_cast<void>(mapped_share(owner));
      }
      const uint64_t* const share = core_.mapped(owner).load(std::memory_order_relaxed);
      if (share != nullptr) [[likely]] {
        results[i].outcome = load_key(share + place.position * W, keys[first + i]);
        results[i].index = UINT64_MAX;
        continue;
      }
      start_in_batch(TableEngine::Mode::kRead, nullptr, index,
                     TableEngine::Target{&results[i], stored[i].data(), &left});
    }
    if (left != 0) engine_.wait_for_all(&left);
    for (size_t i = 0; i < count; ++i) {
      if (results[i].outcome != TableOutcome::kFound) {
        all = results[i].outcome;
      } else if (results[i].index != UINT64_MAX) {  // remote
        decode_key(stored[i].data(), W, keys[first + i].data());
      }
    }
  }
  return all;
}

template <size_t W>
absl::StatusOr<TableLoadResult> HashTable<W>::load(const std::string& prefix, Deadline deadline) {
  constexpr size_t kBatch = 4096;
  // Allocated by the functions that core_->load() calls: it reports a lack of memory to all
  // processes.
  std::unique_ptr<TableAccess<W>> access;
  std::vector<Key> keys;
  std::vector<TableResult> results;
  const auto put_batch = [&]() -> absl::Status {
    if (access == nullptr) {
      results.resize(kBatch);
      auto created = this->access();
      if (!created.ok()) return created.status();
      access = *std::move(created);
    }
    access->find_or_put(keys, results);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (results[i].outcome == TableOutcome::kUnavailable) return access->status();
      if (results[i].outcome == TableOutcome::kFull) return core_->too_small();
    }
    keys.clear();
    return absl::OkStatus();
  };
  return core_->load(
      prefix,
      [&](std::span<const uint64_t> stored) {
        decode_key(stored.data(), W, keys.emplace_back().data());
        return keys.size() == kBatch ? put_batch() : absl::OkStatus();
      },
      put_batch, deadline);
}

template <size_t W>
template <bool kPut>
bool TableAccess<W>::start(const Key& key, uint64_t tag) {
  const Key stored = encode_key<W>(key);
  if (!is_key<W>(key)) [[unlikely]] {
    if (!engine_.has_room()) return false;
    TableEngine::Ended ended{tag, {UINT64_MAX, TableOutcome::kInvalidKey}, {}};
    std::copy(stored.begin(), stored.end(), ended.stored.begin());
    engine_.add_ended(ended);
    return true;
  }
  if (!engine_.has_room()) return false;  // before the operation counts
  const TablePlace home = core_.geometry().home_of(stored[0]);
  uint64_t* share = core_.mapped(home.owner).load(std::memory_order_relaxed);
  if (share == nullptr || --until_check_ == 0) share = mapped_share(home.owner);
  if (share == nullptr) return engine_.start(mode_of(kPut), stored.data(), 0, tag);
  TableEngine::Ended ended{tag, probe<kPut>(core_.geometry(), share, stored, home), {}};
  std::copy(stored.begin(), stored.end(), ended.stored.begin());
  engine_.add_ended(ended);
  return true;
}

template <size_t W>
bool TableAccess<W>::start_read(uint64_t index, uint64_t tag) {
  const TablePlace place = core_.geometry().place_of(index);
  if (!core_.geometry().contains(place)) [[unlikely]] {
    return engine_.start(TableEngine::Mode::kRead, nullptr, index, tag);
  }
  if (!engine_.has_room()) return false;  // before the operation counts
  const uint64_t* share = core_.mapped(place.owner).load(std::memory_order_relaxed);
  if (share == nullptr || --until_check_ == 0) share = mapped_share(place.owner);
  if (share == nullptr) return engine_.start(TableEngine::Mode::kRead, nullptr, index, tag);
  TableEngine::Ended ended{tag, {index, TableOutcome::kFound}, {}};
  Key stored;
  for (size_t i = 0; i < W; ++i) stored[i] = internal::load_word(share + place.position * W + i);
  std::copy(stored.begin(), stored.end(), ended.stored.begin());
  if (!internal::is_complete<W>(stored)) ended.result = {UINT64_MAX, TableOutcome::kAbsent};
  engine_.add_ended(ended);
  return true;
}

}  // namespace cariama

#endif  // CARIAMA_DHT_HASH_TABLE_H_
