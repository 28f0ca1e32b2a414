// Jobs of forked processes with a Fabric in each, for benchmarks that want what was mapped before
// the fork.
#ifndef CARIAMA_BENCH_SUPPORT_JOB_H_
#define CARIAMA_BENCH_SUPPORT_JOB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/process_group.h"

namespace cariama::bench {

// Runs `body` in `processes` processes, in each of which Fabric::create() joins one job:
// run_processes, and the environment that a script would set. `labels` as in RunOptions. Blocks,
// for a day at most.
[[nodiscard]] absl::Status run_job(int processes, const std::function<int(Exchange&)>& body,
                                   std::vector<std::string> labels = {});

// Binds the calling thread to one of the cores that the process may use: thread `index` of
// `threads` in process `rank` of `processes`. Processes have cores of their own if there are
// enough.
void pin(uint32_t rank, uint32_t processes, uint32_t index, uint32_t threads);

// How often the calling thread was preempted so far.
[[nodiscard]] uint64_t preemptions();

// Nanoseconds on a clock that all processes share.
[[nodiscard]] int64_t now_ns();

// Says "PROGRAM: why", and ends the process: the others of its job are ended then.
[[noreturn]] void give_up(const char* program, const absl::Status& why);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_JOB_H_
