#include "tasks/start.h"

#include <sys/personality.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/system_info.h"

namespace cariama {
namespace {

// Environment variable set for the second execution, so that a third one is not tried.
constexpr const char* kAgainVariable = "CARIAMA_TASKS_UNRANDOMISED";

// Returns the path of this program's file. argv[0] may name another file or none.
std::string own_program(const char* called) {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return called;
  path.resize(static_cast<size_t>(length));
  return path;
}

absl::Status refused(const std::string& what) {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess, what,
                    "start the job where personality(ADDR_NO_RANDOMIZE) is allowed (docker run "
                    "--security-opt seccomp=unconfined), under setarch -R, or fork all workers of "
                    "a host from one process (run_processes)");
}

}  // namespace

absl::Status execute_unrandomised(char* const* argv) {
  const int now = personality(0xffffffff);
  if (now != -1 && (now & ADDR_NO_RANDOMIZE) != 0) {
    unsetenv(kAgainVariable);  // programs that this process starts must not inherit it
    return absl::OkStatus();
  }
  if (getenv(kAgainVariable) != nullptr) {
    return refused("the addresses of this process are random, although it disabled randomisation");
  }
  if (now == -1 || personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) == -1) {
    return refused("the kernel does not let this process have equal addresses in every worker");
  }
  setenv(kAgainVariable, "1", 1);
  const std::string program = own_program(argv[0]);
  execv(program.c_str(), argv);
  return make_errno_error(errno, ErrorScope::kProcess, "executing '" + program + "' again", "");
}

int usable_workers() {
  const SystemInfo info = query_system_info();
  auto workers = std::max(1, static_cast<int>(info.cpus.size()));
  if (info.cgroup.cpus.has_value()) {
    workers = std::clamp(static_cast<int>(std::ceil(*info.cgroup.cpus)), 1, workers);
  }
  return workers;
}

std::optional<int> start_workers(LaunchOptions options, int argc, char* const* argv) {
  if (options.processes == 0 && options.place.empty()) options.processes = usable_workers();
  if (auto code = launch_self(std::move(options), argc, argv)) return code;
  const absl::Status status = execute_unrandomised(argv);
  if (status.ok()) return std::nullopt;
  std::fprintf(stderr, "%s: %s\n", argv[0], std::string(status.message()).c_str());
  return 125;  // the launcher's exit code for a job that could not be started
}

}  // namespace cariama
