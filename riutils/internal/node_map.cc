#include "riutils/internal/node_map.h"

#include <string_view>
#include <unordered_map>

#include "dsfabric/topology.h"

namespace cariama::internal {

NodeMap::NodeMap(Fabric& fabric, uint32_t processes_per_node)
    : node_(fabric.size()), place_(fabric.size()), members_(fabric.size()) {
  std::vector<uint32_t> sizes;
  std::unordered_map<std::string_view, uint32_t> node_of_host;
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    const auto next = static_cast<uint32_t>(sizes.size());
    const uint32_t node = processes_per_node != 0
                              ? rank / processes_per_node
                              : node_of_host.try_emplace(host_of(fabric, rank), next).first->second;
    if (node == next) sizes.push_back(0);
    node_[rank] = node;
    place_[rank] = sizes[node]++;
  }
  first_.reserve(sizes.size() + 1);
  first_.push_back(0);
  for (const uint32_t size : sizes) first_.push_back(first_.back() + size);
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    members_[first_[node_[rank]] + place_[rank]] = rank;
  }
}

}  // namespace cariama::internal
