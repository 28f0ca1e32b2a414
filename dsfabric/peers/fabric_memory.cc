#include "dsfabric/peers/fabric_memory.h"

#include <algorithm>
#include <utility>

namespace cariama::internal {

absl::Status FabricMemory::open(std::vector<std::shared_ptr<ProtectionDomain>> domains,
                                const RDMAAllocatorOptions& superpages,
                                const GeneralAllocatorOptions& general_options,
                                const UserMemoryOptions& user_memory,
                                const std::function<HelperPlace(uint32_t)>& place_of) {
  domains_ = std::move(domains);
  superpages_ = superpages;
  auto anywhere = allocator(kAnyNode);
  if (!anywhere.ok()) return anywhere.status();
  auto general = GeneralAllocator::create(*std::move(anywhere), general_options);
  if (!general.ok()) return general.status();
  general_ = *std::move(general);
  for (uint32_t device = 0; device < domains_.size(); ++device) {
    UserMemoryOptions options = user_memory;
    options.registration = [user = user_memory.registration, place_of, device] {
      RegistrationOptions made = user ? user() : RegistrationOptions{};
      if (made.place.board == nullptr) made.place = place_of(device);
      return made;
    };
    user_memory_.push_back(std::make_shared<UserMemory>(domains_[device], *general_, options));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> FabricMemory::allocator(int numa_node) {
  const std::lock_guard lock(allocators_mutex_);
  for (const auto& one : allocators_) {
    if (one->numa_node() == numa_node) return one;
  }
  auto made = RDMAAllocator::create(domains_, numa_node, superpages_);
  if (made.ok()) allocators_.push_back(*made);
  return made;
}

const std::shared_ptr<UserMemory>& FabricMemory::user_memory(const ProtectionDomain* domain) const {
  const auto at = std::find_if(domains_.begin(), domains_.end(),
                               [domain](const auto& one) { return one.get() == domain; });
  return user_memory_[static_cast<size_t>(at - domains_.begin())];
}

RDMAAllocatorStatistics FabricMemory::statistics() {
  const std::lock_guard lock(allocators_mutex_);
  RDMAAllocatorStatistics sum;
  for (const auto& one : allocators_) {
    const RDMAAllocatorStatistics part = one->statistics();
    sum.superpages += part.superpages;
    sum.bytes += part.bytes;
    for (size_t kind = 0; kind < kPageKinds; ++kind) {
      sum.bytes_by_kind[kind] += part.bytes_by_kind[kind];
    }
    sum.bytes_off_node += part.bytes_off_node;
    sum.chunks_in_use += part.chunks_in_use;
    sum.bytes_in_use += part.bytes_in_use;
    sum.bytes_in_use_high_water += part.bytes_in_use_high_water;
    sum.bytes_in_flight += part.bytes_in_flight;
  }
  return sum;
}

}  // namespace cariama::internal
