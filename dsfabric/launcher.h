// Starts the processes of a job on this host, and supervises them until they end. cariama-run is
// built on it; programs that launch themselves use it too.
//
//   int main(int argc, char** argv) {
//     if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
//     auto fabric = Fabric::create();   // one process of the job, for every launcher
//
//   auto code = launch({.processes = 4, .command = {"./another_program", "--verbose"}});
//   return code.ok() ? *code : 1;
//
// Each process finds the others by make_bootstrap() (bootstrap.h). To run on several hosts, use a
// PMIx launcher, or start each process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: see
// bootstrap.h.
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
  // 0: one for each pair of NUMA node and endpoint (an active port of an RDMA device), if place is
  // "zone-endpoint". Otherwise at least 1, else INVALID_ARGUMENT.
  int processes = 0;
  // Long-lived threads in each process (-t). nullopt: the program decides.
  std::optional<uint32_t> threads{};
  // The binding of each process. kNuma: processes are assigned to nodes in blocks, the first
  // processes to the first node, as evenly as possible.
  Binding bind = Binding::kNone;
  // Which NUMA node and RDMA device each process uses:
  //   ""               no choice
  //   "zone-endpoint"  the processes go through all pairs of a NUMA node and an active port, node
  //                    by node
  //   a file name      a file with one line per process:
  //                      RANK NODE [DEVICE[:PORT]]     # comment
  // A process is bound to its node's cores (to some of them with Binding::kCore), and finds its
  // device in CARIAMA_DEVICE and CARIAMA_PORT.
  std::string place{};
  // The launcher ends the job after this time. 0: no limit.
  std::chrono::milliseconds timeout{0};
  // Time between SIGTERM and SIGKILL when the launcher ends the job.
  std::chrono::milliseconds grace{5'000};
  // Prefixes each line that a process prints with "[RANK] ".
  bool tag_output = false;
  // If true, the failure of a process does not end the job. For programs that continue without a
  // dead process.
  bool keep_going = false;
  // The program, which is searched in PATH, and its arguments.
  std::vector<std::string> command{};
};

// The return value of launch() after the timeout.
inline constexpr int kLaunchTimedOut = 124;
// The return value of launch() if no process has failed, but the launcher could not write their
// tagged output.
inline constexpr int kLaunchOutputLost = 1;

// Runs the job, and blocks until it has ended. Returns 0, or the exit code of the process that
// failed first; 128 + n if signal n killed it. Among failures at nearly the same time, a death by a
// signal counts as the first one, because processes exit when a peer has died. A process that the
// launcher kills because it is stopped and all others have ended without it fails last: it makes
// the result 137 if no other process has failed.
//
// When a process fails, the launcher reports it on stderr, and sends SIGTERM to the others, and
// SIGKILL after options.grace. A process that ends with code 0 and has not finalized its fabric is
// reported, too, but is no failure. If the tagged output cannot be written, for example because the
// disk is full, the launcher reports this once, and the job continues.
//
// The launcher passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on; the job then has options.grace to
// end, and a second signal kills it immediately. Each process leads a process group, which is
// killed when the process ends. Processes that left their group are killed at the end of the job.
// If the launcher is killed, its processes and their groups are killed too.
//
// Standard input goes to rank 0; the other processes read /dev/null.
//
// While launch() runs, it handles these four signals for the whole calling process; all other
// threads should block them. Errors: INVALID_ARGUMENT (options, place file), NOT_FOUND (program,
// place file, NUMA node, device), PERMISSION_DENIED (the program cannot be run), RESOURCE_EXHAUSTED
// (processes, descriptors; memory, also after the start of the job: its processes are killed).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<int> launch(const LaunchOptions& options);

// Parses options of cariama-run (-n, -t, --bind, ...: see cariama-run --help) from the front of
// `arguments` into `options`. Stops before the first argument that is not such an option. Returns
// the number of arguments that it consumed, including a "--" that ends the options. Error:
// INVALID_ARGUMENT (an option's value).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<size_t> read_launch_options(
    std::span<const char* const> arguments, LaunchOptions& options);

// Call it in the first line of main. It makes a program that a user starts directly its own
// launcher.
//
// If a launcher has started this process (cariama-run, mpirun, srun; RANK and WORLD_SIZE are set;
// CARIAMA_BOOTSTRAP=single), does nothing and returns nullopt: this is one process of a job, and
// all its arguments are the program's. Otherwise starts the same program options.processes times,
// as launch() does, and returns the exit code for main once they have ended. Options of cariama-run
// at the front of the command line override `options`: `./program -n 4 -t 2 ...`. The processes get
// the arguments behind these. options.command is ignored.
//
// Reports errors on stderr; the exit codes are those of cariama-run. Call it before the program
// starts threads, and before anything that must happen once per process of the job.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT std::optional<int> launch_self(LaunchOptions options,
                                                                     int argc,
                                                                     const char* const* argv);

// Returns the exit code of cariama-run for an error of launch() or read_launch_options(): 2 wrong
// usage, 125 the job could not be started, 126 the program cannot be run, 127 the program was not
// found.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT int launch_exit_code(const absl::Status& refusal);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_LAUNCHER_H_
