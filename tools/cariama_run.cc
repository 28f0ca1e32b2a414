// cariama-run: starts the processes of a job on this host.
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/launcher.h"
#include "dtutils/version.h"
#include "tools/program.h"

namespace cariama {
namespace {

constexpr const char* kHelp =
    "cariama-run: starts a job of several processes on this host and waits for it.\n"
    "\n"
    "  cariama-run -n P [options] [--] program [arguments]\n"
    "\n"
    "  -n P                 number of processes\n"
    "  -t T                 number of long-lived threads in each process\n"
    "  --bind none          processes run anywhere (default)\n"
    "  --bind core          each thread runs on a core of its own\n"
    "  --bind numa          each process stays on one NUMA node\n"
    "  --place zone-endpoint\n"
    "                       assigns the pairs of a NUMA node and an active RDMA port to the\n"
    "                       processes in turn; without -n, starts one process for each pair\n"
    "  --place FILE         assigns nodes and devices by FILE, one line per process:\n"
    "                       RANK NODE [DEVICE[:PORT]]\n"
    "  --timeout S          ends the job after S seconds, with exit code 124\n"
    "  --grace S            time in seconds between SIGTERM and SIGKILL when the job is ended\n"
    "                       (default 5)\n"
    "  --tag-output         writes [RANK] before each line of output\n"
    "  --keep-going         a process that fails does not end the job\n"
    "  --help               this text\n"
    "  --version            prints the version of Cariama\n"
    "\n"
    "The first Ctrl-C is forwarded to all processes, the second one kills them. Rank 0 reads\n"
    "the standard input. If a process fails, the others are ended, and stderr names the process\n"
    "that failed and the reason. Of failures at nearly the same time, a death by a signal counts "
    "as\n"
    "the first one.\n"
    "\n"
    "Exit code: 0, or that of the process that failed first (128+n if signal n killed it).\n"
    "A stopped process that the job has ended without is killed, and counts as the process that\n"
    "failed last: 137 if no other process failed;\n"
    "1 if no process failed, but output of --tag-output could not be written;\n"
    "124 after the timeout, 125 if the job could not be started, or if cariama-run lacks memory,\n"
    "126 if the program cannot be executed, 127 if it does not exist, 2 for wrong usage.\n";

int run(int argc, char** argv) {
  const std::span<const char* const> arguments(argv + 1, static_cast<size_t>(argc) - 1);
  LaunchOptions options;
  absl::StatusOr<int> code = 0;
  if (const absl::StatusOr<size_t> read = read_launch_options(arguments, options); !read.ok()) {
    code = read.status();
  } else {
    options.command.assign(arguments.begin() + static_cast<ptrdiff_t>(*read), arguments.end());
    // Reading stopped at the program's name, or at an unknown option.
    const std::string next = options.command.empty() ? "" : options.command.front();
    const bool ended = *read != 0 && std::string_view(arguments[*read - 1]) == "--";
    if (!ended && (next == "--help" || next == "-h")) {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (!ended && next == "--version") {
      std::printf("cariama-run %s\n", std::string(version()).c_str());
      return 0;
    }
    if (!ended && next.size() > 1 && next.front() == '-') {
      code = absl::InvalidArgumentError("unknown option " + next);
    } else {
      code = launch(options);
    }
  }
  if (code.ok()) return *code;
  const bool usage = code.status().code() == absl::StatusCode::kInvalidArgument;
  std::fprintf(stderr, "cariama-run: %s%s\n", std::string(code.status().message()).c_str(),
               usage ? " (see cariama-run --help)" : "");
  return launch_exit_code(code.status());
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::run_program("cariama-run", [&] { return cariama::run(argc, argv); });
}
