// What cariama-run tells the processes that it starts.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_

namespace cariama::internal {

// "DESCRIPTOR:COOKIE": the inherited end of a socket to the launcher's store, and the number by
// which the kernel knows that socket. Who inherits the variable without the socket is told apart by
// it.
inline constexpr const char* kLaunchSocketVariable = "CARIAMA_LAUNCH_SOCKET";
inline constexpr const char* kRankVariable = "CARIAMA_RANK";
inline constexpr const char* kSizeVariable = "CARIAMA_SIZE";
// Threads per process (-t); set only if asked for.
inline constexpr const char* kThreadsVariable = "CARIAMA_THREADS";

// The key under which the launcher puts the job's secret, as rank 0. It never is in an environment
// or a command line: those can be read by others, or are inherited further.
inline constexpr const char* kSecretKey = "cariama/secret";

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_LAUNCH_VARIABLES_H_
