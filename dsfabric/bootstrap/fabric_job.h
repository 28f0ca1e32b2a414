// The data about the job that all parts of a fabric share: the processes with their names, this
// process's rank, the options, the bootstrap, and the phase of the fabric.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_FABRIC_JOB_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_FABRIC_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/bootstrap/host_board.h"
#include "dsfabric/bootstrap/job_directory.h"
#include "dsfabric/bootstrap/lifecycle.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/ids.h"
#include "dtutils/wait.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

// Immutable once join() and set_fabric() have been called, except for lifecycle().
class FabricJob {
 public:
  // Checks the options, builds the function table, and exchanges set-up data with all processes.
  // Collective. `shared`, if given, must be that of all fabrics of this process of the operating
  // system; these have equal options. Errors: those of Fabric::create().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FabricJob>> join(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
      SharedJobDirectory* shared = nullptr);

  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return threads_; }  // per process
  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] Bootstrap& bootstrap() const { return *bootstrap_; }
  // Returns "rank 3 (on node1, pid 4711)".
  [[nodiscard]] std::string label(uint32_t rank) const { return directory_->label(rank); }
  // Returns the host's name.
  [[nodiscard]] const std::string& host(uint32_t rank) const { return directory_->host(rank); }
  [[nodiscard]] uint32_t host_number(uint32_t rank) const { return directory_->host_number(rank); }
  // Returns true if shm reaches `rank` from this process.
  [[nodiscard]] bool same_host(uint32_t rank) const {
    return directory_->host_number(rank) == directory_->host_number(rank_);
  }

  // Returns which of the options().queue_pairs connections to another process worker `index` uses.
  // A thread that is no worker uses the first.
  [[nodiscard]] uint32_t queue_pair_of(uint32_t index) const {
    if (index == kNoThread) return 0;
    if (node_of_worker_ == nullptr) [[likely]]
      return index % options_.queue_pairs;
    return node_of_worker_[index % threads_].load(std::memory_order_relaxed) % options_.queue_pairs;
  }
  // Thread-safe. `node`: a NUMA node, or negative if it is not known.
  void set_node_of_worker(uint32_t index, int node) const {
    if (node_of_worker_ == nullptr) return;
    node_of_worker_[index].store(node < 0 ? 0 : static_cast<uint32_t>(node),
                                 std::memory_order_relaxed);
  }

  // The number of processes that an error names at most.
  static constexpr size_t kMostNamed = 8;
  // Returns ranks of other processes that have put nothing under `key` of the bootstrap, kMostNamed
  // at most. Waits up to 50 ms for each.
  [[nodiscard]] std::vector<uint32_t> ranks_without(const std::string& key) const;

  [[nodiscard]] const HostBoard& host_board() const { return board_; }

  [[nodiscard]] Lifecycle& lifecycle() { return lifecycle_; }
  [[nodiscard]] const Lifecycle& lifecycle() const { return lifecycle_; }

  // The fabric, for running calls. set_fabric() is called before the first call can arrive.
  [[nodiscard]] Fabric& fabric() const { return *fabric_; }
  void set_fabric(Fabric* fabric) { fabric_ = fabric; }

 private:
  FabricJob(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap);
  [[nodiscard]] absl::Status exchange_introductions(SharedJobDirectory* shared, Deadline deadline);
  // Waits for the directory that rank 0 shares. Gets the set-up data of rank 0 from the store, and
  // that of no other process, so that size() processes do not copy size() results each.
  [[nodiscard]] absl::Status await_directory(const SharedJobDirectory& shared, Deadline deadline);
  // The error of exchange_introductions() at its deadline.
  [[nodiscard]] absl::Status missing_ranks_error() const;

  FabricOptions options_;  // queue_pairs is the effective number
  const std::unique_ptr<Bootstrap> bootstrap_;
  const uint32_t rank_;
  const uint32_t size_;
  const uint32_t threads_;
  const std::unique_ptr<std::atomic<uint32_t>[]> node_of_worker_;  // with kNumaNode, else nullptr
  std::shared_ptr<const JobDirectory> directory_;
  HostBoard board_;
  Lifecycle lifecycle_;
  Fabric* fabric_ = nullptr;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_FABRIC_JOB_H_
