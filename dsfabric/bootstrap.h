// The bootstrap of a job: gives each process its rank, and lets the processes exchange the data
// that they need to connect (put, get, fence).
//
//   auto bootstrap = make_bootstrap();            // finds out which launcher started this process
//   (*bootstrap)->put("address", address);
//   (*bootstrap)->fence(deadline);
//   auto peer = (*bootstrap)->get(1, "address", deadline);
//
// One interface, four implementations, tried in this order (CARIAMA_BOOTSTRAP = local | pmix |
// environment | single overrides):
//
//   local        cariama-run started this process. Uses the launcher's store, over an inherited
//                socket.
//   pmix         A PMIx launcher started this process (mpirun, srun --mpi=pmix, prun). PMIx is used
//                to find a TCP store in the process of rank 0. The store listens on loopback or, if
//                the job spans hosts, where CARIAMA_LISTEN says (an address, an interface, or a
//                network: 10.77.0.0/24).
//   environment  RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set (as torchrun does). Uses a
//                TCP store in the process of rank 0. Peers prove that they know CARIAMA_JOB_SECRET,
//                which a process that has joined removes from its environment; without a secret the
//                store listens on loopback, for processes of its user only.
//   single       None of the above: a job of one process. Refused in a task of srun that has other
//                tasks beside it: they were meant to be one job.
//
// A process joins once. Cost: the store has one socket for each process of the job.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dtutils/exchange.h"

namespace cariama {

// The secret of a job: 256 random bits that only its processes know. They authenticate their
// connections with it.
using JobSecret = std::array<uint8_t, 32>;

enum class BootstrapKind : uint8_t { kLocal, kPmix, kEnvironment, kSingle };
// "local", "pmix", "environment", "single".
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT std::string_view bootstrap_name(BootstrapKind kind);

// Returns the implementation that make_bootstrap() would use, as far as the environment determines
// it (see the head of this file). Does not join the job. Errors: INVALID_ARGUMENT
// (CARIAMA_BOOTSTRAP), FAILED_PRECONDITION (srun started several tasks without PMIx).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<BootstrapKind> find_bootstrap();

// The interface of one process to the bootstrap of its job. As dtutils' Exchange:
// thread-compatible; every wait has a deadline, and ends early when a process that the wait depends
// on has ended.
class CARIAMA_DSFABRIC_EXPORT Bootstrap : public Exchange {
 public:
  [[nodiscard]] virtual BootstrapKind kind() const = 0;
  [[nodiscard]] virtual const JobSecret& secret() const = 0;
  // Returns the number of threads per process that the user has requested from the launcher (-t),
  // or nullopt.
  [[nodiscard]] virtual std::optional<uint32_t> threads() const = 0;
  // Returns the numeric address under which other hosts reach this process, from the configuration
  // (the local address of the route to MASTER_ADDR). Returns "" if the configuration has no such
  // address: then CARIAMA_LISTEN is required for listening to other hosts.
  [[nodiscard]] virtual std::string listen_address() const { return {}; }
  // Reports to the launcher that this process leaves in order. The values that this process put
  // remain readable. Further calls fail. Blocks, at most until the deadline, for the launcher's own
  // protocol only.
  virtual absl::Status finalize(Deadline deadline) = 0;
};

struct BootstrapOptions {
  std::optional<BootstrapKind> kind;          // default: see above
  std::chrono::milliseconds timeout{30'000};  // for reaching the store or the PMIx server
};

// Joins the job. Blocks until the launcher's service answers. Error texts name the implementation
// that was tried, the missing part, and the remedy. Errors: INVALID_ARGUMENT (an environment
// variable is malformed), FAILED_PRECONDITION (the requested implementation is not available;
// several tasks of srun without PMIx), UNAVAILABLE, PERMISSION_DENIED (the store and this process
// do not share the secret), DEADLINE_EXCEEDED.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::unique_ptr<Bootstrap>> make_bootstrap(
    const BootstrapOptions& options = {});

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_H_
