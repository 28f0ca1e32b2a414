// start_workers(): makes all workers of a job have equal addresses, with any launcher.
//
//   int main(int argc, char** argv) {
//     if (auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
//     auto fabric = cariama::Fabric::create();              // one process of the job
//     auto runtime = cariama::TaskRuntime::create(**fabric, {});
//
// Stacks contain addresses of code, constants and thread-local memory, so these addresses must be
// equal in all workers. Linux randomises them at each program start (ASLR), unless the process
// disables this. start_workers() therefore replaces a process that cariama-run, mpirun or srun
// has started by a second execution of the same program, without randomisation.
// TaskRuntime::create() verifies the result. Processes that were forked from one process, as by
// run_processes(), do not need start_workers().
#ifndef CARIAMA_TASKS_START_H_
#define CARIAMA_TASKS_START_H_

#include <optional>

#include "absl/status/status.h"
#include "dsfabric/launcher.h"
#include "tasks/export.h"

namespace cariama {

// Call it in the first line of main().
// - If no launcher started this process, it starts the program's workers, as launch_self() does,
//   and returns the exit code for main(). options.processes == 0 means usable_workers(),
//   or what launch_self() chooses if options.place is set.
// - If a launcher started this process, it makes the addresses equal (execute_unrandomised()) and
//   returns std::nullopt: this process is a worker. Code before the call runs twice if the program
//   is executed again.
// In case of an error it prints the message to stderr and returns an exit code.
[[nodiscard]] CARIAMA_TASKS_EXPORT std::optional<int> start_workers(LaunchOptions options, int argc,
                                                                    char* const* argv);

// Executes this program again without address randomisation, and does not return. Returns OK at
// once if this process has no randomisation. Requires: the process has no other threads, and has
// not joined the job. Error: FAILED_PRECONDITION (the kernel, or a container's seccomp profile,
// refuses).
[[nodiscard]] CARIAMA_TASKS_EXPORT absl::Status execute_unrandomised(char* const* argv);

// Returns the number of workers for this host: the number of cores that this process may use, at
// most the CPU limit of its control group (rounded up), and at least 1.
[[nodiscard]] CARIAMA_TASKS_EXPORT int usable_workers();

}  // namespace cariama

#endif  // CARIAMA_TASKS_START_H_
