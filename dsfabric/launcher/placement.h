// Where each process of a job goes: which cores, which RDMA device.
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
// Those of this machine.
[[nodiscard]] std::vector<Endpoint> list_endpoints();

// What was chosen for one process.
struct Place {
  int numa_node = -1;       // or none
  std::string device = {};  // or none
  uint32_t port = 0;        // or none
  friend bool operator==(const Place&, const Place&) = default;
};

// A place file (LaunchOptions::place) for so many processes. Errors: INVALID_ARGUMENT, naming the
// line.
[[nodiscard]] absl::StatusOr<std::vector<Place>> parse_place_file(std::string_view text,
                                                                  int processes);

// One place for each pair of a NUMA node and an endpoint; without endpoints, for each node.
[[nodiscard]] std::vector<Place> zone_endpoint_places(const std::vector<Core>& cores,
                                                      const std::vector<Endpoint>& endpoints);

struct ProcessPlan {
  Place place;
  std::vector<int> cpus;  // what it is bound to; empty: nothing
};
struct JobPlan {
  std::vector<ProcessPlan> processes;
  std::string warning;  // what could not be had, or ""
};

// Puts the options together. `places` has one entry per process, or none at all. Error: NOT_FOUND
// (there is no such NUMA node, or no such endpoint).
[[nodiscard]] absl::StatusOr<JobPlan> plan_job(int processes, uint32_t threads, Binding bind,
                                               const std::vector<Place>& places,
                                               const std::vector<Core>& cores,
                                               const std::vector<Endpoint>& endpoints);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_PLACEMENT_H_
