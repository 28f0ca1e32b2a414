// The operations of one thread on the shares that are not mapped: many in flight, each a sequence
// of one-sided transfers, or a part of a call to the owner (OperationsBy, owner_calls.h).
// Not for users: they have TableAccess (hash_table.h).
//
// Protocol of a one-sided find_or_put, for a bucket whose words are 0 until they are set:
//
//   1. Read a chunk of the probe path. Search it for word 0 of the key, or an empty bucket.
//   2. For each word i of that bucket, in order: if it is 0, compare-and-swap it from 0 to word i
//      of the key. If it is set to another value, continue the search behind this bucket.
//   3. If this operation has set the last word, it has inserted the key. If another operation has
//      set the last word and all words are equal to the key's, this operation has found the key.
//
// An operation passes a bucket only after it has seen a word there that is set and differs from its
// key's. Words that are set do not change, so no operation can put that key there later. It follows
// that two operations with the same key end at the same bucket, one of them as kInserted. An
// operation never waits for another: a process that dies between its compare-and-swaps leaves a
// bucket that the next key with the same first words completes with its own words; other keys pass
// it. That key is in no later bucket of its probe path: the operation that put it there would have
// completed this bucket first.
#ifndef CARIAMA_DHT_TABLE_ENGINE_H_
#define CARIAMA_DHT_TABLE_ENGINE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dht/export.h"
#include "dht/table_core.h"
#include "dht/table_layout.h"
#include "dht/table_options.h"
#include "dsfabric/global_memory.h"
#include "dtutils/wait.h"

namespace cariama {

class OwnerCalls;

class CARIAMA_DHT_EXPORT TableEngine {
 public:
  using Mode = TableOperation;
  // An operation that was started with start(), and has ended.
  struct Ended {
    uint64_t tag;
    TableResult result;
    std::array<uint64_t, kMaxKeyWords> stored;  // the bucket's words
  };
  // The places for the result of an operation whose caller waits. `stored` gets the words of a
  // kRead.
  struct Target {
    TableResult* result;
    uint64_t* stored;  // nullptr except for kRead
    size_t* left;      // decremented when the operation ends
  };

  TableEngine(TableCore& core, std::unique_ptr<GlobalMemory> memory,
              const TableAccessOptions& options);
  ~TableEngine();
  TableEngine(const TableEngine&) = delete;
  TableEngine& operator=(const TableEngine&) = delete;

  [[nodiscard]] TableCore& core() const { return core_; }
  // Makes `owner` usable: returns its mapped buckets, or nullptr if it is remote or has failed.
  [[nodiscard]] uint64_t* attach(uint32_t owner);
  // Allocates the memory of in_flight operations. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status reserve();
  // Executes one operation on a share that is not mapped. Blocks. For kRead, `index` names the
  // bucket, and `stored` gets its words; otherwise `stored` is the encoded key.
  [[nodiscard]] TableResult execute(Mode mode, uint64_t* stored, uint64_t index);
  // Starts one operation. Returns false if in_flight operations are active. The operation ends at
  // once with kUnavailable while a transfer to the same owner is in flight whose operation has
  // ended by its deadline.
  [[nodiscard]] bool start(Mode mode, const uint64_t* stored, uint64_t index, uint64_t tag);
  [[nodiscard]] bool start(Mode mode, const uint64_t* stored, uint64_t index, const Target& target);
  // Returns true if start() with a tag would start an operation. in_flight limits the number of
  // operations that are in flight, or have ended and were not taken.
  [[nodiscard]] bool has_room() const { return active() < options_.in_flight; }
  // Adds an operation that ended immediately to the operations that take_ended() returns.
  void add_ended(const Ended& ended) { ended_.push_back(ended); }
  // Advances the operations in flight. Never blocks.
  void poll();
  // Blocks until *left is 0, so that the operations with this Target::left have ended, and until no
  // transfer of them is in flight, except for operations that have ended by their deadlines.
  void wait_for_all(const size_t* left);
  // Blocks until take_ended() returns true, or no operation is in flight.
  void await_ended();
  // Blocks until start() with a Target is possible.
  void wait_for_room();
  [[nodiscard]] bool take_ended(Ended& into);
  [[nodiscard]] size_t ended() const { return ended_.size(); }  // and not taken
  [[nodiscard]] size_t active() const { return active_ + ended_.size(); }
  // Returns true if the calling thread has created this engine, so that it may call poll().
  [[nodiscard]] bool is_of_this_thread() const { return thread_ == std::this_thread::get_id(); }
  // Returns true if a transfer is in flight, of an operation that may have ended. Call it in the
  // thread of the engine.
  [[nodiscard]] bool has_transfers() const;
  // Returns the number of operations that have ended by their deadlines, and whose transfers were
  // in flight at the last poll(). Thread-safe.
  [[nodiscard]] size_t late() const { return late_.load(std::memory_order_acquire); }

