// Jobs of forked processes with a Fabric in each, for benchmarks that share memory which was mapped
// before the fork.
#ifndef CARIAMA_BENCH_SUPPORT_JOB_H_
#define CARIAMA_BENCH_SUPPORT_JOB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/process_group.h"
#include "riutils/messenger_options.h"

namespace cariama::bench {

// Runs `body` in `processes` processes (run_processes), with an environment by which
// Fabric::create() joins all of them to one job. `labels` as in RunOptions. Blocks for at most a
// day.
[[nodiscard]] absl::Status run_job(int processes, const std::function<int(Exchange&)>& body,
                                   std::vector<std::string> labels = {});

// Binds the calling thread to one of the cores that the process may use: thread `index` of
// `threads` in process `rank` of `processes`. Processes have cores of their own if there are
// enough.
void pin(uint32_t rank, uint32_t processes, uint32_t index, uint32_t threads);

// Returns the number of times that the calling thread was preempted so far.
[[nodiscard]] uint64_t preemptions();

// Returns nanoseconds of a clock that is the same in all processes of the host.
[[nodiscard]] int64_t now_ns();

// Returns the arrival mode of this name (arrival_name()). Error: INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<Arrival> arrival_of(const std::string& name);

// Makes the fabrics of the processes that are forked later use this transport: "shm" or "verbs".
// Error: INVALID_ARGUMENT.
[[nodiscard]] absl::Status choose_transport(const std::string& name);

// Prints "PROGRAM: why" and ends the process, which ends the other processes of its job too.
[[noreturn]] void give_up(const char* program, const absl::Status& why);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_JOB_H_
