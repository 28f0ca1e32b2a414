// The part of a HashTable (hash_table.h) that does not depend on the width of its keys: the shares
// of all processes, and the collective operations. Not for users.
#ifndef CARIAMA_DHT_TABLE_CORE_H_
#define CARIAMA_DHT_TABLE_CORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dht/export.h"
#include "dht/table_layout.h"
#include "dht/table_options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/remote_memory.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

class TableEngine;

enum class TableOperation : uint8_t { kFind, kPut, kRead };

class CARIAMA_DHT_EXPORT TableCore {
 public:
  // Ends the process with a message: a batch of so many keys was given room for fewer results.
  [[noreturn]] static void refuse_short_results(size_t keys, size_t results);

  // As HashTable::create, for keys of `words` words.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TableCore>> create(
      Collectives& all, size_t words, const TableOptions& options, Deadline deadline);
  ~TableCore();
  TableCore(const TableCore&) = delete;
  TableCore& operator=(const TableCore&) = delete;

  [[nodiscard]] Fabric& fabric() const { return all_.fabric(); }
  [[nodiscard]] Collectives& collectives() const { return all_; }
  [[nodiscard]] const TableOptions& options() const { return options_; }
  [[nodiscard]] size_t words() const { return words_; }
  [[nodiscard]] const TableGeometry& geometry() const { return geometry_; }
  // The buckets of `owner`, if this process accesses them by loads, stores and
  // compare-and-swaps of its CPU; else, and before attach(), nullptr. An array by rank.
  [[nodiscard]] const std::atomic<uint64_t*>& mapped(uint32_t owner) const {
    return mapped_[owner];
  }
  // Returns the address of the buckets of `owner`. Requires: attach(owner) has returned OK since
  // the table was created or grown.
  [[nodiscard]] const GlobalAddress& address(uint32_t owner) const;
  // The name under which each process has published its share.
  [[nodiscard]] uint64_t name() const { return name_; }
  // The shortest receive unit of all processes (FabricOptions::receive_unit_bytes).
  [[nodiscard]] uint32_t receive_unit_bytes() const { return receive_unit_bytes_; }
  // This process's buckets.
  [[nodiscard]] std::span<uint64_t> local_words() const {
    return {reinterpret_cast<uint64_t*>(memory_.address().address), geometry_.buckets * words_};
  }

  // Determines how this process accesses the share of `owner`. On first use connects to `owner` if
  // necessary, and gets the address of the share by a call to the service of `owner`. Blocks
  // meanwhile, at most for FabricOptions::timeout. After an error other than
  // RESOURCE_EXHAUSTED, returns that error immediately for TableOptions::timeout. Thread-safe.
  // Errors: those of Fabric::connection() and RemoteMemory::find().
  [[nodiscard]] absl::Status attach(uint32_t owner);
  // Moves the mapped shares of processes that have failed to the state kFailed. Thread-safe.
  void detach_failed();

  // The engines of the accesses. Thread-safe.
  void add_engine(TableEngine* engine);
  void remove_engine(TableEngine* engine);
  // Adds a compare-and-swap or a call that its owner has not answered, and whose engine is
  // destroyed. With nullptr, adds nothing. Thread-safe.
  void add_execution(std::shared_ptr<const Synchronizer> execution);

  // The collective operations of HashTable.
  [[nodiscard]] uint64_t local_size() const;
  [[nodiscard]] absl::StatusOr<uint64_t> size(Deadline deadline) const;
  [[nodiscard]] absl::Status clear(Deadline deadline);
  [[nodiscard]] absl::Status grow(uint64_t buckets, Deadline deadline);
  [[nodiscard]] absl::Status destroy(Deadline deadline);
  [[nodiscard]] absl::StatusOr<uint64_t> save(const std::string& prefix, Deadline deadline);
  // Returns the error of a load that found no empty bucket.
  [[nodiscard]] absl::Status too_small() const;
  // Loads this process's part of the files: passes the words of each key to `put`, and then calls
  // `finish`; if the saved table has the same shape, restores the buckets instead, unless that
  // would leave a probe path with a hole. Collective.
  using PutStored = std::function<absl::Status(std::span<const uint64_t> stored)>;
  [[nodiscard]] absl::StatusOr<TableLoadResult> load(const std::string& prefix,
                                                     const PutStored& put,
                                                     const std::function<absl::Status()>& finish,
                                                     Deadline deadline);

 private:
  TableCore(Collectives& all, size_t words, const TableOptions& options);

  // Allocates `buckets` per process, and publishes the share of each process under one name, by
  // which the others find it. Collective.
  struct Shares;
  struct Allocation {
    RemoteMemory memory;
    uint64_t name = 0;
    std::unique_ptr<Shares> shares;  // with a record of this process's share
  };
  [[nodiscard]] absl::StatusOr<Allocation> allocate(uint64_t buckets, Deadline deadline);
  struct Readiness;
  enum class Step : uint32_t { kClear, kGrow, kDestroy, kSave, kLoad };
  // Begins a collective function. Blocks until no transfer of an operation is in flight in any
  // process: it would change or read a share that is cleared, moved or freed. Polls the engines of
  // the calling thread. Waits for those of other threads at most for half of the time, because
  // their threads may not poll. Collective, with the effect of a barrier. Errors, in all processes:
  // FAILED_PRECONDITION (the processes call different functions; a process has accesses in
  // kDestroy, or results that were not delivered before a step that makes their indices invalid),
  // UNAVAILABLE (`what`, and the process whose transfers are in flight); those of Collectives.
  [[nodiscard]] absl::Status await_readiness(Step step, std::string_view what, Deadline deadline);
  // Clears the shares. Collective.
  [[nodiscard]] absl::Status wipe(Deadline deadline);
  // Returns the number of transfers for which await_readiness() waits in this process.
  [[nodiscard]] size_t transfers(std::span<TableEngine* const> of_this_thread);
  void adopt(Allocation allocation, uint64_t buckets);
  [[nodiscard]] uint64_t probe_limit(uint64_t buckets) const;
  // Returns true if no bucket of this process is empty that an operation on one of its keys passes.
  [[nodiscard]] bool has_whole_paths() const;

  Collectives& all_;
  const internal::FabricUse use_{all_.fabric(), "a HashTable"};
  const size_t words_;
  const TableOptions options_;
  TableGeometry geometry_;
  bool destroyed_ = false;  // the processes have agreed that no process uses a share any more
  RemoteMemory memory_;
  // Shares that other processes may still use, since grow() was ended by its deadline.
  std::vector<RemoteMemory> possibly_used_;
  uint64_t name_ = 0;  // of the shares
  uint32_t receive_unit_bytes_ = 0;
  std::unique_ptr<Shares> shares_;                    // that this process has used
  std::unique_ptr<std::atomic<uint64_t*>[]> mapped_;  // by rank
  std::mutex engines_mutex_;
  std::vector<TableEngine*> engines_;                            // guarded by engines_mutex_
  std::vector<std::shared_ptr<const Synchronizer>> executions_;  // guarded by engines_mutex_
  std::mutex mutex_;
  std::vector<uint32_t> mapped_peers_;  // guarded by mutex_
  // Why a process could not be connected to, and until when that counts.
  struct Unconnected {
    absl::Status reason;
    Deadline until;
  };
  std::map<uint32_t, Unconnected> unconnected_;  // by rank; guarded by mutex_
};

}  // namespace cariama

#endif  // CARIAMA_DHT_TABLE_CORE_H_