  [[nodiscard]] const absl::Status& status() const { return status_; }
  [[nodiscard]] TableStatistics& statistics() { return statistics_; }
  [[nodiscard]] const TableStatistics& statistics() const { return statistics_; }

 private:
  struct Slot;

  // Returns true if a transfer to `owner` is in flight whose operation has ended by its deadline.
  [[nodiscard]] bool is_overdue(uint32_t owner, bool may_run_calls);
  [[nodiscard]] Deadline read_clock();
  // Returns true if the owner executes operations of this kind.
  [[nodiscard]] bool is_by_owner(Mode mode) const {
    return mode == Mode::kPut ? puts_by_owner_ : others_by_owner_;
  }
  [[nodiscard]] Slot& take_slot(Mode mode);
  // Allocates the memory of a slot that has none.
  [[nodiscard]] absl::Status allocate(Slot& slot);
  // Polls until condition() returns true. Returns false if the deadline came first.
  template <typename Condition>
  [[nodiscard]] bool poll_until(const Condition& condition, Deadline deadline);
  void launch(Slot& slot, Mode mode, const uint64_t* stored, uint64_t index);
  // Advances until the operation has ended or waits for a transfer.
  void advance(Slot& slot);
  [[nodiscard]] bool advance_chunk(Slot& slot);
  [[nodiscard]] bool advance_word(Slot& slot);
  void advance_call(Slot& slot);
  void scan(Slot& slot);
  void request_chunk(Slot& slot, size_t which);
  void next_chunk(Slot& slot);
  void next_word(Slot& slot);
  void swap_word(Slot& slot);
  void end(Slot& slot, TableOutcome outcome);
  void fail(Slot& slot, absl::Status status);
  void observe_load(const Slot& slot);
  [[nodiscard]] const uint64_t* bucket(const Slot& slot) const;

  TableCore& core_;
  const internal::FabricUse use_;
  std::unique_ptr<GlobalMemory> memory_;
  const TableAccessOptions options_;
  const bool puts_by_owner_;
  const bool others_by_owner_;
  uint32_t chunk_;       // in use
  uint32_t largest_;     // chunk that a slot has memory for
  bool in_advance_;      // request the next chunk together with the first
  double load_ = 0;      // measured
  double observed_ = 0;  // buckets that load_ is the average of
  size_t active_ = 0;    // slots in use, except for the overdue ones
  // Owner → number of its slots whose deadlines have passed, and whose transfers are in flight.
  std::map<uint32_t, size_t> overdue_;
  // Sum of overdue_. Release: pairs with the acquire in late().
  std::atomic<size_t> late_{0};
  const std::thread::id thread_ = std::this_thread::get_id();
  uint64_t polls_ = 0;
  Deadline clock_{};         // when the clock was read last
  bool rare_clock_ = false;  // the last two readings of the clock were far apart
  std::vector<std::unique_ptr<Slot>> slots_;
  std::deque<Ended> ended_;
  absl::Status status_;
  TableStatistics statistics_;
  const std::unique_ptr<OwnerCalls> owner_calls_;
};

}  // namespace cariama

#endif  // CARIAMA_DHT_TABLE_ENGINE_H_
