// bench_tasks steal and wake: two workers steal one task from each other in turn, wake-ups of a
// sleeping worker, and steals from a stopped worker.
#ifndef CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_
#define CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_

#include <chrono>
#include <cstddef>
#include <vector>

#include "bench/support/report.h"
#include "bench/support/task_workers.h"
#include "tasks/runtime.h"

namespace cariama::bench {

// Prints the time of each step of a steal for each size of the stolen frames, in cycles of the time
// stamp counter and in ns, and for comparison the time of suspending and resuming frames of the
// same size. Requires two workers. The first steal is not counted.
void measure_steals(TaskWorkers& workers, const TaskOptions& options,
                    const std::vector<size_t>& frames, int steals, const Report& report,
                    const Params& params);

// Prints the page faults of a thief per steal, in a first run and in a later run. Each steal is of
// a different task with a frame of `frame` bytes. Requires two workers.
void measure_page_faults(TaskWorkers& workers, const TaskOptions& options, size_t frame,
                         const Report& report, const Params& params);

// Prints the bytes of address space that each worker reserves for stacks, for 1 to 8 workers. In a
// job: for one worker and for the job's size.
void measure_reserved(TaskWorkers& workers, const TaskOptions& options, const Report& report,
                      const Params& params);

// Prints the time from a fork in one worker until the other worker, which was idle for `pause` and
// sleeps, runs the stolen task: median and 99th percentile. Requires two workers.
void measure_wakes(TaskWorkers& workers, const TaskOptions& options, int samples,
                   std::chrono::milliseconds pause, const Report& report, const Params& params);

// Returns true if a started task continues in another worker while the process that started it is
// stopped (SIGSTOP). Returns false if its frames waited for that process. `tied`: with forks whose
// callers are never stolen. Requires two workers. Takes several seconds.
[[nodiscard]] bool steals_from_stopped(TaskWorkers& workers, const TaskOptions& options, bool tied);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_STEAL_BENCH_H_
