// The division of a job's processes into nodes, by which routed calls travel (routed_aggregator.h).
#ifndef CARIAMA_RIUTILS_INTERNAL_NODE_MAP_H_
#define CARIAMA_RIUTILS_INTERNAL_NODE_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/ids.h"

namespace cariama::internal {

// Immutable. Memory: 12 bytes per process of the job.
class NodeMap {
 public:
  // `processes_per_node` consecutive ranks form a node; 0: the processes of equal host names do.
  NodeMap(Fabric& fabric, uint32_t processes_per_node);

  [[nodiscard]] uint32_t nodes() const { return static_cast<uint32_t>(first_.size() - 1); }
  [[nodiscard]] uint32_t node_of(Rank rank) const { return node_[rank]; }
  // Returns the number of processes of lower rank in the process's node.
  [[nodiscard]] uint32_t place_of(Rank rank) const { return place_[rank]; }
  // Return the node and the place of all processes, by rank, for callers that read them often.
  [[nodiscard]] const uint32_t* node_by_rank() const { return node_.data(); }
  [[nodiscard]] const uint32_t* place_by_rank() const { return place_.data(); }
  // Returns the ranks of a node's processes, in ascending order.
  [[nodiscard]] std::span<const uint32_t> members(uint32_t node) const {
    return std::span(members_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

 private:
  std::vector<uint32_t> node_;   // by rank
  std::vector<uint32_t> place_;  // by rank
  std::vector<uint32_t> members_;
  std::vector<uint32_t> first_;  // by node: where its members begin; then their number
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_NODE_MAP_H_
