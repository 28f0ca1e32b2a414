// cariama-run: starts the processes of a job on this host.
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/launcher.h"

namespace cariama {
namespace {

constexpr const char* kHelp =
    "cariama-run: starts a job of several processes on this host, and sees to its end.\n"
    "\n"
    "  cariama-run -n P [options] [--] program [arguments]\n"
    "\n"
    "  -n P                 processes\n"
    "  -t T                 long-lived threads in each\n"
    "  --bind none          processes run anywhere (default)\n"
    "  --bind core          each thread has a core of its own\n"
    "  --bind numa          each process stays on one NUMA node\n"
    "  --place zone-endpoint\n"
    "                       the processes go through all pairs of a NUMA node and an active RDMA\n"
    "                       port; without -n there is one for each pair\n"
    "  --place FILE         as the file says, one line per process: RANK NODE [DEVICE[:PORT]]\n"
    "  --timeout S          ends the job after S seconds; exit code 124\n"
    "  --grace S            when the job is ended, processes have S seconds (default 5) between\n"
    "                       SIGTERM and SIGKILL\n"
    "  --tag-output         writes [RANK] before each line of output\n"
    "  --keep-going         a process that fails does not end the job\n"
    "  --help               this text\n"
    "\n"
    "Ctrl-C is passed on to all processes; a second one kills them. Standard input goes to\n"
    "rank 0. If a process fails, the others are ended, and stderr says which failed and how.\n"
    "\n"
    "Exit code: 0, or that of the process that failed first (128+n: killed by signal n);\n"
    "124 after the timeout, 125 if the job could not be started, 126 and 127 if the program\n"
    "cannot be run or is not there, 2 for wrong usage.\n";

int run(int argc, char** argv) {
  const std::span<const char* const> arguments(argv + 1, static_cast<size_t>(argc) - 1);
  LaunchOptions options;
  absl::StatusOr<int> code = 0;
  if (const absl::StatusOr<size_t> read = read_launch_options(arguments, options); !read.ok()) {
    code = read.status();
  } else {
    options.command.assign(arguments.begin() + static_cast<ptrdiff_t>(*read), arguments.end());
    // What stopped the reading is the program, unless it looks like an option.
    const std::string next = options.command.empty() ? "" : options.command.front();
    const bool ended = *read != 0 && std::string_view(arguments[*read - 1]) == "--";
    if (!ended && (next == "--help" || next == "-h")) {
      std::fputs(kHelp, stdout);
      return std::fflush(stdout) == 0 ? 0 : 1;
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

int main(int argc, char** argv) { return cariama::run(argc, argv); }
