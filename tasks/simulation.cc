#include "tasks/simulation.h"

#include <memory>

#include "dtutils/error.h"
#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/worker.h"

namespace cariama {

absl::StatusOr<SimulationResult> simulate(const SimulatedProgram& program,
                                          const SimulationOptions& options) {
  if (tasks::this_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process already has a TaskRuntime", "destroy it first");
  }
  auto cluster = tasks::Cluster::create(program, options);
  if (!cluster.ok()) return cluster.status();
  return (*cluster)->run();
}

}  // namespace cariama
