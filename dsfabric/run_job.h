// The main program of a job in one call: starts the processes, joins the fabric, registers the
// threads, and ends the job in order.
//
//   int main(int argc, char** argv) {
//     return cariama::run_job({.launch = {.processes = 2}}, argc, argv,
//                             [](cariama::ThreadContext& self) {
//       const cariama::ThreadId next = (self.global_id() + 1) % self.fabric().total_threads();
//       return cariama::call(self.fabric(), next, [from = self.global_id()] {
//         std::printf("thread %u calls\n", from.value());
//       });
//     });
//   }
//
// A program that must do more between these steps uses launch_self() (launcher.h) and Fabric
// directly.
#ifndef CARIAMA_DSFABRIC_RUN_JOB_H_
#define CARIAMA_DSFABRIC_RUN_JOB_H_

#include <chrono>
#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"

namespace cariama {

struct JobOptions {
  LaunchOptions launch{};  // as for launch_self(); `command` is ignored
  FabricOptions fabric{};
  CallConsumer consumer = CallConsumer::kThread;  // of every thread
  // The longest time that a process whose threads have ended waits for the other processes to end.
  // 0: no limit.
  std::chrono::milliseconds end_timeout{0};
};

namespace internal {
using JobBody = std::function<absl::Status(ThreadContext& self)>;
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT int run_job_body(const JobOptions& options, int argc,
                                                       const char* const* argv,
                                                       const JobBody& body);
}  // namespace internal

// Runs body(self) in every long-lived thread of every process, and returns the exit code for main.
// Thread 0 of each process is the calling thread. `body` returns nothing, or a value that converts
// to absl::Status. It must not store a reference to `self` or to the fabric beyond its return.
//
// After its body a thread runs the calls that arrive for it, until all threads of the job have
// ended and no call is in flight. Returns 0 then.
//
// Returns 1, and prints the reason on stderr, if a body returned an error or threw an exception, if
// the fabric could not be created, or if the job did not end in order. The process then leaves the
// job immediately; the launcher ends the other processes (LaunchOptions::keep_going). In the
// process that launches the job, returns what launch_self() returns.
template <std::invocable<ThreadContext&> Body>
[[nodiscard]] int run_job(const JobOptions& options, int argc, const char* const* argv,
                          Body&& body) {
  using Result = std::invoke_result_t<Body&, ThreadContext&>;
  constexpr bool kStatus = std::constructible_from<absl::Status, Result>;
  static_assert(std::is_void_v<Result> || kStatus,
                "cariama: the body of run_job() returns nothing or an absl::Status");
  return internal::run_job_body(options, argc, argv, [&](ThreadContext& self) -> absl::Status {
    if constexpr (kStatus) {
      return absl::Status(body(self));
    } else {
      body(self);
      return absl::OkStatus();
    }
  });
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_RUN_JOB_H_
