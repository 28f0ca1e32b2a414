// Worker processes for bench_tasks: forked here, or those of the job that the program is in.
#ifndef CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_
#define CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dtutils/process_group.h"
#include "tasks/runtime.h"

namespace cariama::bench {

class TaskWorkers {
 public:
  // Started by cariama-run, mpirun or srun: joins that job, of which this is one worker. Else
  // `workers` are forked for each measurement.
  TaskWorkers(int workers, char* const* argv);
  ~TaskWorkers();

  [[nodiscard]] int size() const { return size_; }
  // Whether this process reports: the one that forks, or rank 0 of the job.
  [[nodiscard]] bool reports() const;

  // Runs body(runtime, exchange) on `workers` workers: one, or all. What rank 0's returns is what
  // comes back, where reports() is true. Each is bound to a core of its own if there are enough.
  // Ends the program if something fails.
  using Body = std::function<std::string(TaskRuntime&, Exchange&)>;
  [[nodiscard]] std::string run(int workers, const TaskOptions& options, const Body& body);
  // The same on the processes of a fabric, for programs with global memory. Of a job: on all.
  using FabricBody = std::function<std::string(TaskRuntime&, Fabric&)>;
  [[nodiscard]] std::string run_on_fabric(int workers, const TaskOptions& options,
                                          const FabricBody& body);
  [[nodiscard]] bool is_job() const { return job_ != nullptr; }

 private:
  // What a forked worker does; its result goes to us.
  [[nodiscard]] std::string run_forked(int workers, bool fabric,
                                       const std::function<std::string(Exchange&)>& work);

  int size_;
  std::unique_ptr<Fabric> job_;
  std::unique_ptr<ThreadContext> thread_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TASK_WORKERS_H_
