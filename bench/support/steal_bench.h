// bench_tasks steal: one task goes to and fro between two workers; and steals from a worker that
// does not run.
#ifndef CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_
#define CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_

#include <chrono>
#include <cstddef>
#include <vector>

#include "bench/support/report.h"
#include "bench/support/task_workers.h"
#include "tasks/runtime.h"

namespace cariama::bench {

// Prints where the time of a steal goes for each size of the stolen frames, in cycles of the time
// stamp counter and in ns, and what suspending and resuming as much takes beside. Needs two
// workers. The first steal is dropped.
void measure_steals(TaskWorkers& workers, TaskOptions options, const std::vector<size_t>& frames,
                    int steals, const Report& report, const Params& params);

// Prints how many page faults a thief has for each steal, where each is of another task with a
// frame of `frame` bytes: in a first run, and in a later one. Needs two workers.
void measure_page_faults(TaskWorkers& workers, TaskOptions options, size_t frame,
                         const Report& report, const Params& params);

// Prints how many bytes of addresses each worker reserves for stacks, of 1 to 8 workers; of a job,
// of its size.
void measure_reserved(TaskWorkers& workers, const TaskOptions& options, const Report& report,
                      const Params& params);

// Prints how long it takes from a fork in one worker until the other one, which had nothing to do
// for `pause` and sleeps, runs what it stole: median, and 99th percentile. Needs two workers.
void measure_wakes(TaskWorkers& workers, const TaskOptions& options, int samples,
                   std::chrono::milliseconds pause, const Report& report, const Params& params);

// Whether a task that has been started goes on while the process that started it is stopped
// (SIGSTOP). False if its frames waited for that process. Needs two workers; takes seconds. `tied`:
// with forks whose callers are never stolen.
[[nodiscard]] bool steals_from_stopped(TaskWorkers& workers, const TaskOptions& options, bool tied);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_
