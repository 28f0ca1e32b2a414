#include "bdd/job.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"
#include "tasks/internal/check_options.h"
#include "tasks/pool.h"
#include "tasks/runtime.h"

namespace cariama::bdd {
namespace {

// Time in which all processes leave the job, unless ManagerOptions::timeout is set.
constexpr std::chrono::seconds kJobPatience{60};

uint64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

// In the order of creation; destroyed in the opposite order.
struct Job::Parts {
  ManagerOptions options;
  std::unique_ptr<Fabric> fabric;
  std::optional<Collectives> all;
  std::unique_ptr<TaskRuntime> runtime;
  std::unique_ptr<TaskPool> pool;
  std::unique_ptr<Manager> manager;
};

Job::Job(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Job::~Job() = default;

bool Job::launched() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("CARIAMA_LAUNCH_SOCKET") || set("CARIAMA_BOOTSTRAP") || set("PMIX_RANK") ||
         (set("RANK") && set("WORLD_SIZE"));
}

absl::StatusOr<std::unique_ptr<Job>> Job::create(const ManagerOptions& options, TaskModel model,
                                                 const FabricOptions& fabric_options) {
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  if (!launched()) {
    auto manager = Manager::create(options);
    if (!manager.ok()) return manager.status();
    parts->manager = *std::move(manager);
    return std::unique_ptr<Job>(new Job(std::move(parts)));
  }
  auto fabric = Fabric::create(fabric_options);
  if (!fabric.ok()) return fabric.status();
  parts->fabric = *std::move(fabric);
  parts->all.emplace(*parts->fabric);
  // Manager::create refuses a limit out of range, in all processes.
  const std::chrono::milliseconds limit = std::clamp<std::chrono::milliseconds>(
      options.timeout, std::chrono::milliseconds::zero(), tasks::kMostTimeout);
  absl::StatusOr<std::unique_ptr<Manager>> manager;
  if (model == TaskModel::kPool) {
    auto pool = TaskPool::create(*parts->fabric, {.run_timeout = limit});
    if (!pool.ok()) return pool.status();
    parts->pool = *std::move(pool);
    manager = Manager::create(*parts->pool, *parts->all, options);
  } else {
    auto runtime = TaskRuntime::create(*parts->fabric, {.run_timeout = limit});
    if (!runtime.ok()) return runtime.status();
    parts->runtime = *std::move(runtime);
    manager = Manager::create(*parts->runtime, *parts->all, options);
  }
  if (!manager.ok()) return manager.status();
  parts->manager = *std::move(manager);
  return std::unique_ptr<Job>(new Job(std::move(parts)));
}

Manager& Job::manager() { return *parts_->manager; }

std::vector<ProcessRow> Job::process_rows() {
  const ManagerStatistics statistics = manager().statistics();
  ProcessRow mine;
  mine.rank = manager().rank();
  mine.nodes_owned = statistics.owned_nodes;
  mine.tasks_run = statistics.tasks;
  mine.remote_find_or_puts = statistics.remote_find_or_puts;
  mine.table_bytes = statistics.table_bytes;
  mine.peak_bytes = peak_bytes();
  if (parts_->fabric == nullptr) return {mine};
  mine.steals = parts_->pool != nullptr ? parts_->pool->statistics().stolen_tasks
                                        : parts_->runtime->statistics().steals;
  const auto gathered = parts_->all->all_gather(mine, Manager::wait_limit(manager().options_));
  if (!gathered.ok()) {
    throw std::runtime_error(std::string(manager().end_if_late(gathered.status()).message()));
  }
  std::vector<ProcessRow> rows;
  for (const std::optional<ProcessRow>& row : *gathered) {
    if (row) rows.push_back(*row);
  }
  return rows;
}

absl::Status Job::end() {
  parts_->manager.reset();
  parts_->pool.reset();
  parts_->runtime.reset();
  if (parts_->fabric == nullptr) return absl::OkStatus();
  const ManagerOptions& options = parts_->options;
  const Deadline deadline =
      options.timeout.count() > 0 ? Manager::wait_limit(options) : deadline_after(kJobPatience);
  return Manager::name_option(options, parts_->fabric->finalize(deadline));
}

}  // namespace cariama::bdd
