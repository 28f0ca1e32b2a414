// The memory of a process from which other processes may allocate.
#ifndef CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_
#define CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "dsfabric/remote_memory.h"
#include "dtutils/allocators/general_allocator.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

// Returns the index of the key of a GlobalAddress that is valid for access through `device`.
[[nodiscard]] inline size_t key_slot(const Device& device) {
  return device.transport() == Transport::kVerbs ? 1 : 0;
}

// An attachment. Thread-safe.
class RemoteHeap {
 public:
  explicit RemoteHeap(Fabric& fabric);

  [[nodiscard]] absl::StatusOr<GlobalAddress> allocate(size_t bytes, int numa_node);
  // Returns false if no allocation begins there.
  bool free(uint64_t address);
  // Returns true if [address, address + bytes) lies in one allocation. Validates addresses that
  // were received from other processes.
  [[nodiscard]] bool contains(uint64_t address, size_t bytes) const;
  [[nodiscard]] size_t allocations() const;

 private:
  struct Piece {
    RDMAMemory memory;
    GeneralAllocator* allocator;
  };

  Fabric& fabric_;
  std::array<const ProtectionDomain*, 2> domains_{};  // by key_slot()
  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<GeneralAllocator>> allocators_;  // by node
  std::map<uint64_t, Piece> pieces_;                             // by address
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_
