// The cores and NUMA nodes that processes can be bound to, as hwloc finds them.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_CPU_TOPOLOGY_H_
#define CARIAMA_DSFABRIC_LAUNCHER_CPU_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cariama::internal {

// One core: the operating system's numbers of its hardware threads and of its NUMA node.
struct Core {
  std::vector<int> cpus;
  int numa_node = 0;
};

// Returns the cores of this machine that the calling process may use.
[[nodiscard]] absl::StatusOr<std::vector<Core>> usable_cores();
// Returns the cores of a synthetic machine described as for hwloc ("numa:2 core:4 pu:2"): for
// tests.
[[nodiscard]] absl::StatusOr<std::vector<Core>> synthetic_cores(const std::string& description);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_CPU_TOPOLOGY_H_
