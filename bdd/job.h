// Job: a Manager for the processes of a job, or for one process.
//
//   int main(int argc, char** argv) {
//     if (auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
//     auto job = cariama::bdd::Job::create({});             // in every process
//     {
//       Bdd f = queens((*job)->manager(), 8);               // on all of them
//     }                                                     // destroy each Bdd before the manager
//     return (*job)->end().ok() ? 0 : 1;
//   }
//
// If no launcher has started this process, the job is this process alone.
#ifndef CARIAMA_BDD_JOB_H_
#define CARIAMA_BDD_JOB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/export.h"
#include "dsfabric/fabric.h"

namespace cariama::bdd {

// The kind of tasks that run the recursion of an operation.
enum class TaskModel : uint8_t {
  kMigrating,  // tasks that idle workers continue in other processes (tasks/task.h)
  kPool,       // tasks of a pool, which stay in the process that began them (tasks/pool.h)
};

// The counters of one process of a job.
struct ProcessRow {
  Rank rank;
  uint64_t nodes_owned = 0;          // nodes in this process's part of the table
  uint64_t tasks_run = 0;            // recursive operations that this process has computed
  uint64_t remote_find_or_puts = 0;  // look-ups of nodes in the parts of other processes
  uint64_t steals = 0;               // tasks that this process has stolen
  uint64_t table_bytes = 0;
  uint64_t peak_bytes = 0;  // most memory that this process has used
};

class CARIAMA_BDD_EXPORT Job {
 public:
  // Returns true if a launcher (cariama-run, mpirun, srun, launch()) has started this process.
  [[nodiscard]] static bool launched();

  // Joins the job, and creates its manager. ManagerOptions::timeout is also the limit of the tasks
  // of an operation (run_timeout of TaskOptions or PoolOptions); with FailurePolicy::kAbort the end
  // of that limit ends the process. Collective. Errors: those of Fabric::create,
  // Fabric::init_thread, TaskRuntime::create or TaskPool::create, and of Manager::create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Job>> create(
      const ManagerOptions& options, TaskModel model = TaskModel::kMigrating,
      const FabricOptions& fabric = {.on_failure = FailurePolicy::kAbort});
  // Without end(): destroys the manager, which waits at most 120 s for the other processes (bdd.h),
  // and then leaves the job as ~Fabric does.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] Manager& manager();
  // Returns a row for each process, in the order of ranks. Collective; blocks until all processes
  // have called it, at most for ManagerOptions::timeout. Throws std::runtime_error (a process
  // failed, or was late).
  [[nodiscard]] std::vector<ProcessRow> process_rows();
  // Ends the job: blocks until all processes have called end(), destroys the manager, and leaves
  // the job. Objects of type Bdd that still exist belong to no manager then (bdd.h). manager() may
  // not be called any more. Collective. Waits for the other processes as ~Manager does, and then at
  // most for ManagerOptions::timeout, or 60 s if that is 0, until they leave the job. Errors: those
  // of Fabric::finalize.
  [[nodiscard]] absl::Status end();

 private:
  struct Parts;
  explicit Job(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_JOB_H_
