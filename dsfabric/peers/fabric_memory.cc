#include "dsfabric/peers/fabric_memory.h"

#include <utility>

#include "dtutils/registration/pinner.h"

namespace cariama::internal {

absl::Status FabricMemory::open(std::vector<std::shared_ptr<ProtectionDomain>> domains) {
  domains_ = std::move(domains);
  auto anywhere = allocator(kAnyNode);
  if (!anywhere.ok()) return anywhere.status();
  auto general = GeneralAllocator::create(*std::move(anywhere), {});
  if (!general.ok()) return general.status();
  general_ = *std::move(general);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> FabricMemory::allocator(int numa_node) {
  const std::lock_guard lock(allocators_mutex_);
  for (const auto& one : allocators_) {
    if (one->numa_node() == numa_node) return one;
  }
  auto made = RDMAAllocator::create(domains_, numa_node, {.chunk_bytes = size_t{64} << 10});
  if (made.ok()) allocators_.push_back(*made);
  return made;
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> FabricMemory::lend_registered(
    size_t domain, std::span<const std::byte> buffer,
    const std::function<RegistrationOptions()>& options_of) {
  RegistrationCache* cache = nullptr;
  {
    const std::lock_guard lock(registration_caches_mutex_);
    registration_caches_.resize(domains_.size());
    if (registration_caches_[domain] == nullptr) {
      // Peers only read lent buffers, so read-only memory can be registered, too.
      auto pinner = std::make_shared<DomainPinner>(domains_[domain], Access::kRemoteRead);
      auto made = RegistrationCache::create(std::move(pinner), options_of());
      if (!made.ok()) return made.status();
      registration_caches_[domain] = *std::move(made);
    }
    cache = registration_caches_[domain].get();
  }
  return cache->lend(buffer.data(), buffer.size());
}

}  // namespace cariama::internal
