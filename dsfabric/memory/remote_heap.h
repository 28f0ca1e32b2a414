// The memory of a process from which other processes may allocate.
#ifndef CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_
#define CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

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

  // See RemoteMemory. Names of different processes differ modulo the number of processes. A process
  // has 2^64 names divided by that number, which no job uses up.
  [[nodiscard]] uint64_t new_name() {
    return next_name_.fetch_add(1, std::memory_order_relaxed) * processes_ + fabric_rank_;
  }
  // For tests: `count` names count as used.
  void skip_names(uint64_t count) { next_name_.fetch_add(count, std::memory_order_relaxed); }
  // Names the allocation that begins at `address`, if there is one, until it is freed. Only the
  // first name of an allocation takes memory.
  void publish(uint64_t address, uint64_t name);
  [[nodiscard]] absl::StatusOr<GlobalAddress> find(uint64_t name) const;

 private:
  struct Piece {
    RDMAMemory memory;
    GeneralAllocator* allocator;
    std::optional<uint64_t> name{};
  };

  [[nodiscard]] GlobalAddress address_of(const RDMAMemory& memory) const;

  Fabric& fabric_;
  const uint32_t fabric_rank_;
  const uint64_t processes_;
  std::array<const ProtectionDomain*, 2> domains_{};  // by key_slot()
  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<GeneralAllocator>> allocators_;  // by node
  std::map<uint64_t, Piece> pieces_;                             // by address
  std::map<uint64_t, uint64_t> addresses_;                       // of named pieces, by name
  std::atomic<uint64_t> next_name_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_MEMORY_REMOTE_HEAP_H_
