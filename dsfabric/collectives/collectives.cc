#include "dsfabric/collectives.h"

#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives/collective_group.h"

namespace cariama {

Collectives::Collectives(Fabric& fabric, const CollectiveOptions& options) {
  auto& traffic = internal::attachment_of<internal::ControlTraffic>(fabric);
  group_ = internal::attachment_of<internal::CollectiveGroups>(fabric).next(traffic);
  group_->open(options);
}

// The fabric keeps the group: other processes may still ask for its last results.
Collectives::~Collectives() = default;

Fabric& Collectives::fabric() const { return group_->fabric(); }
uint32_t Collectives::participants() const { return group_->participants(); }
uint32_t Collectives::self() const { return group_->self(); }

absl::Status Collectives::barrier(Deadline deadline) {
  return run(internal::CollectiveKind::kBarrier, 0, {}, nullptr, 0, deadline).status();
}

std::vector<Rank> Collectives::left_out() const {
  const std::vector<uint32_t> ranks = group_->left_out();
  return {ranks.begin(), ranks.end()};
}
CollectiveStatistics Collectives::statistics() const { return group_->statistics(); }

absl::StatusOr<std::string> Collectives::run(internal::CollectiveKind kind, uint32_t source,
                                             std::string value, internal::CollectiveFold fold,
                                             size_t bytes, Deadline deadline) {
  return group_->run(kind, source, std::move(value), std::move(fold), bytes, deadline);
}

}  // namespace cariama
