// The environment variables by which cariama-run configures the processes that it starts.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_

namespace cariama::internal {

// "DESCRIPTOR:COOKIE": the inherited end of a socket to the launcher's store, and the kernel's
// cookie of that socket. The cookie detects a process that inherited the variable without the
// socket.
inline constexpr const char* kLaunchSocketVariable = "CARIAMA_LAUNCH_SOCKET";
inline constexpr const char* kRankVariable = "CARIAMA_RANK";
inline constexpr const char* kSizeVariable = "CARIAMA_SIZE";
// Threads per process (-t); set only if -t was given.
inline constexpr const char* kThreadsVariable = "CARIAMA_THREADS";

// The key under which the launcher puts the job's secret, as rank 0. The secret is never in an
// environment or a command line, because other processes can read or inherit these.
inline constexpr const char* kSecretKey = "cariama/secret";

// A process that exits because another process has failed puts the rank of the failed process under
// this key.
inline constexpr const char* kFailedPeerKey = "cariama/failed-peer";

// A process that considers another process failed puts this key with the rank of that process
// appended. Only with FabricOptions::lease: the failed process may be stopped, so that the launcher
// has to kill it.
inline constexpr const char* kGivenUpKey = "cariama/given-up/";

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_
