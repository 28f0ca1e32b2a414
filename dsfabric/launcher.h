// Starts the processes of a job on this host, and sees to their end: what cariama-run does, for
// programs that launch themselves.
//
//   int main(int argc, char** argv) {
//     if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
//     auto fabric = Fabric::create();   // one process of the job, whoever has started it
//
//   auto code = launch({.processes = 4, .command = {"./another_program", "--verbose"}});
//   return code.ok() ? *code : 1;
//
// Each process finds the others by make_bootstrap() (bootstrap.h). Programs on several hosts are
// started by a PMIx launcher, or by hand; see there.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_H_
#define CARIAMA_DSFABRIC_LAUNCHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/binding.h"
#include "dsfabric/export.h"

namespace cariama {

struct LaunchOptions {
  // 0: one for each NUMA node and endpoint, if place says "zone-endpoint".
  int processes = 0;
  // Long-lived threads in each process (-t); nothing leaves it to the program.
  std::optional<uint32_t> threads{};
  // What each process is bound to. kNuma: the first processes to the first node, and so on, as
  // evenly as possible.
  Binding bind = Binding::kNone;
  // Which NUMA node and RDMA device each process uses: "" (none is chosen), "zone-endpoint" (the
  // processes go through all pairs of a NUMA node and an active port, nodes outside), or the name
  // of a file with one line per process:
  //   RANK NODE [DEVICE[:PORT]]     # comment
  // A process is bound to its node's cores (to some of them with Binding::kCore), and finds its
  // device in CARIAMA_DEVICE and CARIAMA_PORT.
  std::string place{};
  // After this the job is ended; 0: never.
  std::chrono::milliseconds timeout{0};
  // Between SIGTERM and SIGKILL, when the job is ended.
  std::chrono::milliseconds grace{5'000};
  // Writes "[RANK] " before each line that a process prints.
  bool tag_output = false;
  // A process that fails does not end the job: for programs that continue without the dead.
  bool keep_going = false;
  // The program, looked for in PATH, and its arguments.
  std::vector<std::string> command{};
};

// What launch() returns after the timeout.
inline constexpr int kLaunchTimedOut = 124;

// Runs the job, and waits until it has ended. Returns 0, or the exit code of the process that
// failed first: 128 + n if signal n killed it.
//
// When a process fails, the others get SIGTERM, and SIGKILL after options.grace; what happened is
// said on stderr. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on, the job has options.grace to
// end; a second one kills it at once. Each process leads a process group, which is killed when the
// process ends; what escapes from the groups is killed at the end of the job. If the launcher is
// killed, its processes and their groups are, too.
//
// Standard input goes to rank 0, the others read /dev/null.
//
// Blocks. While it runs it owns the named signals of the process, of which all threads should block
// them. Errors: INVALID_ARGUMENT (options, place file), NOT_FOUND (program, place file, NUMA node,
// device), PERMISSION_DENIED (the program cannot be run), RESOURCE_EXHAUSTED (processes,
// descriptors).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<int> launch(const LaunchOptions& options);

// Reads options of cariama-run (-n, -t, --bind, ...: cariama-run --help) from the front of
// `arguments` into `options`. Returns how many arguments they were, a "--" that ends them included:
// it stops before the first that is none of them. Error: INVALID_ARGUMENT (an option's value).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<size_t> read_launch_options(
    std::span<const char* const> arguments, LaunchOptions& options);

// For the first line of main: makes a program that is started by hand the launcher of itself.
//
// If a launcher has started this process (cariama-run, mpirun, srun; RANK and WORLD_SIZE are set;
// CARIAMA_BOOTSTRAP=single), returns nothing, and does nothing: this is one process of a job, and
// its arguments are the program's. Else starts the same program options.processes times, as
// launch() does, and returns the exit code for main once they have ended. The options may be
// changed by those of cariama-run at the front of the command line: `./program -n 4 -t 2 ...`; the
// processes get the arguments behind them. options.command is not looked at.
//
// What is wrong is said on stderr; the exit codes are those of cariama-run. Call it before there
// are other threads, and before anything that should happen once per process of the job.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT std::optional<int> launch_self(LaunchOptions options,
                                                                     int argc,
                                                                     const char* const* argv);

// The exit code of cariama-run for what launch() or read_launch_options() have refused: 2 wrong
// usage, 125 the job could not be started, 126 the program cannot be run, 127 it is not there.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT int launch_exit_code(const absl::Status& refusal);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_LAUNCHER_H_
