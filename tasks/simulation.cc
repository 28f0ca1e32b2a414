#include "tasks/simulation.h"

#include <cstring>
#include <memory>
#include <vector>

#include "dtutils/error.h"
#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/simulation/worker.h"
#include "tasks/internal/worker.h"

namespace cariama {
namespace {

// Stack size of a fiber: several times the stack that the protocols need. Sanitizers make frames
// larger.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kFiberBytes = size_t{64} << 10;
#else
constexpr size_t kFiberBytes = size_t{16} << 10;
#endif

}  // namespace

absl::StatusOr<SimulationResult> simulate(const SimulatedProgram& program,
                                          const SimulationOptions& options) {
  if (tasks::this_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process already has a TaskRuntime", "destroy it first");
  }
  std::vector<tasks::SimulatedWorker*> workers;
  auto created =
      tasks::Cluster::create(program, options, kFiberBytes, [&](tasks::Cluster& cluster, int rank) {
        auto worker = tasks::SimulatedWorker::create(cluster, rank);
        workers.push_back(worker.get());
        return worker;
      });
  if (!created.ok()) return created.status();
  tasks::Cluster& cluster = **created;
  tasks::SimulatedBlock& root = cluster.allocate();
  workers[0]->install_root(program.root(), tasks::Reference(0, &root.record));
  SimulationResult result;
  const auto ended = [&] { return root.record.arrivals.load(std::memory_order_relaxed) != 0; };
  cluster.run_until(ended);
  result.finished = ended();
  result.makespan = SimTime(cluster.events().now());
  if (result.finished) {
    std::memcpy(&result.count, root.record.result.value, sizeof result.count);
  }
  for (const auto* worker : workers) result.statistics.add(worker->statistics());
  result.work = cluster.work();
  result.events = cluster.events().popped();
  result.trace_hash = cluster.events().hash();
  result.violation = cluster.violation();
  return result;
}

}  // namespace cariama
