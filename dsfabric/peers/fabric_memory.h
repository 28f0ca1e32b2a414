// The registered memory of one process of a job: the protection domains of its devices, allocators,
// and the cache of registered user buffers.
#ifndef CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_
#define CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/device.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama::internal {

// Thread-safe, except for open(). Its two mutexes are held while memory is registered, and never
// while another part of the fabric is called.
class FabricMemory {
 public:
  FabricMemory() = default;
  FabricMemory(const FabricMemory&) = delete;
  FabricMemory& operator=(const FabricMemory&) = delete;

  // Allocates from memory that is registered with all of `domains`. Called once, before all others.
  [[nodiscard]] absl::Status open(std::vector<std::shared_ptr<ProtectionDomain>> domains);

  [[nodiscard]] const std::vector<std::shared_ptr<ProtectionDomain>>& domains() const {
    return domains_;
  }
  // The allocator of all threads, without a preferred NUMA node.
  [[nodiscard]] GeneralAllocator& general() { return *general_; }
  // Returns the allocator of a NUMA node, or of any node with kAnyNode; created on first use.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<RDMAAllocator>> allocator(int numa_node);

  // Registers a user's buffer with domains()[domain] through the cache of that domain, which is
  // created on first use with the options that `options_of` returns.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> lend_registered(
      size_t domain, std::span<const std::byte> buffer,
      const std::function<RegistrationOptions()>& options_of);

 private:
  std::vector<std::shared_ptr<ProtectionDomain>> domains_;
  std::mutex registration_caches_mutex_;
  std::vector<std::unique_ptr<RegistrationCache>> registration_caches_;  // by domain
  std::mutex allocators_mutex_;
  std::vector<std::shared_ptr<RDMAAllocator>> allocators_;  // at most one per node
  std::unique_ptr<GeneralAllocator> general_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_FABRIC_MEMORY_H_
