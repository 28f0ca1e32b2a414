#include "dsfabric/bootstrap.h"

#include <string>

#include "dsfabric/bootstrap/launch_variables.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dtutils/error.h"
#include "dtutils/wait.h"

namespace cariama {
namespace {

using internal::environment_variable;

constexpr BootstrapKind kKinds[] = {BootstrapKind::kLocal, BootstrapKind::kPmix,
                                    BootstrapKind::kEnvironment, BootstrapKind::kSingle};

}  // namespace

absl::StatusOr<BootstrapKind> find_bootstrap() {
  if (const auto forced = environment_variable("CARIAMA_BOOTSTRAP")) {
    for (const BootstrapKind kind : kKinds) {
      if (*forced == bootstrap_name(kind)) return kind;
    }
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "CARIAMA_BOOTSTRAP is '" + *forced + "'",
                      "set it to local, pmix, environment or single, or unset it");
  }
  if (environment_variable(internal::kLaunchSocketVariable)) return BootstrapKind::kLocal;
  if (environment_variable("PMIX_RANK") && environment_variable("PMIX_NAMESPACE")) {
    return BootstrapKind::kPmix;
  }
  // If only one of the two is set, it belongs to another program.
  if (environment_variable("RANK") && environment_variable("WORLD_SIZE")) {
    return BootstrapKind::kEnvironment;
  }
  // Set by srun for each task of a step, not in the script of sbatch. Without PMIx the tasks cannot
  // find each other: each would be a job of its own.
  const std::string tasks = environment_variable("SLURM_STEP_NUM_TASKS").value_or("1");
  if (tasks != "1") {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
        "srun started this process as one of " + tasks + " tasks, without PMIx",
        "start it by srun --mpi=pmix, or set CARIAMA_BOOTSTRAP=single if each task is "
        "to be a job of its own");
  }
  return BootstrapKind::kSingle;
}

std::string_view bootstrap_name(BootstrapKind kind) {
  switch (kind) {
    case BootstrapKind::kLocal:
      return "local";
    case BootstrapKind::kPmix:
      return "pmix";
    case BootstrapKind::kEnvironment:
      return "environment";
    case BootstrapKind::kSingle:
      return "single";
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<Bootstrap>> make_bootstrap(const BootstrapOptions& options) {
  BootstrapKind kind = BootstrapKind::kSingle;
  if (options.kind) {
    kind = *options.kind;
  } else {
    absl::StatusOr<BootstrapKind> found = find_bootstrap();
    if (!found.ok()) return found.status();
    kind = *found;
  }
  const Deadline deadline = deadline_after(options.timeout);
  const auto join = [&] {
    switch (kind) {
      case BootstrapKind::kLocal:
        return internal::join_local(deadline);
      case BootstrapKind::kPmix:
        return internal::join_pmix(deadline);
      case BootstrapKind::kEnvironment:
        return internal::join_environment(deadline);
      default:
        return internal::join_single();
    }
  };
  absl::StatusOr<std::unique_ptr<Bootstrap>> joined = join();
  if (joined.ok()) return joined;
  return make_error(joined.status().code(), error_scope(joined.status()),
                    "joining the job (" + std::string(bootstrap_name(kind)) +
                        "): " + std::string(joined.status().message()));
}

}  // namespace cariama
