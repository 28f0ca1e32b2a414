// Who the processes of a job are, and how they exchange what they need to connect: put, get, fence.
//
//   auto bootstrap = make_bootstrap();            // finds out who started us
//   (*bootstrap)->put("address", address);
//   (*bootstrap)->fence(deadline);
//   auto peer = (*bootstrap)->get(1, "address", deadline);
//
// One interface, three ways, tried in this order (CARIAMA_BOOTSTRAP = local | pmix | environment |
// single overrides):
//
//   local        cariama-run started us: its store, over a socket that we inherited
//   pmix         a PMIx launcher did (mpirun, srun --mpi=pmix, prun); it brings us to a TCP store
//                in the process of rank 0, which listens on loopback, or, if the job spans hosts,
//                where CARIAMA_LISTEN says (an address, an interface, or a network: 10.77.0.0/24)
//   environment  RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set (as torchrun does): a TCP
//                store in the process of rank 0. Peers prove that they know CARIAMA_JOB_SECRET;
//                without one the store listens on loopback, for processes of its user only
//   single       none of it: a job of one process
//
// A process joins once. Costs: the store has a socket for each process of the job.
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
#include "dtutils/process_group.h"

namespace cariama {

// What the processes of one job, and nobody else, know: 256 random bits. Connections are
// authenticated with it.
using JobSecret = std::array<uint8_t, 32>;

enum class BootstrapKind : uint8_t { kLocal, kPmix, kEnvironment, kSingle };
// "local", "pmix", "environment", "single".
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT std::string_view bootstrap_name(BootstrapKind kind);

// Who has started this process, as far as the environment says (see above). Does not join. Error:
// INVALID_ARGUMENT (CARIAMA_BOOTSTRAP).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<BootstrapKind> find_bootstrap();

// A process's view of its job. As Exchange: thread-compatible, every wait has a deadline and ends
// early when a process that it depends on has ended.
class CARIAMA_DSFABRIC_EXPORT Bootstrap : public Exchange {
 public:
  [[nodiscard]] virtual BootstrapKind kind() const = 0;
  [[nodiscard]] virtual const JobSecret& secret() const = 0;
  // Threads per process that the launcher was asked for (-t), or nothing.
  [[nodiscard]] virtual std::optional<uint32_t> threads() const = 0;
  // An address, in numbers, under which the configuration shows this process to other hosts (that
  // of the way to MASTER_ADDR), or "": then listening to other hosts takes CARIAMA_LISTEN.
  [[nodiscard]] virtual std::string listen_address() const { return {}; }
  // Tells the launcher that this process leaves in order. What it put stays. Further calls fail.
  // Waits, until the deadline, for nothing but the launcher's own protocol.
  virtual absl::Status finalize(Deadline deadline) = 0;
};

struct BootstrapOptions {
  std::optional<BootstrapKind> kind;          // default: see above
  std::chrono::milliseconds timeout{30'000};  // for reaching the store or the PMIx server
};

// Joins the job. Blocks until the launcher's service answers. Errors say which way was tried, what
// is missing, and the remedy: INVALID_ARGUMENT (an environment variable is malformed),
// FAILED_PRECONDITION (the way that was asked for is not there), UNAVAILABLE, PERMISSION_DENIED
// (the store and we do not share the secret), DEADLINE_EXCEEDED.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::unique_ptr<Bootstrap>> make_bootstrap(
    const BootstrapOptions& options = {});

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_H_
