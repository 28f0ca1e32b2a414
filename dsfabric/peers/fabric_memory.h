// The registered memory of one process of a job: the protection domains of its devices, allocators,
// and for each domain the memory that users lend to transfers.
#ifndef CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_
#define CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/device.h"
#include "dtutils/registration/helper_board.h"
#include "dtutils/registration/user_memory.h"

namespace cariama::internal {

// Thread-safe, except for open(). Its mutex is locked while memory is registered, and never while
// another part of the fabric is called.
class FabricMemory {
 public:
  FabricMemory() = default;
  FabricMemory(const FabricMemory&) = delete;
  FabricMemory& operator=(const FabricMemory&) = delete;

  // Creates the allocators of memory that is registered with all of `domains`. `user_memory`:
  // options for lending memory that the user did not register. `place_of`: returns the place of the
  // registration helper of a device, by its number; called while a registration cache is created.
  // Called once, before all other functions.
  [[nodiscard]] absl::Status open(std::vector<std::shared_ptr<ProtectionDomain>> domains,
                                  const RDMAAllocatorOptions& superpages,
                                  const GeneralAllocatorOptions& general,
                                  const UserMemoryOptions& user_memory,
                                  const std::function<HelperPlace(uint32_t)>& place_of);

  [[nodiscard]] const std::vector<std::shared_ptr<ProtectionDomain>>& domains() const {
    return domains_;
  }
  // The allocator of all threads, without a preferred NUMA node.
  [[nodiscard]] GeneralAllocator& general() { return *general_; }
  // Returns the allocator of a NUMA node, or of any node with kAnyNode; created on first use.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<RDMAAllocator>> allocator(int numa_node);

  // Returns the sums over the allocators of all nodes.
  [[nodiscard]] RDMAAllocatorStatistics statistics();

  // Returns the object that lends user memory to queue pairs of `domain`, one of domains().
  [[nodiscard]] const std::shared_ptr<UserMemory>& user_memory(
      const ProtectionDomain* domain) const;

 private:
  std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  RDMAAllocatorOptions superpages_;
  std::mutex allocators_mutex_;
  std::vector<std::shared_ptr<RDMAAllocator>> allocators_;  // at most one per node
  std::unique_ptr<GeneralAllocator> general_;
  // By domain. Destroyed before general_, which provides their memory for bouncing.
  std::vector<std::shared_ptr<UserMemory>> user_memory_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_
