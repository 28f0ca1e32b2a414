#include "tasks/pool_simulation.h"

#include <sys/mman.h>

#include <memory>
#include <vector>

#include "dsfabric/function_table.h"
#include "dtutils/error.h"
#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/simulation/pool_worker.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/worker.h"
#include "tasks/pool/cells.h"
#include "tasks/pool/protocol.h"

namespace cariama {
namespace {

constexpr size_t kLeastStack = size_t{64} << 10;

absl::Status check_options(const PoolSimulationOptions& options) {
  const auto invalid = [](const char* what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (options.steal != kStealHalf && (options.steal < 1 || options.steal > tasks::kMostParcels)) {
    return invalid("PoolSimulationOptions::steal is from 1 to 64, or kStealHalf");
  }
  if (options.cluster.workers < 1 || options.cluster.workers >= 1 << tasks::kThiefBits) {
    return invalid("SimulationOptions::workers is from 1 to 2^24 - 1");
  }
  constexpr size_t kMost = size_t{1} << 27;
  if (options.cells < tasks::kMostParcels || options.cells > kMost ||
      options.private_cells > kMost) {
    return invalid("PoolSimulationOptions::cells is from 64 to 2^27, private_cells to 2^27");
  }
  if (options.stack_bytes < kLeastStack || options.stack_bytes % tasks::kStackPage != 0) {
    return invalid("PoolSimulationOptions::stack_bytes is at least 64 KiB, in whole pages");
  }
  if (options.own_atomic.count() < 0) {
    return invalid("PoolSimulationOptions::own_atomic is not negative");
  }
  return absl::OkStatus();
}

// The memory of all workers. Pages are allocated when they are first touched.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes),
        begin_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Memory() {
    if (begin() != nullptr) munmap(begin_, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* begin() const {
    return begin_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(begin_);
  }

 private:
  const size_t bytes_;
  void* const begin_;
};

}  // namespace

absl::StatusOr<PoolSimulationResult> simulate_pool(const SimulatedProgram& program,
                                                   const PoolSimulationOptions& options) {
  if (tasks::this_worker != nullptr || tasks::this_pool_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process already has a TaskRuntime or a TaskPool", "destroy it first");
  }
  absl::Status status = check_options(options);
  if (status.ok()) status = FunctionTable::build();
  if (!status.ok()) return status;

  const int workers = options.cluster.workers;
  tasks::SimulatedPool pool;
  pool.options.cells = options.cells;
  pool.options.private_cells = options.private_cells;
  pool.options.steal = options.steal;
  pool.own_atomic = options.own_atomic;
  pool.stack_bytes = options.stack_bytes;
  pool.stride =
      tasks::whole_pages(tasks::cells_offset(workers) +
                         (options.cells + options.private_cells) * sizeof(pool::internal::Cell));
  const Memory memory(static_cast<size_t>(workers) * pool.stride);
  pool.memory = memory.begin();
  if (pool.memory == nullptr) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "no address space for the cells of simulated workers",
                      "lower PoolSimulationOptions::private_cells, or the number of workers");
  }
  std::vector<const tasks::SimulatedPoolWorker*> all;
  auto created = tasks::Cluster::create(
      program, options.cluster, options.stack_bytes, [&](tasks::Cluster& cluster, int rank) {
        auto worker = std::make_unique<tasks::SimulatedPoolWorker>(pool, cluster, rank);
        all.push_back(worker.get());
        return worker;
      });
  if (!created.ok()) return created.status();
  tasks::Cluster& cluster = **created;
  cluster.run_until([&] { return pool.left == workers; });

  PoolSimulationResult result;
  result.finished = pool.left == workers;
  result.makespan = SimTime(pool.root_ended ? pool.root_end : cluster.events().now());
  result.termination = SimTime(result.finished ? pool.last_left - pool.root_end : 0);
  result.work = cluster.work();
  result.count = pool.root_count;
  for (const auto* worker : all) result.statistics.add(worker->statistics());
  result.units_begun = pool.begun;
  result.units_ended = pool.ended;
  result.events = cluster.events().popped();
  result.trace_hash = cluster.events().hash();
  result.violation = cluster.violation();
  if (result.violation.empty() && result.finished && pool.begun != pool.ended) {
    result.violation = "a task that was handed over has not ended";
  }
  return result;
}

}  // namespace cariama
