// HostMemory: memory that all processes of a job on one host have mapped.
#ifndef CARIAMA_BDD_INTERNAL_HOST_MEMORY_H_
#define CARIAMA_BDD_INTERNAL_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "dsfabric/collectives.h"
#include "dsfabric/remote_memory.h"
#include "dtutils/wait.h"

namespace cariama::bdd::internal {

class HostMemory {
 public:
  // Allocates `bytes` zeroed bytes in each process that is its own `leader`, and maps them in the
  // processes that have it as leader. Collective; every process gets an error if one does. Errors:
  // those of RemoteMemory::allocate and of agree() (dht/agreement.h).
  [[nodiscard]] static absl::StatusOr<HostMemory> create(Collectives& all, uint32_t leader,
                                                         size_t bytes, Deadline deadline);

  // Returns the mapped memory of the leader; empty if it cannot be mapped. Valid while the leader's
  // object exists.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool is_leader() const { return memory_.size() != 0; }
  // Makes the leader's destructor leave the memory allocated until the fabric ends.
  void abandon() { static_cast<void>(memory_.release()); }

 private:
  RemoteMemory memory_;  // of the leader
  std::span<std::byte> bytes_;
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_HOST_MEMORY_H_
