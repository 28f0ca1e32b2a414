// Assigns CPU cores and an RDMA device to each process of a job.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_PLACEMENT_H_
#define CARIAMA_DSFABRIC_LAUNCHER_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/launcher.h"
#include "dsfabric/launcher/cpu_topology.h"

namespace cariama::internal {

// An active port of an RDMA device.
struct Endpoint {
  std::string device;
  uint32_t port = 1;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
// Returns the active ports of this machine's RDMA devices.
[[nodiscard]] std::vector<Endpoint> list_endpoints();

// The placement of one process.
struct Place {
  int numa_node = -1;       // -1: none
  std::string device = {};  // "": none
  uint32_t port = 0;        // 0: none
  friend bool operator==(const Place&, const Place&) = default;
};

// Parses a place file (LaunchOptions::place) for `processes` processes. Errors: INVALID_ARGUMENT,
// naming the line.
[[nodiscard]] absl::StatusOr<std::vector<Place>> parse_place_file(std::string_view text,
                                                                  int processes);

// Returns one place for each pair of a NUMA node and an endpoint; without endpoints, one for each
// node.
[[nodiscard]] std::vector<Place> zone_endpoint_places(const std::vector<Core>& cores,
                                                      const std::vector<Endpoint>& endpoints);

struct ProcessPlan {
  Place place;
  std::vector<int> cpus;  // CPUs that it is bound to; empty: not bound
};
struct JobPlan {
  std::vector<ProcessPlan> processes;
  std::string warning;  // a part of the request that cannot be satisfied, or ""
};

// Combines the options into a plan. `places` has one entry per process, or is empty. Errors:
// NOT_FOUND (there is no such NUMA node or endpoint).
[[nodiscard]] absl::StatusOr<JobPlan> plan_job(int processes, uint32_t threads, Binding bind,
                                               const std::vector<Place>& places,
                                               const std::vector<Core>& cores,
                                               const std::vector<Endpoint>& endpoints);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_PLACEMENT_H_
