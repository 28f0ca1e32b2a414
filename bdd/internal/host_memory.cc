#include "bdd/internal/host_memory.h"

#include <optional>
#include <string_view>
#include <utility>

#include "dht/agreement.h"
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
  constexpr std::string_view kNone = "bdd: no shared memory for the operation cache";
  if (absl::Status agreed = agree(all, allocated, kNone, deadline); !agreed.ok()) return agreed;
  const auto addresses = all.all_gather(mine, deadline);
  if (!addresses.ok()) return addresses.status();
  const std::optional<GlobalAddress>& address = (*addresses)[leader];
  absl::Status connected;
  std::byte* mapped = nullptr;
  if (leader == fabric.rank()) {
    mapped = reinterpret_cast<std::byte*>(mine.address);
  } else if (address) {
    auto queue = fabric.connection(leader);
    connected = of_one_process(queue.status());
    if (queue.ok()) {
      mapped = (*queue)->queue_pair().direct_access(locator_of(fabric, *address, bytes));
    }
  }
  if (absl::Status agreed = agree(all, connected, kNone, deadline); !agreed.ok()) return agreed;
  if (mapped != nullptr) result.bytes_ = {mapped, bytes};
  return result;
}

}  // namespace cariama::bdd::internal
