// Worker processes for bench_tasks: forked by this process, or the processes of the job that this
// process belongs to.
#ifndef CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_
#define CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/job.h"
#include "dsfabric/fabric.h"
#include "dtutils/process_group.h"
#include "tasks/runtime.h"

namespace cariama::bench {

// Returns the value; an error ends bench_tasks with its message.
template <typename T>
T take(absl::StatusOr<T> value) {
  if (!value.ok()) give_up("bench_tasks", value.status());
  return *std::move(value);
}
inline void take(const absl::Status& status) {
  if (!status.ok()) give_up("bench_tasks", status);
}

class TaskWorkers {
 public:
  // If the program was started by cariama-run, mpirun or srun, joins that job as one worker.
  // Otherwise each measurement forks `workers` workers.
  TaskWorkers(int workers, char* const* argv);
  ~TaskWorkers();

  [[nodiscard]] int size() const { return size_; }
  // Returns true if this process reports results: the forking process, or rank 0 of the job.
  [[nodiscard]] bool reports() const;

  // Runs body(runtime, exchange) on `workers` workers: one, or all. Returns the result of rank 0 in
  // the process where reports() is true. Binds each worker to its own core if there are enough
  // cores. Ends the program on an error.
  using Body = std::function<std::string(TaskRuntime&, Exchange&)>;
  [[nodiscard]] std::string run(int workers, const TaskOptions& options, const Body& body);
  // Runs body(runtime, fabric) on the processes of a fabric, for programs with global memory. In a
  // job: on all its processes, independent of `workers`. Returns as run().
  using FabricBody = std::function<std::string(TaskRuntime&, Fabric&)>;
  [[nodiscard]] std::string run_on_fabric(int workers, const TaskOptions& options,
                                          const FabricBody& body);
  // As run_on_fabric(), without a runtime.
  using PlainBody = std::function<std::string(Fabric&)>;
  [[nodiscard]] std::string run_without_runtime(int workers, const PlainBody& body);
  [[nodiscard]] bool is_job() const { return job_ != nullptr; }

 private:
  // Forks `workers` workers that execute `work`. Returns the result of rank 0.
  [[nodiscard]] std::string run_forked(int workers, bool fabric,
                                       const std::function<std::string(Exchange&)>& work);

  int size_;
  std::unique_ptr<Fabric> job_;
  std::unique_ptr<ThreadContext> thread_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_
