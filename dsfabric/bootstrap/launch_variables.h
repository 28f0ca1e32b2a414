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

// The key under which a process that exits because another one has failed puts the other's rank.
inline constexpr const char* kFailedPeerKey = "cariama/failed-peer";

// The key under which a process in finalize() puts the ranks that the job ends without, separated
// by commas. Only with FabricOptions::lease: one of them may be stopped and not end by itself.
inline constexpr const char* kGivenUpKey = "cariama/given-up";

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_
