#include "dsfabric/launcher/cpu_topology.h"

#include <hwloc.h>

#include <cerrno>
#include <memory>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

absl::Status topology_failed(const char* what) {
  return make_errno_error(errno, ErrorScope::kProcess, std::string("hwloc: ") + what,
                          "run without --bind and --place");
}

absl::StatusOr<Topology> make_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return topology_failed("starting");
  return Topology(topology);
}

std::vector<Core> list_cores(hwloc_topology_t topology) {
  std::vector<Core> cores;
  // If the machine does not report which hardware threads share a core, treat each one as a core.
  const int type =
      hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t one = nullptr;
  while ((one = hwloc_get_next_obj_by_type(topology, static_cast<hwloc_obj_type_t>(type), one)) !=
         nullptr) {
    Core core;
    unsigned cpu = 0;
    hwloc_bitmap_foreach_begin(cpu, one->cpuset) core.cpus.push_back(static_cast<int>(cpu));
    hwloc_bitmap_foreach_end();
    const int node = hwloc_bitmap_first(one->nodeset);
    core.numa_node = node < 0 ? 0 : node;
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace

absl::StatusOr<std::vector<Core>> usable_cores() {
  absl::StatusOr<Topology> topology = make_topology();
  if (!topology.ok()) return topology.status();
  // Restrict to the affinity that taskset, a batch system or another launcher has set.
  if (hwloc_topology_set_flags(topology->get(), HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                                    HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING) !=
          0 ||
      hwloc_topology_load(topology->get()) != 0) {
    return topology_failed("reading this machine's topology");
  }
  return list_cores(topology->get());
}

absl::StatusOr<std::vector<Core>> synthetic_cores(const std::string& description) {
  absl::StatusOr<Topology> topology = make_topology();
  if (!topology.ok()) return topology.status();
  if (hwloc_topology_set_synthetic(topology->get(), description.c_str()) != 0 ||
      hwloc_topology_load(topology->get()) != 0) {
    return topology_failed("reading a synthetic topology");
  }
  return list_cores(topology->get());
}

}  // namespace cariama::internal
