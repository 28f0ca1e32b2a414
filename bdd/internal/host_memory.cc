#include "bdd/internal/host_memory.h"

#include <optional>
#include <utility>

#include "dsfabric/fabric.h"
#include "dtutils/transmitter.h"

namespace cariama::bdd::internal {

absl::StatusOr<HostMemory> HostMemory::create(Collectives& all, uint32_t leader, size_t bytes,
                                              Deadline deadline) {
  Fabric& fabric = all.fabric();
  HostMemory result;
  GlobalAddress mine;
  absl::Status allocated;
  if (leader == fabric.rank()) {
    auto memory = RemoteMemory::allocate(fabric, leader, bytes, deadline);
    allocated = memory.status();
    if (memory.ok()) {
      result.memory_ = *std::move(memory);
      mine = result.memory_.address();
    }
  }
  // A process without memory takes part: its null address tells the others.
  const auto addresses = all.all_gather(mine, deadline);
  if (!allocated.ok()) return allocated;
  if (!addresses.ok()) return addresses.status();
  const std::optional<GlobalAddress>& address = (*addresses)[leader];
  if (!address || address->address == 0) return result;
  std::byte* mapped = nullptr;
  if (leader == fabric.rank()) {
    mapped = reinterpret_cast<std::byte*>(address->address);
  } else {
    auto queue = fabric.connection(leader);
    if (!queue.ok()) return queue.status();
    mapped = (*queue)->queue_pair().direct_access(locator_of(fabric, *address, bytes));
  }
  if (mapped != nullptr) result.bytes_ = {mapped, bytes};
  return result;
}

}  // namespace cariama::bdd::internal
