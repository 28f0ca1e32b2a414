// How the workers of a job come to have everything at equal addresses, whoever starts them.
//
//   int main(int argc, char** argv) {
//     if (auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
//     auto fabric = cariama::Fabric::create();              // one process of the job
//     auto runtime = cariama::TaskRuntime::create(**fabric, {});
//
// Stacks hold addresses of code, of constants and of thread-local memory, so these must be equal in
// all workers. Linux puts them elsewhere in each program start, unless it is told not to: processes
// started by cariama-run, mpirun or srun are executed once more without randomisation, before they
// have done anything. TaskRuntime::create() verifies the result. (Processes forked from one, as by
// run_processes(), need none of it.)
#ifndef CARIAMA_TASKS_START_H_
#define CARIAMA_TASKS_START_H_

#include <optional>

#include "absl/status/status.h"
#include "dsfabric/launcher.h"
#include "tasks/export.h"

namespace cariama {

// For the first line of main. Started by hand, it makes the program the launcher of itself, as
// launch_self() does, and returns the exit code for main; processes 0 are usable_workers(). Started
// by a launcher, it sees to equal addresses, and returns nothing: this is a worker. It may execute
// the program anew: nothing before it happens once. What is wrong is said on stderr, and comes as
// an exit code.
[[nodiscard]] CARIAMA_TASKS_EXPORT std::optional<int> start_workers(LaunchOptions options, int argc,
                                                                    char* const* argv);

// Its second half. Returns at once if this process has no randomisation; else executes the program
// again without, and does not return. Call it before there are threads, and before the job is
// joined. Error: FAILED_PRECONDITION (the kernel, or a container's seccomp profile, refuses).
[[nodiscard]] CARIAMA_TASKS_EXPORT absl::Status execute_unrandomised(char* const* argv);

// How many workers this host should have: the cores that this process may use, and no more than its
// control group has CPU time for; at least 1.
[[nodiscard]] CARIAMA_TASKS_EXPORT int usable_workers();

}  // namespace cariama

#endif  // CARIAMA_TASKS_START_H_
